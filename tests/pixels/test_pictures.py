"""TIFF, BMP, GIF and 16-bit PNG against Pillow and numpy: the same pixels, and errors for damaged files."""

import io
import pathlib
import resource
import struct
import subprocess
import zlib

import numpy as np
import pytest
from PIL import Image, ImageOps
from test_pixels import apply, assert_decodes_as_pillow, chunk, decode, photograph


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


def packed(data, code):
    """Deflate, or the runs of PackBits that have no runs."""
    if code == 8:
        return zlib.compress(data)
    if code == 32773:
        parts = [data[start : start + 128] for start in range(0, len(data), 128)]
        return b"".join(bytes([len(part) - 1]) + part for part in parts)
    return data


def samples_of(block, bits, order):
    """A block's rows as a file has them, each padded to whole bytes."""
    if bits >= 8:
        return block.astype(f"{order}u{bits // 8}").tobytes()
    rows = np.unpackbits(block.astype(np.uint8)[..., None], axis=-1)[..., 8 - bits :]
    return np.packbits(rows.reshape(len(block), -1), axis=1).tobytes()


def tiff(array, bits, photometric, *, order="<", code=1, predictor=1, tile=None, rows=7, planar=False, tags=None):
    """A TIFF of the samples [height, width, samples]: Pillow writes neither tiles nor planes nor 16-bit colours."""
    height, width, samples = array.shape
    planes = [array[..., i : i + 1] for i in range(samples)] if planar else [array]
    chunk_height, chunk_width = (tile[0], tile[1]) if tile else (rows, width)
    chunks = []
    for plane in planes:
        for top in range(0, height, chunk_height):
            for left in range(0, width, chunk_width):
                block = plane[top : top + chunk_height, left : left + chunk_width]
                if tile:
                    missing = [(0, chunk_height - block.shape[0]), (0, chunk_width - block.shape[1]), (0, 0)]
                    block = np.pad(block, missing, mode="edge")
                if predictor == 2:
                    block = np.concatenate([block[:, :1], block[:, 1:] - block[:, :-1]], axis=1)
                chunks.append(packed(samples_of(block, bits, order), code))
    entries = {256: (3, [width]), 257: (3, [height]), 258: (3, [bits] * samples), 259: (3, [code])}
    entries |= {262: (3, [photometric]), 277: (3, [samples]), 284: (3, [2 if planar else 1]), 317: (3, [predictor])}
    entries[324 if tile else 273] = (4, [0] * len(chunks))
    entries[325 if tile else 279] = (4, [len(part) for part in chunks])
    entries |= {322: (3, [tile[1]]), 323: (3, [tile[0]])} if tile else {278: (3, [rows])}
    entries |= tags or {}
    count = len(entries)
    values_at = 8 + 2 + 12 * count + 4
    at = values_at + sum(len(values) * (2 if kind == 3 else 4) for kind, values in entries.values())
    entries[324 if tile else 273] = (4, [at + sum(map(len, chunks[:i])) for i in range(len(chunks))])
    directory, values_bytes = b"", b""
    for number, (kind, values) in sorted(entries.items()):
        data = struct.pack(f"{order}{len(values)}{'H' if kind == 3 else 'I'}", *values)
        if len(data) > 4:
            place = struct.pack(f"{order}I", values_at + len(values_bytes))
            values_bytes += data
        else:
            place = data.ljust(4, b"\0")
        directory += struct.pack(f"{order}HHI", number, kind, len(values)) + place
    values_bytes = values_bytes.ljust(at - values_at, b"\0")
    magic = b"II" if order == "<" else b"MM"
    head = magic + struct.pack(f"{order}HIH", 42, 8, count)
    return head + directory + bytes(4) + values_bytes + b"".join(chunks)


def levels(samples, bits, width=67, height=45):
    random = np.random.default_rng(samples * bits)
    return random.integers(0, 1 << bits, (height, width, samples)).astype(np.uint16 if bits == 16 else np.uint8)


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


