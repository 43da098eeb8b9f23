"""Levels of 16 bits from PNG and TIFF: exact, cropped, flipped and resized."""

import zlib

import numpy as np
import pytest
from PIL import Image
from test_pixels import apply, chunk, decode, photograph
from written import levels, tiff


def png_16(values, colour, transparent=None):
    height, width = values.shape[:2]
    rows = b"".join(b"\0" + row.tobytes() for row in values.astype(">u2").reshape(height, -1))
    header = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([16, colour, 0, 0, 0])
    parts = [chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")]
    if transparent is not None:
        parts.insert(1, chunk(b"tRNS", np.array(transparent, ">u2").tobytes()))
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


# The levels share a byte with others: all 16 bits tell which one is transparent.
@pytest.mark.parametrize("key", [255, 0xFF00, 0xFFFF, 300])
@pytest.mark.parametrize("samples", [1, 3])
def test_a_transparent_level_of_16_bits_is_compared_whole(program, tmp_path, key, samples):
    values = np.array([0, 255, 300, 0xFF00, 0xFFFF, 0x12FF, 0xFF12, 256], np.uint16)
    values = np.repeat(np.tile(values, (4, 2))[..., None], samples, axis=2)
    if samples == 3:
        # Pixels that equal it in two of three colours are opaque.
        values[2:, ::2, 1] ^= 1
    path = tmp_path / "image.png"
    path.write_bytes(png_16(values, {1: 0, 3: 2}[samples], [key] * samples))
    shape = (*values.shape[:2], 4)
    found = wide(program, tmp_path, path, shape)
    np.testing.assert_array_equal(found[..., :3], np.broadcast_to(values, (*shape[:2], 3)))
    alpha = np.where((values == key).all(axis=2), 0, 0xFFFF)
    np.testing.assert_array_equal(found[..., 3], alpha)
    # In bytes grey is clipped and colours have their high byte, as without a transparent level.
    ours = decode(program, tmp_path, path, (shape[1], shape[0]), channels=4)
    expected = np.minimum(values, 255) if samples == 1 else values >> 8
    np.testing.assert_array_equal(ours[..., :3], np.broadcast_to(expected, (*shape[:2], 3)))
    np.testing.assert_array_equal(ours[..., 3], alpha >> 8)


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
        assert line.endswith("its levels have 8 bits, and 16 are requested"), line
    assert len(refused) == len(paths)
