"""Images, masks, boxes and labels that share one draw: torchvision v2's geometry, and the same bytes on any path.

What an operation draws is drawn here again and given to torchvision's functionals for `tv_tensors`.
"""

import io
import itertools
import json
import math
import sys
import tarfile
from pathlib import Path

import forebay
import numpy as np
import pytest
from PIL import Image
from support import arrays_of, config_of, rows_of, write_tar

torch = pytest.importorskip("torch")
F = pytest.importorskip("torchvision.transforms.v2.functional")
from torchvision import tv_tensors  # noqa: E402

sys.path.append(str(Path(__file__).parents[1] / "pixels"))
from draws import Draws  # noqa: E402

SEED, SAMPLES = 17, 24
FIELDS = ["image", "mask", "boxes", "labels"]


def png(pixels):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def npy(array):
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def boxes_of(random, width, height, count):
    """Some reach beyond the image, some are thin."""
    corner = random.uniform([-8, -8], [width - 4, height - 4], (count, 2))
    size = random.uniform(0.2, [width, height], (count, 2)) * random.choice([0.02, 0.3, 1], (count, 1))
    return np.concatenate([corner, corner + size], axis=1).astype(np.float32)


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    """An archive of pictures of several sizes with masks, boxes and labels, and the same as tensors."""
    path, members, tensors = tmp_path_factory.mktemp("shared") / "train.tar", [], []
    for number in range(SAMPLES):
        random = np.random.default_rng(number)
        width, height = random.integers(40, 200, 2)
        boxes = boxes_of(random, width, height, 1 + number % 9 if number else 4)
        labels = random.integers(0, 90, len(boxes))
        mask = random.integers(0, 150, (height, width), np.uint8)
        files = {
            "png": png(random.integers(0, 255, (height, width, 3), np.uint8)),
            "mask.png": png(mask),
            "boxes.npy": npy(boxes),
            "labels.npy": npy(labels),
        }
        members += [(f"{number:04}.{name}", content) for name, content in files.items()]
        boxes = tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=(int(height), int(width)))
        tensors.append((tv_tensors.Mask(mask[None]), boxes, labels))
    write_tar(path, members, format=tarfile.USTAR_FORMAT)
    return path, tensors


def loaded(path, operations):
    """What the daemon makes of each sample, by its number."""
    decode = [{"op": "decode-image", "field": "image"}, {"op": "decode-image", "field": "mask", "channels": 1}]
    ragged = {"ragged": True, "max_bytes": "4KiB"}
    fields = {
        "image": {"from": "png", "as": "image"},
        "mask": {"from": "mask.png", "as": "image"},
        "boxes": {"from": "boxes.npy"},
        "labels": {"from": "labels.npy"},
    }
    config = config_of(
        {"format": "webdataset", "path": str(path), "fields": fields},
        decode + [{**each, "fields": FIELDS} for each in operations],
        output={"boxes": ragged, "labels": ragged},
        batch={"size": 5},
        order={"seed": SEED},
    )
    with forebay.Loader(config) as loader:
        found = rows_of(loader)
    assert sorted(found) == list(range(SAMPLES))
    return {index: [row[name] for name in ("mask", "boxes", "labels")] for index, row in found.items()}


def size_of(mask):
    return mask.shape[-1], mask.shape[-2]