def bmp(bits, rows, *, compression=0, masks=(), palette=b"", height=None, header_bytes=40, alpha=None):
    height = len(rows) if height is None else height
    width = {1: 37, 4: 37, 8: 37}.get(bits, len(rows[0]) * 8 // bits)
    body = b"".join(row + bytes(-len(row) % 4) for row in rows)
    header = struct.pack(
        "<IiiHHIIiiII", header_bytes, width, height, 1, bits, compression, 0, 0, 0, len(palette) // 4, 0
    )
    header += b"".join(mask.to_bytes(4, "little") for mask in masks)
    header = header.ljust(header_bytes, b"\0")
    start = 14 + len(header) + len(palette)
    return b"BM" + struct.pack("<IHHI", start + len(body), 0, 0, start) + header + palette + body


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


def png_16(values, colour):
    height, width = values.shape[:2]
    rows = b"".join(b"\0" + row.tobytes() for row in values.astype(">u2").reshape(height, -1))
    header = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([16, colour, 0, 0, 0])
    parts = [chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def wide(program, tmp_path, path, shape, operations="", output='dtype = "uint16", layout = "NHWC"', channels=None):
    size = f'{{ op = "center-crop", size = [{shape[0]}, {shape[1]}] }}'
    operations = f'{{ op = "decode-image", channels = {channels or shape[2]} }}, {operations or size}'
    data = apply(program, tmp_path, operations, [path], f"image = {{ {output} }}")
    return np.frombuffer(data, np.uint16).reshape(shape)


@pytest.mark.parametrize("suffix", ["png", "tif", "big-endian.tif", "predicted.tif"])
@pytest.mark.parametrize("samples", [1, 3, 4])
def test_levels_of_16_bits_are_exact(program, tmp_path, suffix, samples):
    values = levels(samples, 16)
    path = tmp_path / f"image.{suffix}"
    if suffix == "png":
        file = png_16(values, {1: 0, 3: 2, 4: 6}[samples])
    else:
        options = {"order": ">"} if suffix.startswith("big") else {}
        options |= {"code": 8, "predictor": 2} if suffix.startswith("predicted") else {}
        tags = {338: (3, [2])} if samples == 4 else {}
        file = tiff(values, 16, 1 if samples == 1 else 2, tags=tags, **options)
    path.write_bytes(file)
    np.testing.assert_array_equal(wide(program, tmp_path, path, values.shape), values)
    planes = wide(
        program,
        tmp_path,
        path,
        (samples, *values.shape[:2]),
        '{ op = "center-crop", size = [45, 67] }',
        'dtype = "uint16"',
        samples,
    )
    np.testing.assert_array_equal(planes, values.transpose(2, 0, 1))
    # Beyond its edge it is black; cut out of the middle and mirrored it is what it was.
    larger = wide(program, tmp_path, path, (49, 71, samples))
    np.testing.assert_array_equal(larger, np.pad(values, [(2, 2), (2, 2), (0, 0)]))
    flip = '{ op = "center-crop", size = [31, 33] }, { op = "random-horizontal-flip", probability = 1.0 }'
    for output, axes in [('dtype = "uint16", layout = "NHWC"', (0, 1, 2)), ('dtype = "uint16"', (2, 0, 1))]:
        expected = values[7:38, 17:50][:, ::-1].transpose(axes)
        ours = wide(program, tmp_path, path, expected.shape, flip, output, samples)
        np.testing.assert_array_equal(ours, expected)


def test_16_bits_that_pillow_writes(program, tmp_path):
    values = levels(1, 16)
    for suffix in ("png", "tif"):
        path = tmp_path / f"image.{suffix}"
        Image.fromarray(values[..., 0]).save(path)
        np.testing.assert_array_equal(wide(program, tmp_path, path, values.shape), values)
        # Grey is made three channels, and no alpha an opaque one.
        four = wide(program, tmp_path, path, (*values.shape[:2], 4))
        np.testing.assert_array_equal(four, np.concatenate([values] * 3 + [np.full_like(values, 65535)], axis=2))


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "lanczos", "nearest"])
def test_levels_of_16_bits_are_resized(program, tmp_path, interpolation):
    """Against Pillow's resizing of single floats: within a level or two of 65,536."""
    values = np.asarray(photograph(120, 90).convert("L")).astype(np.uint16) * 257
    path = tmp_path / "image.png"
    path.write_bytes(png_16(values[..., None], 0))
    resize = f'{{ op = "resize", size = [40, 50], interpolation = "{interpolation}" }}'
    ours = wide(program, tmp_path, path, (40, 50, 1), resize)[..., 0]
    floats = Image.fromarray(values.astype(np.float32))
    expected = np.asarray(floats.resize((50, 40), Image.Resampling[interpolation.upper()]))
    expected = np.clip(np.rint(expected), 0, 65535)
    assert np.abs(ours.astype(int) - expected.astype(int)).max() <= 2


def test_what_has_no_16_bits_is_refused(program, tmp_path):
    image = photograph(20, 20)
    paths = [tmp_path / name for name in ("image.jpg", "image.png", "image.tif", "image.gif", "image.webp")]
    for path in paths:
        image.save(path)
    refused = []
    operations = '{ op = "decode-image", depth = 16 }, { op = "center-crop", size = 20 }'
    apply(program, tmp_path, operations, paths, refused=refused)
    for line in refused:
        assert line.endswith("its levels have 8 bits, and 16 are asked for"), line
    assert len(refused) == len(paths)


def limited():
    """A picture of a gigabyte would meet this."""
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))


def run_limited(program, tmp_path, paths):
    config = tmp_path / "config.toml"
    operations = '{ op = "decode-image" }, { op = "resize", size = [8, 8] }'
    config.write_text(f"[[stage]]\noperations = [{operations}]\n")
    command = [program, config, "1", "0", tmp_path / "rows", *paths]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, preexec_fn=limited, check=True, timeout=120)
    lines = result.stdout.splitlines()
    rows = (tmp_path / "rows").stat().st_size // (8 * 8 * 3)
    assert rows + len(lines) == len(paths)
    return lines


def seeds(folder):
    corpus = pathlib.Path(__file__).parents[2] / "fuzz" / "corpus" / folder
    return [path.read_bytes()[5:] for path in sorted(corpus.iterdir())]


