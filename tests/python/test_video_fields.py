"""Videos within samples: in archives, in tables and in files that a list names, against the same videos in a folder."""

import ctypes.util
import os
import shutil
import signal

import forebay
import numpy
import pytest
from support import ROOT, below, config_of, rows_across_a_resume, rows_of, run_program, write_tar

VIDEOS = ROOT / "daemon/crates/video/fixtures"
NAMES = sorted(("h264-b.mp4", "h264-vfr.mp4", "hevc.mp4", "vp9.webm", "rotated.mp4", "h264-fragmented.mp4"))
CLIP = {"frames": 5, "stride": 2}
RULE = {"as": "video", "times": "times", **CLIP}

pytestmark = pytest.mark.skipif(ctypes.util.find_library("avcodec") is None, reason="the host has no libavcodec")


def archive(folder):
    members = [(f"{number}.{name.split('.')[-1]}", (VIDEOS / name).read_bytes()) for number, name in enumerate(NAMES)]
    write_tar(folder / "videos.tar", members)
    return {"path": str(folder), "format": "webdataset", "fields": {"video": {"from": ["mp4", "webm"], **RULE}}}


def table(folder):
    """As Hugging Face's `Video` is stored: a struct of a path and bytes."""
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    values = [{"bytes": (VIDEOS / name).read_bytes(), "path": name} for name in NAMES]
    kind = arrow.struct([("bytes", arrow.binary()), ("path", arrow.string())])
    parquet.write_table(arrow.table({"clip": arrow.array(values, kind)}), folder / "videos.parquet", row_group_size=4)
    return {"path": str(folder), "format": "parquet", "fields": {"video": {"from": "clip", **RULE}}}


def manifest(folder):
    for name in NAMES:
        shutil.copy(VIDEOS / name, folder / name)
    lines = [f"{name},{number / 10}\n" for number, name in enumerate(NAMES)]
    (folder / "list.csv").write_text("path,begin\n" + "".join(lines))
    return {
        "path": str(folder / "list.csv"),
        "format": "manifest",
        "fields": {"video": {"from": "path", **RULE}},
    }


def config(dataset, **order):
    operations = [{"op": "decode-video"}, {"op": "random-resized-crop", "size": [24, 32]}]
    return config_of(dataset, operations, order={"seed": 3, **order}, output={"video": {"layout": "NCHW"}})


def read(made, **options):
    with forebay.Loader(made, **options) as loader:
        return [rows_of(loader) for _ in loader.epochs_left()]


def assert_equal(rows, others):
    assert rows.keys() == others.keys()
    for index, row in rows.items():
        assert row.keys() == others[index].keys()
        for name, value in row.items():
            numpy.testing.assert_array_equal(value, others[index][name], err_msg=f"{name} of {index}")


