"""The kernels that finish images on a GPU (client-lib/src/cuda/finish.ptx), tested without one.

An interpreter of the few instructions that they use runs their text, thread by thread, and NumPy checks the result. An
access outside of the buffers, an unaligned one or a second write of an element fails. Not tested: that a driver accepts
the text (ptxas compiles it for every architecture that it knows, where it is found), and speed.
"""

import glob
import pathlib
import re
import shutil
import subprocess
import sysconfig

import numpy
import pytest

PTX = pathlib.Path(__file__).parents[2] / "client-lib/src/cuda/finish.ptx"
ELEMENTS = {8: numpy.uint8, 16: numpy.uint16, 32: numpy.uint32}


def read_entries():
    """Each entry's name, its parameters in order, and its statements; a label is a statement that ends with a colon."""
    text = re.sub(r"//[^\n]*", "", PTX.read_text())
    entries = {}
    for name, parameters, body in re.findall(r"\.visible \.entry (\w+)\s*\((.*?)\)\s*\{(.*?)\n\}", text, re.DOTALL):
        names = [parameter.split()[-1] for parameter in parameters.split(",")]
        statements = [" ".join(part.split()) for part in re.findall(r"\w+:|[^;:]+;", body)]
        entries[name] = names, [statement.rstrip(";") for statement in statements]
    return entries


ENTRIES = read_entries()


class Memory:
    """What a kernel may touch: `raw`, so many bytes of input by offset, a table, and output to be written once."""

    INPUT, TABLE, OUTPUT = 0x7F12_3456_0003, 0x7F00_0000_0000, 0x7FFF_F000_0000

    def __init__(self, raw, raw_bytes, table, out_elements):
        self.raw, self.raw_bytes, self.table = raw, raw_bytes, table.tobytes()
        self.bits = table.itemsize * 8
        self.out_elements = out_elements
        self.written = {}

    def load(self, address, size):
        assert address % size == 0, f"a load of {size} bytes at {address:#x}"
        offset, entry = address - self.INPUT, address - self.TABLE
        if size == 1 and 0 <= offset < self.raw_bytes:
            return self.raw(offset)
        assert 0 <= entry <= len(self.table) - size, f"{address:#x} is read and lies in no buffer"
        return int.from_bytes(self.table[entry:][:size], "little")

    def store(self, address, size, value):
        element, rest = divmod(address - self.OUTPUT, size)
        assert rest == 0 and size * 8 == self.bits, f"a store of {size} bytes at {address:#x}"
        assert 0 <= element < self.out_elements, f"element {element} of {self.out_elements} is written"
        assert element not in self.written, f"element {element} is written twice"
        self.written[element] = value


