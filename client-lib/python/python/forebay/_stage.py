"""The user's function in a worker: how it is found, seeded and called, and how rows come and results go.

The bytes are those of daemon/crates/workers/src/call.rs and reply.rs.
"""

import contextlib
import ctypes
import functools
import hashlib
import importlib
import io
import json
import mmap
import os
import random
import runpy
import socket
import struct
import sys
import time
import traceback
import types
from collections.abc import Callable, Iterator
from typing import Any, Optional

import numpy as np

from ._sampling import Sampler
from ._transform_times import TransformTimes

_MESSAGE = struct.Struct("<5Q")
_ANSWER = struct.Struct("<QQ")
_HEAD = struct.Struct("<IIII")
_ROW = struct.Struct("<6Q")
_RECORD = struct.Struct("<BBB5xQQ")
_NUMBER = {4: struct.Struct("<B7xq8x"), 5: struct.Struct("<B7xd8x")}
_INPUTS_AT = 64 << 10
_MAX_RANK = 64
# By the number of dimensions.
_SHAPES = [struct.Struct(f"<{dimensions}Q") for dimensions in range(_MAX_RANK + 1)]
_ARRAY, _BYTES, _TEXT, _INTEGER, _FLOAT = 1, 2, 3, 4, 5
_PROBE, _TIMED = 1, 2
_NO_ROW = (1 << 64) - 1
_MAX_TRACEBACK_BYTES = 16 << 10

# By the daemon's number of the type; bfloat16 (9) has none in NumPy.
_NAMES = ("u1", "i1", "u2", "i2", "i4", "i8", "u4", "u8", "f2", "", "f4", "f8", "?")
_DTYPES = [np.dtype(name) if name else None for name in _NAMES]
_CODES = {dtype: code for code, dtype in enumerate(_DTYPES) if dtype is not None}


class Log(io.TextIOBase):
    """What is printed, by the line, with the stage and the sample before it; of a batch, its first sample."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._line = ""
        self.sample: Optional[int] = None

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return 2

    def write(self, text: str) -> int:
        *lines, self._line = (self._line + text).split("\n")
        where = self._place if self.sample is None else f"{self._place}, sample {self.sample}"
        for line in lines:
            _write_all(2, f"forebay: {where}: {line}\n".encode(errors="replace"))
        return len(text)


def _write_all(descriptor: int, data: bytes) -> None:
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError:
        pass  # Nobody reads the log.


class Stage:
    """The user's function, and the generators that are seeded for each call."""

    is_of_batches = False

    def __init__(self, spec: dict[str, Any]) -> None:
        if spec["path"]:
            sys.path[:] = spec["path"]
        folders = [spec["folder"], os.path.dirname(spec["main"] or "")]
        sys.path += [folder for folder in folders if folder and folder not in sys.path]
        module_name, _, name = spec["python"].partition(":")
        module = _main(spec["main"]) if module_name == "__main__" else importlib.import_module(module_name)
        self.hello = {"source": _source_digest(module), "file": _file(module)}
        found: Any = module
        for part in name.split("."):
            found = getattr(found, part)
        self.arguments: dict[str, Any] = spec["arguments"] or {}
        if isinstance(found, type):
            found = found(**self.arguments)
            self.arguments = {}
        if not callable(found):
            raise TypeError(
                f"`{spec['python']}` is a {type(found).__name__}, which cannot be called with (sample, rng)"
            )
        self.function: Callable[..., Any] = found
        self._philox = np.random.Philox(key=0)
        self.rng = np.random.Generator(self._philox)
        # Tuples: NumPy reads them in a third of the time that arrays take.
        self._state: Any = {
            "bit_generator": "Philox",
            "state": {"counter": (0, 0, 0, 0), "key": (0, 0)},
            "buffer": (0, 0, 0, 0),
            "buffer_pos": 4,
            "has_uint32": 0,
            "uinteger": 0,
        }
        # When the function was called last and when it returned, by the monotonic clock.
        self.called_ns, self.returned_ns = 0, 0
        self.is_called = False
        # Where a call imports it, its generator is seeded then.
        self._torch: Any = sys.modules.get("torch")
        self._composes = _composes(found, module)
        _one_thread()

    def seed(self, words: list[int]) -> None:
        """Sets every generator from the words of a row."""
        self._state["state"]["key"] = (words[0], words[1])
        self._philox.state = self._state
        random.seed(words[2])
        np.random.seed(words[3] & 0xFFFFFFFF)
        if self._torch is not None:
            self._torch.default_generator.manual_seed(words[2] >> 1)
        for compose in self._composes:
            compose.set_random_seed(words[3] >> 33)

    def call(self, make: Callable[[], dict[str, Any]], words: list[int]) -> Any:
        """Calls the function with a row."""
        while True:
            self.seed(words)
            sample = make()
            self.called_ns = self.returned_ns = time.monotonic_ns()
            self.is_called = True
            try:
                result = self.function(sample, self.rng, **self.arguments)
            finally:
                self.is_called = False
                self.returned_ns = time.monotonic_ns()
            if self._torch is not None or "torch" not in sys.modules:
                return result
            # PyTorch was imported by this call, so its generator was not seeded.
            self._torch = sys.modules["torch"]
            _one_thread()