@pytest.fixture(params=[archive, table, manifest])
def dataset(request, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    return request.param(folder)


def test_clips_are_those_of_a_folder_in_each_epoch_over_ranks_and_a_resume(dataset, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in NAMES:
        shutil.copy(VIDEOS / name, folder / name)
    expected = read(config({"path": str(folder), "format": "video-folder", **CLIP}, epochs=2))
    assert len(expected[0]) == len(NAMES)
    assert expected[0][0]["video"].shape == (5, 3, 24, 32) and expected[0][0]["times"].shape == (5,)
    for rows, others in zip(read(config(dataset, epochs=2)), expected):
        assert_equal(rows, others)
    assert_equal(rows_across_a_resume(config(dataset)), expected[0])
    ranks = {}
    for rank in range(2):
        ranks |= read(config(dataset), rank=rank, world_size=2)[0]
    assert_equal(ranks, expected[0])


def test_a_column_says_where_clips_begin(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    dataset = manifest(folder)
    dataset["fields"] |= {"begin": {"from": "begin"}}
    dataset["fields"]["video"] |= {"start_field": "begin"}
    (rows,) = read(config(dataset))
    for number, row in rows.items():
        assert row["begin"] == pytest.approx(number / 10)
        # The frame at a time is the last one that is not later.
        first = read(config({**dataset, "fields": {"video": {"from": "path", **RULE, "start": 0}}}))[0][number][
            "times"
        ][0]
        assert first <= row["times"][0] <= first + number / 10 + 1e-9
        assert number == 0 or row["times"][0] > first


def test_damaged_videos_are_bad_samples_named_by_their_field(tmp_path):
    whole = (VIDEOS / NAMES[0]).read_bytes()
    write_tar(tmp_path / "v.tar", [("0.mp4", whole), ("1.mp4", whole[: len(whole) // 2]), ("2.mp4", b"none")])
    dataset = {"path": str(tmp_path / "v.tar"), "format": "webdataset", "fields": {"clip": {"from": "mp4", **RULE}}}
    made = config_of(dataset, [{"op": "decode-video"}, {"op": "resize", "size": [24, 32]}])
    with pytest.raises(forebay.Error, match=r"v\.tar.*`clip`: "):
        read(made)
    with forebay.Loader(made | {"errors": {"on_bad_sample": "substitute", "budget": 2}}) as loader:
        (batch,) = loader
        assert batch["index"].tolist() == [0, 0, 0]


def test_killed_decoders_change_nothing(dataset):
    made = config(dataset, epochs=4)
    whole = read(made)
    killed = 0
    with forebay.Loader(made) as loader:
        for expected in whole:
            loader.epochs_left()
            rows = rows_of(loader)
            for process in below(os.getpid(), "decode-media"):
                os.kill(process, signal.SIGKILL)
                killed += 1
            assert_equal(rows, expected)
    assert killed


def test_init_names_a_damaged_video_and_still_proposes_clips(tmp_path):
    whole, folder = (VIDEOS / NAMES[0]).read_bytes(), tmp_path / "data"
    folder.mkdir()
    write_tar(folder / "v.tar", [("0.mp4", whole), ("1.mp4", whole[: len(whole) // 2]), ("2.mp4", b"")])
    path = tmp_path / "train.toml"
    done = run_program("init", folder, "-o", path)
    assert 'mp4 = { from = "mp4", as = "video", frames = 16' in path.read_text()
    assert "2 of the 3 samples that were read cannot be used" in done.stdout, done.stdout


def test_init_takes_no_other_file_for_a_video(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    heic = b"\0\0\0\x18ftypheic\0\0\0\0heicmif1" + bytes(90)
    write_tar(folder / "v.tar", [("0.heic", heic), ("0.bin", b""), ("1.heic", heic), ("1.bin", b"hello")])
    path = tmp_path / "train.toml"
    done = run_program("init", folder, "-o", path)
    assert done.returncode == 0 and "cannot be used" not in done.stdout + done.stderr, done
    assert path.read_text().count('as = "bytes"') == 2


def test_the_time_of_decoders_counts(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    with forebay.Loader(config(archive(folder), epochs=20)) as loader:
        for _ in loader.epochs_left():
            rows_of(loader)
        stats = loader.stats()
    decoders = stats["streams"][0]["decoders_cpu_seconds"]
    assert 0 < decoders < stats["cpu_seconds"]


def test_init_proposes_clips(dataset, tmp_path):
    tomllib = pytest.importorskip("tomllib", reason="Python 3.11 reads TOML")
    path = tmp_path / "train.toml"
    run_program("init", dataset["path"], "-o", str(path))
    proposed = tomllib.loads(path.read_text())
    (name,) = [name for name, field in proposed["dataset"]["fields"].items() if field["as"] == "video"]
    assert proposed["dataset"]["fields"][name]["frames"] == 16
    assert {"op": "decode-video", "field": name} in proposed["stage"][0]["operations"]
    said = run_program("check", str(path)).stdout
    assert f"16 frames with stride 4 from a random place of each `{name}`" in said, said
    with forebay.Loader(str(path), overrides={"batch.size": 2}) as loader:
        assert next(iter(loader))[name].shape == (2, 16, 3, 224, 224)
