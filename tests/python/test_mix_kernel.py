"""The kernel that finishes images and mixes them (client-lib/src/cuda/mix.ptx), tested without a GPU.

An interpreter (ptx.py) runs its text, and NumPy mixes the finished images: whole arrays at a time, in the order of the
mixes, and rounded after each. Values are compared by their bits.
"""

import numpy
import ptx
import pytest

PTX = ptx.FOLDER / "mix.ptx"
ENTRY = ptx.read_entries(PTX)["forebay_mix"]
SIZES = {0: 1, 8: 2, 9: 2, 10: 4}
NORMALIZED = (0.485, 0.229)


def brain(values):
    """float32 rounded to the values of bfloat16, by the distances to both neighbours; ties to the even one."""
    below = (values.view(numpy.uint32) & 0xFFFF_0000).view(numpy.float32)
    above = ((values.view(numpy.uint32) & 0xFFFF_0000) + 0x1_0000).view(numpy.float32)
    to_below, to_above = (abs(values.astype(numpy.float64) - each) for each in (below, above))
    is_odd = (values.view(numpy.uint32) >> 16) & 1
    return numpy.where((to_above < to_below) | ((to_above == to_below) & (is_odd == 1)), above, below)


ROUNDED = {
    0: numpy.rint,
    8: lambda values: values.astype(numpy.float16).astype(numpy.float32),
    9: brain,
    10: lambda values: values,
}


def bits(values, dtype):
    if dtype == 0:
        return values.astype(numpy.uint8)
    if dtype == 8:
        return values.astype(numpy.float16).view(numpy.uint16)
    return values.view(numpy.uint32) >> 16 if dtype == 9 else values.view(numpy.uint32)


def table_of(channels, dtype, scale=1.0):
    levels = numpy.arange(256, dtype=numpy.float32)
    if dtype == 0:
        return numpy.tile(levels, (channels, 1))
    mean, std = (numpy.float32(part) for part in NORMALIZED)
    rows = [
        ROUNDED[dtype](((levels / numpy.float32(255)) - mean * channel) / std * numpy.float32(scale))
        for channel in range(channels)
    ]
    return numpy.stack(rows).astype(numpy.float32)


def words_of(mixes):
    words = numpy.zeros((len(mixes), 8), numpy.uint32)
    for row, mix in zip(words, mixes):
        if isinstance(mix, float):
            row[0], row[1] = 1, numpy.float32(mix).view(numpy.uint32)
        elif mix is not None:
            row[0], row[2:6] = 2, mix
    return words


def mixed(values, mixes, dtype):
    """Rows of height x width x channels, mixed with those from the end; the middle one of an odd number stays."""
    pairs = len(values) // 2
    for mix in mixes:
        partners = values[::-1].copy()
        after = values.copy()
        if isinstance(mix, float):
            share = numpy.float32(mix)
            after = ROUNDED[dtype](values * share + partners * (numpy.float32(1) - share)).astype(numpy.float32)
        elif mix is not None:
            left, right, top, bottom = mix
            after[:, top:bottom, left:right] = partners[:, top:bottom, left:right]
        if len(values) % 2:
            after[pairs] = values[pairs]
        values = after
    return values


def check(raw, table, mixes, dtype, channels_first, grid):
    rows, height, width, channels = raw.shape
    expected = mixed(table[numpy.arange(channels), raw], mixes, dtype)
    if channels_first:
        expected = numpy.ascontiguousarray(expected.transpose(0, 3, 1, 2))
    memory = ptx.Memory(raw.tobytes().__getitem__, raw.size, table, raw.size, SIZES[dtype], words_of(mixes).tobytes())
    sizes = [height * width, channels, channels_first, width, dtype, len(mixes)]
    total = rows * height * width
    arguments = [memory.INPUT, memory.OUTPUT, memory.TABLE, total, memory.MIXES, *sizes]
    ptx.launch(ENTRY, memory, arguments, (*grid, None))
    found = [memory.written.get(element) for element in range(raw.size)]
    assert found == bits(expected, dtype).ravel().tolist()


def draw(shape):
    return numpy.random.default_rng(sum(shape)).integers(0, 256, shape, numpy.uint8)


