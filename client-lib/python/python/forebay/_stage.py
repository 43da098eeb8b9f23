"""The user's function in a worker: finds, seeds and calls it, and transfers rows and results.

The bytes are those of daemon/crates/workers/src/call.rs and reply.rs.
"""

import ctypes
import functools
import hashlib
import importlib
import json
import mmap
import os
import random
import runpy
import select
import socket
import struct
import sys
import time
import traceback
import types
from collections.abc import Callable
from typing import Any, Optional

import numpy as np

from ._sampling import Sampler
from ._transform_times import TransformTimes
from ._worker_log import Log

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
# The maximum size of a reply without its arrays, as in reply.rs. Arrays begin after it; memory is allocated on writes.
_MAX_REPLY_BYTES = 16 << 20
# From this size on a copy into mapped memory, `_protect` included, is faster than a system call.
_MAPPED_BYTES = 256 << 10
# An incomplete line is logged after this time without a call.
_IDLE_MILLISECONDS = 200
_MAX_TRACEBACK_BYTES = 16 << 10

# By the daemon's number of the type; bfloat16 (9) has none in NumPy.
_NAMES = ("u1", "i1", "u2", "i2", "i4", "i8", "u4", "u8", "f2", "", "f4", "f8", "?")
_DTYPES = [np.dtype(name) if name else None for name in _NAMES]
_CODES = {dtype: code for code, dtype in enumerate(_DTYPES) if dtype is not None}
# The types for Python's numbers.
_OF_PYTHON = (np.dtype("i8"), np.dtype("f8"))


class Stage:
    """The user's function, and the generators that are seeded for each call."""

    is_of_batches = False

    def __init__(self, spec: dict[str, Any]) -> None:
        if spec["path"]:
            sys.path[:] = spec["path"]
        folders = [spec["folder"], os.path.dirname(spec["main"] or "")]
        sys.path += [folder for folder in folders if folder and folder not in sys.path]
        module_name, _, name = spec["python"].partition(":")
        module = import_main(spec["main"]) if module_name == "__main__" else importlib.import_module(module_name)
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
        source = getattr(found, "forebay_source", None)
        if source is not None:
            module = sys.modules.get(source, types.ModuleType(""))
            self.hello = {"source": _source_digest(module), "file": _file(module)}
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
        # If a call imports PyTorch later, `call` seeds its generator then.
        self._torch: Any = sys.modules.get("torch")
        # For a trainer's Dataset the class is this package's, and its contents are the user's.
        holders, modules = getattr(found, "forebay_holders", [found]), getattr(found, "forebay_modules", [module])
        self._composes = _composes(holders, modules)
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


def import_main(main: Optional[str]) -> types.ModuleType:
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
    """The digest of the module's file; empty without a file."""
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


def _composes(holders: list[Any], modules: list[types.ModuleType]) -> list[Any]:
    """Albumentations' pipelines, which have separate generators."""
    candidates = [*holders]
    candidates += [value for module in modules for value in vars(module).values()]
    candidates += [value for holder in holders for value in getattr(holder, "__dict__", {}).values()]

    def is_compose(one: Any) -> bool:
        return hasattr(one, "set_random_seed") and type(one).__module__.startswith("albumentations")

    composes: list[Any] = []
    for one in candidates:
        if not isinstance(one, type) and is_compose(one) and all(one is not other for other in composes):
            composes.append(one)
    return composes


