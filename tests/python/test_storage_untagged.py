"""The cache before a server whose listings have no tags: files are told apart by what it says of each, or not kept."""

import io
import os
import shutil

import forebay
import numpy as np
import pytest
from support import config_of, digests, run_program, wait_until, write_tar, write_toml
from web_folder import served

SAMPLES = 16


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    for sample in range(SAMPLES):
        np.save(folder / f"{sample:02}.npy", np.full(500, sample, dtype=np.float32))
    return folder


def config(path, tmp_path, name, **storage):
    dataset = {"path": str(path), "format": "npy", "index": str(tmp_path / f"{name}.index")}
    cache = {} if name == "local" else {"cache": {"path": str(tmp_path / name), "keep_free": 0}}
    return config_of(dataset, storage=storage, **cache)


def entries(tmp_path, name):
    """Entries of the cache: files below its folders of two digits."""
    return sum(path.is_file() for path in (tmp_path / name).glob("user-*/*/*/*"))


def asked(server):
    """How often a file was asked for, and for its status."""
    found = {
        method: sum(one == method and path.endswith(".npy") for one, path in server.requests)
        for method in ("GET", "HEAD")
    }
    server.requests.clear()
    return found["GET"], found["HEAD"]


def test_files_that_a_server_tells_apart_are_kept_and_their_changes_met(folder, tmp_path):
    with served(folder) as server:
        keys = config(server.url, tmp_path, "told")
        assert digests(keys) == digests(config(folder, tmp_path, "local"))
        assert entries(tmp_path, "told") == SAMPLES
        asked(server)
        assert digests(keys) == digests(config(folder, tmp_path, "local"))
        gets, heads = asked(server)
        # The first file may be looked at for its shape.
        assert gets <= 1 and heads >= SAMPLES
        # As long as before, and another.
        np.save(folder / "03.npy", np.full(500, -3, dtype=np.float32))
        os.utime(folder / "03.npy", (1e9, 1e9))
        assert digests(keys) == digests(config(folder, tmp_path, "local"))
        assert entries(tmp_path, "told") == SAMPLES + 1


def test_files_that_a_server_does_not_tell_apart_are_not_kept_which_is_said(folder, tmp_path, capfd):
    with served(folder, tells_time=False) as server:
        keys = config(server.url, tmp_path, "untold")
        for value in (-1, -2):
            np.save(folder / "03.npy", np.full(500, value, dtype=np.float32))
            assert digests(keys) == digests(config(folder, tmp_path, "local"))
        assert entries(tmp_path, "untold") == 0
        said = capfd.readouterr().err
        assert "neither a tag (ETag) nor a time of change" in said and "storage.immutable = true" in said, said
        done = run_program("cache", write_toml(tmp_path / "train.toml", keys), "fill")
        assert done.returncode == 1 and "storage.immutable" in done.stderr, done
        assert "0 were kept" in done.stdout, done


def test_files_that_never_change_are_kept_by_name_and_nobody_is_asked(folder, tmp_path):
    expected = digests(config(folder, tmp_path, "local"))
    with served(folder, tells_time=False) as server:
        keys = config(server.url, tmp_path, "named", immutable=True)
        assert digests(keys) == expected
        assert entries(tmp_path, "named") == SAMPLES
        asked(server)
        assert digests(keys) == expected
        gets, heads = asked(server)
        assert gets <= 1 and heads <= 1


def test_an_archive_that_was_replaced_since_the_index_is_named(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()

    def write(value):
        members = []
        for sample in range(8):
            array = io.BytesIO()
            np.save(array, np.full(4, value + sample))
            members.append((f"{sample}.npy", array.getvalue()))
        write_tar(folder / "one.tar", members)

    write(1)
    with served(folder) as server:
        keys = config(server.url, tmp_path, "archive")
        keys["dataset"]["format"] = "webdataset"
        first = digests(keys)
        assert digests(keys) == first
        write(2)
        os.utime(folder / "one.tar", (1e9, 1e9))
        cache = tmp_path / "archive"

        def is_removed():
            # A daemon that is about to end may still write into it.
            shutil.rmtree(cache, ignore_errors=True)
            return not cache.exists()

        wait_until(is_removed, "the cache's removal")
        with pytest.raises(forebay.Error, match=r"one\.tar.*another tag \(ETag\) or time"):
            digests(keys)
