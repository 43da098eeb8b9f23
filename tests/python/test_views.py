"""Several views of a picture: the same for any number of threads and after a killed daemon.

Also the presets `dino` and `clip`, and the examples that train with them.
"""

import io
import os
import signal

import forebay
import numpy
import pytest
from PIL import Image
from support import arrays_of, check_that_an_example_learns, config_of

COLOURS = {"red": (220, 40, 30), "green": (30, 200, 50), "blue": (40, 50, 220), "grey": (120, 120, 120)}
PICTURES = 32


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """JPEGs of four colours, with captions that name them."""
    folder = tmp_path_factory.mktemp("views")
    lines = ["image,caption"]
    for number in range(PICTURES):
        name = list(COLOURS)[number % 4]
        random = numpy.random.default_rng(number)
        pixels = random.integers(-25, 25, (150, 200, 3)) + numpy.array(COLOURS[name])
        path = folder / "pictures" / name / f"{number:02}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.clip(0, 255).astype(numpy.uint8)).save(path, quality=92)
        lines.append(f"{path},a wall that is painted {name}")
    (folder / "pairs.csv").write_text("\n".join(lines) + "\n")
    return folder


def crop(size, low, high):
    return {"op": "random-resized-crop", "size": size, "area": [low, high]}


def views(pictures, threads=1, **changed):
    """Two views of 48 × 48 pixels, the second one turned, and three of 24 × 24."""
    jitter = {"op": "color-jitter", "brightness": 0.4, "hue": 0.1}
    lists = {
        "global": [crop(48, 0.4, 1.0), {"op": "random-horizontal-flip"}, jitter],
        "global_1": [crop(48, 0.4, 1.0), {"op": "rotate", "degrees": 30}],
        "local": [crop(24, 0.05, 0.4), {"op": "random-apply", "operations": [jitter]}],
    }
    made = {"op": "views", "outputs": {"global": 2, "local": 3}, "operations": lists, **changed}
    return config_of(
        {"format": "image-folder", "path": str(pictures / "pictures")},
        order={"seed": 5, "epochs": 2},
        stage=[{"name": "all", "concurrency": threads, "operations": [{"op": "decode-image"}, made]}],
    )


def batches(config, kill_at=None, state=None):
    found = []
    with forebay.Loader(config, timeout=120, state=state) as loader:
        for _ in loader.epochs_left():
            for batch in loader:
                found.append({**arrays_of(batch), "state": loader.state_dict()})
                if len(found) == kill_at:
                    os.kill(loader.daemon_pid, signal.SIGKILL)
    return found


def assert_same(some, others):
    assert len(some) == len(others) > 0
    for one, other in zip(some, others):
        assert set(one) == set(other)
        for name in set(one) - {"state"}:
            numpy.testing.assert_array_equal(one[name], other[name], name)


VIEWS = ["global_0", "global_1", "local_0", "local_1", "local_2"]


def test_views_are_the_same_for_any_threads_and_after_a_kill_and_a_resume(pictures):
    first = batches(views(pictures))
    assert set(first[0]) == {*VIEWS, "label", "index", "state"} and len(first) == 2 * PICTURES // 4
    assert [first[0][name].shape for name in VIEWS] == [(4, 3, 48, 48)] * 2 + [(4, 3, 24, 24)] * 3
    for threads in (2, 4):
        assert_same(first, batches(views(pictures, threads)))
    assert_same(first, batches(views(pictures, 2), kill_at=3))
    assert_same(first[5:], batches(views(pictures, 2), state=first[4]["state"]))
    rows = [row.tobytes() for batch in first for name in VIEWS for row in batch[name]]
    assert len(set(rows)) == len(rows), "each view of each sample in each epoch is drawn anew"


def test_one_entry_of_output_is_for_all_views_of_a_name(pictures):
    half = {"mean": [0.5] * 3, "std": [0.25] * 3, "dtype": "float32", "layout": "NHWC"}
    plain = batches(views(pictures))
    config = {**views(pictures), "output": {"global": half, "local_1": {"layout": "NHWC"}}}
    for before, after in zip(plain, batches(config)):
        for name in ("global_0", "global_1"):
            expected = (before[name] / numpy.float32(255) - numpy.float32(0.5)) / numpy.float32(0.25)
            numpy.testing.assert_allclose(after[name], expected.transpose(0, 2, 3, 1), atol=1e-6)
        numpy.testing.assert_array_equal(after["local_1"], before["local_1"].transpose(0, 2, 3, 1))
        numpy.testing.assert_array_equal(after["local_0"], before["local_0"])


def test_a_state_of_other_views_is_refused_and_mistakes_are_named(pictures):
    state = batches(views(pictures))[2]["state"]
    with pytest.raises(forebay.StateMismatch, match="operations"):
        batches(views(pictures, outputs={"global": 2, "local": 4}), state=state)
    with pytest.raises(
        forebay.ConfigError, match=r"operations\.locl` is for no view of `outputs`; did you mean `local`"
    ):
        forebay.Loader(views(pictures, operations={"global": [], "locl": []}))


