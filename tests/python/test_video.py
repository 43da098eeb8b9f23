"""Folders of videos, through the whole program: clips, their times and pictures, resumes, kills of their decoders."""

import ctypes.util
import os
import shutil
import signal
import subprocess

import forebay
import numpy
import pytest
from support import ROOT, below, config_of, rows_across_a_resume, rows_of, run_program, write_toml

VIDEOS = ROOT / "daemon/crates/video/fixtures"
NAMES = ("h264-b.mp4", "h264-vfr.mp4", "hevc.mp4", "vp9.webm", "rotated.mp4", "h264-fragmented.mp4")
FRAMES = 6

pytestmark = pytest.mark.skipif(ctypes.util.find_library("avcodec") is None, reason="the host has no libavcodec")


@pytest.fixture
def videos(tmp_path):
    folder = tmp_path / "videos"
    folder.mkdir()
    for name in NAMES:
        shutil.copy(VIDEOS / name, folder / name)
    return folder


def config(videos, epochs=1, **keys):
    dataset = {"path": str(videos), "format": "video-folder", "frames": FRAMES, **keys}
    operations = [{"op": "decode-video"}, {"op": "random-resized-crop", "size": [24, 32]}]
    order = {"epochs": epochs, "seed": 3}
    return config_of(dataset, operations, order=order, output={"video": {"layout": "NCHW"}})


def read(made, **options):
    with forebay.Loader(made, **options) as loader:
        return [rows_of(loader) for _ in loader.epochs_left()]


def assert_equal(rows, others):
    assert rows.keys() == others.keys()
    for index, row in rows.items():
        for name, value in row.items():
            numpy.testing.assert_array_equal(value, others[index][name], err_msg=f"{name} of {index}")


def test_clips_are_rows_of_one_shape_and_are_drawn_anew_in_each_epoch(videos):
    first, second = read(config(videos, epochs=2))
    assert len(first) == len(second) == len(NAMES)
    for rows in (first, second):
        for row in rows.values():
            assert row["video"].shape == (FRAMES, 3, 24, 32) and row["video"].dtype == numpy.uint8
            assert row["times"].shape == (FRAMES,) and (numpy.diff(row["times"]) >= 0).all()
            assert row["video"].std() > 5
    assert any((first[index]["times"] != second[index]["times"]).any() for index in first)
    for again, before in zip(read(config(videos, epochs=2)), (first, second)):
        assert_equal(again, before)


def test_a_resume_has_the_same_clips(videos):
    made = config(videos)
    assert_equal(rows_across_a_resume(made), read(made)[0])


def test_two_ranks_have_the_clips_of_one(videos):
    made, rows = config(videos), {}
    for rank in range(2):
        rows |= read(made, rank=rank, world_size=2)[0]
    assert_equal(rows, read(made)[0])


def test_uniform_clips_have_times_of_their_own(videos):
    (rows,) = read(config(videos, start="uniform", clips=2, stride=1))
    for row in rows.values():
        assert row["video"].shape == (2, FRAMES, 3, 24, 32) and row["times"].shape == (2, FRAMES)
        assert row["times"][0, 0] <= row["times"][1, 0]


def test_a_video_that_is_cut_off_is_a_bad_sample_with_a_reason(videos):
    whole = (VIDEOS / NAMES[0]).read_bytes()
    (videos / "broken.mp4").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(forebay.Error, match=r"broken\.mp4"):
        read(config(videos))


def test_killed_decoders_change_nothing(videos):
    made = config(videos, epochs=8)
    whole = read(made)
    killed, found = 0, []
    with forebay.Loader(made) as loader:
        for _ in loader.epochs_left():
            found.append(rows_of(loader))
            for process in below(os.getpid(), "decode-media"):
                os.kill(process, signal.SIGKILL)
                killed += 1
    assert killed and len(found) == len(whole)
    for rows, expected in zip(found, whole):
        assert_equal(rows, expected)


def test_check_says_what_the_videos_are(videos, tmp_path):
    path = tmp_path / "train.toml"
    write_toml(path, config(videos))
    said = run_program("check", str(path))
    assert "h264" in said.stdout.lower() and "frames" in said.stdout, said.stdout + said.stderr


# Stands before libavcodec, and knows no decoder of VP9.
WITHOUT_VP9 = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>
const void *avcodec_find_decoder_by_name(const char *name) {
    const void *(*next)(const char *) = (const void *(*)(const char *))dlsym(RTLD_NEXT, "avcodec_find_decoder_by_name");
    return strstr(name, "vp9") ? 0 : next(name);
}
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_a_codec_that_the_host_cannot_decode_ends_the_run_with_its_package(videos, tmp_path, monkeypatch):
    source, folder = tmp_path / "library.c", tmp_path / "library"
    source.write_text(WITHOUT_VP9)
    folder.mkdir()
    library = f"-l:{ctypes.util.find_library('avcodec')}"
    made = folder / "libavcodec-other.so"
    command = ["cc", "-shared", "-fPIC", "-o", made, source, "-Wl,--no-as-needed", library, "-ldl"]
    linked = subprocess.run(command, capture_output=True, text=True)
    if linked.returncode:
        pytest.skip(f"libavcodec cannot be linked: {linked.stderr}")
    monkeypatch.setenv("FOREBAY_LIBAVCODEC", str(folder))
    # Bad samples may be replaced: this is none.
    told = config(videos) | {"errors": {"on_bad_sample": "substitute"}}
    with pytest.raises(forebay.Error, match="has no software decoder for vp9; `apt-get install ") as failed:
        read(told)
    (line,) = [line for line in str(failed.value).splitlines() if "vp9" in line]
    assert "sample" not in line, line
    # The other codecs are decoded.
    (videos / "vp9.webm").unlink()
    assert len(read(told)[0]) == len(NAMES) - 1
