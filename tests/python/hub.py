"""A stand-in for Hugging Face's hub, for tests: two servers on loopback, the endpoint and its storage.

The endpoint lists repositories page by page, says which commit a branch is, and redirects requests for large files to
the storage with signed links, which expire. Both note each request with its time and its token, and may answer late. A
repository can be gated or private or move to another commit, and the number of requests can be limited.
"""

import contextlib
import functools
import hashlib
import http.server
import json
import re
import threading
import time
import urllib.parse

from web_folder import serving

TOKEN = "hf_TheTokenOfTheTests"
# A file of fewer bytes is sent by the endpoint itself, as git's own files are.
LARGE = 600
ENTRIES_A_PAGE = 5


def commit_of(number):
    return hashlib.sha1(str(number).encode()).hexdigest()


@functools.cache
def digest_of(algorithm, content):
    """Kept, since files of benchmarks are large and each link has one."""
    return hashlib.new(algorithm, content).hexdigest()


class Repository:
    """Commits of a folder's files, and what a branch names. A bucket has one commit without a name."""

    def __init__(self, kind="datasets", gated=False, private=False):
        self.kind, self.gated, self.private = kind, gated, private
        self.commits, self.refs = {}, {}

    def commit(self, folder, branch="main"):
        """Makes the folder's files the branch's new commit."""
        name = commit_of(len(self.commits) + 1)
        files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        self.commits[name] = files
        self.refs[branch] = name
        return name

    def files(self, revision):
        return self.commits.get(self.refs.get(revision, revision))


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize, disable_nagle_algorithm = -1, True

    def log_message(self, *_):
        pass

    def note(self):
        token = self.headers["Authorization"]
        self.server.requests.append((time.monotonic(), self.command, self.path, token))
        time.sleep(self.server.hub.delay)

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def answer_file(self, content, **headers):
        """A file, or the range of it that was asked for."""
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers["Range"] or "")
        if not asked:
            return self.answer(200, content, **headers)
        start, end = int(asked[1]), min(int(asked[2] or len(content)) + 1, len(content))
        if start >= len(content):
            return self.answer(416, Content_Range=f"bytes */{len(content)}")
        return self.answer(206, content[start:end], Content_Range=f"bytes {start}-{end - 1}/{len(content)}", **headers)

    def do_HEAD(self):
        self.do_GET()


