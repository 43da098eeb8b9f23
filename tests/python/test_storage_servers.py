"""Servers of other makers, each with its own ways: s3rver, rclone (its S3 checks signatures), nginx. What comes from
them is what lies in the local folder, byte for byte."""

import contextlib
import gzip
import io
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support import config_of, digests, free_port, run_program, started, write_toml

# Where scripts/setup puts them, and where Debian does.
SERVERS = Path(__file__).parents[2] / "target" / "servers"
PLACES = ["/usr/sbin", SERVERS / "node_modules" / ".bin", SERVERS / "debian" / "usr" / "sbin"]
SAMPLES = 24
# Of the only user that s3rver has.
KEY = "S3RVER"
NGINX = """
daemon off;
master_process off;
pid {place}/pid;
error_log {place}/errors;
events {{ worker_connections 512; }}
http {{
    access_log off;
    default_type application/octet-stream;
    client_body_temp_path {place}/body; proxy_temp_path {place}/proxy; fastcgi_temp_path {place}/fastcgi;
    uwsgi_temp_path {place}/uwsgi; scgi_temp_path {place}/scgi;
    root {data};
    autoindex on;
    # The server ends each connection after a few requests.
    keepalive_requests 7;
    gzip on; gzip_types *; gzip_min_length 1; gzip_proxied any;
    server {{ listen 127.0.0.1:{ports[0]}; location /whole/ {{ alias {data}/; max_ranges 0; }} }}
    ssl_certificate {place}/server.pem; ssl_certificate_key {place}/server.pem;
    server {{ listen 127.0.0.1:{ports[1]} ssl; }}
    server {{ listen 127.0.0.1:{ports[2]}; root {place}/packed; gzip_static always; }}
}}
"""


def program(name):
    path = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *map(str, PLACES)]))
    if path is None:
        pytest.skip(f"{name} is not installed: scripts/setup --python")
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder of pictures, and an array of which each row is a sample."""
    folder = tmp_path_factory.mktemp("buckets") / "served"
    generator = np.random.default_rng(3)
    for sample in range(SAMPLES):
        path = folder / "pictures" / f"class {sample % 3}" / f"{sample:02} é+%&.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(0, 255, (40, 50, 3), dtype=np.uint8)).save(path)
    np.save(folder / "rows.npy", generator.random((SAMPLES, 700)))
    return folder


def config(path, index, **storage):
    is_rows = str(path).endswith(".npy")
    operations = [] if is_rows else [{"op": "decode-image"}, {"op": "random-resized-crop", "size": 32}]
    dataset = {"path": str(path), "format": "npy" if is_rows else "image-folder", "index": str(index)}
    return config_of(dataset, operations, storage=storage, order={"epochs": 2, "seed": 7})


@pytest.fixture(scope="module")
def expected(data, tmp_path_factory):
    """The digests of the local folder's batches."""
    index = tmp_path_factory.mktemp("indexes") / "index"
    found = {name: digests(config(data / name, f"{index}-{name}")) for name in ("pictures", "rows.npy")}
    assert all(len(set(some)) == 2 * SAMPLES // 4 for some in found.values())
    return found


def assert_as_local(expected, url, tmp_path, **storage):
    for name, local in expected.items():
        assert digests(config(f"{url}/{name}", tmp_path / f"index-{name}", **storage)) == local, name


def check(tmp_path, url, **storage):
    """What `forebay check` says, which must fail."""
    path = write_toml(tmp_path / "train.toml", config(url, tmp_path / "index", **storage))
    done = run_program("check", path)
    assert done.returncode != 0, done
    return done.stdout + done.stderr


@pytest.fixture
def clear(monkeypatch):
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="module")
def s3rver(data, tmp_path_factory):
    """S3rver with the data in a bucket: its address. It looks at the keys' names alone."""
    command = program("s3rver")
    boto3 = pytest.importorskip("boto3")
    folder, port = tmp_path_factory.mktemp("s3rver"), free_port()
    endpoint = f"http://127.0.0.1:{port}"
    options = ["-d", folder, "-a", "127.0.0.1", "-p", port, "--configure-bucket", "served", "--no-vhost-buckets", "-s"]
    with started([command, *options], endpoint):
        terms = {"aws_access_key_id": KEY, "aws_secret_access_key": KEY, "region_name": "us-east-1"}
        s3 = boto3.client("s3", endpoint_url=endpoint, **terms)
        for path in data.rglob("*.*"):
            s3.put_object(Bucket="served", Key=str(path.relative_to(data)), Body=path.read_bytes())
        yield endpoint


