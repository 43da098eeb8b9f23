"""Batches on a CUDA device, in memory of PyTorch's own allocator.

The allocator's stream semantics make reuse safe: a batch's memory is allocated on the side stream of the copies and
marked with ``record_stream`` for the caller's stream, so it is reused only when its last view is dropped and the work
queued on that stream until then is complete. The same holds for every other stream on which the user calls
``Tensor.record_stream``, as PyTorch requires.

The native module queues the copies as batches arrive, ahead of the trainer, and does not block here.
"""

from collections import Counter, deque
from typing import Any, Callable, Optional

import torch
from torch.multiprocessing import reductions

from . import _forebay
from ._exceptions import ConfigError, HoldLimit
from ._ragged import Ragged

# A weak reference to the storage of a tensor and all its views. Not typed in PyTorch.
_weak: Any = reductions.StorageWeakRef

__all__ = ["DeviceMemory", "DeviceTensors", "check_options"]


class DeviceMemory:
    """PyTorch's memory and streams of one CUDA device."""

    def __init__(self, device: torch.device) -> None:
        if not torch.cuda.is_available():
            raise ConfigError(
                f"device {str(device)!r}: PyTorch sees no CUDA device (torch.cuda.is_available() is False): install "
                "the driver and a PyTorch with CUDA, or omit `device` for tensors in CPU memory"
            )
        count = torch.cuda.device_count()
        ordinal = torch.cuda.current_device() if device.index is None else device.index
        if ordinal >= count:
            raise ConfigError(
                f"device {str(device)!r}: this process sees {count} CUDA devices; CUDA_VISIBLE_DEVICES says which"
            )
        self.device = torch.device("cuda", ordinal)
        self.ordinal = ordinal
        self.side: Any = None

    def use_side_stream(self, handle: int) -> None:
        """Sets the stream of the copies, on which memory is allocated.

        It is not from PyTorch's stream pool, which is shared round robin.
        """
        stream: Any = torch.cuda.ExternalStream
        self.side = stream(handle, device=self.device)

    def current_stream(self) -> Any:
        """The caller's current stream."""
        return torch.cuda.current_stream(self.device)

    def allocate(self, wanted: list[tuple[list[int], Any]]) -> list[Any]:
        """Tensors of these shapes and types, ready for work on the side stream."""
        # Allocated ahead: the caller's inference mode now may differ from the mode at the tensor's use.
        with torch.inference_mode(False), torch.cuda.stream(self.side):
            return [torch.empty(shape, dtype=dtype, device=self.device) for shape, dtype in wanted]

    def refuse_capture(self) -> None:
        """Raises while the caller's stream is being captured: the graph would replay one batch's copy."""
        if torch.cuda.is_current_stream_capturing():
            raise ConfigError(
                "a batch was requested while a CUDA graph is captured; take it before, with `static=True`, and capture "
                "only the step: later batches have the same addresses"
            )


def check_options(**options: int) -> None:
    """Refuses numbers of batches below one."""
    for name, value in options.items():
        if value < 1:
            raise ConfigError(f"{name} = {value}; at least 1 batch")