def _main(main: Optional[str]) -> types.ModuleType:
    """The script or module that the trainer runs, under the name ``__mp_main__``, as multiprocessing imports it."""
    if not main:
        raise ImportError("no script is known for `__main__`; put the function into a module")
    module = types.ModuleType("__mp_main__")
    run = runpy.run_path if main.endswith(".py") or os.sep in main else runpy.run_module
    module.__dict__.update(run(main, run_name="__mp_main__"))
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module
    return module


def _file(module: types.ModuleType) -> str:
    return str(module.__dict__.get("__file__") or "")


def _source_digest(module: types.ModuleType) -> str:
    """Of the module's file; empty where it has none."""
    try:
        with open(_file(module), "rb") as file:
            return hashlib.blake2b(file.read(), digest_size=16).hexdigest()
    except OSError:
        return ""


def tell(connection: socket.socket, arena: int, said: dict[str, Any]) -> None:
    """The first message, numbered 0."""
    text = json.dumps(said).encode()
    os.pwrite(arena, text, _INPUTS_AT)
    connection.sendall((0).to_bytes(8, "little") + len(text).to_bytes(8, "little"))


def _composes(found: Any, module: types.ModuleType) -> list[Any]:
    """Albumentations' pipelines, which have generators of their own."""
    candidates = [found, *vars(module).values(), *getattr(found, "__dict__", {}).values()]

    def is_compose(one: Any) -> bool:
        return hasattr(one, "set_random_seed") and type(one).__module__.startswith("albumentations")

    composes: list[Any] = []
    for one in candidates:
        if not isinstance(one, type) and is_compose(one) and all(one is not other for other in composes):
            composes.append(one)
    return composes