class Endpoint(Handler):
    def do_GET(self):
        self.note()
        hub = self.server.hub
        limit = hub.limit()
        if limit is not None:
            return self.answer(429, b"slow down", **limit)
        path, _, query = self.path.partition("?")
        parts = [urllib.parse.unquote(part) for part in path.strip("/").split("/")]
        is_api = parts[0] == "api"
        if len(parts) < 3 + is_api:
            return self.answer(404)
        kind, owner, name, *rest = parts[is_api:]
        repository = hub.repositories.get(f"{owner}/{name}")
        has_token = self.headers["Authorization"] == f"Bearer {hub.token}"
        if (repository and repository.private and not has_token) or not repository or repository.kind != kind:
            status = 404 if has_token else 401
            return self.answer(status, X_Error_Code="RepoNotFound", X_Error_Message="Repository not found")
        if self.headers["Authorization"] and not has_token:
            return self.answer(401, X_Error_Message="Invalid credentials in Authorization header")
        if repository.gated and not (has_token and hub.has_access):
            return self.answer(
                403 if has_token else 401, X_Error_Code="GatedRepo", X_Error_Message="Access is restricted"
            )
        if is_api:
            return self.answer_api(repository, rest, urllib.parse.parse_qs(query))
        return self.answer_resolve(repository, rest[1:])

    def answer_api(self, repository, rest, query):
        # What is asked of a repository without a revision is about its branch main.
        action, *rest = rest or ["revision", "main"]
        if action == "revision":
            commit = repository.refs.get(rest[0], rest[0])
            if commit not in repository.commits:
                return self.answer(404, X_Error_Code="RevisionNotFound")
            return self.answer(200, json.dumps({"_id": "1", "id": "x", "sha": commit}).encode())
        revision, *rest = rest if repository.kind == "datasets" else ["main", *rest]
        files = repository.files(revision)
        if files is None:
            return self.answer(404, X_Error_Code="RevisionNotFound")
        folder = f"{rest[0]}/" if rest else ""
        entries = list(self.entries(repository.kind, files, folder))
        if folder and not entries:
            return self.answer(404, X_Error_Code="EntryNotFound")
        recursive = query.get("recursive", ["false"])[0]
        if recursive != "true":
            entries = [entry for entry in entries if "/" not in entry["path"][len(folder) :]]
        start = int(query.get("cursor", ["0"])[0])
        page = entries[start : start + ENTRIES_A_PAGE]
        headers = {"Content_Type": "application/json"}
        if start + len(page) < len(entries):
            plain = self.path.split("?")[0]
            next_page = f"{self.server.hub.url}{plain}?recursive={recursive}&cursor={start + len(page)}"
            headers["Link"] = f'<{next_page}>; rel="next"'
        return self.answer(200, json.dumps(page).encode(), **headers)

    def entries(self, kind, files, folder):
        folders = set()
        for path, content in sorted(files.items()):
            if not path.startswith(folder):
                continue
            for end in (place for place, char in enumerate(path) if char == "/" and place >= len(folder)):
                if path[:end] not in folders:
                    folders.add(path[:end])
                    yield {"type": "directory", "oid": "0" * 40, "size": 0, "path": path[:end]}
            entry = {"type": "file", "path": path, "size": len(content)}
            if kind == "buckets":
                entry["xetHash"] = digest_of("blake2b", content)[:64]
            else:
                entry["oid"] = digest_of("sha1", content)
                if len(content) >= LARGE:
                    lfs = digest_of("sha256", content)
                    entry["lfs"] = {"oid": lfs, "size": len(content), "pointerSize": 130}
            yield entry

    def answer_resolve(self, repository, rest):
        hub = self.server.hub
        if repository.kind == "datasets":
            revision, path = rest[0], "/".join(rest[1:])
        else:
            revision, (path,) = "main", rest
        files = repository.files(revision)
        if files is None:
            return self.answer(404, X_Error_Code="RevisionNotFound")
        if path not in files:
            return self.answer(404, X_Error_Code="EntryNotFound", X_Error_Message="Entry not found")
        content = files[path]
        if len(content) < LARGE and repository.kind == "datasets":
            return self.answer_file(content, ETag=f'"{digest_of("sha1", content)}"')
        if hub.redirect_to:
            return self.answer(302, Location=f"{hub.redirect_to}/{path}")
        link = hub.sign(content)
        headers = {"Location": link, "X_Linked_Size": str(len(content))}
        if repository.kind == "datasets":
            headers["X_Linked_ETag"] = f'"{digest_of("sha256", content)}"'
        else:
            headers["X_Xet_Hash"] = digest_of("blake2b", content)[:64]
        return self.answer(302, b"Found. Redirecting", **headers)


class Storage(Handler):
    def do_GET(self):
        self.note()
        hub = self.server.hub
        # The signature is over the URL as the endpoint sent it, with its plus.
        signed = hub.links.get(self.path)
        if signed is None or signed["left"] == 0:
            return self.answer(403, b"<Error><Code>AccessDenied</Code></Error>")
        signed["left"] -= 1
        content = signed["content"]
        return self.answer_file(content, ETag=f'"{digest_of("md5", content)}"')


class Hub:
    """The state of both servers. `reads_a_link`: after so many reads a link has expired."""

    def __init__(self):
        self.repositories, self.links = {}, {}
        self.token, self.has_access = TOKEN, True
        self.redirect_to, self.reads_a_link = None, 10**9
        # Seconds until an answer begins.
        self.delay = 0
        # Of a 429 that is due: after how many requests, and its headers. When they were sent is in `pauses`.
        self.limits, self.pauses = [], []
        self.limits_lock = threading.Lock()
        self.endpoint = self.storage = None

    @property
    def url(self):
        return self.endpoint.url

    def sign(self, content):
        path = f"/xet/{len(self.links)}/{digest_of('md5', content)}?name=a+b%20c&Signature={len(self.links)}~x__"
        self.links[path] = {"content": content, "left": self.reads_a_link}
        return self.storage.url + path

    def limit(self):
        """The headers of a 429 that is due: after so many requests, once."""
        with self.limits_lock:
            if self.limits and len(self.endpoint.requests) > self.limits[0][0]:
                self.pauses.append(time.monotonic())
                return self.limits.pop(0)[1]
        return None

    def requests(self, part):
        """Requests to the endpoint whose path has this part."""
        return [path for _, _, path, _ in self.endpoint.requests if part in path]

    def clear(self):
        self.endpoint.requests.clear()
        self.storage.requests.clear()


@contextlib.contextmanager
def serving_hub():
    hub = Hub()
    with serving(Endpoint, hub=hub, requests=[]) as hub.endpoint, serving(Storage, hub=hub, requests=[]) as hub.storage:
        # With the usual queue of five, connections that begin together wait for a second.
        for server in (hub.endpoint, hub.storage):
            server.socket.listen(128)
        yield hub
