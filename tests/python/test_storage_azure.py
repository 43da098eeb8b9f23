"""A container of Azurite, Microsoft's emulator of Azure Blob Storage, which checks signatures."""

import base64
import email.utils
import hashlib
import hmac
import os
import shutil
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from support import PROGRAM, free_port, wait_until
from test_storage import SAMPLES, assert_same, batches, config

# Where scripts/setup puts it.
PLACE = Path(__file__).parents[2] / "target" / "servers" / "node_modules" / ".bin"
AZURITE = shutil.which("azurite-blob", path=os.pathsep.join([str(PLACE), os.environ.get("PATH", "")]))
pytestmark = pytest.mark.skipif(AZURITE is None, reason="azurite is not installed")

ACCOUNT = "pictures"
KEY = base64.b64encode(b"a key of thirty-two bytes, no more").decode()


class Azure:
    """The server, and requests to it that are signed by hand: no package of Azure's is needed."""

    def __init__(self, endpoint):
        self.endpoint = endpoint

    def put(self, path, body=b"", query="", **headers):
        headers |= {"x-ms-date": email.utils.formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
        quoted = urllib.parse.quote(path)
        named = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers) if name.startswith("x-ms-"))
        terms = "".join("\n" + part.replace("=", ":") for part in query.split("&") if part)
        length = str(len(body)) if body else ""
        kind = "application/octet-stream"
        text = f"PUT\n\n\n{length}\n\n{kind}\n\n\n\n\n\n\n{named}/{ACCOUNT}/{ACCOUNT}/{quoted}{terms}"
        digest = hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()
        headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
        headers["Content-Type"] = kind
        url = f"{self.endpoint}/{quoted}" + (f"?{query}" if query else "")
        urllib.request.urlopen(urllib.request.Request(url, body, headers, method="PUT"), timeout=30).read()


@pytest.fixture(scope="module")
def azure(tmp_path_factory):
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
    process = subprocess.Popen(
        [AZURITE, "--blobPort", str(port), "--skipApiVersionCheck", "--silent", "--inMemoryPersistence"],
        cwd=tmp_path_factory.mktemp("azurite"),
        env={**os.environ, "AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def answers():
        try:
            urllib.request.urlopen(endpoint, timeout=5)
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False
        return True

    try:
        wait_until(answers, "the server's answer")
        yield Azure(endpoint)
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def folder(azure, tmp_path_factory):
    """A folder of arrays, the same in a container, and in one that all may read."""
    folder = tmp_path_factory.mktemp("data")
    azure.put("private", query="restype=container")
    azure.put("public", query="restype=container", **{"x-ms-blob-public-access": "container"})
    for sample in range(SAMPLES):
        path = folder / f"class {sample % 3}" / f"{sample:03} é+%.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, np.full((2, 3), sample, dtype=np.float32))
        for container in ("private", "public"):
            name = f"{container}/train/{path.relative_to(folder)}"
            azure.put(name, path.read_bytes(), **{"x-ms-blob-type": "BlockBlob"})
    return folder


@pytest.fixture
def clear(monkeypatch):
    for name in [name for name in os.environ if name.startswith("AZURE_")]:
        monkeypatch.delenv(name)


def test_a_container_gives_the_batches_of_the_folder(azure, folder, tmp_path, clear, monkeypatch):
    expected = batches(config(folder, tmp_path / "local.index"))
    terms = {"endpoint": azure.endpoint, "account": ACCOUNT}
    public = config("az://public/train", tmp_path / "public.index", anonymous=True, **terms)
    assert_same(batches(public), expected)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY)
    private = config("az://private/train", tmp_path / "private.index", **terms)
    private["cache"] = {"path": str(tmp_path / "cache"), "keep_free": 0}
    assert_same(batches(private), expected)
    # From the cache too: the blobs' tags are known from the listing.
    assert_same(batches(private), expected)


def test_a_wrong_key_and_a_missing_account_are_refused(azure, folder, tmp_path, clear):
    text = f"""
dataset = {{ path = "az://private/train", format = "npy", index = "{tmp_path}/index" }}
storage = {{ endpoint = "{azure.endpoint}", account = "{ACCOUNT}" }}
batch.size = 4
stage = [{{ name = "copy", operations = [] }}]
"""
    path = tmp_path / "train.toml"
    path.write_text(text)
    wrong = base64.b64encode(b"another key").decode()
    environment = {**os.environ, "AZURE_STORAGE_ACCOUNT_KEY": wrong}
    done = subprocess.run([PROGRAM, "check", str(path)], capture_output=True, text=True, timeout=120, env=environment)
    said = done.stdout + done.stderr
    assert done.returncode != 0 and "403 AuthorizationFailure" in said, said
    assert "az://private/train" in said and "AZURE_STORAGE_ACCOUNT_KEY" in said and wrong not in said, said
    path.write_text(text.replace(f', account = "{ACCOUNT}"', ""))
    done = subprocess.run([PROGRAM, "check", str(path)], capture_output=True, text=True, timeout=120)
    assert done.returncode != 0 and "set storage.account" in done.stdout + done.stderr, done
