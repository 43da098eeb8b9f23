"""Masks, keypoints and panoptic segments of COCO files, through the program: what pycocotools and the JSON say."""

import json
import random

import numpy
import pytest
from support import config_of, rows_across_a_resume

Image = pytest.importorskip("PIL.Image")
IMAGES = 8
CATEGORIES = [{"id": 90, "name": "toothbrush"}, {"id": 2, "name": "bicycle"}, {"id": 18, "name": "dog"}]
LABELS = {2: 0, 18: 1, 90: 2}


def polygon(generator, width, height):
    """Corners within the image and a little outside of it, with up to two digits."""
    corners = generator.randrange(3, 12)
    sides = [(width, height)[axis] for _ in range(corners) for axis in range(2)]
    return [round(generator.uniform(-2, side + 2), generator.randrange(3)) for side in sides]


def runs(generator, width, height):
    """The lengths of runs that cover the image, as numbers."""
    cuts = sorted(generator.sample(range(width * height), 6))
    ends = [0, *cuts, width * height]
    return {"size": [height, width], "counts": [after - before for before, after in zip(ends, ends[1:])]}


def objects(generator, images, of_each, **more):
    """Annotations of polygons and, every fifth, of runs."""
    annotations = []
    for image in images:
        width, height = image["width"], image["height"]
        for place in range(of_each):
            parts = [polygon(generator, width, height) for _ in range(1 + place % 2)]
            shape = runs(generator, width, height) if place % 5 == 4 else parts
            annotations.append(
                {"id": len(annotations) + 1, "image_id": image["id"], "category_id": [18, 2, 90][place % 3]}
                | {"bbox": [2, 3, 6, 5], "area": 30, "iscrowd": 0, "segmentation": shape}
                | {name: make(place) for name, make in more.items()}
            )
    return annotations


def written(root, images, annotations, name="instances.json"):
    """The pictures, and the file that lists them."""
    for number, image in enumerate(images):
        Image.new("RGB", (image["width"], image["height"]), (number, 0, 0)).save(root / image["file_name"])
    path = root / name
    path.write_text(json.dumps({"images": images, "annotations": annotations, "categories": CATEGORIES}))
    return path


def listed(count, width=40, height=30):
    names = [f"{number:04}.png" for number in range(count)]
    return [
        {"id": 7 + 3 * number, "file_name": name, "width": width, "height": height} for number, name in enumerate(names)
    ]


def read(path, tmp_path, operations, **dataset):
    """Rows by the image's id."""
    keys = {"format": "coco", "path": str(path), "index": str(tmp_path / "index"), **dataset}
    config = config_of(keys, [{"op": "decode-image", "field": "image"}, *operations], batch={"size": 5})
    return {int(row["image_id"]): row for row in rows_across_a_resume(config).values()}


MASK = {"op": "decode-image", "field": "mask", "channels": 1}
# Images of a batch have one known size.
WHOLE = {"op": "center-crop", "size": [30, 40]}
BOTH = [MASK, WHOLE | {"fields": ["image", "mask"]}]


def test_masks_are_those_that_pycocotools_decodes(tmp_path):
    tools = pytest.importorskip("pycocotools.mask")
    generator = random.Random(3)
    images = listed(1005)
    annotations = objects(generator, images, 1)
    for number, annotation in enumerate(annotations):
        if number % 4 == 0:
            plain = runs(generator, 40, 30)
            packed = tools.frPyObjects(plain, 30, 40)
            shape = {"size": [30, 40], "counts": packed["counts"].decode()}
            annotation["segmentation"] = shape if number % 8 else plain
    path = written(tmp_path, images, annotations)
    seen = read(path, tmp_path, BOTH, masks="instances")
    assert len(seen) == len(images)
    for annotation in annotations:
        shape = annotation["segmentation"]
        packed = shape
        if isinstance(shape, list):
            packed = tools.merge(tools.frPyObjects(shape, 30, 40))
        elif isinstance(shape["counts"], list):
            packed = tools.frPyObjects(shape, 30, 40)
        mask = seen[annotation["image_id"]]["mask"]
        assert numpy.array_equal(mask[0], tools.decode(packed)), annotation


