"""A web server of a folder for tests: what it tells of its files, and how late it answers, can be chosen."""

import contextlib
import http.server
import io
import os
import re
import threading
import time


class Pages(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        time.sleep(self.server.delay)
        self.server.requests.append(("GET", self.path))
        super().do_GET()

    def do_HEAD(self):
        time.sleep(self.server.delay)
        self.server.requests.append(("HEAD", self.path))
        super().do_HEAD()

    def send_head(self):
        """Serves ranges, which Python's server does not."""
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers["Range"] or "")
        path = self.translate_path(self.path)
        if not asked or path.endswith("/"):
            return super().send_head()
        with open(path, "rb") as file:
            body = file.read()
        start, end = int(asked[1]), min(int(asked[2] or len(body)) + 1, len(body))
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
def served(folder, handler=Pages, **terms):
    """The server, whose `requests` were made at its `url`."""
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), lambda *arguments: handler(*arguments, directory=str(folder))
    )
    server.daemon_threads = True
    server.requests, server.tells_time, server.delay = [], True, 0
    server.url = f"http://127.0.0.1:{server.server_port}"
    for name, value in terms.items():
        setattr(server, name, value)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
