"""Keys from a profile's `credential_process`: a real command, renewed while a confined daemon runs."""

import contextlib
import http.server
import os
import re
import textwrap
import time
import urllib.parse
from pathlib import Path

import forebay
import numpy as np
import pytest
from support import config_of, digest, digests, run_program, wait_until, write_toml
from web_folder import serving

SAMPLES = 16
SECRET = "hidden-and-never-told"


class Bucket(http.server.BaseHTTPRequestHandler):
    """As much of S3 as a listing and a read need. It takes the keys `K1`, `K2`, … while they are good."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, body, **headers):
        self.send_response(status)
        # As S3 itself sends errors.
        chunked = status >= 400
        headers |= {"Transfer-Encoding": "chunked"} if chunked else {"Content-Length": str(len(body))}
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command == "HEAD":
            return
        self.wfile.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body) if chunked else body)

    def do_GET(self):
        key = re.search(r"Credential=([^/]+)/", self.headers["Authorization"])[1]
        token = self.headers["X-Amz-Security-Token"]
        self.server.used.append(key)
        if token != f"token-of-{key}" or key in self.server.refused or self.server.good_until(key) < time.time():
            self.server.expired.append(key)
            text = "<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"
            return self.answer(400, text.encode())
        url = urllib.parse.urlparse(self.path)
        query = urllib.parse.parse_qs(url.query)
        files = self.server.files
        if "list-type" in query:
            entries = "".join(
                f"<Contents><Key>{name}</Key><Size>{len(body)}</Size><ETag>&quot;{name}&quot;</ETag>"
                "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
                for name, body in files.items()
            )
            text = f"<ListBucketResult><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>"
            return self.answer(200, text.encode())
        name = url.path.removeprefix("/data/")
        modified = {"ETag": f'"{name}"', "Last_Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
        return self.answer(200, files[name], **modified)

    do_HEAD = do_GET


@pytest.fixture
def bucket(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    for sample in range(SAMPLES):
        np.save(folder / f"{sample:02}.npy", np.full(100, sample, dtype=np.float32))
    files = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
    with serving(Bucket, files=files, used=[], expired=[], refused=set()) as server:
        server.good_until = lambda key: float((tmp_path / "runs" / key).read_text())
        yield server


@pytest.fixture
def profile(tmp_path, monkeypatch):
    """Writes the command of the profile `lab`: a run gives the next key, good for so many seconds. Gives the runs."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".aws").mkdir()
    (tmp_path / "runs").mkdir()

    def write(seconds=1e6, tells_end=True, before=""):
        command = tmp_path / "give keys"
        command.write_text(
            textwrap.dedent(f"""\
            #!/usr/bin/env python3
            import json, os, sys, time
            folder, region = sys.argv[1:]
            assert region == "eu west"
            number = len(os.listdir(folder)) + 1
            {before}
            end = time.time() + {seconds}
            with open(f"{{folder}}/K{{number}}", "w") as file:
                file.write(str(end))
            keys = {{"Version": 1, "AccessKeyId": f"K{{number}}", "SecretAccessKey": "{SECRET}"}}
            keys["SessionToken"] = f"token-of-K{{number}}"
            if {tells_end}:
                keys["Expiration"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(end))
            print(json.dumps(keys))
            """)
        )
        command.chmod(0o700)
        line = f'"{command}" {tmp_path}/runs "eu west"'
        (tmp_path / ".aws" / "config").write_text(f"[profile lab]\nregion = eu-west-1\ncredential_process = {line}\n")
        return lambda: len(os.listdir(tmp_path / "runs"))

    return write


def config(bucket, tmp_path, path="s3://data", **more):
    dataset = {"path": str(path), "format": "npy", "index": str(tmp_path / f"index-{len(str(path))}")}
    storage = {"endpoint": bucket.url, "profile": "lab"} if str(path).startswith("s3") else {}
    return config_of(dataset, storage=storage, **more)


def keepers(tmp_path):
    """The processes that run the command for this test's daemons."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            line, environment = (Path(f"/proc/{name}/{file}").read_bytes() for file in ("cmdline", "environ"))
            if b"credential-process" in line and f"HOME={tmp_path}\0".encode() in environment:
                found.append(int(name))
    return found


def test_keys_are_renewed_before_they_expire(bucket, profile, tmp_path):
    runs = profile(seconds=4)
    order = {"epochs": 6, "seed": 3}
    expected = digests(config(bucket, tmp_path, tmp_path / "data", order=order))
    found = []
    keys = config(bucket, tmp_path, order=order, ring={"slots": 3, "hold": 1}, security={"confine": "strict"})
    with forebay.Loader(keys, timeout=120) as loader:
        assert len(keepers(tmp_path)) == 1
        for _ in loader.epochs_left():
            for batch in loader:
                found.append(digest(batch))
                time.sleep(0.22)
    assert found == expected
    assert bucket.expired == []
    assert 2 <= runs() <= 60 and set(bucket.used) <= {f"K{number}" for number in range(1, runs() + 1)}
    wait_until(lambda: not keepers(tmp_path), "the end of the process that runs the command")


def test_keys_that_the_server_calls_expired_are_renewed(bucket, profile, tmp_path):
    runs = profile(tells_end=False)
    expected = digests(config(bucket, tmp_path, tmp_path / "data"))
    found = []
    with forebay.Loader(config(bucket, tmp_path, ring={"slots": 3, "hold": 1}), timeout=120) as loader:
        for batch in loader:
            found.append(digest(batch))
            bucket.refused.add("K1")
    assert found == expected and runs() == 2
    assert set(bucket.expired) == {"K1"} and set(bucket.used) == {"K1", "K2"}


@pytest.mark.parametrize(
    ("before", "says"),
    [
        ('print("SECRET"); sys.exit("no session\\nmore")', 'ended with status 1: "no session"'),
        ('print("{SECRET"); sys.exit(0)', "prints invalid JSON"),
        ("os.kill(os.getpid(), 9)", "was ended by signal 9"),
    ],
)
def test_a_command_that_fails_is_told_with_its_profile(bucket, profile, tmp_path, before, says):
    profile(before=before.replace("SECRET", SECRET))
    done = run_program("check", write_toml(tmp_path / "train.toml", config(bucket, tmp_path)))
    said = done.stdout + done.stderr
    assert done.returncode == 1 and says in said, said
    assert "profile `lab`" in said and "give keys" in said and SECRET not in said and "more" not in says, said
    assert bucket.used == []
