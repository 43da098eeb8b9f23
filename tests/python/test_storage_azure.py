"""A container of Azurite, Microsoft's emulator of Azure Blob Storage, which checks signatures."""

import base64
import email.utils
import hashlib
import hmac
import os
import shutil
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
from support import config_of, free_port, run_program, started, write_toml
from test_storage import assert_same, batches, write_arrays

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
    command = [AZURITE, "--blobPort", port, "--skipApiVersionCheck", "--silent", "--inMemoryPersistence"]
    environment = {**os.environ, "AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}"}
    with started(command, endpoint, cwd=tmp_path_factory.mktemp("azurite"), env=environment):
        yield Azure(endpoint)


@pytest.fixture(scope="module")
def folder(azure, tmp_path_factory):
    """A folder of arrays, the same in a container, and in one that all may read."""
    folder = tmp_path_factory.mktemp("data")
    azure.put("private", query="restype=container")
    azure.put("public", query="restype=container", **{"x-ms-blob-public-access": "container"})
    for name, content in write_arrays(folder).items():
        for container in ("private", "public"):
            azure.put(f"{container}/train/{name}", content, **{"x-ms-blob-type": "BlockBlob"})
    return folder


@pytest.fixture
def clear(monkeypatch):
    for name in [name for name in os.environ if name.startswith("AZURE_")]:
        monkeypatch.delenv(name)


def test_a_container_gives_the_batches_of_the_folder(azure, folder, tmp_path, clear, monkeypatch):
    expected = batches(folder, tmp_path / "local.index")
    storage = {"endpoint": azure.endpoint, "account": ACCOUNT}
    public = batches("az://public/train", tmp_path / "public.index", storage={"anonymous": True, **storage})
    assert_same(public, expected)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY)
    cache = {"path": str(tmp_path / "cache"), "keep_free": 0}
    # From the cache too: the blobs' tags are known from the listing.
    for _ in range(2):
        private = batches("az://private/train", tmp_path / "private.index", storage=storage, cache=cache)
        assert_same(private, expected)


def test_a_wrong_key_and_a_missing_account_are_refused(azure, folder, tmp_path, clear):
    wrong = base64.b64encode(b"another key").decode()

    def said(account):
        dataset = {"path": "az://private/train", "format": "npy", "index": str(tmp_path / "index")}
        config = config_of(dataset, storage={"endpoint": azure.endpoint, **account})
        done = run_program("check", write_toml(tmp_path / "train.toml", config), AZURE_STORAGE_ACCOUNT_KEY=wrong)
        assert done.returncode != 0, done
        return done.stdout + done.stderr

    refused = said({"account": ACCOUNT})
    assert "403 AuthorizationFailure" in refused and "az://private/train" in refused, refused
    assert "AZURE_STORAGE_ACCOUNT_KEY" in refused and wrong not in refused, refused
    assert "set storage.account" in said({})
