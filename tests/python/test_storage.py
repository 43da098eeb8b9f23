"""A bucket of a real implementation, which checks signatures and rights: moto's server."""

import os
import sys
import urllib.request

import forebay
import numpy as np
import pytest
from support import arrays_of, config_of, free_port, started

boto3 = pytest.importorskip("boto3")
pytest.importorskip("moto.server")

SAMPLES = 40
POLICY = """{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}"""


@pytest.fixture(scope="module")
def server():
    """The server's URL; requests are not checked yet."""
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", port]
    with started(command, f"{endpoint}/moto-api/"):
        yield endpoint


def write_arrays(folder):
    """Arrays in class folders with names that a URL has to quote; their paths below the folder."""
    for sample in range(SAMPLES):
        path = folder / f"class {sample % 3}" / f"{sample:03} é+%.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, np.full((2, 3), sample, dtype=np.float32))
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.npy")}


@pytest.fixture
def bucket(server, tmp_path):
    """A folder of arrays, the same in a bucket, and the keys of a user who may read it."""
    folder = tmp_path / "data"
    terms = {"endpoint_url": server, "region_name": "us-east-1", "aws_access_key_id": "x", "aws_secret_access_key": "y"}
    s3 = boto3.client("s3", **terms)
    s3.create_bucket(Bucket="pictures")
    for name, content in write_arrays(folder).items():
        s3.put_object(Bucket="pictures", Key=f"train/{name}", Body=content)
    iam = boto3.client("iam", **terms)
    iam.create_user(UserName="reader")
    iam.put_user_policy(UserName="reader", PolicyName="read", PolicyDocument=POLICY)
    key = iam.create_access_key(UserName="reader")["AccessKey"]
    check_from_now_on(server, 0)
    yield folder, {"AWS_ACCESS_KEY_ID": key["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"]}
    check_from_now_on(server, 10**9)
    urllib.request.urlopen(urllib.request.Request(f"{server}/moto-api/reset", method="POST")).read()


def check_from_now_on(server, free):
    """Has the server check rights and signatures after so many requests."""
    terms = {"data": str(free).encode(), "headers": {"Content-Type": "text/plain"}, "method": "POST"}
    urllib.request.urlopen(urllib.request.Request(f"{server}/moto-api/reset-auth", **terms)).read()


def batches(path, index, **tables):
    dataset = {"path": str(path), "format": "npy", "index": str(index)}
    with forebay.Loader(config_of(dataset, **tables)) as loader:
        return [arrays_of(batch) for batch in loader]


def assert_same(found, expected):
    assert len(found) == len(expected) == SAMPLES // 4
    for one, other in zip(found, expected):
        for name, array in other.items():
            np.testing.assert_array_equal(one[name], array)


def clear(monkeypatch):
    for name in [name for name in os.environ if name.startswith("AWS_") and name != "AWS_CA_BUNDLE"]:
        monkeypatch.delenv(name)


def test_a_bucket_gives_the_batches_of_the_folder_to_those_who_may_read_it(server, bucket, tmp_path, monkeypatch):
    folder, keys = bucket
    expected = batches(folder, tmp_path / "local.index")
    clear(monkeypatch)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, value in keys.items():
        monkeypatch.setenv(name, value)
    remote = ("s3://pictures/train", tmp_path / "remote.index")
    assert_same(batches(*remote, storage={"endpoint": server}), expected)

    clear(monkeypatch)
    (tmp_path / ".aws").mkdir()
    lines = [f"{name.lower()} = {value}" for name, value in keys.items()]
    (tmp_path / ".aws" / "credentials").write_text("\n".join(["[research]", *lines]) + "\n")
    assert_same(batches(*remote, storage={"endpoint": server, "profile": "research"}), expected)