class DeviceTensors:
    """The tensors of a batch on the device, and the memory offered for the next batches."""

    def __init__(
        self,
        session: _forebay.Session,
        memory: Any,
        tensors: list[tuple[str, str, list[int], bool, bool]],
        batch_size: int,
        *,
        ahead: int,
        device_hold: int,
        static: bool,
    ) -> None:
        self._session = session
        self._memory = memory
        memory.use_side_stream(session.side_stream())
        self._device_hold = device_hold
        # Of each batch that may be held: its fields that are not small, with their memory.
        self._held: deque[list[tuple[str, Any]]] = deque()
        self._ahead = ahead
        self._wanted: list[tuple[list[int], Any]] = []
        # The field of each tensor; None: it is small and in separate memory.
        self._counted: list[Optional[str]] = []
        self._makers: list[tuple[str, Callable[[list[Any], int, list[int]], Any]]] = []
        self._read_schema(tensors, batch_size)
        self._static = memory.allocate(self._wanted) if static else None
        # The stream that read the static tensors last.
        self._reader: Any = memory.side
        self._offer()

    def _read_schema(self, tensors: list[tuple[str, str, list[int], bool, bool]], batch_size: int) -> None:
        tables = {tensor: rows for tensor, is_table, _, rows in self._session.regions() if is_table}
        capacities = {tensor: size for tensor, is_table, size, _ in self._session.regions() if not is_table}
        for index, (name, dtype_name, row_shape, ragged, channels_last) in enumerate(tensors):
            dtype = getattr(torch, dtype_name, None)
            if dtype is None:
                raise ConfigError(f"field `{name}` is of type {dtype_name}, which this PyTorch does not have")
            place = len(self._wanted)
            field_bytes = capacities[index] + (16 * tables[index] if ragged else 0)
            counted = name if field_bytes > _forebay.SMALL_FIELD_BYTES else None
            self._counted += [counted, counted] if ragged else [counted]
            if ragged:
                self._wanted.append(([capacities[index] // dtype.itemsize], dtype))
                self._wanted.append(([2 * tables[index]], torch.int64))
                self._makers.append((name, _ragged(index, place, tables[index], dtype.itemsize, row_shape)))
            else:
                self._wanted.append(([batch_size, *row_shape], dtype))
                self._makers.append((name, _dense(place, batch_size, channels_last and len(row_shape) == 3)))

    def _offer(self) -> None:
        """Offers the upload memory for ``ahead`` batches. An error (no memory) loses nothing."""
        # Counted by the session: an interrupt may come between a batch and any line of Python.
        while self._session.offered() < self._ahead:
            tensors = self._memory.allocate(self._wanted)
            self._session.offer(tensors, [tensor.data_ptr() for tensor in tensors])

    def _refuse_more(self) -> None:
        """Raises when ``device_hold`` batches are held."""
        if len(self._held) < self._device_hold:
            return
        self._held = deque(fields for fields in self._held if not all(ref.expired() for _, ref in fields))
        if len(self._held) >= self._device_hold:
            holding = ({name for name, ref in fields if not ref.expired()} for fields in self._held)
            alive = Counter(name for names in holding for name in names)
            names = " and ".join(f"`{name}`" for name, count in alive.items() if count == max(alive.values()))
            raise HoldLimit(
                f"{len(self._held)} batches are held on the device by {names} and {self._device_hold} are allowed "
                f"(`device_hold` = {self._device_hold}); drop batches earlier, keep copies (`.clone()`), or raise "
                "`device_hold`"
            )

    def take(self, iteration: int) -> Any:
        """The next batch of an iterator's epoch as a dict; None at its end, and when a newer iterator has begun."""
        self._memory.refuse_capture()
        if self._static is None:
            self._refuse_more()
        self._offer()
        stream = self._memory.current_stream()
        taken = self._session.next_on_device(iteration, stream.cuda_stream)
        if taken is None:
            return None
        tensors, rows, length_bytes = taken
        for tensor in tensors:
            tensor.record_stream(stream)
        if self._static is not None:
            # On the caller's stream, which waits for the copy from the host: a second copy, to fixed addresses.
            if stream != self._reader:
                stream.wait_stream(self._reader)
                self._reader = stream
            for static, tensor in zip(self._static, tensors):
                static.copy_(tensor, non_blocking=True)
                static.record_stream(stream)
            tensors = self._static
        else:
            counted = zip(self._counted, tensors)
            self._held.append([(name, _weak(tensor.untyped_storage())) for name, tensor in counted if name is not None])
        return {name: make(tensors, rows, length_bytes) for name, make in self._makers}


def _dense(place: int, batch_size: int, channels_last: bool) -> Callable[[list[Any], int, list[int]], Any]:
    def make(tensors: list[Any], rows: int, _: list[int]) -> Any:
        tensor = tensors[place]
        if rows != batch_size:
            tensor = tensor.narrow(0, 0, rows)
        # (rows, height, width, channels) seen as (rows, channels, height, width): channels_last.
        return tensor.permute(0, 3, 1, 2) if channels_last else tensor

    return make


def _ragged(
    index: int, place: int, table_rows: int, itemsize: int, row_shape: list[int]
) -> Callable[[list[Any], int, list[int]], Any]:
    def make(tensors: list[Any], rows: int, length_bytes: list[int]) -> Any:
        values, table = tensors[place], tensors[place + 1]
        return Ragged(
            values.narrow(0, 0, length_bytes[index] // itemsize),
            table.narrow(0, 0, rows),
            table.narrow(0, table_rows, rows),
            row_shape,
        )

    return make