def test_an_object_that_changed_since_the_index_is_counted_and_named(s3rver, tmp_path, clear):
    boto3 = pytest.importorskip("boto3")
    terms = {"aws_access_key_id": KEY, "aws_secret_access_key": KEY, "region_name": "us-east-1"}
    s3 = boto3.client("s3", endpoint_url=s3rver, **terms)

    def put(name, value):
        array = io.BytesIO()
        np.save(array, np.full(4, value))
        s3.put_object(Bucket="served", Key=f"changing/{name}.npy", Body=array.getvalue())

    def index():
        done = run_program("index", path, AWS_ACCESS_KEY_ID=KEY, AWS_SECRET_ACCESS_KEY=KEY)
        assert done.returncode == 0, done
        return done.stdout

    for number in range(6):
        put(number, number)
    dataset = {"path": "s3://served/changing", "format": "npy", "index": str(tmp_path / "index")}
    path = write_toml(tmp_path / "train.toml", config_of(dataset, storage={"endpoint": s3rver}))
    assert "last index" not in index()
    assert "the last index has the same files" in index()
    put(3, 30)
    s3.delete_object(Bucket="served", Key="changing/1.npy")
    assert "files since the last index: 1 gone (`1.npy`), 1 changed (`3.npy`)" in index()


@contextlib.contextmanager
def rclone(tmp_path_factory, kind, folder, *options):
    """Rclone, as a server of that kind: its address."""
    address = f"127.0.0.1:{free_port()}"
    command = [program("rclone"), "serve", kind, "--addr", address, "--config", "/dev/null", *options, folder]
    with started(command, f"http://{address}", env={**os.environ, "HOME": str(tmp_path_factory.mktemp("home"))}):
        yield f"http://{address}"


@pytest.fixture(scope="module")
def signed(data, tmp_path_factory):
    """Rclone's S3, which checks signatures, and answers a request for a part with 200: its address."""
    with rclone(tmp_path_factory, "s3", data.parent, "--auth-key", f"{KEY},{KEY}") as address:
        yield address


@pytest.mark.parametrize(
    ("key", "secret", "says"),
    [(KEY, "another", "403 SignatureDoesNotMatch"), ("NOBODY", KEY, "403 InvalidAccessKeyId")],
)
def test_a_wrong_key_is_told_with_its_profile(signed, tmp_path, clear, monkeypatch, key, secret, says):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".aws").mkdir()
    lines = ["[research]", f"aws_access_key_id = {key}", f"aws_secret_access_key = {secret}"]
    (tmp_path / ".aws" / "credentials").write_text("\n".join(lines))
    said = check(tmp_path, "s3://served/pictures", endpoint=signed, profile="research")
    assert says in said and "s3://served/pictures" in said and "profile `research`" in said, said
    assert "another" not in said, said


def test_keys_of_a_command_sign_what_the_server_checks(signed, expected, tmp_path, clear, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".aws").mkdir()
    keys = json.dumps({"Version": 1, "AccessKeyId": KEY, "SecretAccessKey": KEY})
    (tmp_path / ".aws" / "config").write_text(f"[profile lab]\ncredential_process = echo '{keys}'\n")
    assert_as_local(expected, "s3://served", tmp_path, endpoint=signed, profile="lab")


@pytest.fixture(scope="module")
def nginx(data, tmp_path_factory):
    """Nginx: its addresses without and with TLS, one that sends all compressed, and the authority's certificate."""
    command = program("nginx")
    pytest.importorskip("cryptography")
    from test_secure_storage import make_authority

    place, ports = tmp_path_factory.mktemp("nginx"), [free_port() for _ in range(3)]
    authority, _ = make_authority(place)
    for path in [*data.rglob("*.jpg"), data / "rows.npy"]:
        packed = place / "packed" / f"{path.relative_to(data)}.gz"
        packed.parent.mkdir(parents=True, exist_ok=True)
        packed.write_bytes(gzip.compress(path.read_bytes()))
    (place / "nginx.conf").write_text(NGINX.format(place=place, data=data, ports=ports))
    plain, secure, packed = [f"{kind}://127.0.0.1:{port}" for kind, port in zip(["http", "https", "http"], ports)]
    with started([command, "-p", place, "-e", place / "errors", "-c", place / "nginx.conf"], plain):
        yield plain, secure, packed, authority


@pytest.mark.parametrize("server", ["s3rver", "signed", "nginx", "nginx behind TLS", "http", "webdav"])
def test_a_server_gives_what_the_folder_gives(
    request, server, data, expected, tmp_path, tmp_path_factory, clear, monkeypatch
):
    if server in ("http", "webdav"):
        with rclone(tmp_path_factory, server, data) as address:
            return assert_as_local(expected, address, tmp_path)
    address = request.getfixturevalue(server.split()[0])
    if server in ("s3rver", "signed"):
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEY)
        return assert_as_local(expected, "s3://served", tmp_path, endpoint=address)
    monkeypatch.setenv("SSL_CERT_FILE", str(address[3]))
    return assert_as_local(expected, address["TLS" in server], tmp_path)


def test_a_server_without_ranges_gives_whole_files_and_is_named_for_parts(nginx, expected, tmp_path):
    url = f"{nginx[0]}/whole"
    assert digests(config(f"{url}/pictures", tmp_path / "index-whole")) == expected["pictures"]
    said = check(tmp_path, f"{url}/rows.npy")
    assert f"{url}/rows.npy" in said and "does not serve parts of files" in said, said


def test_bytes_that_come_compressed_unasked_are_no_data(nginx, tmp_path):
    said = check(tmp_path, f"{nginx[2]}/rows.npy")
    assert f"{nginx[2]}/rows.npy" in said and "Content-Encoding: gzip" in said, said
