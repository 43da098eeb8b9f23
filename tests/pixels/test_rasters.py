"""Samples of TIFF files as arrays: every type, bands, strips and tiles, compressions and predictors."""

import io

import numpy as np
import pytest
from PIL import Image
from test_pixels import apply
from written import tiff

DTYPES = ["uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64"]
KINDS = {"u": 1, "i": 2, "f": 3}
SIZE = (45, 67)


def values_of(dtype, samples, seed=0):
    """All bits at random, so that floats are also infinite, and not numbers."""
    dtype = np.dtype(dtype)
    bits = np.random.default_rng(seed).bytes(SIZE[0] * SIZE[1] * samples * dtype.itemsize)
    return np.frombuffer(bits, dtype).reshape(*SIZE, samples)


def file_of(values, **options):
    kind = {339: (3, [KINDS[values.dtype.kind]] * values.shape[2])}
    tags = kind | options.pop("tags", {})
    return tiff(values, values.dtype.itemsize * 8, 1, tags=tags, **options)


def operation(samples, dtype, more=""):
    return f'{{ op = "decode-raster", size = [{SIZE[0]}, {SIZE[1]}], samples = {samples}, dtype = "{dtype}" {more} }}'


def check(program, tmp_path, file, values):
    """In each layout, bit by bit."""
    path = tmp_path / "raster.tif"
    path.write_bytes(file)
    samples, dtype = values.shape[2], values.dtype.name
    layouts = [("", values.transpose(2, 0, 1)), (', layout = "hwc"', values)]
    for more, expected in layouts:
        rows = apply(program, tmp_path, operation(samples, dtype, more), [path])
        assert rows == np.ascontiguousarray(expected).tobytes(), (dtype, more)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("samples", [1, 3, 13])
def test_every_type_is_exact(program, tmp_path, dtype, samples):
    values = values_of(dtype, samples)
    for order in "<>":
        check(program, tmp_path, file_of(values, order=order), values)
        check(program, tmp_path, file_of(values, order=order, planar=True, code=8), values)
        check(program, tmp_path, file_of(values, order=order, tile=(16, 32), code=5), values)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("options", [{}, {"tile": (16, 48)}, {"planar": True}, {"order": ">"}])
def test_differences_of_floats_are_added(program, tmp_path, dtype, options):
    values = values_of(dtype, 4)
    check(program, tmp_path, file_of(values, predictor=3, code=8, **options), values)


@pytest.mark.parametrize("dtype", ["uint32", "int64", "int8"])
def test_differences_of_integers_are_added(program, tmp_path, dtype):
    values = values_of(dtype, 3)
    with np.errstate(over="ignore"):
        unsigned = values.view(f"u{values.dtype.itemsize}")
        file = tiff(
            unsigned,
            8 * values.dtype.itemsize,
            1,
            predictor=2,
            code=8,
            order=">",
            tags={339: (3, [KINDS[values.dtype.kind]] * 3)},
        )
    check(program, tmp_path, file, values)


def test_files_of_pillow_and_tifffile(program, tmp_path):
    heights = np.random.default_rng(1).normal(0, 1000, SIZE).astype(np.float32)
    for compression in (None, "tiff_lzw", "tiff_adobe_deflate", "packbits"):
        buffer = io.BytesIO()
        Image.fromarray(heights).save(buffer, "TIFF", compression=compression)
        check(program, tmp_path, buffer.getvalue(), heights[..., None])
    tifffile = pytest.importorskip("tifffile")
    for dtype in ("float32", "float64", "int16", "uint32"):
        values = values_of(dtype, 10)
        for options in ({}, {"compression": "zlib"}, {"tile": (32, 16)}, {"byteorder": ">"}):
            for planes in (False, True):
                buffer = io.BytesIO()
                array = values.transpose(2, 0, 1) if planes else values
                layout = "separate" if planes else "contig"
                tifffile.imwrite(buffer, array, photometric="minisblack", planarconfig=layout, **options)
                check(program, tmp_path, buffer.getvalue(), values)


def test_what_is_not_as_expected_is_refused(program, tmp_path):
    values = values_of("float32", 2)
    good = file_of(values, code=8)
    wide = file_of(values_of("float64", 2))
    files = {
        "cut.tif": good[:-100],
        "wide.tif": wide,
        "few.tif": file_of(values_of("float32", 1)),
        "big.tif": b"II\x2b\0" + good[4:],
        "no.tif": b"\x89PNG" + good,
        "complex.tif": file_of(values, tags={339: (3, [6, 6])}),
    }
    for name, file in files.items():
        (tmp_path / name).write_bytes(file)
    refused = []
    apply(program, tmp_path, operation(2, "float32"), [tmp_path / name for name in files], refused=refused)
    reasons = [
        "a strip or tile of the TIFF file ",
        "the TIFF file is float64 [2, 45, 67], and `decode-raster` expects float32 [2, 45, 67]; change its `size`",
        "the TIFF file is float32 [1, 45, 67], and",
        "it is a BigTIFF, which is not read; write it again with `BIGTIFF=NO`",
        "it is no TIFF file, and `decode-raster` reads no other",
        "its samples are complex numbers, which is not read",
    ]
    assert len(refused) == len(reasons), refused
    for line, reason in zip(refused, reasons, strict=True):
        assert reason in line, line


def test_damaged_files_are_refused_or_read(program, tmp_path):
    draw = np.random.default_rng(5)
    file = file_of(values_of("float32", 2), code=8, predictor=3)
    paths = []
    for number in range(300):
        damaged = bytearray(file)
        for _ in range(3):
            damaged[draw.integers(len(damaged) if number % 2 else 300)] ^= 1 << int(draw.integers(8))
        paths.append(tmp_path / f"{number}.tif")
        paths[-1].write_bytes(damaged)
    refused = []
    rows = apply(program, tmp_path, operation(2, "float32"), paths, refused=refused)
    assert len(rows) == (len(paths) - len(refused)) * SIZE[0] * SIZE[1] * 8
    assert len(refused) > 50, refused