def test_runs_are_painted_in_their_order_as_instances_and_as_categories(tmp_path):
    """Without pycocotools: runs are trivial to unpack."""
    generator = random.Random(4)
    images = listed(IMAGES)
    annotations = objects(generator, images, 4)
    for annotation in annotations:
        annotation["segmentation"] = runs(generator, 40, 30)
    path = written(tmp_path, images, annotations)
    instances = read(path, tmp_path, BOTH, masks="instances")
    (tmp_path / "categories").mkdir()
    categories = read(path, tmp_path / "categories", BOTH, masks="categories")
    for image in images:
        own = [one for one in annotations if one["image_id"] == image["id"]]
        expected = {"instances": numpy.zeros(1200, int), "categories": numpy.zeros(1200, int)}
        for number, one in enumerate(own):
            counts = one["segmentation"]["counts"]
            inside = numpy.repeat([place % 2 for place in range(len(counts))], counts) == 1
            expected["instances"][inside] = number + 1
            expected["categories"][inside] = LABELS[one["category_id"]] + 1
        for name, rows in (("instances", instances), ("categories", categories)):
            mask = rows[image["id"]]["mask"]
            assert mask.shape == (1, 30, 40)
            assert numpy.array_equal(mask[0], expected[name].reshape(40, 30).T), (image, name)
        assert instances[image["id"]]["instances"].tolist() == [1, 2, 3, 4]


def test_keypoints_and_masks_follow_a_mirrored_crop(tmp_path):
    images = listed(IMAGES)
    points = [10, 12, 2, 31, 6, 1, 0, 0, 0]
    shape = {"size": [30, 40], "counts": [10 * 30, 300, 600]}
    annotations = objects(random.Random(5), images, 1, keypoints=lambda _: points)
    for annotation in annotations:
        annotation |= {"bbox": [8, 4, 24, 20], "segmentation": shape}
    path = written(tmp_path, images, annotations)
    fields = ["image", "mask", "boxes", "labels", "instances", "keypoints"]
    operations = [
        MASK,
        {"op": "center-crop", "size": [20, 20], "fields": fields},
        {"op": "random-horizontal-flip", "probability": 1.0, "fields": fields, "keypoint_pairs": [[0, 2]]},
        {"op": "resize", "size": [40, 40], "fields": fields},
    ]
    seen = read(path, tmp_path, operations, masks="instances", keypoints=True)
    for row in seen.values():
        # The crop begins at (10, 5): the first point is in the middle of its first column, the second one outside.
        assert row["keypoints"].tolist() == [[[0, 0, 0], [0, 0, 0], [39, 15, 2]]]
        assert row["boxes"].tolist() == [[0, 0, 40, 38]]
        # Columns 10 to 20 of the picture are the left half of the crop, and the right half of its mirror image.
        mask = row["mask"][0]
        assert mask[:, 20:].all() and not mask[:, :20].any()


def test_panoptic_ids_become_the_numbers_of_segments_and_of_categories(tmp_path):
    generator = numpy.random.default_rng(6)
    images = listed(IMAGES)
    (tmp_path / "ids").mkdir()
    annotations, maps = [], {}
    for image in images:
        ids = [int(one) for one in generator.choice(1 << 24, 5, replace=False)]
        chosen = generator.integers(0, 6, (30, 40))
        values = numpy.array([0, *ids])[chosen]
        maps[image["id"]] = chosen
        colours = numpy.stack([values % 256, values // 256 % 256, values // 65536], axis=-1).astype(numpy.uint8)
        Image.fromarray(colours).save(tmp_path / "ids" / image["file_name"])
        segments = [
            {"id": one, "category_id": [18, 2, 90][place % 3], "bbox": [0, 0, 40, 30], "iscrowd": int(place == 4)}
            for place, one in enumerate(ids)
        ]
        annotations.append({"image_id": image["id"], "file_name": image["file_name"], "segments_info": segments})
    path = written(tmp_path, images, annotations, "panoptic.json")
    decode = {"op": "decode-image", "field": "segments", "channels": 3}
    whole = WHOLE | {"fields": ["image", "segments"]}
    number = {"op": "map-segments", "field": "segments", "ids": "segment_ids"}
    seen = read(path, tmp_path, [decode, whole, number], panoptic=str(tmp_path / "ids"))
    (tmp_path / "labels").mkdir()
    label = {**number, "values": "labels"}
    semantic = read(path, tmp_path / "labels", [decode, whole, label], panoptic=str(tmp_path / "ids"))
    for annotation in annotations:
        image, segments = annotation["image_id"], annotation["segments_info"]
        row = seen[image]
        assert row["segment_ids"].tolist() == [one["id"] for one in segments]
        assert row["crowd"].tolist() == [0, 0, 0, 0, 1]
        labels = [LABELS[one["category_id"]] for one in segments]
        assert row["labels"].tolist() == labels
        assert numpy.array_equal(row["segments"][0], maps[image])
        expected = numpy.array([0, *(label + 1 for label in labels)])[maps[image]]
        assert numpy.array_equal(semantic[image]["segments"][0], expected)
