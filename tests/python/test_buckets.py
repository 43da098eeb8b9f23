"""Aspect-ratio buckets from Python: the shape of each batch, its pixels, ranks, states, kills and refusals."""

import json
import math
import os
import random
import signal

import forebay
import numpy
import pytest
from PIL import Image
from support import config_of, digest, digests, noise, run_program, write_toml

BUCKETS = [[32, 32], [24, 40], [40, 24], [48, 48]]
SIZE, COUNT = 4, 90
OPERATIONS = [
    {"op": "decode-image", "orientation": True},
    {"op": "resize", "size": "bucket"},
    {"op": "center-crop", "size": "bucket"},
]
TURNED = 6  # the EXIF tag of a picture that is to be turned by a quarter


def sizes():
    """Width and height as shown."""
    generator = random.Random(5)
    return [(generator.randrange(20, 90), generator.randrange(20, 90)) for _ in range(COUNT)]


def is_turned(number):
    return number % 7 == 3


def pictures(folder):
    """Pictures of noise; some are stored on their side with an EXIF tag."""
    folder.mkdir()
    for number, (width, height) in enumerate(sizes()):
        pixels = noise(number, (height, width, 3))
        exif = Image.Exif()
        if is_turned(number):
            pixels, exif[0x0112] = numpy.rot90(pixels), TURNED
        Image.fromarray(numpy.ascontiguousarray(pixels)).save(folder / f"{number:03}.png", exif=exif)
    return folder


def settings_of(folder, buckets=BUCKETS, operations=OPERATIONS, order=None, **batch):
    return config_of(
        {"format": "image-folder", "path": str(folder), "index": str(folder.parent / "saved.index")},
        operations,
        order={"epochs": 2, "pool": 45, **(order or {})},
        batch={"size": SIZE, "last": "drop", "buckets": buckets, **batch},
    )


def nearest(width, height, buckets=BUCKETS):
    """The bucket of the nearest aspect ratio; of the two squares the larger one if the picture fills it."""

    def key(bucket):
        tall, wide = bucket
        filled = width >= wide and height >= tall
        distance = abs(math.log(width / height) - math.log(wide / tall))
        return round(distance, 9), not filled, -tall * wide if filled else tall * wide

    return min(buckets, key=key)


