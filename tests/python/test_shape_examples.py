"""The presets and the examples that train on boxes and on masks: each learns on coloured rectangles."""

import json

import forebay
import numpy
import pytest
from PIL import Image
from support import check_that_an_example_learns

COLOURS = [(0, 0, 0), (230, 30, 20), (20, 220, 40), (30, 40, 210)]
PICTURES = 24


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Rectangles of the colours of their classes as a COCO file, and with masks as a manifest.

    As in Pascal VOC a mask's PNG has a palette, and a line of 255 around each object.
    """
    folder = tmp_path_factory.mktemp("rectangles")
    images, annotations, lines = [], [], ["image,mask"]
    for number in range(PICTURES):
        random = numpy.random.default_rng(number)
        mask = numpy.zeros((96, 128), numpy.uint8)
        for label in random.permutation([1, 2, 3])[: 1 + number % 2]:
            x, y = int(random.integers(2, 60)), int(random.integers(2, 40))
            w, h = (int(side) for side in random.integers(24, 54, 2))
            mask[y - 1 : y + h + 1, x - 1 : x + w + 1] = 255
            mask[y : y + h, x : x + w] = label
            box = {"image_id": number, "category_id": int(label), "bbox": [x, y, w, h], "area": w * h, "iscrowd": 0}
            annotations.append({"id": len(annotations) + 1, **box})
        palette = numpy.array([*COLOURS, *[(128, 128, 128)] * 252], numpy.uint8)
        Image.fromarray(palette[mask]).save(folder / f"{number}.png")
        indexed = Image.fromarray(mask).convert("P")
        indexed.putpalette(palette.tobytes())
        indexed.save(folder / f"{number}-mask.png")
        images.append({"id": number, "file_name": f"{number}.png", "width": 128, "height": 96})
        lines.append(f"{number}.png,{number}-mask.png")
    categories = [{"id": label, "name": name} for label, name in [(1, "red"), (2, "green"), (3, "blue")]]
    listed = {"images": images, "annotations": annotations, "categories": categories}
    (folder / "instances.json").write_text(json.dumps(listed))
    (folder / "train.csv").write_text("\n".join(lines) + "\n")
    return folder


SOURCES = {
    "detection": '[dataset]\npath = "instances.json"\n',
    "segmentation": (
        '[dataset]\nformat = "manifest"\npath = "train.csv"\n'
        '[dataset.fields]\nimage = { from = "image", as = "image" }\nmask = { from = "mask", as = "image" }\n'
    ),
}


def write(pictures, preset, more):
    file = pictures / f"{preset}.toml"
    file.write_text(f'preset = "{preset}"\n{SOURCES[preset]}{more}')
    return file


def test_the_presets_give_parts_with_what_belongs_to_them(pictures):
    batch = "[batch]\nsize = 3\n[order]\nepochs = 1\n"
    with forebay.Loader(write(pictures, "detection", batch)) as loader:
        assert loader.classes == ["red", "green", "blue"]
        found = next(iter(loader))
        assert found["image"].shape == (3, 3, 512, 512) and found["image"].dtype == numpy.uint8
        for image, boxes, labels in zip(found["image"], found["boxes"], found["labels"]):
            assert len(boxes) == len(labels)
            for (x1, y1, x2, y2), label in zip(boxes, labels):
                middle = image[:, int(y1 + y2) // 2, int(x1 + x2) // 2].tolist()
                assert middle in [list(colour) for colour in COLOURS] and 0 <= label < 3
    with forebay.Loader(write(pictures, "segmentation", batch)) as loader:
        found = next(iter(loader))
        assert found["mask"].shape == (3, 1, 512, 512) and found["mask"].dtype == numpy.uint8
        for image, mask in zip(found["image"], found["mask"]):
            distances = [numpy.abs(image.transpose(1, 2, 0) - numpy.array(colour)).sum(axis=2) for colour in COLOURS]
            is_class = mask[0] != 255
            # But for pixels at edges, which are mixed.
            assert (numpy.argmin(distances, axis=0) == mask[0])[is_class].mean() > 0.97
            assert set(numpy.unique(mask)) <= {0, 1, 2, 3, 255}


DETECTION = """
[[stage]]
name = "preprocess"
operations = [
  { op = "decode-image" },
  { op = "random-resized-crop", size = 96, area = [0.5, 1.0], fields = ["image", "boxes", "labels"] },
  { op = "random-horizontal-flip", fields = ["image", "boxes", "labels"] },
]
"""
SEGMENTATION = """
[[stage]]
name = "preprocess"
operations = [
  { op = "decode-image", field = "image" },
  { op = "decode-image", field = "mask", channels = 1, palette = "indices" },
  { op = "random-resized-crop", size = 64, area = [0.25, 1.0], fields = ["image", "mask"] },
  { op = "random-horizontal-flip", fields = ["image", "mask"] },
]
"""


@pytest.mark.parametrize(
    "name,model,stage,more",
    [
        ("detection", "ssdlite320_mobilenet_v3_large", DETECTION, ["--steps=6"]),
        ("segmentation", "lraspp_mobilenet_v3_large", SEGMENTATION, ["--classes=4", "--steps=12"]),
    ],
)
def test_an_example_learns(pictures, one_thread, name, model, stage, more):
    config = write(pictures, name, f"[batch]\nsize = 4\n[order]\nseed = 3\n{stage}")
    check_that_an_example_learns(f"train_{name}", [str(config), f"--model={model}", *more], drop=0.8, losses=6, last=2)
