"""TIFF, BMP and GIF against Pillow: the same pixels."""

import io
import struct

import numpy as np
import pytest
from PIL import Image, ImageOps
from test_pixels import assert_decodes_as_pillow, decode, photograph
from written import bmp, levels, tiff


def with_alpha(width=131, height=77):
    image = photograph(width, height)
    image.putalpha(photograph(width, height, 5).convert("L"))
    return image


def modes():
    image = photograph(131, 77)
    return {
        "1": image.convert("1"),
        "L": image.convert("L"),
        "LA": with_alpha().convert("LA"),
        "P": image.quantize(40),
        "RGB": image,
        "RGBA": with_alpha(),
        "CMYK": image.convert("CMYK"),
    }


MODES = modes()


CODES = ["raw", "tiff_lzw", "tiff_adobe_deflate", "tiff_deflate", "packbits"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("code", CODES)
def test_tiff_is_decoded_as_pillow_decodes_it(program, tmp_path, mode, code):
    path = tmp_path / "image.tif"
    MODES[mode].save(path, compression=code)
    assert_decodes_as_pillow(program, tmp_path, path)


LAYOUTS = {
    "strips": {},
    "one strip": {"rows": 45},
    "tiles": {"tile": (16, 32)},
    "a tile larger than the picture": {"tile": (64, 128)},
    "big-endian": {"order": ">"},
    "deflate": {"code": 8},
    "deflate with a predictor": {"code": 8, "predictor": 2},
    "packbits": {"code": 32773},
    "tiles, deflate with a predictor": {"tile": (16, 16), "code": 8, "predictor": 2},
    "tiles, big-endian, predicted": {"tile": (32, 16), "code": 8, "predictor": 2, "order": ">"},
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("samples,bits,photometric", [(1, 8, 1), (3, 8, 2), (4, 8, 2), (3, 16, 2)])
def test_tiff_in_any_layout(program, tmp_path, layout, samples, bits, photometric):
    path = tmp_path / "image.tif"
    tags = {338: (3, [2])} if samples == 4 else {}
    path.write_bytes(tiff(levels(samples, bits), bits, photometric, tags=tags, **LAYOUTS[layout]))
    assert_decodes_as_pillow(program, tmp_path, path)


@pytest.mark.parametrize("tiled", [False, True])
def test_tiff_with_a_plane_for_each_sample(program, tmp_path, tiled):
    path = tmp_path / "image.tif"
    layout = {"tile": (16, 32)} if tiled else {}
    path.write_bytes(tiff(levels(3, 8), 8, 2, planar=True, code=8, **layout))
    assert_decodes_as_pillow(program, tmp_path, path)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("photometric", [0, 1])
def test_tiff_of_few_bits_and_with_white_as_zero(program, tmp_path, bits, photometric):
    path = tmp_path / "image.tif"
    path.write_bytes(tiff(levels(1, bits), bits, photometric))
    assert_decodes_as_pillow(program, tmp_path, path)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_tiff_with_a_palette(program, tmp_path, bits):
    path = tmp_path / "image.tif"
    colours = np.random.default_rng(bits).integers(0, 65536, 3 << bits).tolist()
    indices = levels(1, bits)
    path.write_bytes(tiff(indices, bits, 3, tags={320: (3, colours)}))
    assert_decodes_as_pillow(program, tmp_path, path)
    ours = decode(program, tmp_path, path, (67, 45), 1, ', palette = "indices"')
    np.testing.assert_array_equal(ours, indices)


@pytest.mark.parametrize("extra", [[0], [1], [2], [2, 0], [0, 0]])
@pytest.mark.parametrize("code", [1, 8])
def test_what_further_samples_of_a_tiff_mean(program, tmp_path, extra, code):
    """0 is nothing in particular, 1 alpha by which colours are multiplied, 2 alpha."""
    path = tmp_path / "image.tif"
    array = levels(3 + len(extra), 8)
    if extra[0] == 1:
        array[..., :3] = array[..., :3].astype(int) * array[..., 3:4] // 255
    predictor = 2 if code == 8 else 1
    path.write_bytes(tiff(array, 8, 2, code=code, predictor=predictor, tags={338: (3, extra)}))
    assert_decodes_as_pillow(program, tmp_path, path)


OLD = {
    "tiles that are listed as strips": {"tile": (16, 32), "listed": 273, "code": 8},
    "LZW of TIFF 4": {"code": 5, "rows": 45},
    "LZW of TIFF 4, strips": {"code": 5},
    "reversed bits": {"tags": {266: (3, [2])}},
    "reversed bits, deflate": {"code": 8, "tags": {266: (3, [2])}},
}


@pytest.mark.parametrize("name", OLD)
@pytest.mark.parametrize("samples,photometric", [(1, 1), (3, 2)])
def test_tiff_as_old_programs_wrote_it(program, tmp_path, name, samples, photometric):
    path = tmp_path / "image.tif"
    path.write_bytes(tiff(levels(samples, 8, 211, 130) & 63, 8, photometric, **OLD[name]))
    assert_decodes_as_pillow(program, tmp_path, path)


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("code", [1, 8])
def test_tiff_of_inks_with_16_bits(program, tmp_path, order, code):
    path = tmp_path / "image.tif"
    path.write_bytes(tiff(levels(4, 16), 16, 5, order=order, code=code))
    assert_decodes_as_pillow(program, tmp_path, path)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_orientation_of_a_tiff_is_its_own_tag(program, tmp_path, orientation):
    """Pillow turns a TIFF whether it is asked to or not; here it is asked for, as with other files."""
    image = photograph(61, 40)
    path = tmp_path / "image.tif"
    image.save(path, tiffinfo={0x0112: orientation})
    turned = image.copy()
    turned.getexif()[0x0112] = orientation
    expected = np.asarray(ImageOps.exif_transpose(turned))
    ours = decode(program, tmp_path, path, (expected.shape[1], expected.shape[0]), options=", orientation = true")
    np.testing.assert_array_equal(ours, expected)
    np.testing.assert_array_equal(decode(program, tmp_path, path, image.size), np.asarray(image))


def test_of_several_pictures_in_a_tiff_the_first_is_read(program, tmp_path):
    path = tmp_path / "image.tif"
    image = photograph(40, 30)
    image.save(path, save_all=True, append_images=[photograph(50, 20, 3)])
    np.testing.assert_array_equal(decode(program, tmp_path, path, (40, 30)), np.asarray(image))


BMP_MASKS = {
    "16 bits": (16, 0, (), 40),
    "16 bits of 5, 6, 5": (16, 3, (0xF800, 0x7E0, 0x1F), 40),
    "16 bits of 5, 5, 5": (16, 3, (0x7C00, 0x3E0, 0x1F), 40),
    "24 bits": (24, 0, (), 40),
    "32 bits": (32, 0, (), 40),
    "32 bits with masks": (32, 3, (0xFF0000, 0xFF00, 0xFF, 0xFF000000), 56),
    "32 bits, red last": (32, 3, (0xFF, 0xFF00, 0xFF0000, 0xFF000000), 108),
    "32 bits with three masks": (32, 3, (0xFF000000, 0xFF0000, 0xFF00), 40),
}


@pytest.mark.parametrize("name", BMP_MASKS)
@pytest.mark.parametrize("top_down", [False, True])
def test_bmp_without_a_palette(program, tmp_path, name, top_down):
    bits, compression, masks, header_bytes = BMP_MASKS[name]
    random = np.random.default_rng(bits)
    rows = [random.bytes(37 * bits // 8) for _ in range(19)]
    path = tmp_path / "image.bmp"
    height = -19 if top_down else 19
    path.write_bytes(bmp(bits, rows, compression=compression, masks=masks, header_bytes=header_bytes, height=height))
    assert_decodes_as_pillow(program, tmp_path, path)


@pytest.mark.parametrize("bits", [1, 4, 8])
@pytest.mark.parametrize("top_down", [False, True])
def test_bmp_with_a_palette(program, tmp_path, bits, top_down):
    random = np.random.default_rng(bits)
    rows = [random.bytes(-(-37 * bits // 8)) for _ in range(19)]
    path = tmp_path / "image.bmp"
    path.write_bytes(bmp(bits, rows, palette=random.bytes(4 << bits), height=-19 if top_down else 19))
    assert_decodes_as_pillow(program, tmp_path, path)
    with Image.open(path) as image:
        indices = np.asarray(image)
    ours = decode(program, tmp_path, path, (37, 19), 1, ', palette = "indices"')
    np.testing.assert_array_equal(ours[..., 0], indices)


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA"])
def test_bmp_that_pillow_writes(program, tmp_path, mode):
    path = tmp_path / "image.bmp"
    MODES[mode].save(path)
    assert_decodes_as_pillow(program, tmp_path, path)


@pytest.mark.parametrize("four", [False, True])
def test_bmp_of_runs(program, tmp_path, four):
    """Runs, bytes as they are, ends of rows and places that are left out."""
    random = np.random.default_rng(4)
    data = b""
    for row in range(19):
        if row == 9:
            # Two rows up and five to the right.
            data += bytes([0, 2, 5, 2])
            continue
        if row == 10:
            continue
        left = 37 if row != 11 else 32
        while left:
            count = min(left, int(random.integers(1, 12)))
            if count >= 3 and random.random() < 0.5:
                body = random.bytes((count + 1) // 2 if four else count)
                data += bytes([0, count]) + body + bytes(len(body) % 2)
            else:
                data += bytes([count, random.integers(0, 256)])
            left -= count
        data += b"\0\0"
    data += b"\0\1"
    file = bytearray(
        bmp(4 if four else 8, [data], palette=random.bytes(64 if four else 1024), compression=2 if four else 1)
    )
    file[22:26] = struct.pack("<i", 19)
    path = tmp_path / "image.bmp"
    path.write_bytes(bytes(file))
    assert_decodes_as_pillow(program, tmp_path, path)


GIFS = {
    "palette": ("P", {}),
    "grey": ("L", {}),
    "one bit": ("1", {}),
    "interlaced": ("P", {"interlace": True}),
    "not interlaced": ("P", {"interlace": False}),
    "transparent": ("P", {"transparency": 7}),
    "several frames": ("P", {"save_all": True, "append_images": [photograph(131, 77, 4).quantize(9)], "duration": 40}),
    "with a comment": ("P", {"comment": b"a comment " * 90}),
}


@pytest.mark.parametrize("name", GIFS)
def test_gif_is_decoded_as_pillow_decodes_its_first_frame(program, tmp_path, name):
    mode, options = GIFS[name]
    path = tmp_path / "image.gif"
    MODES[mode].save(path, **options)
    assert_decodes_as_pillow(program, tmp_path, path)
    with Image.open(path) as image:
        image.load()
        indices = np.asarray(image)
    ours = decode(program, tmp_path, path, (131, 77), 1, ', palette = "indices"')
    if mode == "P":
        np.testing.assert_array_equal(ours[..., 0], indices)


@pytest.mark.parametrize("transparent", [False, True])
@pytest.mark.parametrize("beyond", [False, True])
def test_a_gif_whose_first_frame_is_a_part_of_its_canvas(program, tmp_path, transparent, beyond):
    buffer = io.BytesIO()
    image = photograph(40, 30).quantize(20)
    image.save(buffer, "GIF", **({"transparency": 2} if transparent else {}))
    file = bytearray(buffer.getvalue())
    # The canvas is made larger, or the frame is moved over its edge.
    file[6:10] = struct.pack("<HH", 45, 33) if beyond else struct.pack("<HH", 60, 50)
    place = file.index(b"," + struct.pack("<HHHH", 0, 0, 40, 30))
    file[place + 1 : place + 5] = struct.pack("<HH", 9, 11)
    path = tmp_path / "image.gif"
    path.write_bytes(bytes(file))
    assert_decodes_as_pillow(program, tmp_path, path)
