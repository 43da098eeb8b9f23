"""TIFF, BMP, GIF and levels of 16 bits through the whole program; tests/pixels compares all their forms."""

import io
import json

import forebay
import numpy
import pytest
from PIL import Image
from support import config_of, rows_of, write_tar

SIZE = (24, 20)


def picture(number):
    y, x = numpy.mgrid[0 : SIZE[1], 0 : SIZE[0]]
    return Image.fromarray(numpy.stack([x * 10, y * 12, (x * y + number) % 256], axis=2).astype(numpy.uint8))


def rows(dataset, operations, **output):
    with forebay.Loader(config_of(dataset, operations, output={"image": {"layout": "NHWC", **output}})) as loader:
        return rows_of(loader)


OPERATIONS = [{"op": "decode-image"}, {"op": "center-crop", "size": [SIZE[1], SIZE[0]]}]


def test_a_folder_of_all_kinds(tmp_path):
    names = ["0.bmp", "1.gif", "2.png", "3.TIF", "4.tiff", "5.webp"]
    for label, folder in enumerate(("cat", "dog")):
        (tmp_path / folder).mkdir()
        for number, name in enumerate(names):
            options = {"lossless": True} if name.endswith("webp") else {}
            picture(10 * label + number).save(tmp_path / folder / name, **options)
    found = rows({"path": str(tmp_path)}, OPERATIONS)
    assert len(found) == 2 * len(names)
    for index, row in found.items():
        label, number = divmod(index, len(names))
        with Image.open(tmp_path / ("cat", "dog")[label] / names[number]) as image:
            numpy.testing.assert_array_equal(row["image"], numpy.asarray(image.convert("RGB")))
        assert row["label"] == label


def test_an_archive_whose_pictures_are_of_several_kinds(tmp_path):
    def file(kind):
        buffer = io.BytesIO()
        picture(1).save(buffer, kind)
        return buffer.getvalue()

    files = {"png": file("PNG"), "tif": file("TIFF")}
    for kinds in (["png", "png"], ["png", "tif"], ["tif", "tif"]):
        archive = tmp_path / f"{'-'.join(kinds)}.tar"
        write_tar(archive, [(f"{number}.{kind}", files[kind]) for number, kind in enumerate(kinds)])
        for row in rows({"path": str(archive), "format": "webdataset"}, OPERATIONS).values():
            numpy.testing.assert_array_equal(row["image"], numpy.asarray(picture(1)))


@pytest.mark.parametrize("asked", ["output", "operation"])
def test_levels_of_16_bits_reach_the_batch(tmp_path, asked):
    levels = [numpy.random.default_rng(number).integers(0, 65536, SIZE[::-1], numpy.uint16) for number in range(6)]
    lines = []
    for number, level in enumerate(levels):
        name = f"{number}.{('png', 'tif')[number % 2]}"
        Image.fromarray(level).save(tmp_path / name)
        lines.append(json.dumps({"path": name, "label": number}) + "\n")
    (tmp_path / "all.jsonl").write_text("".join(lines))
    fields = {"image": {"from": "path", "as": "image"}, "label": {"from": "label", "as": "integer"}}
    dataset = {"format": "manifest", "path": str(tmp_path / "all.jsonl"), "fields": fields}
    decode = {"op": "decode-image", "channels": 1, **({"depth": 16} if asked == "operation" else {})}
    output = {"dtype": "uint16"} if asked == "output" else {}
    for index, row in rows(dataset, [decode, OPERATIONS[1]], **output).items():
        assert row["image"].dtype == numpy.uint16 and row["label"] == index
        numpy.testing.assert_array_equal(row["image"][..., 0], levels[index])