@pytest.mark.parametrize("folder", ["tiff", "bmp", "gif"])
def test_damaged_files_are_errors_or_pixels(program, tmp_path, folder):
    random = np.random.default_rng(7)
    files = seeds(folder)
    assert len(files) >= 7
    paths = []
    for number in range(900):
        file = bytearray(files[number % len(files)])
        if number % 3 == 0:
            del file[int(random.integers(4, len(file))) :]
        else:
            # The headers, and anywhere.
            most = min(len(file), 120) if number % 3 == 1 else len(file)
            for _ in range(int(random.integers(1, 6))):
                file[int(random.integers(4, most))] = int(random.choice([0, 1, 127, 128, 255, random.integers(256)]))
        path = tmp_path / f"{number}.{folder}"
        path.write_bytes(file)
        paths.append(path)
    lines = run_limited(program, tmp_path, paths)
    assert 100 < len(lines) < 900
    for line in lines:
        assert len(line.split(": ", 1)[1]) > 10, line


def test_huge_headers_are_refused_at_once(program, tmp_path):
    side = 100_000
    small = levels(1, 8, 8, 8)
    as_long = {256: (4, [side]), 257: (4, [side])}
    files = {
        "strips.tif": tiff(small, 8, 1, tags=as_long),
        "tiles.tif": tiff(small, 8, 1, tile=(16, 16), tags=as_long),
        "a-tile.tif": tiff(small, 8, 1, tile=(16, 16), tags={322: (4, [4_000_000_000]), 323: (4, [4_000_000_000])}),
        "image.bmp": b"BM" + struct.pack("<IHHIIiiHHIIiiII", 0, 0, 0, 54, 40, side, side, 1, 24, 0, 0, 0, 0, 0, 0),
        "image.gif": b"GIF89a"
        + struct.pack("<HHBBB", 65535, 65535, 0x80, 0, 0)
        + bytes(6)
        + b","
        + struct.pack("<HHHHB", 0, 0, 65535, 65535, 0)
        + bytes([2, 2, 0x4C, 1, 0, 0x3B]),
    }
    paths = []
    for name, file in files.items():
        paths.append(tmp_path / name)
        paths[-1].write_bytes(file)
    lines = run_limited(program, tmp_path, paths)
    assert len(lines) == len(paths)
    for line in lines:
        reason = "its tiles have 4000000000 columns" if "a-tile" in line else "more than limits.pixels"
        assert reason in line, line


@pytest.mark.parametrize("suffix", ["tif", "lzw.tif", "bmp", "gif"])
def test_truncation_is_refused_where_pillow_refuses(program, tmp_path, suffix):
    whole = io.BytesIO()
    kind = {"tif": "TIFF", "lzw.tif": "TIFF", "bmp": "BMP", "gif": "GIF"}[suffix]
    options = {"compression": "tiff_lzw"} if suffix.startswith("lzw") else {}
    photograph(120, 90).save(whole, kind, **options)
    whole = whole.getvalue()
    paths, expected = [], []
    # Pillow reads blocks of a GIF as a whole; here its pixels are enough.
    last = [] if suffix == "gif" else [len(whole) - 3]
    for length in [len(whole), *last, len(whole) - 40, len(whole) // 2, 200, 40]:
        path = tmp_path / f"{length}.{suffix}"
        path.write_bytes(whole[:length])
        paths.append(path)
        try:
            with Image.open(path) as image:
                image.convert("RGB")
        except Exception:
            expected.append(path.name)
    refused = []
    operations = '{ op = "decode-image" }, { op = "center-crop", size = 8 }'
    apply(program, tmp_path, operations, paths, refused=refused)
    refused = [pathlib.Path(line.split(": ")[0]).name for line in refused]
    assert refused == expected and len(expected) >= 4


UNREAD = {
    "floats": (tiff(levels(1, 16), 16, 1, tags={339: (3, [3])}), "its samples are floats"),
    "JPEG": (tiff(levels(1, 8), 8, 1, tags={259: (3, [7])}), "it is packed by JPEG"),
    "YCbCr": (tiff(levels(3, 8), 8, 6), "its colours are YCbCr"),
    "32 bits": (tiff(levels(1, 16), 16, 1, tags={258: (3, [32])}), "its samples are of 32 bits"),
    "BigTIFF": (b"II\x2b\0\x08\0\0\0" + bytes(40), "BigTIFF is not read"),
    "HEIC": (b"\0\0\0\x18ftypheic" + bytes(40), "HEIC is not read"),
    "AVIF": (b"\0\0\0\x20ftypavif" + bytes(40), "AVIF is not read"),
}


def test_what_is_not_read_is_refused_by_name_with_the_remedy(program, tmp_path):
    paths, refused = [], []
    for name, (file, _) in UNREAD.items():
        paths.append(tmp_path / name)
        paths[-1].write_bytes(file)
    operations = '{ op = "decode-image" }, { op = "center-crop", size = 8 }'
    apply(program, tmp_path, operations, paths, refused=refused)
    for line, (_, reason) in zip(refused, UNREAD.values(), strict=True):
        assert reason in line and "Python stage" in line, line
