"""TIFF, BMP and GIF files that are damaged, too large or not read: errors, and no more memory than they may take."""

import io
import pathlib
import resource
import struct
import subprocess

import numpy as np
import pytest
from test_pixels import apply, photograph, refused_of_lengths
from written import levels, tiff


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
    # Pillow reads blocks of a GIF as a whole; here its pixels are enough.
    last = [] if suffix == "gif" else [len(whole) - 3]
    lengths = [len(whole), *last, len(whole) - 40, len(whole) // 2, 200, 40]
    refused, expected = refused_of_lengths(program, tmp_path, whole, suffix, lengths)
    assert refused == expected and len(expected) >= 4


UNREAD = {
    "floats": (tiff(levels(1, 16), 16, 1, tags={339: (3, [3])}), "its samples are floats"),
    "JPEG": (tiff(levels(1, 8), 8, 1, tags={259: (3, [7])}), "it is packed by JPEG"),
    "YCbCr": (tiff(levels(3, 8), 8, 6), "its colours are YCbCr"),
    "32 bits": (tiff(levels(1, 16), 16, 1, tags={258: (3, [32])}), "its samples are unsigned integers of 32 bits"),
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
        assert reason in line and ("Python stage" in line or "decode-raster" in line), line