def _one_thread() -> None:
    """One native thread: workers are as many as there are cores for them."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    if "cv2" in sys.modules:
        sys.modules["cv2"].setNumThreads(0)


def raised(error: BaseException, own_frames: int) -> dict[str, str]:
    """An exception as the daemon passes it on, without this package's own frames."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(os.path.dirname(__file__)):
        trace = trace.tb_next
    lines = traceback.format_exception(type(error), error, trace)
    text = "".join(lines)
    if len(text) > _MAX_TRACEBACK_BYTES:
        text = text[: _MAX_TRACEBACK_BYTES // 2] + "\n…\n" + text[-_MAX_TRACEBACK_BYTES // 2 :]
    summary = "".join(traceback.format_exception_only(type(error), error)).strip()
    return {"summary": " ".join(summary.split())[:1000], "traceback": text}


class _Arena:
    """The memory that is shared with the daemon: two sides, one for each call that is on its way.

    While the function runs, calls can only be read, and where a call has several rows, results too: those of the call
    before may still be read by the daemon. What writes there at random ends the worker.
    """

    def __init__(self, descriptor: int, is_guarded: bool) -> None:
        self._descriptor = descriptor
        self._is_guarded = is_guarded
        self._calls: dict[int, mmap.mmap] = {}
        self._results: dict[int, mmap.mmap] = {}
        # Calls and results begin behind this page.
        self._words = memoryview(mmap.mmap(descriptor, mmap.PAGESIZE)).cast("Q")
        self._mprotect = ctypes.CDLL(None, use_errno=True).mprotect
        self._mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

    def mark(self, row: int) -> None:
        """Says which row is under call."""
        self._words[0] = row

    def call(self, start: int, end: int) -> mmap.mmap:
        """The call in the side at ``start``, up to its byte ``end``."""
        memory = self._calls.get(start)
        if memory is None or len(memory) < end:
            memory = self._calls[start] = self._mapped(start, end, mmap.PROT_READ)
        return memory

    @contextlib.contextmanager
    def results(self, start: int, begin: int, end: int) -> Iterator[mmap.mmap]:
        """The results in the side at ``start``, from its byte ``begin`` to ``end``, for writing."""
        memory = self._results.get(start)
        if memory is None or len(memory) < end:
            memory = self._results[start] = self._mapped(start, end, mmap.PROT_READ | mmap.PROT_WRITE)
            self._protect(memory, 0, len(memory), mmap.PROT_READ)
        begin -= begin % mmap.PAGESIZE
        self._protect(memory, begin, end, mmap.PROT_READ | mmap.PROT_WRITE)
        yield memory
        self._protect(memory, begin, end, mmap.PROT_READ)

    def _mapped(self, start: int, end: int, access: int) -> mmap.mmap:
        # With some room, so that rows of many sizes do not map it anew one by one.
        pages = (end + end // 4) // mmap.PAGESIZE + 1
        return mmap.mmap(self._descriptor, pages * mmap.PAGESIZE, prot=access, offset=start)

    def _protect(self, memory: mmap.mmap, begin: int, end: int, access: int) -> None:
        if not self._is_guarded:
            return
        address = np.ndarray((), np.uint8, memory).ctypes.data
        if self._mprotect(address + begin, end - begin, access):
            raise OSError(ctypes.get_errno(), "mprotect of a worker's arena")


def serve(stage: Stage, connection: socket.socket, descriptor: int, log: Optional[Log]) -> None:
    """Answers calls until the daemon closes the socket."""
    arena = _Arena(descriptor, is_guarded=not stage.is_of_batches)
    names_text, inputs, outputs = b"", [], []
    sampler = Sampler(lambda: stage.is_called)
    times: Optional[TransformTimes] = None
    while True:
        message = connection.recv(_MESSAGE.size, socket.MSG_WAITALL)
        if len(message) < _MESSAGE.size:
            return
        begun_ns = time.monotonic_ns()
        number, start, header_at, header_bytes, reply_at = _MESSAGE.unpack(message)
        memory = arena.call(start, reply_at)
        header = memory[header_at : header_at + header_bytes]
        rows, names_bytes, flags, _ = _HEAD.unpack_from(header)
        at = _HEAD.size
        if header[at : at + names_bytes] != names_text:
            names_text = header[at : at + names_bytes]
            names = json.loads(names_text)
            inputs, outputs = names["inputs"], names["outputs"]
        at += names_bytes
        reply = _Reply()
        if flags & _TIMED:
            times = times or TransformTimes()
            times.begin()
        for row in range(rows):
            arena.mark(row)
            id, _epoch, *words = _ROW.unpack_from(header, at)
            at += _ROW.size
            records, at = _records(header, at, len(inputs))
            if log is not None:
                log.sample = id
            try:
                result = stage.call(functools.partial(_sample, memory, inputs, records), words)
                if not isinstance(result, dict):
                    raise TypeError(
                        f"the function returned {type(result).__name__}; return a dict of the fields that a batch needs"
                    )
                if flags & _PROBE:
                    reply.probe(result)
                else:
                    reply.values(result, outputs)
            except BaseException as error:  # a sample's error too: sys.exit() in a transform
                reply.raised(raised(error, own_frames=1), flags & _PROBE)
            reply.times += (stage.called_ns, stage.returned_ns)
        arena.mark(_NO_ROW)
        if log is not None:
            log.sample = None
        if flags & _TIMED and times is not None:
            reply.timed(times.end())
        reply.stacks = sampler.take()
        reply.times.append(begun_ns)
        connection.sendall(_ANSWER.pack(number, reply.finish(arena, start, reply_at, flags & _PROBE)))


def _records(header: bytes, at: int, count: int) -> tuple[list[Any], int]:
    records = []
    for _ in range(count):
        kind, dtype, dimensions, offset, size = _RECORD.unpack_from(header, at)
        at += 24
        shape: tuple[int, ...] = ()
        if dimensions:
            shape = _SHAPES[dimensions].unpack_from(header, at)
            at += 8 * dimensions
        records.append((kind, dtype, shape, offset, size))
    return records, at


def _sample(memory: mmap.mmap, names: list[str], records: list[Any]) -> dict[str, Any]:
    """A row's fields: copies, which the function may keep and change."""
    sample: dict[str, Any] = {}
    for name, (kind, dtype, shape, offset, size) in zip(names, records):
        if kind == _ARRAY:
            array = np.ndarray(shape, _DTYPES[dtype], memory, offset)
            sample[name] = array.copy() if shape else array.item()
        elif kind == _INTEGER:
            sample[name] = offset - (1 << 64) if offset >> 63 else offset
        elif kind == _FLOAT:
            sample[name] = struct.unpack("<d", struct.pack("<Q", offset))[0]
        else:
            data = memory[offset : offset + size]
            sample[name] = data.decode() if kind == _TEXT else data
    return sample


class _Reply:
    """A reply: its records first, the bytes behind room for them."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._arrays: list[tuple[int, Any, int]] = []
        self._bytes = 0
        self._probed: list[Any] = []
        # Of each row, and when the call began; `finish` adds when it ended.
        self.times: list[int] = []
        self.stacks = b""

    def values(self, result: dict[str, Any], names: list[str]) -> None:
        if len(result) != len(names) or any(name not in result for name in names):
            raise ValueError(f"the function returned the fields {list(result)}, and {names} for the first samples")
        head, arrays, size = bytearray(b"\0"), [], self._bytes
        for name in names:
            kind, dtype, shape, value, length = _plain(name, result[name])
            if kind in _NUMBER:
                head += _NUMBER[kind].pack(kind, value)
                continue
            start = (size + 63) & -64
            # The offset is known when all records are.
            arrays.append((start, value, len(self._head) + len(head) + 8))
            head += _RECORD.pack(kind, dtype, len(shape), start, length) + _SHAPES[len(shape)].pack(*shape)
            size = start + length
        self._head += head
        self._arrays += arrays
        self._bytes = size

    def raised(self, error: dict[str, str], is_probe: int) -> None:
        if is_probe:
            self._probed.append({"raised": error})
            return
        text = json.dumps(error).encode()
        self._head += b"\1" + len(text).to_bytes(4, "little") + text

    def probe(self, result: dict[str, Any]) -> None:
        fields, digest = [], hashlib.blake2b(digest_size=16)
        for name, value in result.items():
            if not isinstance(name, str):
                raise TypeError(f"the function returned the key {name!r}; the names of fields are strings")
            kind, dtype, shape, plain, _ = _plain(name, value)
            fields.append({"name": name, "kind": kind, "dtype": dtype, "shape": list(shape)})
            digest.update(plain.tobytes() if kind == _ARRAY else repr(plain).encode())
        self._probed.append({"fields": fields, "digest": digest.hexdigest()})

    def timed(self, transforms: list[tuple[str, int]]) -> None:
        """What a call took that is a probe as well: the function, and the transforms in it."""
        function_ns = sum(self.times[1::2]) - sum(self.times[0::2])
        self._probed.append({"function_ns": function_ns, "transforms": transforms})

    def finish(self, arena: _Arena, start: int, reply_at: int, is_probe: int) -> int:
        """Writes it; its length without what its records point to."""
        if is_probe:
            self._head += json.dumps(self._probed).encode()
        else:
            self._head += struct.pack(f"<{len(self.times)}Q", *self.times)
            ended_at = len(self._head)
            self._head += b"\0" * 8 + len(self.stacks).to_bytes(4, "little") + self.stacks
        first = reply_at + -(-len(self._head) // 64) * 64
        with arena.results(start, reply_at, first + self._bytes) as memory:
            for place, value, record in self._arrays:
                at = first + place
                struct.pack_into("<Q", self._head, record, at)
                if isinstance(value, bytes):
                    memory[at : at + len(value)] = value
                elif value.size:
                    np.ndarray(value.shape, value.dtype, memory, at)[...] = value
            if not is_probe:
                struct.pack_into("<Q", self._head, ended_at, time.monotonic_ns())
            memory[reply_at : reply_at + len(self._head)] = bytes(self._head)
        return len(self._head)


def _plain(name: str, value: Any) -> tuple[int, int, tuple[int, ...], Any, int]:
    """A result's kind, type, shape, value and bytes."""
    if type(value) is np.ndarray and (code := _CODES.get(value.dtype)) is not None:
        return _ARRAY, code, value.shape, value, value.nbytes
    if isinstance(value, str):
        data = value.encode()
        return _TEXT, 0, (), data, len(data)
    if isinstance(value, (bytes, bytearray, memoryview)):
        data = bytes(value)
        return _BYTES, 0, (), data, len(data)
    if isinstance(value, (bool, int, np.integer, np.bool_)):
        return _INTEGER, 0, (), int(value), 0
    if isinstance(value, (float, np.floating)):
        return _FLOAT, 0, (), float(value), 0
    if not isinstance(value, np.ndarray):
        value = _array(name, value)
    code = _CODES.get(value.dtype.newbyteorder("="))
    if code is None:
        raise TypeError(f"`{name}` has the type {value.dtype}, which a batch cannot hold; convert it with .astype()")
    return _ARRAY, code, value.shape, value, value.nbytes


def _array(name: str, value: Any) -> "np.ndarray[Any, Any]":
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return value.detach().cpu().numpy()  # type: ignore[no-any-return]
    if hasattr(value, "__array_interface__") or hasattr(value, "__array__"):  # a picture of Pillow's
        return np.asarray(value)
    if isinstance(value, (list, tuple)):
        return np.asarray(value)
    raise TypeError(
        f"`{name}` is a {type(value).__name__}; return an array, a tensor, a picture, text, bytes or a number"
    )
