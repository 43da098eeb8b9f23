"""A Dataset object in sealed memory: pickled by the trainer, and unpickled only by the workers of its daemon.

First the pickle, then the buffers that it leaves out (the elements of arrays and tensors), then a JSON object that says
where they are, and the length of that in the last eight bytes. A worker maps the memory privately: elements of arrays
are shared by all workers until one writes to them.
"""

import fcntl
import json
import mmap
import os
import pickle
import sys
import types
from collections.abc import Callable
from typing import Any, Optional

from ._exceptions import ConfigError
from ._stages import NOTEBOOK, main_script

_ALIGNMENT = 64
# The module fcntl has these names only since Python 3.10.
_F_ADD_SEALS, _SEALS = 1033, 0x1 | 0x2 | 0x4 | 0x8


def write_object(value: Any, items: int, what: str) -> int:
    """Pickles an object into sealed memory; its descriptor, which the caller closes. ``what`` names it in errors.

    Raises:
        ConfigError: it cannot be pickled, or another process cannot find its classes and functions.
    """
    descriptor = os.memfd_create("forebay-object", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            buffers: list[pickle.PickleBuffer] = []
            try:
                _Pickler(file, buffers, what).dump(value)
            except ConfigError:
                raise
            except Exception as error:  # whatever an object's own methods raise
                raise ConfigError(
                    f"{what} cannot be given to another process: {type(error).__name__}: {error}; make in `__init__` "
                    "only what can be pickled, and open files and connections in `__getitem__`, at its first call"
                ) from error
            places = []
            for buffer in buffers:
                file.write(b"\0" * (-file.tell() % _ALIGNMENT))
                with buffer.raw() as view:
                    places.append((file.tell(), view.nbytes))
                    file.write(view)
            tail = json.dumps({"buffers": places, "items": items, "main": main_script()}).encode()
            file.write(tail + len(tail).to_bytes(8, "little"))
        fcntl.fcntl(descriptor, _F_ADD_SEALS, _SEALS)
        return descriptor
    except BaseException:
        os.close(descriptor)
        raise


def read_object(descriptor: int, import_main: Callable[[Optional[str]], types.ModuleType]) -> tuple[Any, int]:
    """The object in a descriptor's memory, and its length when it was pickled.

    ``import_main`` makes the trainer's script the module ``__main__`` of this process; called where it is needed.
    """
    memory = memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY))
    end = len(memory) - 8
    tail = json.loads(bytes(memory[end - int.from_bytes(memory[end:], "little") : end]))
    buffers = [memory[start : start + size] for start, size in tail["buffers"]]
    return _Unpickler(memory, buffers, tail["main"], import_main).load(), tail["items"]


def as_tensor(array: Any) -> Any:
    """A tensor over an array's memory."""
    import torch

    return torch.from_numpy(array)


class _Pickler(pickle.Pickler):
    def __init__(self, file: Any, buffers: list[pickle.PickleBuffer], what: str) -> None:
        super().__init__(file, protocol=5, buffer_callback=buffers.append)
        self._what = what

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, (type, types.FunctionType)):
            self._check_place(value)
        torch = sys.modules.get("torch")
        if torch is not None and type(value) is torch.Tensor:
            try:
                return as_tensor, (value.numpy(),)
            except (TypeError, RuntimeError):
                pass  # of another device or layout, or with a gradient: as PyTorch pickles it
        return NotImplemented

    def _check_place(self, value: Any) -> None:
        if value.__module__ == "__main__" and main_script() is None:
            raise ConfigError(f"{self._what} needs `{value.__qualname__}`, which {NOTEBOOK}")
        if "<lambda>" in value.__qualname__ or "<locals>" in value.__qualname__:
            raise ConfigError(
                f"{self._what} holds `{value.__module__}.{value.__qualname__}`, which cannot be found from another "
                "process; define it at the top of a module or of the script"
            )


class _Bytes:
    """A file over memory, without a copy of it."""

    def __init__(self, memory: memoryview) -> None:
        self._memory, self._at = memory, 0

    def read(self, size: int) -> bytes:
        part = bytes(self._memory[self._at : self._at + size])
        self._at += len(part)
        return part

    def readinto(self, into: Any) -> int:
        size = min(len(into), len(self._memory) - self._at)
        into[:size] = self._memory[self._at : self._at + size]
        self._at += size
        return size

    def readline(self) -> bytes:
        raise pickle.UnpicklingError("protocol 5 has no lines")


class _Unpickler(pickle.Unpickler):
    def __init__(
        self,
        memory: memoryview,
        buffers: list[memoryview],
        main: Optional[str],
        import_main: Callable[[Optional[str]], types.ModuleType],
    ) -> None:
        super().__init__(_Bytes(memory), buffers=buffers)
        self._main, self._import_main = main, import_main

    def find_class(self, module: str, name: str) -> Any:
        # `__mp_main__` in sys.modules shows nothing: multiprocessing sets it to the program of the worker.
        if module == "__main__" and sys.modules["__main__"].__name__ != "__mp_main__":
            self._import_main(self._main)
        return super().find_class(module, name)
