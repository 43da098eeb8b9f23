"""A web server of a folder for tests: what it tells of its files, and how late it answers, can be chosen."""

import contextlib
import functools
import http.server
import io
import os
import re
import ssl
import threading
import time


class Pages(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Headers and body in one packet.
    wbufsize, disable_nagle_algorithm = -1, True

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.note("GET")
        super().do_GET()

    def do_HEAD(self):
        self.note("HEAD")
        super().do_HEAD()

    def note(self, method):
        time.sleep(self.server.delay)
        self.server.requests.append((method, self.path))
        self.server.clients.append((self.path, self.client_address))

    def send_head(self):
        """Serves ranges, which Python's server does not."""
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers["Range"] or "")
        path = self.translate_path(self.path)
        if not asked or path.endswith("/"):
            return super().send_head()
        with open(path, "rb") as file:
            body = file.read()
        start, end = int(asked[1]), min(int(asked[2] or len(body)) + 1, len(body))
        self.server.parts.append((self.path, start, end - start))
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(body)}")
        self.send_header("Content-Length", str(end - start))
        self.send_header("Last-Modified", self.date_time_string(os.stat(path).st_mtime))
        self.end_headers()
        return io.BytesIO(body[start:end])

    def send_header(self, name, value):
        if name != "Last-Modified" or self.server.tells_time:
            super().send_header(name, value)


@contextlib.contextmanager
def serving(handler, certificate=None, **terms):
    """A server with these attributes, at its `url`; behind TLS if it is given a certificate with its key."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    server.url = f"{'https' if certificate else 'http'}://127.0.0.1:{server.server_port}"
    for name, value in terms.items():
        setattr(server, name, value)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def served(folder, certificate=None, **terms):
    """A server of a folder; the parts of files that it is asked for are `parts`: path, start and length."""
    handler = functools.partial(Pages, directory=str(folder))
    terms = {"requests": [], "clients": [], "parts": [], "tells_time": True, "delay": 0, **terms}
    return serving(handler, certificate, **terms)