def _one_thread() -> None:
    """Limits native threads to one: there are as many workers as cores for them."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    if "cv2" in sys.modules:
        sys.modules["cv2"].setNumThreads(0)


def raised(error: BaseException, own_frames: int) -> dict[str, str]:
    """An exception in the form that the daemon passes on, without this package's frames."""
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
    """The memory that is shared with the daemon: two sides, each for one call.

    While the function runs, the calls are mapped read-only. If calls have several rows, so are the results: the daemon
    may still read those of the previous call. Native code that writes there by mistake crashes the worker.
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
        """Records the row of the current call."""
        self._words[0] = row

    def mark_begun_line(self, is_begun: bool) -> None:
        """Records whether output is not logged yet: at its end, the daemon waits for that."""
        if self._words[1] != is_begun:
            self._words[1] = is_begun

    def call(self, start: int, end: int) -> mmap.mmap:
        """The call in the side at ``start``, up to its byte ``end``."""
        memory = self._calls.get(start)
        if memory is None or len(memory) < end:
            memory = self._calls[start] = self._mapped(start, end, mmap.PROT_READ)
        return memory

    def write(self, start: int, at: int, value: Any) -> None:
        """Writes bytes or an array to byte ``at`` of the side at ``start``, in native order and C order."""
        if isinstance(value, np.ndarray):
            if value.nbytes >= _MAPPED_BYTES:
                self._write_mapped(start, at, value)
                return
            value = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        written = os.pwrite(self._descriptor, value, start + at) if len(value) else 0
        while written < len(value):
            written += os.pwrite(self._descriptor, value[written:], start + at + written)

    def _write_mapped(self, start: int, at: int, value: "np.ndarray[Any, Any]") -> None:
        end = at + value.nbytes
        memory = self._results.get(start)
        if memory is None or len(memory) < end:
            memory = self._results[start] = self._mapped(start, end, mmap.PROT_READ | mmap.PROT_WRITE)
            self._protect(memory, 0, len(memory), mmap.PROT_READ)
        begin = at - at % mmap.PAGESIZE
        self._protect(memory, begin, end, mmap.PROT_READ | mmap.PROT_WRITE)
        np.ndarray(value.shape, value.dtype, memory, at)[...] = value
        self._protect(memory, begin, end, mmap.PROT_READ)

    def _mapped(self, start: int, end: int, access: int) -> mmap.mmap:
        # With some margin, so that rows of many sizes do not cause a new mapping each.
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
    readable = select.poll()
    readable.register(connection, select.POLLIN)
    while True:
        # A worker is killed when the daemon ends, so a line is not kept while nothing is called.
        if log is not None and log.has_rest() and not readable.poll(_IDLE_MILLISECONDS):
            log.end_lines()
            arena.mark_begun_line(False)
        message = connection.recv(_MESSAGE.size, socket.MSG_WAITALL)
        if len(message) < _MESSAGE.size:
            if log is not None:
                log.end_lines()
                arena.mark_begun_line(False)
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
        reply = _Reply(arena, start, reply_at)
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
            arena.mark_begun_line(log.has_rest())
        if flags & _TIMED and times is not None:
            reply.timed(times.end())
        reply.stacks = sampler.take()
        reply.times.append(begun_ns)
        connection.sendall(_ANSWER.pack(number, reply.finish(flags & _PROBE)))


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
            # A number keeps its type, so that a function which passes it on does not change the batch.
            sample[name] = array.copy() if shape else array.item() if array.dtype in _OF_PYTHON else array[()]
        elif kind == _INTEGER:
            sample[name] = offset - (1 << 64) if offset >> 63 else offset
        elif kind == _FLOAT:
            sample[name] = struct.unpack("<d", struct.pack("<Q", offset))[0]
        else:
            data = memory[offset : offset + size]
            sample[name] = data.decode() if kind == _TEXT else data
    return sample


class _Reply:
    """A reply: its records first, then the data that they point to.

    A row's results are in the arena before the next row is called: the function may use their memory again.
    """

    def __init__(self, arena: _Arena, start: int, reply_at: int) -> None:
        self._arena = arena
        self._start = start
        self._reply_at = reply_at
        self._head = bytearray()
        # Where the next result goes.
        self._end = reply_at + _MAX_REPLY_BYTES
        self._probed: list[Any] = []
        # For each row, and the start of the call; `finish` adds its end.
        self.times: list[int] = []
        self.stacks = b""

    def values(self, result: dict[str, Any], names: list[str]) -> None:
        if len(result) != len(names) or any(name not in result for name in names):
            raise ValueError(f"the function returned the fields {list(result)}, and {names} for the first samples")
        head, end = bytearray(b"\0"), self._end
        for name in names:
            kind, dtype, shape, value, length = _plain(name, result[name])
            if kind in _NUMBER:
                head += _NUMBER[kind].pack(kind, value)
                continue
            at = (end + 63) & -64
            self._arena.write(self._start, at, value)
            head += _RECORD.pack(kind, dtype, len(shape), at, length) + _SHAPES[len(shape)].pack(*shape)
            end = at + length
        self._head += head
        self._end = end

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
        """The times of a probing call: of the function, and of the transforms in it."""
        function_ns = sum(self.times[1::2]) - sum(self.times[0::2])
        self._probed.append({"function_ns": function_ns, "transforms": transforms})

    def finish(self, is_probe: int) -> int:
        """Writes it; returns its length without the data of its records."""
        if is_probe:
            self._head += json.dumps(self._probed).encode()
        else:
            self._head += struct.pack(f"<{len(self.times) + 1}Q", *self.times, time.monotonic_ns())
            self._head += len(self.stacks).to_bytes(4, "little") + self.stacks
        self._arena.write(self._start, self._reply_at, self._head)
        return len(self._head)


def _plain(name: str, value: Any) -> tuple[int, int, tuple[int, ...], Any, int]:
    """A result's kind, type, shape, value and bytes; an array in native byte order."""
    if type(value) is np.ndarray and (code := _CODES.get(value.dtype)) is not None:
        return _ARRAY, code, value.shape, value, value.nbytes
    if isinstance(value, str):
        data = value.encode()
        return _TEXT, 0, (), data, len(data)
    if isinstance(value, (bytes, bytearray, memoryview)):
        data = bytes(value)
        return _BYTES, 0, (), data, len(data)
    if isinstance(value, bool):
        value = np.bool_(value)
    if isinstance(value, np.generic) and value.dtype not in _OF_PYTHON and value.dtype in _CODES:
        return _ARRAY, _CODES[value.dtype], (), np.asarray(value), value.nbytes
    if isinstance(value, (int, np.integer)):
        return _INTEGER, 0, (), int(value), 0
    if isinstance(value, (float, np.floating)):
        return _FLOAT, 0, (), float(value), 0
    if not isinstance(value, np.ndarray):
        value = _array(name, value)
    native = value.dtype.newbyteorder("=")
    code = _CODES.get(native)
    if code is None:
        raise TypeError(f"`{name}` has the type {value.dtype}, which a batch cannot hold; convert it with .astype()")
    value = np.asarray(value, native)
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
