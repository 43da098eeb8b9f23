"""The kernels that finish images on a GPU (client-lib/src/cuda/finish.ptx), tested without one.

An interpreter (ptx.py) runs their text, and NumPy checks the result. Not tested: that a driver accepts the text (ptxas
compiles it for every architecture that it knows, where it is found), and speed.
"""

import re

import numpy
import ptx
import pytest

PTX = ptx.FOLDER / "finish.ptx"
ELEMENTS = {8: numpy.uint8, 16: numpy.uint16, 32: numpy.uint32}
ENTRIES = ptx.read_entries(PTX)


def launch(memory, total, per_row, channels, channels_first, blocks, threads, only=None):
    """Runs every thread of a grid, or only the one of a block and a number in it."""
    arguments = [memory.INPUT, memory.OUTPUT, memory.TABLE, total, per_row, channels, channels_first]
    ptx.launch(ENTRIES[f"forebay_finish_u{memory.bits}"], memory, arguments, (blocks, threads, only))


@pytest.mark.parametrize("bits", ELEMENTS)
@pytest.mark.parametrize("channels_first", [0, 1])
@pytest.mark.parametrize(
    ("rows", "height", "width", "channels", "blocks", "threads"),
    [
        (3, 4, 5, 3, 1, 1),
        (3, 4, 5, 3, 2, 32),
        # Strides below, above and at multiples of a row, and threads without a pixel.
        (4, 3, 3, 3, 1, 7),
        (5, 2, 3, 4, 2, 10),
        (5, 2, 3, 1, 3, 4),
        (7, 1, 1, 3, 1, 3),
        (2, 3, 5, 3, 5, 64),
        (0, 3, 5, 3, 2, 32),
    ],
)
def test_a_kernel_makes_what_numpy_makes(bits, channels_first, rows, height, width, channels, blocks, threads):
    draws = numpy.random.default_rng(bits + rows)
    raw = draws.integers(0, 256, (rows, height, width, channels), numpy.uint8)
    table = draws.integers(0, 2**bits, (channels, 256), ELEMENTS[bits])
    expected = table[numpy.arange(channels), raw]
    if channels_first:
        expected = expected.transpose(0, 3, 1, 2)
    memory = ptx.Memory(raw.tobytes().__getitem__, raw.size, table, expected.size)
    launch(memory, rows * height * width, height * width, channels, channels_first, blocks, threads)
    found = [memory.written.get(element) for element in range(expected.size)]
    assert found == expected.ravel().tolist()


@pytest.mark.parametrize("channels_first", [0, 1])
def test_offsets_beyond_32_bits_are_kept(channels_first):
    rows, per_row, channels = 200_000, 224 * 224, 3
    total = rows * per_row
    table = numpy.arange(channels * 256, dtype=numpy.uint32).reshape(channels, 256) * 5_000_011
    # An input too large to keep: each byte is a function of its offset.
    memory = ptx.Memory(lambda offset: offset * 7919 % 251, total * channels, table, total * channels)
    blocks, threads, only = 9_600_000, 1024, (9_400_001, 1023)
    launch(memory, total, per_row, channels, channels_first, blocks, threads, only)
    first = only[0] * threads + only[1]
    pixels = range(first, total, blocks * threads)
    assert len(pixels) == 1 and first * channels > 2**34
    expected = {}
    for pixel in pixels:
        row, place = divmod(pixel, per_row)
        for channel in range(channels):
            value = int(table[channel, (pixel * channels + channel) * 7919 % 251])
            planar = (row * channels + channel) * per_row + place
            expected[planar if channels_first else pixel * channels + channel] = value
    assert memory.written == expected


def test_the_three_kernels_differ_in_the_size_of_an_element_alone():
    bodies = {bits: "\n".join(ENTRIES[f"forebay_finish_u{bits}"][1]) for bits in ELEMENTS}
    assert len(ENTRIES) == 3
    for bits, shift in [(8, 0), (16, 1)]:
        changed = re.sub(r"shl\.b64 (%\w+), (%\w+), 2", rf"shl.b64 \1, \2, {shift}", bodies[32])
        changed = changed.replace("%byte, 4,", f"%byte, {bits // 8},").replace("%entry, 1024", f"%entry, {bits * 32}")
        changed = changed.replace("nc.u32 %value", f"nc.u{bits} %value").replace("st.global.u32", f"st.global.u{bits}")
        assert changed == bodies[bits]


@pytest.mark.skipif(not ptx.find_ptxas(), reason="no ptxas: neither a CUDA toolkit nor Triton is installed")
def test_the_kernels_compile_for_every_architecture(tmp_path):
    ptx.compile_for_every_architecture(PTX, tmp_path)
