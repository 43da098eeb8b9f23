"""A stand-in for storages whose answers begin late, for benchmarks: the hub of tests/python and an S3 bucket.

    python late_storage.py FOLDER SECONDS        prints a line of JSON with the URLs, and serves until it is killed

The folder is the dataset lab/data of the hub and the bucket `data` of S3. Both have their files from one server, which
waits on a clock, not in threads: a request costs little, and hundreds can be under way. It uses uvloop if that is
installed. The hub's links lead to it too; the endpoint that lists files and gives links is the stand-in's own, late by
the same time. `/counts` has how many requests both have answered.
"""

from __future__ import annotations

import asyncio
import email.utils
import hashlib
import importlib
import importlib.util
import json
import mmap
import re
import sys
import threading
import urllib.parse
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parent.parent.parent
BUCKET, REPOSITORY = "data", "lab/data"
TIME = 1_700_000_000
WANTED = re.compile(rb"([A-Z]+) (\S+) HTTP/1\.1\r\n", re.ASCII)
RANGE = re.compile(rb"\r\nrange: *bytes=(\d+)-(\d*)\r\n", re.IGNORECASE)


class Store:
    """The files in memory, and what was asked for."""

    def __init__(self, folder: Path, delay: float) -> None:
        self.delay = delay
        self.files: dict[str, tuple[memoryview, str]] = {}
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            with path.open("rb") as file:
                content = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
            self.files[str(path.relative_to(folder))] = content, hashlib.md5(content).hexdigest()
        # By the target of a request: the content, and what every answer about it has in its header.
        self.targets: dict[bytes, tuple[memoryview, str]] = {}
        self.num_requests = 0
        self.hub: Any = None

    def listing(self, prefix: str) -> bytes:
        """All objects below the prefix, on one page."""
        time = "2023-11-14T22:13:20.000Z"
        entries = "".join(
            f'<Contents><Key>{escape(key)}</Key><LastModified>{time}</LastModified><ETag>"{tag}"</ETag>'
            f"<Size>{len(content)}</Size><StorageClass>STANDARD</StorageClass></Contents>"
            for key, (content, tag) in self.files.items()
            if key.startswith(prefix)
        )
        return (
            f'<?xml version="1.0" encoding="UTF-8"?><ListBucketResult><Name>{BUCKET}</Name>'
            f"<Prefix>{escape(prefix)}</Prefix><MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated>"
            f"{entries}</ListBucketResult>"
        ).encode()

    def counts(self) -> bytes:
        return json.dumps({"requests": self.num_requests + len(self.hub.endpoint.requests)}).encode()

    def answer(self, request: bytes) -> tuple[bytes, bytes | memoryview]:
        """Header and body. The path is that of a bucket, or of a link of the hub, which has a signature."""
        found = WANTED.match(request)
        if not found:
            return header(400, 0), b""
        known = self.targets.get(found[2])
        if known is None:
            target = urllib.parse.urlsplit(found[2].decode())
            path, query = urllib.parse.unquote(target.path).lstrip("/"), urllib.parse.parse_qs(target.query)
            if path == "counts":
                body = self.counts()
                return header(200, len(body)), body
            self.num_requests += 1
            if "list-type" in query:
                body = self.listing(query.get("prefix", [""])[0])
                return header(200, len(body), "Content-Type: application/xml"), body
            content, tag = self.files.get(path.removeprefix(f"{BUCKET}/"), (None, ""))
            if content is None:
                return header(404, 0), b""
            time = email.utils.formatdate(TIME, usegmt=True)
            known = content, f'ETag: "{tag}"\r\nLast-Modified: {time}\r\nAccept-Ranges: bytes'
            self.targets[found[2]] = known
        else:
            self.num_requests += 1
        content, terms = known
        asked = RANGE.search(request)
        if asked:
            start, end = int(asked[1]), min(int(asked[2] or len(content)) + 1, len(content))
            part = f"Content-Range: bytes {start}-{end - 1}/{len(content)}"
            return header(206, end - start, terms, part), content[start:end]
        return header(200, len(content), terms), content if found[1] != b"HEAD" else b""


def header(status: int, length: int, *terms: str) -> bytes:
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {length}", *terms]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


class Connection(asyncio.Protocol):
    """One request at a time, each answered after the delay."""

    def __init__(self, store: Store) -> None:
        self.store, self.received = store, b""
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        if self.received.endswith(b"\r\n\r\n"):
            request, self.received = self.received, b""
            asyncio.get_running_loop().call_later(self.store.delay, self.send, request)

    def send(self, request: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.writelines(self.store.answer(request))


async def serve(store: Store, sender: Any) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: Connection(store), "127.0.0.1", 0, backlog=512)
    port = server.sockets[0].getsockname()[1]
    sender(f"http://127.0.0.1:{port}")
    await server.serve_forever()


def main() -> None:
    folder, delay = Path(sys.argv[1]), float(sys.argv[2])
    sys.path.insert(0, str(ROOT / "tests/python"))
    tests: Any = importlib.import_module("hub")
    store = Store(folder, delay)
    with tests.serving_hub() as hub:
        hub.delay, store.hub = delay, hub
        # Contestants are ended while they are connected.
        hub.endpoint.handle_error = lambda *_: None
        hub.repositories[REPOSITORY] = tests.Repository()
        hub.repositories[REPOSITORY].commit(folder)
        names = {tag: name for name, (_, tag) in store.files.items()}

        def begin(url: str) -> None:
            hub.sign = lambda content: f"{url}/{names[tests.digest_of('md5', content)]}?Signature=a+b~x__"
            print(json.dumps({"hub": hub.url, "s3": url}), flush=True)

        runner: Any = asyncio
        if importlib.util.find_spec("uvloop"):
            runner = importlib.import_module("uvloop")
        runner.run(serve(store, begin))


if __name__ == "__main__":
    # The endpoint's few threads share the interpreter with the server; it must not wait for them long.
    sys.setswitchinterval(0.001)
    threading.stack_size(256 * 1024)
    main()