# What each instruction makes of its sources, and how many times as wide as its type the result is.
INSTRUCTIONS = {
    "cvta.to.global": (lambda a: a, 1),
    "mov": (lambda a: a, 1),
    "cvt.u64": (lambda a: a, 2),
    "add": (lambda a, b: a + b, 1),
    "sub": (lambda a, b: a - b, 1),
    "div": (lambda a, b: a // b, 1),
    "shl": (lambda a, b: a << b, 1),
    "mul.lo": (lambda a, b: a * b, 1),
    "mul.wide": (lambda a, b: a * b, 2),
    "mad.lo": (lambda a, b, c: a * b + c, 1),
    "mad.wide": (lambda a, b, c: a * b + c, 2),
    "setp.ge": (lambda a, b: a >= b, 1),
    "setp.lt": (lambda a, b: a < b, 1),
    "setp.ne": (lambda a, b: a != b, 1),
    "selp": (lambda a, b, chosen: a if chosen else b, 1),
}


class Thread:
    """One thread of a kernel: registers, and the instructions that the kernels use."""

    def __init__(self, memory, arguments, special):
        self.memory = memory
        self.arguments = arguments
        self.registers = dict(special)
        self.widths = {}

    def declare(self, kind, names):
        for name in names.split(","):
            self.widths[name.strip()] = 1 if kind == "pred" else int(kind[1:])

    def value(self, operand):
        if operand in self.registers:
            return self.registers[operand]
        assert not operand.startswith("%"), f"{operand} is read before it is written"
        return int(operand)

    def set(self, register, value, bits):
        """A result is as wide as the instruction says, and so must its register be; a load's may be wider."""
        assert register in self.widths, f"{register} is not declared"
        assert self.widths[register] == bits, f"{register} has {self.widths[register]} bits, not {bits}"
        self.registers[register] = value % 2**bits

    def step(self, name, operands):
        """One instruction, but for branches."""
        *parts, kind = name.split(".")
        bits = int(kind[1:])
        instruction = ".".join(parts)
        if instruction == "ld.param":
            return self.set(operands[0], self.arguments[operands[1].strip("[]")], bits)
        if instruction == "ld.global.nc":
            loaded = self.memory.load(self.value(operands[1].strip("[]")), bits // 8)
            return self.set(operands[0], loaded, max(bits, 32))
        if instruction == "st.global":
            address, stored = self.value(operands[0].strip("[]")), self.value(operands[1])
            return self.memory.store(address, bits // 8, stored % 2**bits)
        values = [self.value(operand) for operand in operands[1:]]
        if instruction == "cvt.u64":
            assert self.widths[operands[1]] == bits == 32, operands
        compute, factor = INSTRUCTIONS[instruction]
        return self.set(operands[0], compute(*values), 1 if parts[0] == "setp" else factor * bits)

    def run(self, statements):
        labels = {statement[:-1]: place for place, statement in enumerate(statements) if statement.endswith(":")}
        place = 0
        for _ in range(100_000):
            statement = statements[place]
            place += 1
            guard, text = re.fullmatch(r"(?:@(%\w+) )?(.*)", statement).groups()
            if statement.endswith(":") or (guard and not self.value(guard)):
                continue
            name, _, operands = text.partition(" ")
            operands = [operand.strip() for operand in operands.split(",") if operand]
            if name == "ret":
                return
            if name == "bra":
                place = labels[operands[0]]
            elif name == ".reg":
                kind, _, names = text.removeprefix(".reg .").partition(" ")
                self.declare(kind, names)
            else:
                self.step(name, operands)
        raise AssertionError("a thread does not end")


def launch(memory, total, per_row, channels, channels_first, blocks, threads, only=None):
    """Runs every thread of a grid, or only the one of a block and a number in it."""
    names, statements = ENTRIES[f"forebay_finish_u{memory.bits}"]
    arguments = [memory.INPUT, memory.OUTPUT, memory.TABLE, total, per_row, channels, channels_first]
    grid = [(block, thread) for block in range(blocks) for thread in range(threads)] if only is None else [only]
    for block, number in grid:
        special = {"%ctaid.x": block, "%nctaid.x": blocks, "%ntid.x": threads, "%tid.x": number}
        Thread(memory, dict(zip(names, arguments)), special).run(statements)


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
    memory = Memory(raw.tobytes().__getitem__, raw.size, table, expected.size)
    launch(memory, rows * height * width, height * width, channels, channels_first, blocks, threads)
    found = [memory.written.get(element) for element in range(expected.size)]
    assert found == expected.ravel().tolist()


@pytest.mark.parametrize("channels_first", [0, 1])
def test_offsets_beyond_32_bits_are_kept(channels_first):
    rows, per_row, channels = 200_000, 224 * 224, 3
    total = rows * per_row
    table = numpy.arange(channels * 256, dtype=numpy.uint32).reshape(channels, 256) * 5_000_011
    # An input too large to keep: each byte is a function of its offset.
    memory = Memory(lambda offset: offset * 7919 % 251, total * channels, table, total * channels)
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


def find_ptxas():
    """The assembler of an installed CUDA toolkit, or the one that Triton brings; None where there is neither."""
    in_triton = pathlib.Path(sysconfig.get_paths()["purelib"], "triton/backends/nvidia/bin/ptxas*")
    return [found for found in (shutil.which("ptxas"), *sorted(glob.glob(str(in_triton)))) if found]


@pytest.mark.skipif(not find_ptxas(), reason="no ptxas: neither a CUDA toolkit nor Triton is installed")
def test_the_kernels_compile_for_every_architecture(tmp_path):
    for ptxas in find_ptxas():
        options = subprocess.run([ptxas, "--help"], capture_output=True, text=True, check=True).stdout
        architectures = sorted(set(re.findall(r"'(sm_\d+)'", options)))
        assert "sm_90" in architectures, options
        for architecture in architectures:
            arguments = ["-arch", architecture, "-o", str(tmp_path / architecture), str(PTX)]
            # Older ones are below what the text asks for.
            if int(architecture[3:]) < 60:
                continue
            done = subprocess.run([ptxas, *arguments], capture_output=True, text=True, check=False)
            assert (done.returncode, done.stdout + done.stderr) == (0, ""), architecture