def random_resized_crop(draws, mask):
    width, height = size_of(mask)
    for _ in range(10):
        area = width * height * draws.uniform(0.2, 1.0)
        ratio = math.exp(draws.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            top, left = draws.below(height - h + 1), draws.below(width - w + 1)
            return lambda each: F.resized_crop(each, top, left, h, w, [96, 80])
    pytest.fail("no part was drawn")


def random_crop(draws, mask):
    missing = [max(0, wanted - side - 6) for wanted, side in zip((90, 70), size_of(mask))]
    choices = [abs(side + 6 - wanted) + 1 for wanted, side in zip((90, 70), size_of(mask))]
    top, left = draws.below(choices[1]), draws.below(choices[0])
    margins = [3 + missing[0], 3 + missing[1]] * 2

    def crop(each):
        padded = F.pad(each, margins, fill=7)
        return F.crop(padded, top, left, 70, 90)

    return crop


def flip(function):
    def draw(draws, _mask):
        return function if draws.uniform() < 0.5 else lambda each: each

    return draw


def rotate(draws, _mask):
    angle = draws.uniform(-30, 30)
    return lambda each: F.rotate(each, angle, fill=200)


def affine(draws, mask):
    width, height = size_of(mask)
    angle = draws.uniform(-20, 20)
    move = [round(draws.uniform(-0.2 * side, 0.2 * side)) for side in (width, height)]
    scale, shear = draws.uniform(0.7, 1.3), draws.uniform(-10, 10)
    return lambda each: F.affine(each, angle, move, scale, [shear, 0.0], fill=200)


def perspective(draws, mask):
    width, height = size_of(mask)
    if draws.uniform() >= 0.8:
        return lambda each: each
    bounds = [int(0.4 * (side // 2)) + 1 for side in (width, height)]
    ends = []
    for is_right, is_below in [(0, 0), (1, 0), (1, 1), (0, 1)]:
        moved = [draws.below(bound) for bound in bounds]
        ends.append([(width - bounds[0]) * is_right + moved[0], (height - bounds[1]) * is_below + moved[1]])
    starts = [[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]]
    return lambda each: F.perspective(each, starts, ends, fill=200)


RESIZE = ({"op": "resize", "size": [120, 110]}, lambda _draws, _mask: lambda each: F.resize(each, [120, 110]))
BEYOND = {"mask_fill": 200}
# Operations with what torchvision does, and the share of a mask's pixels that may differ: places halfway between two.
CASES = {
    "resize": ([RESIZE], 0),
    "resize-and-center-crop": (
        [
            ({"op": "resize", "size": 75}, lambda _draws, _mask: lambda each: F.resize(each, [75])),
            ({"op": "center-crop", "size": [50, 60]}, lambda _draws, _mask: lambda each: F.center_crop(each, [50, 60])),
        ],
        0,
    ),
    "random-resized-crop": (
        [({"op": "random-resized-crop", "size": [96, 80], "area": [0.2, 1.0]}, random_resized_crop)],
        0,
    ),
    "random-crop": (
        [({"op": "random-crop", "size": [70, 90], "padding": 3, "fill": 7, "mask_fill": 7}, random_crop)],
        0,
    ),
    "flips": (
        [
            RESIZE,
            ({"op": "random-horizontal-flip"}, flip(F.horizontal_flip)),
            ({"op": "random-vertical-flip"}, flip(F.vertical_flip)),
            ({"op": "resize", "size": [57, 71]}, lambda _draws, _mask: lambda each: F.resize(each, [57, 71])),
        ],
        0,
    ),
    "pad": (
        [
            RESIZE,
            (
                {"op": "pad", "padding": [1, 2, 30, 4], **BEYOND},
                lambda *_: lambda each: F.pad(each, [1, 2, 30, 4], 200),
            ),
        ],
        0,
    ),
    "rotate": ([RESIZE, ({"op": "rotate", "degrees": 30, **BEYOND}, rotate)], 0.004),
    "affine": (
        [
            RESIZE,
            (
                {"op": "affine", "degrees": 20, "translate": [0.2, 0.2], "scale": [0.7, 1.3], "shear": 10, **BEYOND},
                affine,
            ),
        ],
        0.004,
    ),
    "perspective": (
        [RESIZE, ({"op": "perspective", "distortion_scale": 0.4, "probability": 0.8, **BEYOND}, perspective)],
        0.004,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_masks_and_boxes_are_torchvisions(samples, case):
    path, tensors = samples
    steps, share = CASES[case]
    dropped = kept = 0
    for sample, (found_mask, found_boxes, found_labels) in loaded(path, [keys for keys, _ in steps]).items():
        mask, boxes, labels = tensors[sample]
        for place, (_, draw) in enumerate(steps):
            change = draw(Draws(sample, 2 + place, seed=SEED), mask)
            mask, boxes = change(mask), F.clamp_bounding_boxes(change(boxes))
            boxes, stays = F.sanitize_bounding_boxes(boxes, min_size=1.0, min_area=1.0)
            labels = labels[stays.numpy()]
        assert (found_mask != mask.numpy()).mean() <= share, sample
        assert found_labels.tolist() == labels.tolist(), sample
        np.testing.assert_allclose(found_boxes, boxes.numpy(), rtol=0, atol=1e-4)
        kept += len(labels)
        dropped += len(tensors[sample][2]) - len(labels)
    assert kept > 20 and dropped > 5, (kept, dropped)


@pytest.mark.parametrize("angle", [90, 45, -10.5])
def test_boxes_of_a_rotated_image_that_grows_are_torchvisions(samples, angle):
    path, tensors = samples
    mask = F.resize(tensors[0][0], [120, 110])
    height, width = F.rotate(mask, angle, expand=True).shape[-2:]
    rotate = {"op": "rotate", "degrees": [angle, angle], "expand": True}
    steps = [RESIZE[0], rotate, {"op": "center-crop", "size": [height, width]}]
    for sample, (_, found, _) in loaded(path, steps).items():
        boxes = tensors[sample][1]
        for change in (RESIZE[1](None, None), lambda each: F.rotate(each, angle, expand=True)):
            boxes, _ = F.sanitize_bounding_boxes(F.clamp_bounding_boxes(change(boxes)), min_size=1.0, min_area=1.0)
        np.testing.assert_allclose(found, boxes.numpy(), rtol=0, atol=1e-4)


COLOURS = [(255, 0, 0), (0, 255, 0), (0, 0, 255)]


@pytest.fixture(scope="module")
def instances(tmp_path_factory):
    """A COCO file of JPEGs with filled rectangles, each of the colour of its category."""
    folder = tmp_path_factory.mktemp("coco")
    images, annotations = [], []
    for number in range(30):
        random = np.random.default_rng(number)
        width, height = (int(side) for side in random.integers(120, 260, 2))
        pixels = np.zeros((height, width, 3), np.uint8)
        for category in range(number % 4):
            x, w = category * width // 3 + 3, width // 3 - 6
            y, h = int(random.integers(0, height // 2)), height // 2
            pixels[y : y + h, x : x + w] = COLOURS[category]
            box = {"bbox": [x, y, w, h], "area": w * h, "iscrowd": 0}
            annotations.append(box | {"id": len(annotations) + 1, "image_id": number, "category_id": category + 1})
        Image.fromarray(pixels).save(folder / f"{number}.jpg", quality=95, subsampling="4:4:4")
        images.append({"id": number, "file_name": f"{number}.jpg", "width": width, "height": height})
    categories = [{"id": place + 1, "name": name} for place, name in enumerate(["red", "green", "blue"])]
    listed = {"images": images, "annotations": annotations, "categories": categories}
    (folder / "_annotations.coco.json").write_text(json.dumps(listed))
    return folder


def shared(instances, threads, stop_after=None):
    """Every row of two epochs, through a restart after so many batches where one is asked for."""
    fields = ["image", "boxes", "labels"]
    operations = [
        {"op": "decode-image"},
        {"op": "random-resized-crop", "size": 64, "area": [0.3, 1.0], "fields": fields},
        {"op": "random-horizontal-flip", "fields": fields},
    ]
    stage = [{"name": "augment", "concurrency": threads, "operations": operations}]
    config = config_of({"format": "coco", "path": str(instances)}, stage=stage, order={"epochs": 2, "seed": 5})
    seen, state = [], None
    for most in (stop_after, None):
        with forebay.Loader(config, state=state) as loader:
            batches = (batch for _ in loader.epochs_left() for batch in loader)
            for batch in map(arrays_of, itertools.islice(batches, most)):
                seen += zip(batch["index"].tolist(), *(batch[name] for name in fields))
            state = loader.state_dict()
        if most is None:
            return seen


def test_bytes_are_the_same_on_any_number_of_threads_and_after_a_restart(instances):
    alone = shared(instances, 1)
    assert len(alone) == 60
    for threads, stop_after in [(2, None), (4, 3), (1, 10)]:
        other = shared(instances, threads, stop_after)
        assert len(other) == 60
        for (index, *rows), (other_index, *other_rows) in zip(alone, other):
            assert index == other_index
            for row, other_row in zip(rows, other_rows):
                assert row.dtype == other_row.dtype and np.array_equal(row, other_row)
    epochs = [{index: boxes.tobytes() for index, _, boxes, _ in part} for part in (alone[:30], alone[30:])]
    assert epochs[0] != epochs[1], "each epoch draws anew"


def test_the_boxes_of_coco_stay_on_their_objects(instances):
    counts = {0: 0, 1: 0, 2: 0, 3: 0}
    for _, image, boxes, labels in shared(instances, 2):
        assert len(boxes) == len(labels)
        counts[len(boxes)] += 1
        for label in range(3):
            is_object = (image[label] > 170) & (np.delete(image, label, axis=0).max(axis=0) < 90)
            found = boxes[labels == label]
            # Of a thin remainder the pixels may be mixed with the black around it.
            if len(found) == 0 or min(found[0, 2:] - found[0, :2]) < 4:
                assert is_object.sum() < 4 * 64
                continue
            ys, xs = np.nonzero(is_object)
            around = [xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]
            np.testing.assert_allclose(found[0], around, rtol=0, atol=1.5)
    assert all(count > 2 for count in counts.values()), counts


def test_a_mask_of_another_size_is_a_bad_sample_that_names_both(samples, tmp_path):
    path = tmp_path / "train.tar"
    members = [
        (f"0.{name}", png(np.zeros(shape, np.uint8))) for name, shape in [("png", (50, 60, 3)), ("mask.png", (50, 59))]
    ]
    members += [("0.boxes.npy", npy(np.zeros((0, 4), "f4"))), ("0.labels.npy", npy(np.zeros(0, "f4")))]
    write_tar(path, members, format=tarfile.USTAR_FORMAT)
    with pytest.raises(forebay.Error, match="`image` is 60x50 pixels and `mask` 59x50"):
        loaded(path, [RESIZE[0]])
