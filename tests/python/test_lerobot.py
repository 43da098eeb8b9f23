"""Recordings of robots, through the whole program: values, pictures of their instants, stacked fields, resumes."""

import ctypes.util
import json
import shutil

import forebay
import numpy
import pytest
from support import FIXTURES, config_of, rows_across_a_resume, rows_of, run_program, write_toml

TOP, WRIST = "observation.images.top", "observation.images.wrist"
SIZES = {TOP: [48, 64], WRIST: [32, 48]}
FRAMES = 21
FIRSTS = (0, 7, 12)

pytestmark = pytest.mark.skipif(ctypes.util.find_library("avcodec") is None, reason="the host has no libavcodec")


@pytest.fixture
def recordings(tmp_path):
    return shutil.copytree(FIXTURES / "lerobot/v3", tmp_path / "recordings")


def config(recordings, cameras=(TOP, WRIST), epochs=1, output=None, **keys):
    dataset = {"path": str(recordings), "format": "lerobot", **keys}
    operations = []
    for camera in cameras:
        operations += [{"op": "decode-video", "field": camera}]
        operations += [{"op": "center-crop", "field": camera, "size": SIZES[camera]}]
    made = {camera: {"layout": "NCHW"} for camera in cameras}
    return config_of(dataset, operations, order={"epochs": epochs, "seed": 3}, output=output or made)


def read(made, **options):
    with forebay.Loader(made, **options) as loader:
        return [rows_of(loader) for _ in loader.epochs_left()]


def assert_equal(rows, others):
    assert rows.keys() == others.keys()
    for index, row in rows.items():
        for name, value in row.items():
            numpy.testing.assert_array_equal(value, others[index][name], err_msg=f"{name} of {index}")


def assert_shows(picture, camera, frame):
    """The generator gives each frame of a camera one level of grey, and a darker quarter."""
    level = 30 + 10 * frame if camera == TOP else 240 - 10 * frame
    assert picture.shape == (3, *SIZES[camera])
    assert abs(picture[:, -8:, -8:].mean() - level) < 3
    assert abs(picture[:, :8, :8].mean() - level // 2) < 3


def episode_of(index):
    return max(number for number, first in enumerate(FIRSTS) if first <= index)


def test_a_row_is_a_frame_with_the_pictures_of_its_instant(recordings):
    (rows,) = read(config(recordings))
    assert len(rows) == FRAMES
    for index, row in rows.items():
        numpy.testing.assert_allclose(row["observation.state"], index + numpy.arange(3) / 8)
        assert row["action"].dtype == numpy.float32 and row["action"].shape == (2,)
        assert row["episode_index"] == episode_of(index)
        assert row["next.done"] == (index in (6, 11, 20))
        for camera in (TOP, WRIST):
            assert row[camera].shape[0] == 1
            assert_shows(row[camera][0], camera, index)


def test_fields_are_stacked_and_clamped_at_the_ends(recordings):
    deltas = {"action": [0, 0.1, 0.2], TOP: [-0.1, 0]}
    (rows,) = read(config(recordings, delta_timestamps=deltas))
    for index, row in rows.items():
        episode = episode_of(index)
        first, last = FIRSTS[episode], (*FIRSTS[1:], FRAMES)[episode] - 1
        actions = [min(index + delta, last) for delta in range(3)]
        numpy.testing.assert_allclose(row["action"][:, 0], numpy.negative(actions))
        assert row["action_is_pad"].tolist() == [index + delta > last for delta in range(3)]
        assert row[f"{TOP}_is_pad"].tolist() == [index == first, False]
        for picture, frame in zip(row[TOP], (max(index - 1, first), index)):
            assert_shows(picture, TOP, frame)


def test_a_resume_and_two_ranks_have_the_same_rows(recordings):
    made = config(recordings, delta_frames={WRIST: [-1, 0]})
    (whole,) = read(made)
    assert_equal(rows_across_a_resume(made), whole)
    parts = [read(made, rank=rank, world_size=2)[0] for rank in range(2)]
    assert_equal(parts[0] | parts[1], whole)


def test_tasks_and_conditions_choose_episodes(recordings):
    made = config(recordings, features=["task", "frame_index"], cameras=(), where="task like 'open%'", output={})
    with forebay.Loader(made) as loader:
        found = [
            (int(index), int(frame), text)
            for batch in loader
            for index, frame, text in zip(batch["index"], batch["frame_index"], batch["task"].strings())
        ]
    assert sorted(found) == [(7 + frame, frame, "open the drawer") for frame in range(5)]


def test_statistics_normalize_pictures(recordings):
    statistics = json.loads((recordings / "meta/stats.json").read_text())[TOP]
    mean, std = (numpy.ravel(statistics[name]) for name in ("mean", "std"))
    plain = {"layout": "NCHW"}
    floats = {**plain, "dtype": "float32", "mean": mean.tolist(), "std": std.tolist()}
    keys = {"cameras": (TOP,), "features": [TOP]}
    (rows,) = read(config(recordings, **keys, output={TOP: floats}))
    (bytes_,) = read(config(recordings, **keys, output={TOP: plain}))
    for index, row in rows.items():
        expected = (bytes_[index][TOP] / 255 - mean[:, None, None]) / std[:, None, None]
        numpy.testing.assert_allclose(row[TOP], expected, atol=1e-4)


def test_both_commands_say_what_the_recordings_are(recordings, tmp_path):
    path, made = tmp_path / "train.toml", config(recordings)
    del made["output"]
    write_toml(path, made)
    said = run_program("check", str(path))
    assert f"3 episodes, 21 frames at 10 a second; 2 cameras: {TOP}, {WRIST}" in said.stdout, said.stdout + said.stderr
    made = tmp_path / "made.toml"
    said = run_program("init", str(recordings), "--output", str(made))
    text = made.read_text()
    assert 'format = "lerobot"' in text and f'op = "decode-video", field = "{TOP}"' in text, text + said.stderr
    assert '# [output."observation.images.top"]' in text and "# mean = [0.5000, 0.2500, 0.1250]" in text
