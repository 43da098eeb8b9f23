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


@pytest.mark.parametrize("suffix", ["tif", "tiff"])
def test_a_folder_of_rasters(tmp_path, suffix):
    heights = [numpy.random.default_rng(number).normal(0, 900, SIZE[::-1]).astype(numpy.float32) for number in range(6)]
    for number, height in enumerate(heights):
        folder = tmp_path / f"{number % 2}"
        folder.mkdir(exist_ok=True)
        Image.fromarray(height).save(folder / f"{number}.{suffix}")
    expected = [heights[number] for number in (0, 2, 4, 1, 3, 5)]
    decode = {"op": "decode-raster", "size": [SIZE[1], SIZE[0]]}
    config = config_of({"path": str(tmp_path)}, [decode], output={})
    with forebay.Loader(config) as loader:
        found = rows_of(loader)
    assert len(found) == len(heights)
    for index, row in found.items():
        numpy.testing.assert_array_equal(row["image"], expected[index])
        assert row["label"] == index // 3
    # As an image it is a bad sample, and the message has the operation.
    as_image = config_of({"path": str(tmp_path)}, OPERATIONS, output={})
    with pytest.raises(forebay.BadSample) as refused, forebay.Loader(as_image) as loader:
        rows_of(loader)
    assert '{ op = "decode-raster", size = [20, 24], samples = 1, dtype = "float32" }' in str(refused.value)