def expected_pixels(number):
    """Resized to cover the bucket, and cut to it."""
    width, height = sizes()[number]
    tall, wide = nearest(width, height)
    if width * tall >= height * wide:
        size = max(wide, (2 * width * tall + height) // (2 * height)), tall
    else:
        size = wide, max(tall, (2 * height * wide + width) // (2 * width))
    picture = Image.fromarray(noise(number, (height, width, 3))).resize(size, Image.BILINEAR)
    left, top = (round((side - part) / 2) for side, part in zip(size, (wide, tall), strict=True))
    return numpy.asarray(picture.crop((left, top, left + wide, top + tall)))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_each_batch_has_the_shape_of_its_pictures_bucket(tmp_path, layout):
    settings = settings_of(pictures(tmp_path / "pictures"))
    settings["output"] = {"image": {"layout": layout}}
    shapes = set()
    with forebay.Loader(settings) as loader:
        for _ in range(2):
            found, batches = [], 0
            expected = len(loader)
            for batch in loader:
                batches += 1
                images = batch["image"] if layout == "NHWC" else batch["image"].transpose(0, 2, 3, 1)
                assert batch["image"].flags.c_contiguous and len(images) == len(batch["index"]) <= SIZE
                shapes.add(images.shape[1:3])
                for image, number in zip(images, batch["index"].tolist(), strict=True):
                    assert list(image.shape[:2]) == nearest(*sizes()[number])
                    assert numpy.abs(image.astype(int) - expected_pixels(number)).max() <= 1, number
                    found.append(number)
            # One rank, so no sample is left out.
            assert sorted(found) == list(range(COUNT)) and batches == expected
    assert shapes == {tuple(bucket) for bucket in BUCKETS}
    assert len(list(tmp_path.glob("saved.index.lengths-*"))) == 1, "sizes are learned once"


def test_pictures_that_are_not_turned_go_to_the_bucket_of_the_stored_size(tmp_path):
    operations = [{"op": "decode-image"}, {"op": "random-resized-crop", "size": "bucket"}]
    with forebay.Loader(settings_of(pictures(tmp_path / "pictures"), operations=operations)) as loader:
        for batch in loader:
            for number in batch["index"].tolist():
                width, height = sizes()[number][:: -1 if is_turned(number) else 1]
                assert list(batch["image"].shape[2:]) == nearest(width, height)


@pytest.mark.parametrize("last", ["drop", "pad"])
def test_ranks_have_one_shape_in_a_step(tmp_path, last):
    settings = settings_of(pictures(tmp_path / "pictures"), last=last)
    of_ranks = []
    for rank in range(3):
        with forebay.Loader(settings, rank=rank, world_size=3, compare_ranks=False) as loader:
            of_ranks.append([(b["image"].shape, b["index"].tolist(), b.get("valid")) for b in loader])
    assert len({len(batches) for batches in of_ranks}) == 1
    found = []
    for step in zip(*of_ranks, strict=True):
        assert len({shape[1:] for shape, _, _ in step}) == 1
        rows = [shape[0] for shape, _, _ in step]
        assert max(rows) - min(rows) <= 1
        for _, indices, valid in step:
            is_valid = [True] * len(indices) if valid is None else valid.tolist()
            found += [index for index, is_one in zip(indices, is_valid, strict=True) if is_one]
    assert len(set(found)) == len(found)
    if last == "pad":
        assert sorted(found) == list(range(COUNT))
    else:
        # In each of two pools fewer than ranks of each shape.
        assert COUNT - 2 * 4 * 2 <= len(found) < COUNT


def test_states_and_kills_change_no_batch(tmp_path):
    settings = settings_of(pictures(tmp_path / "pictures"))
    whole, found = digests(settings), []
    with forebay.Loader(settings) as loader:
        for number, batch in enumerate(loader):
            found.append(digest(batch))
            if number == 2:
                os.kill(loader.daemon_pid, signal.SIGKILL)
            if number == 6:
                state = json.loads(json.dumps(loader.state_dict()))
                break
    assert "cuts" in json.dumps(state)
    with forebay.Loader(settings, state=state) as loader:
        found += [digest(batch) for _ in loader.epochs_left() for batch in loader]
    assert found == whole
    with forebay.Loader(settings) as loader:
        first = list(map(digest, loader))
        between = loader.state_dict()
    assert first == whole[: len(first)]
    settings["batch"]["buckets"] = BUCKETS[1:]
    # Within a pool its cuts do not lead there, and between pools the shapes differ.
    for refused, reason in (state, "no step ends after"), (between, "of one of 4 shapes"):
        with pytest.raises(forebay.Error, match=reason):
            forebay.Loader(settings, state=refused)


def test_a_state_continues_at_another_world_and_size(tmp_path):
    settings = settings_of(pictures(tmp_path / "pictures"), last="pad", order={"epochs": 1})
    found, state = [], None
    for world, size, steps in (1, 4, 3), (2, 3, 2), (3, 4, None):
        settings["batch"]["size"] = size
        after = None
        for rank in range(world):
            with forebay.Loader(settings, rank=rank, world_size=world, compare_ranks=False, state=state) as loader:
                for number, batch in enumerate(loader, 1):
                    found += batch["index"][batch["valid"]].tolist()
                    if number == steps:
                        break
                after = loader.state_dict()
        state = after
    assert sorted(found) == list(range(COUNT))


def test_bad_pictures_are_substituted_by_ones_of_their_shape(tmp_path):
    folder = pictures(tmp_path / "pictures")
    settings = settings_of(folder)
    whole = {}
    with forebay.Loader(settings) as loader:
        whole = {number: batch["image"].shape[2:] for batch in loader for number in batch["index"].tolist()}
    bad = 8
    file = folder / f"{bad:03}.png"
    file.write_bytes(file.read_bytes()[:-60] + bytes(60))
    settings["errors"] = {"on_bad_sample": "substitute"}
    with forebay.Loader(settings) as loader:
        found = {number: batch["image"].shape[2:] for batch in loader for number in batch["index"].tolist()}
    assert bad not in found and all(whole[number] == shape for number, shape in found.items())


def test_torch_and_jax_get_the_shapes(tmp_path):
    torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax")
    import forebay.jax
    import forebay.torch

    settings = settings_of(pictures(tmp_path / "pictures"))
    settings["output"] = {"image": {"dtype": "float32", "layout": "NHWC"}}
    with forebay.torch.Loader(settings) as loader:
        shapes = [tuple(batch["image"].shape[2:]) for batch in loader if isinstance(batch["image"], torch.Tensor)]
    with forebay.jax.Loader(settings) as loader:
        assert [batch["image"].shape[1:3] for batch in loader if isinstance(batch["image"], jax.Array)] == shapes
    assert len(set(shapes)) == len(BUCKETS)


def test_check_and_run_sample_know_the_shapes(tmp_path):
    path = write_toml(tmp_path / "train.toml", settings_of(pictures(tmp_path / "pictures")))
    checked = run_program("check", str(path))
    assert checked.returncode == 0, checked.stderr
    for part in "one of 4 shapes; pools of 45", "48x48: ", "uint8 [4, 3, 48, 48], the largest of 4 shapes":
        assert part in checked.stdout, checked.stdout
    tall, wide = nearest(*sizes()[3])
    ran = run_program("run-sample", str(path), "3")
    assert f"[3, {tall}, {wide}]" in ran.stdout, ran.stdout + ran.stderr


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"operations": [*OPERATIONS[:1], {"op": "resize", "size": [8, 8]}]},
            r"train.toml.*`batch.buckets` gives batches",
        ),
        ({"operations": OPERATIONS[:2]}, r"differ in size.*their bucket's with `center-crop`"),
        ({"shape": "imgae"}, r"no field `imgae`; did you mean `image`"),
        ({"shape": "label"}, r"`label` is no picture"),
        ({"last": "short"}, r"`batch.last` cannot be \"short\""),
        ({"buckets": None}, r"size = \"bucket\"` needs the shapes of `batch.buckets`"),
        ({"output": {"image": {"on": "gpu", "dtype": "float32"}}}, r"does not support the shapes of `batch.buckets`"),
    ],
)
def test_mistakes_are_refused_by_name(tmp_path, change, message):
    folder = tmp_path / "pictures"
    (folder / "a").mkdir(parents=True)
    Image.fromarray(noise(1)).save(folder / "a/0.png")
    output = change.pop("output", {})
    settings = settings_of(folder, **change)
    if change.get("buckets", 1) is None:
        del settings["batch"]["buckets"], settings["order"]["pool"]
    settings |= {"output": output} if output else {}
    with pytest.raises(forebay.ConfigError, match=message):
        forebay.Loader(str(write_toml(tmp_path / "train.toml", settings)))


def test_rows_are_not_asked_for_by_index(tmp_path):
    settings = settings_of(pictures(tmp_path / "pictures"))
    with pytest.raises(forebay.ConfigError, match=r"batch.buckets, whose batches have rows of one shape"):
        forebay.Dataset(settings)[0]
