"""A gateway as the hub's to its buckets: its endpoint has a path, and it checks signatures of the whole path."""

# Fixtures of another module are arguments here, too.
# ruff: noqa: F811
import hashlib
import hmac
import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest
from support import digests
from test_storage_servers import KEY, check, clear, config, data, expected, s3rver  # noqa: F401 (fixtures)

NAMESPACE, IDENTITY, SECRET = "/lab", "HFAKEXAMPLE", "of-the-gateway"


def signature_of(method, target, headers, date, signed):
    """Version 4 of Amazon's signatures, for a request to s3 in us-east-1."""
    path, _, query = target.partition("?")
    canonical = [method, path, "&".join(sorted(query.split("&")))]
    canonical += [*(f"{name}:{headers[name].strip()}" for name in signed), "", ";".join(signed)]
    canonical.append(headers["x-amz-content-sha256"])
    scope = [date[:8], "us-east-1", "s3", "aws4_request"]
    digest = hashlib.sha256("\n".join(canonical).encode()).hexdigest()
    key = b"AWS4" + SECRET.encode()
    for part in scope:
        key = hmac.digest(key, part.encode(), "sha256")
    text = "\n".join(["AWS4-HMAC-SHA256", date, "/".join(scope), digest])
    return hmac.new(key, text.encode(), "sha256").hexdigest()


class Gateway(BaseHTTPRequestHandler):
    """Passes requests whose signature is right on to the server of buckets, without the namespace."""

    protocol_version = "HTTP/1.1"
    buckets = ""
    refused = 0

    def log_message(self, *_):
        pass

    def is_signed(self):
        _, _, terms = self.headers["Authorization"].partition(" ")
        terms = dict(term.strip().split("=", 1) for term in terms.split(","))
        identity, *_ = terms["Credential"].split("/")
        signed = terms["SignedHeaders"].split(";")
        right = signature_of(self.command, self.path, self.headers, self.headers["x-amz-date"], signed)
        return identity == IDENTITY and terms["Signature"] == right

    def do_GET(self):
        if not self.path.startswith(f"{NAMESPACE}/") or not self.is_signed():
            type(self).refused += 1
            body, status = b"<Error><Code>SignatureDoesNotMatch</Code></Error>", 403
            headers = [("Content-Length", str(len(body)))]
        else:
            server = http.client.HTTPConnection(urlsplit(self.buckets).netloc)
            headers = {name.lower(): value for name, value in self.headers.items() if name.lower() != "host"}
            headers["authorization"] = headers["authorization"].replace(IDENTITY, KEY)
            server.request(self.command, self.path.removeprefix(NAMESPACE), headers=headers)
            answer = server.getresponse()
            body, status = answer.read(), answer.status
            headers = [
                (name, value)
                for name, value in answer.getheaders()
                if name.lower() not in ("transfer-encoding", "connection")
            ]
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET


@pytest.fixture
def gateway(s3rver):
    handler = type("Counted", (Gateway,), {"buckets": s3rver, "refused": 0})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}{NAMESPACE}", handler
    server.shutdown()


def test_an_endpoint_with_a_path_is_signed_and_gives_what_the_folder_gives(
    gateway,
    expected,
    tmp_path,
    clear,
    monkeypatch,
):
    endpoint, handler = gateway
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", IDENTITY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    for name, local in expected.items():
        remote = config(f"s3://served/{name}", tmp_path / f"index-{name}", endpoint=endpoint, region="us-east-1")
        assert digests(remote) == local, name
    assert handler.refused == 0
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    said = check(tmp_path, "s3://served/pictures", endpoint=endpoint, region="us-east-1")
    assert "403 SignatureDoesNotMatch" in said, said