def test_what_is_cut_out_is_cut_out_of_the_picture(pictures):
    """A picture whose colours are its places: where each view lies is read from its pixels."""
    folder = pictures / "places"
    if not folder.exists():
        (folder / "all").mkdir(parents=True)
        x, y = numpy.meshgrid(numpy.arange(256), numpy.arange(192))
        pixels = numpy.stack([x, y, numpy.zeros_like(x)], axis=2).astype(numpy.uint8)
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "JPEG", quality=98, subsampling=0)
        for number in range(20):
            (folder / "all" / f"{number}.jpg").write_bytes(buffer.getvalue())
    lists = {"global": [crop(64, 0.5, 1.0)], "local": [crop(16, 0.02, 0.1)]}
    config = views(pictures, operations=lists)
    config["dataset"]["path"] = str(folder)
    corners = []
    for batch in batches(config):
        for name in VIEWS:
            for view in batch[name].astype(int):
                (left, top), (right, bottom) = view[:2, 2, 2], view[:2, -3, -3]
                share = (right - left) * (bottom - top) / (256 * 192)
                assert (0.3 < share < 1) if name.startswith("global") else (0.005 < share < 0.1), (name, share)
                corners.append((left, top, right, bottom))
    assert len(set(corners)) > 0.9 * len(corners)


SOURCES = {
    "dino": '[dataset]\npath = "pictures"\n',
    "clip": (
        '[dataset]\nformat = "manifest"\npath = "pairs.csv"\n'
        '[dataset.fields]\nimage = { from = "image", as = "image" }\ncaption = { from = "caption", as = "text" }\n'
    ),
}


def write(pictures, preset, more):
    file = pictures / f"{preset}.toml"
    file.write_text(f'preset = "{preset}"\n{SOURCES[preset]}{more}')
    return file


def test_the_presets_give_views_and_pairs(pictures):
    batch = "[batch]\nsize = 4\n[order]\nepochs = 1\n"
    with forebay.Loader(write(pictures, "dino", batch), timeout=120) as loader:
        found = next(iter(loader))
        sides = {"global_0": 224, "global_1": 224, **{f"local_{number}": 96 for number in range(6)}}
        assert set(found) == {*sides, "label", "index"}
        for name, side in sides.items():
            assert found[name].shape == (4, 3, side, side) and found[name].dtype == numpy.uint8
    with forebay.Loader(write(pictures, "clip", batch), timeout=120) as loader:
        found = next(iter(loader))
        assert found["image"].shape == (4, 3, 224, 224) and found["image"].dtype == numpy.float32
        mean, std = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
        for image, caption in zip(found["image"], found["caption"].strings()):
            colour = COLOURS[caption.removeprefix("a wall that is painted ")]
            expected = (numpy.array(colour) / 255 - mean) / std
            numpy.testing.assert_allclose(image.mean(axis=(1, 2)), expected, atol=0.1)


def test_a_folder_of_pictures_without_classes_gives_views_and_no_label(pictures, tmp_path):
    for picture in sorted((pictures / "pictures").rglob("*.*"))[:8]:
        (tmp_path / f"{picture.parent.name}-{picture.name}").write_bytes(picture.read_bytes())
    config = {"dataset.path": str(tmp_path), "batch.size": 4, "order.epochs": 1}
    with forebay.Loader(config, preset="dino", timeout=120) as loader:
        found = next(iter(loader))
    views = {"global_0", "global_1", *(f"local_{number}" for number in range(6))}
    assert set(found) == {*views, "index"}
    assert found["global_0"].shape == (4, 3, 224, 224)


DINO = """
[[stage]]
name = "preprocess"
operations = [
  { op = "decode-image" },
  { op = "views", outputs = { global = 2, local = 2 }, operations = { global = [
    { op = "random-resized-crop", size = 64, area = [0.4, 1.0] },
  ], local = [
    { op = "random-resized-crop", size = 32, area = [0.05, 0.4] },
  ] } },
]
"""
CLIP = """
[[stage]]
name = "preprocess"
operations = [
  { op = "decode-image" },
  { op = "random-resized-crop", size = 32, area = [0.9, 1.0], interpolation = "bicubic" },
]
"""


@pytest.mark.parametrize(
    "name,stage,more",
    [
        ("dino", DINO, {"outputs": 64, "lr": 1e-3}),
        ("clip", CLIP, {"width": 32, "lr": 3e-3}),
    ],
)
def test_an_example_learns(pictures, one_thread, name, stage, more):
    config = write(pictures, name, f"[batch]\nsize = 8\n[order]\nseed = 3\n{stage}")
    more = {"model": "mobilenet_v3_small", "steps": 24, **more}
    check_that_an_example_learns(f"train_{name}", config, drop=0.85, losses=24, last=6, **more)
