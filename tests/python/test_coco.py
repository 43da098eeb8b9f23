"""Pictures with boxes of a COCO file, through the program: what the JSON says, and what pycocotools reads of it."""

import importlib.util
import json

import numpy
import pytest
from support import config_of, rows_across_a_resume

IMAGES = 24


@pytest.fixture(scope="module")
def instances(tmp_path_factory):
    """A file as COCO's own: ids with gaps, categories out of order, crowds, images without annotations."""
    image = pytest.importorskip("PIL.Image")
    root = tmp_path_factory.mktemp("coco")
    (root / "pictures").mkdir()
    (root / "annotations").mkdir()
    images, annotations = [], []
    for number in range(IMAGES):
        name = f"{number:012}.png"
        image.new("RGB", (30 + number, 40), (number, 0, 0)).save(root / "pictures" / name)
        images.append({"id": 500 - 7 * number, "file_name": name, "width": 30 + number, "height": 40})
        for place in range(number % 5):
            box = [place + 0.25, 2.5, 3 + number / 8, 4]
            annotations.append(
                {"id": len(annotations) + 1, "image_id": 500 - 7 * number, "category_id": [18, 2, 90][place % 3]}
                | {"bbox": box, "area": box[2] * box[3], "iscrowd": int(place == 3), "segmentation": []}
            )
    categories = [{"id": 90, "name": "toothbrush"}, {"id": 2, "name": "bicycle"}, {"id": 18, "name": "dog"}]
    path = root / "annotations" / "instances.json"
    path.write_text(json.dumps({"images": images, "annotations": annotations[::-1], "categories": categories}))
    return path


def rows(path, tmp_path, **order):
    """Boxes, labels, the red of a pixel and the size of each image."""
    dataset = {"format": "coco", "path": str(path), "root": str(path.parents[1] / "pictures")}
    operations = [{"op": "decode-image"}, {"op": "resize", "size": [8, 8]}]
    config = config_of({**dataset, "index": str(tmp_path / "index")}, operations, batch={"size": 5}, order=order)
    found = rows_across_a_resume(config).values()
    seen = {
        int(row["image_id"]): (row["boxes"], row["labels"], int(row["image"][0, 0, 0]), row["orig_size"].tolist())
        for row in found
    }
    assert len(seen) == len(found)
    return seen


def test_boxes_and_labels_are_those_of_the_file_and_a_run_resumes(instances, tmp_path):
    told = json.loads(instances.read_text())
    seen = rows(instances, tmp_path, seed=5)
    assert sorted(seen) == sorted(image["id"] for image in told["images"])
    labels = {2: 0, 18: 1, 90: 2}
    for number, image in enumerate(told["images"]):
        own = [one for one in told["annotations"] if one["image_id"] == image["id"] and not one["iscrowd"]]
        boxes, found, red, size = seen[image["id"]]
        assert boxes.dtype == numpy.float32 and found.dtype == numpy.int64
        assert boxes.shape == (len(own), 4)
        expected = [[x, y, x + width, y + height] for x, y, width, height in (one["bbox"] for one in own)]
        assert boxes.tolist() == numpy.array(expected, numpy.float32).reshape(-1, 4).tolist()
        assert found.tolist() == [labels[one["category_id"]] for one in own]
        assert (red, size) == (number, [40, 30 + number])


@pytest.mark.skipif(importlib.util.find_spec("pycocotools") is None, reason="pycocotools is not installed")
def test_pycocotools_reads_the_same(instances, tmp_path):
    from pycocotools.coco import COCO

    coco = COCO(str(instances))
    labels = {category: label for label, category in enumerate(sorted(coco.getCatIds()))}
    for image, (boxes, found, _, _) in rows(instances, tmp_path).items():
        own = coco.loadAnns(coco.getAnnIds(imgIds=[image], iscrowd=False))
        expected = numpy.array([one["bbox"] for one in own], numpy.float64).reshape(-1, 4)
        expected[:, 2:] += expected[:, :2]
        assert numpy.array_equal(boxes, expected.astype(numpy.float32))
        assert found.tolist() == [labels[one["category_id"]] for one in own]
