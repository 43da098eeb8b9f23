"""An interpreter of PTX: runs the text of the kernels in client-lib/src/cuda, thread by thread, without a GPU.

It has the instructions that they use and no others. An access outside of the buffers, an unaligned one or a
second write of an element fails.
"""

import glob
import pathlib
import re
import shutil
import subprocess
import sysconfig

import numpy

FOLDER = pathlib.Path(__file__).parents[2] / "client-lib/src/cuda"


def read_entries(path):
    """Each entry's name, its parameters in order, and its statements; a label is a statement that ends with a colon."""
    text = re.sub(r"//[^\n]*", "", path.read_text())
    entries = {}
    for name, parameters, body in re.findall(r"\.visible \.entry (\w+)\s*\((.*?)\)\s*\{(.*?)\n\}", text, re.DOTALL):
        names = [parameter.split()[-1] for parameter in parameters.split(",")]
        statements = [" ".join(part.split()) for part in re.findall(r"\w+:|[^;:]+;", body)]
        entries[name] = names, [statement.rstrip(";") for statement in statements]
    return entries


class Memory:
    """What a kernel may touch: `raw`, so many bytes of input by offset, arrays, and output to be written once."""

    INPUT, TABLE, OUTPUT, MIXES = 0x7F12_3456_0003, 0x7F00_0000_0000, 0x7FFF_F000_0000, 0x7F55_0000_0100

    def __init__(self, raw, raw_bytes, table, out_elements, out_bytes=None, mixes=b""):
        self.raw, self.raw_bytes = raw, raw_bytes
        self.arrays = {self.TABLE: table.tobytes(), self.MIXES: mixes}
        self.bits = (out_bytes or table.itemsize) * 8
        self.out_elements = out_elements
        self.written = {}

    def load(self, address, size):
        assert address % size == 0, f"a load of {size} bytes at {address:#x}"
        offset = address - self.INPUT
        if size == 1 and 0 <= offset < self.raw_bytes:
            return self.raw(offset)
        for start, array in self.arrays.items():
            if 0 <= address - start <= len(array) - size:
                return int.from_bytes(array[address - start :][:size], "little")
        raise AssertionError(f"{address:#x} is read and lies in no buffer")

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
    "setp.eq": (lambda a, b: a == b, 1),
    "selp": (lambda a, b, chosen: a if chosen else b, 1),
    "shr": (lambda a, b: a >> b, 1),
    "and": (lambda a, b: a & b, 1),
    "or": (lambda a, b: a | b, 1),
    "cvt.u32": (lambda a: a, 0.5),
}


def single(bits):
    return numpy.array(bits, numpy.uint32).view(numpy.float32)[()]


def half(bits):
    return numpy.array(bits, numpy.uint16).view(numpy.float16)[()]


# Instructions on floats, which registers hold as bits: what one makes, and the bits of its result. NumPy rounds to
# nearest, ties to even, as .rn and .rni do.
FLOATS = {
    "mul.rn.f32": (lambda a, b: single(a) * single(b), 32),
    "add.rn.f32": (lambda a, b: single(a) + single(b), 32),
    "sub.rn.f32": (lambda a, b: single(a) - single(b), 32),
    "cvt.rni.f32.f32": (lambda a: numpy.rint(single(a)), 32),
    "cvt.rn.f16.f32": (lambda a: numpy.float16(single(a)), 16),
    "cvt.f32.f16": (lambda a: numpy.float32(half(a)), 32),
    "cvt.rzi.u32.f32": (lambda a: numpy.uint32(numpy.trunc(single(a))), 32),
    "setp.nan.f32": (lambda a, b: numpy.isnan(single(a)) or numpy.isnan(single(b)), 1),
}


def bits_of(value):
    """A result as a whole number. A NaN is the one that a GPU makes."""
    if isinstance(value, numpy.floating) and numpy.isnan(value):
        return 2 ** (value.itemsize * 8 - 1) - 1
    return int.from_bytes(value.tobytes(), "little") if isinstance(value, numpy.floating) else int(value)


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
        return int(operand[2:], 16) if operand.startswith("0f") else int(operand)

    def address(self, operand):
        register, _, offset = operand.strip("[]").partition("+")
        return self.value(register) + int(offset or 0)

    def set(self, register, value, bits):
        """A result is as wide as the instruction says, and so must its register be; a load's may be wider."""
        assert register in self.widths, f"{register} is not declared"
        assert self.widths[register] == bits, f"{register} has {self.widths[register]} bits, not {bits}"
        self.registers[register] = value % 2**bits

    def step(self, name, operands):
        """One instruction, but for branches."""
        if name in FLOATS:
            compute, bits = FLOATS[name]
            sources = [self.value(operand) for operand in operands[1:]]
            widths = {self.widths.get(operand, 32) for operand in operands[1:]}
            assert widths == {16 if name.endswith("f16") else 32}, (name, operands)
            with numpy.errstate(all="ignore"):
                return self.set(operands[0], bits_of(compute(*sources)), bits)
        *parts, kind = name.split(".")
        bits = 1 if kind == "pred" else int(kind[1:])
        instruction = ".".join(parts)
        if instruction == "ld.param":
            return self.set(operands[0], self.arguments[operands[1].strip("[]")], bits)
        if instruction == "ld.global.nc":
            loaded = self.memory.load(self.address(operands[1]), bits // 8)
            return self.set(operands[0], loaded, max(bits, 32))
        if instruction == "st.global":
            address, stored = self.address(operands[0]), self.value(operands[1])
            assert self.widths[operands[1]] >= bits, operands
            return self.memory.store(address, bits // 8, stored % 2**bits)
        values = [self.value(operand) for operand in operands[1:]]
        if parts[0] == "cvt":
            assert self.widths[operands[1]] == bits, operands
        compute, factor = INSTRUCTIONS[instruction]
        return self.set(operands[0], compute(*values), 1 if parts[0] == "setp" else int(factor * bits))

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


def launch(entry, memory, arguments, grid):
    """Runs the threads of a grid: how many blocks, of how many threads each, and the only thread to run, or None."""
    names, statements = entry
    blocks, threads, only = grid
    numbers = [(block, thread) for block in range(blocks) for thread in range(threads)] if only is None else [only]
    for block, number in numbers:
        special = {"%ctaid.x": block, "%nctaid.x": blocks, "%ntid.x": threads, "%tid.x": number}
        Thread(memory, dict(zip(names, arguments)), special).run(statements)


def find_ptxas():
    """The assembler of an installed CUDA toolkit, or the one that Triton brings; None where there is neither."""
    in_triton = pathlib.Path(sysconfig.get_paths()["purelib"], "triton/backends/nvidia/bin/ptxas*")
    return [found for found in (shutil.which("ptxas"), *sorted(glob.glob(str(in_triton)))) if found]


def compile_for_every_architecture(path, folder):
    """Compiles a text with each assembler that is found, for each architecture that it knows."""
    for ptxas in find_ptxas():
        options = subprocess.run([ptxas, "--help"], capture_output=True, text=True, check=True).stdout
        architectures = sorted(set(re.findall(r"'(sm_\d+)'", options)))
        assert "sm_90" in architectures, options
        for architecture in architectures:
            arguments = ["-arch", architecture, "-o", str(folder / architecture), str(path)]
            # Older ones are below what the text asks for.
            if int(architecture[3:]) < 60:
                continue
            done = subprocess.run([ptxas, *arguments], capture_output=True, text=True, check=False)
            assert (done.returncode, done.stdout + done.stderr) == (0, ""), architecture
