"""Boxes and masks of Pascal VOC and YOLO, through the program: what the files say."""

import numpy
import pytest
from support import config_of, rows_across_a_resume

Image = pytest.importorskip("PIL.Image")
IMAGES = 12
WIDTH, HEIGHT = 40, 30
RESIZE = {"op": "resize", "size": [HEIGHT, WIDTH], "fields": ["image", "mask"]}
DECODE = [
    {"op": "decode-image", "field": "image"},
    {"op": "decode-image", "field": "mask", "channels": 1, "palette": "indices"},
    RESIZE,
]


def picture(path, number):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (WIDTH, HEIGHT), (number, 0, 0)).save(path)


def rows(tmp_path, **dataset):
    """Rows by the red of their pictures."""
    config = config_of({"index": str(tmp_path / "index"), **dataset}, DECODE, batch={"size": 5})
    seen = {int(row["image"][0, 0, 0]): row for row in rows_across_a_resume(config).values()}
    assert sorted(seen) == list(range(IMAGES))
    return seen


def test_voc_has_the_boxes_of_its_files_and_the_indices_of_its_masks(tmp_path):
    root = tmp_path / "VOC2012"
    generator = numpy.random.default_rng(1)
    palette = [level for index in range(256) for level in (index * 37 % 256, index, 255 - index)]
    expected, names = {}, ["dog", "cat", "a & b"]
    (root / "Annotations").mkdir(parents=True)
    (root / "SegmentationClass").mkdir()
    (root / "ImageSets" / "Segmentation").mkdir(parents=True)
    for number in range(IMAGES):
        picture(root / "JPEGImages" / f"2007_{number:06}.png", number)
        objects = [(names[place % 3], place % 2, [place, 2, place + 9.5, 20]) for place in range(number % 4)]
        text = "".join(
            f"<object><name>{name.replace('&', '&amp;')}</name><difficult>{difficult}</difficult><bndbox>"
            + "".join(f"<{side}>{at}</{side}>" for side, at in zip(("xmin", "ymin", "xmax", "ymax"), corners))
            + "</bndbox></object>\n"
            for name, difficult, corners in objects
        )
        size = f"<size><width>{WIDTH}</width><height>{HEIGHT}</height><depth>3</depth></size>"
        (root / "Annotations" / f"2007_{number:06}.xml").write_text(f"<annotation>{size}\n{text}</annotation>")
        levels = generator.integers(0, 256, (HEIGHT, WIDTH), dtype=numpy.uint8)
        mask = Image.fromarray(levels, "P")
        mask.putpalette(palette)
        mask.save(root / "SegmentationClass" / f"2007_{number:06}.png")
        expected[number] = (objects, levels)
    listed = "".join(f"2007_{number:06}\n" for number in reversed(range(IMAGES)))
    (root / "ImageSets" / "Segmentation" / "train.txt").write_text(listed)
    seen = rows(tmp_path, format="voc", path=str(root), image_set="train", masks="categories")
    for number, (objects, levels) in expected.items():
        row = seen[number]
        corners = numpy.array([one[2] for one in objects], numpy.float32).reshape(-1, 4)
        assert numpy.array_equal(row["boxes"], corners)
        assert row["labels"].tolist() == [sorted(names).index(one[0]) for one in objects]
        assert row["difficult"].tolist() == [one[1] for one in objects]
        assert row["orig_size"].tolist() == [HEIGHT, WIDTH]
        assert numpy.array_equal(row["mask"][0], levels)


def test_yolo_has_boxes_in_pixels_and_masks_of_its_polygons(tmp_path):
    root = tmp_path / "coco8"
    (root / "labels" / "train").mkdir(parents=True)
    (root / "data.yaml").write_text("path: .\ntrain: images/train\nnames:\n  0: person\n  1: car\n")
    for number in range(IMAGES):
        picture(root / "images" / "train" / f"{number}.png", number)
        if number % 3:
            # The left half as a box, then a triangle of the right half.
            text = f"1 0.25 0.5 0.5 1\n0 0.5 0 1 0 1 {number / 20}\n"
            (root / "labels" / "train" / f"{number}.txt").write_text(text)
    seen = rows(tmp_path, format="yolo", path=str(root / "data.yaml"), masks="categories")
    for number, row in seen.items():
        mask = row["mask"][0]
        assert row["orig_size"].tolist() == [HEIGHT, WIDTH]
        if number % 3 == 0:
            assert row["boxes"].shape == (0, 4) and not mask.any()
            continue
        expected = numpy.array([[0, 0, 20, 30], [20, 0, 40, number / 20 * 30]], numpy.float32)
        assert numpy.allclose(row["boxes"], expected)
        assert row["labels"].tolist() == [1, 0]
        assert (mask[:, :20] == 2).all() and set(numpy.unique(mask[:, 20:])) <= {0, 1}
        # A triangle of 20 by number / 20 of the height.
        assert abs((mask == 1).sum() - 20 * 30 * number / 20 / 2) <= 20
