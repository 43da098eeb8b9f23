"""`forebay index` of a URL: how fast and how long still, and what differs from the index before."""

import io
import re

import numpy as np
import pytest
from support import config_of, run_program, write_tar, write_toml
from web_folder import served


def array(value):
    buffer = io.BytesIO()
    np.save(buffer, np.full(8, value, dtype=np.float32))
    return buffer.getvalue()


@pytest.fixture
def index(tmp_path):
    def run(url, form):
        config = config_of({"path": url, "format": form, "index": f"{tmp_path}/{form}.index"})
        done = run_program("index", write_toml(tmp_path / "train.toml", config))
        assert done.returncode == 0, done
        return done.stdout, done.stderr

    return run


def test_a_listing_tells_its_rate_and_what_has_come_and_gone(tmp_path, index):
    folder = tmp_path / "data"
    for sample in range(40):
        path = folder / f"class {sample % 20:02}" / f"{sample:02}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(array(sample))
    with served(folder, delay=0.25) as server:
        out, err = index(server.url, "npy")
        assert "40 samples in 20 classes" in out and "index:" not in out, out
        assert re.search(r"\d+ files in \d+ folders so far, \d+ files/s", err), err
        server.delay = 0
        out, _ = index(server.url, "npy")
        assert "the last index has the same files" in out, out
        for sample in (0, 1, 2, 3, 4):
            (folder / f"class {sample:02}" / f"{sample:02}.npy").unlink()
        (folder / "class 07" / "new.npy").write_bytes(array(1))
        out, _ = index(server.url, "npy")
        assert (
            "files since the last index: 1 new (`class 07/new.npy`), 5 gone (`class 00/00.npy`, "
            "`class 01/01.npy`, `class 02/02.npy`, …)" in out
        ), out


def test_archives_that_are_read_through_tell_how_long_it_takes_still(tmp_path, index):
    folder = tmp_path / "data"
    folder.mkdir()

    def write(name, samples):
        write_tar(folder / name, [(f"{sample:04}.npy", array(sample)) for sample in range(samples)])

    for shard in range(16):
        write(f"{shard:02}.tar", 20)
    with served(folder, delay=0.1) as server:
        out, err = index(server.url, "webdataset")
        assert "320 samples" in out, out
        told = re.search(
            r"(\d+) of 16 files read through \([\d.]+ \w+\): \d+ samples, \d+ samples/s, about \d+ s left", err
        )
        assert told, err
        server.delay = 0
        write("03.tar", 21)
        (folder / "05.tar").unlink()
        write("30.tar", 1)
        out, _ = index(server.url, "webdataset")
        assert "files since the last index: 1 new (`30.tar`), 1 gone (`05.tar`), 1 changed (`03.tar`)" in out, out