@pytest.mark.parametrize("dtype", SIZES)
@pytest.mark.parametrize("channels_first", [0, 1])
@pytest.mark.parametrize(
    "mixes",
    [
        [0.3],
        [(1, 4, 0, 2)],
        [],
        [None, 0.8125],
        # A sum of what was swapped, and a part of what was summed.
        [(0, 3, 1, 4), 0.6, (2, 5, 0, 3), 0.25],
        # All, nothing, and past the edges, which no daemon writes.
        [1.0, 0.0, (0, 5, 0, 4), (3, 3, 0, 4), (2, 900, 3, 900)],
    ],
)
def test_the_kernel_mixes_as_numpy_does(dtype, channels_first, mixes):
    check(draw((5, 4, 5, 3)), table_of(3, dtype), mixes, dtype, channels_first, (2, 16))


@pytest.mark.parametrize(
    ("shape", "grid"),
    [
        # Threads without a pixel, strides below, above and at multiples of a row, one row, no row, one channel.
        ((4, 3, 3, 4), (1, 7)),
        ((6, 2, 3, 1), (2, 9)),
        ((7, 1, 1, 3), (1, 3)),
        ((1, 3, 5, 3), (5, 64)),
        ((0, 3, 5, 3), (2, 32)),
        ((2, 5, 1, 2), (1, 1)),
    ],
)
def test_rows_of_any_number_and_size_have_the_right_partner(shape, grid):
    for channels_first in (0, 1):
        check(draw(shape), table_of(shape[3], 10), [0.7, (0, 2, 0, 1)], 10, channels_first, grid)


@pytest.mark.parametrize(("dtype", "scales"), [(8, [1e-6, 3e4]), (9, [1e-37, 5e37]), (10, [1e-38, 5e37])])
def test_values_at_the_ends_of_a_types_range_are_rounded_alike(dtype, scales):
    with numpy.errstate(over="ignore"):
        for scale in scales:
            table = table_of(2, dtype, scale)
            # The distance to infinity is no number to round by.
            assert dtype == 8 or numpy.isfinite(table).all()
            check(draw((2, 4, 6, 2)), table, [0.37, 0.61], dtype, 1, (1, 8))


def test_no_number_stays_none():
    table = table_of(1, 9)
    table[0, :] = numpy.inf
    table[0, :128] = -numpy.inf
    memory = ptx.Memory([0, 255].__getitem__, 2, table, 2, 2, words_of([0.5]).tobytes())
    arguments = [memory.INPUT, memory.OUTPUT, memory.TABLE, 2, memory.MIXES, 1, 1, 0, 1, 9, 1]
    ptx.launch(ENTRY, memory, arguments, (1, 2, None))
    assert all(value & 0x7F80 == 0x7F80 and value & 0x7F for value in memory.written.values())


def test_the_parameters_are_those_that_the_client_gives():
    sizes = ["pixels_per_row", "channels", "channels_first", "width", "dtype", "mix_count"]
    assert ENTRY[0] == ["input", "output", "table", "pixels_total", "mixes", *sizes]


def test_offsets_beyond_32_bits_are_kept():
    rows, width, channels = 200_000, 224, 3
    per_row = width * width
    total = rows * per_row
    memory = ptx.Memory(
        lambda offset: offset * 7919 % 251, total * channels, table_of(channels, 10), total * channels, 4,
        words_of([0.75]).tobytes(),
    )  # fmt: skip
    blocks, threads, only = 9_600_000, 1024, (9_400_001, 1023)
    arguments = [memory.INPUT, memory.OUTPUT, memory.TABLE, total, memory.MIXES, per_row, channels, 1, width, 10, 1]
    ptx.launch(ENTRY, memory, arguments, (blocks, threads, only))
    pixel = only[0] * threads + only[1]
    row, place = divmod(pixel, per_row)
    table, expected = table_of(channels, 10), {}
    for channel in range(channels):
        own, other = (
            table[channel, ((number * per_row + place) * channels + channel) * 7919 % 251]
            for number in (row, rows - 1 - row)
        )
        value = own * numpy.float32(0.75) + other * numpy.float32(0.25)
        expected[(row * channels + channel) * per_row + place] = int(value.view(numpy.uint32))
    assert pixel * channels > 2**34 and memory.written == expected


@pytest.mark.skipif(not ptx.find_ptxas(), reason="no ptxas: neither a CUDA toolkit nor Triton is installed")
def test_the_kernel_compiles_for_every_architecture(tmp_path):
    ptx.compile_for_every_architecture(PTX, tmp_path)
