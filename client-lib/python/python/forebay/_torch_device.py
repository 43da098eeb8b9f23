"""Batches on a CUDA device, in memory of PyTorch's own allocator.

What the allocator does for every tensor is what makes reuse safe: a batch's memory is allocated on the side stream that
copies are queued on, and marked by ``record_stream`` for the caller's stream, so it is given out again only when its
last view is gone and the work that was queued on that stream until then is done; and so for every other stream that the
user names by ``Tensor.record_stream``, as PyTorch asks for.

The native half waits for nothing here: it queues the copies as batches come, ahead of the trainer.
"""

from collections import deque
from collections.abc import Iterator
from typing import Any, Callable, Optional

import torch
from torch.multiprocessing import reductions

from . import _forebay
from ._exceptions import ConfigError, HoldLimit
from ._ragged import Ragged

# Tells whether the memory of a tensor and of all its views is gone. Not typed in PyTorch.
_weak: Any = reductions.StorageWeakRef

__all__ = ["DeviceEpoch", "DeviceMemory", "DeviceTensors", "check_options"]


class DeviceMemory:
    """The memory and the streams of one CUDA device, as PyTorch has them."""

    def __init__(self, device: torch.device) -> None:
        if not torch.cuda.is_available():
            raise ConfigError(
                f"device {str(device)!r}: PyTorch sees no CUDA device (torch.cuda.is_available() is False): install "
                "the driver and a PyTorch with CUDA, or leave `device` out for tensors in the CPU's memory"
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
        """Allocates for this stream from now on: the one that copies are queued on.

        It is not one of PyTorch's own, which everybody is given by turns.
        """
        stream: Any = torch.cuda.ExternalStream
        self.side = stream(handle, device=self.device)

    def current_stream(self) -> Any:
        """The stream that the caller's work is queued on."""
        return torch.cuda.current_stream(self.device)

    def allocate(self, wanted: list[tuple[list[int], Any]]) -> list[Any]:
        """Tensors of these shapes and types, ready for work on the side stream."""
        # Allocated ahead: what mode the caller is in now says nothing of the one that uses it.
        with torch.inference_mode(False), torch.cuda.stream(self.side):
            return [torch.empty(shape, dtype=dtype, device=self.device) for shape, dtype in wanted]

    def refuse_capture(self) -> None:
        """Raises while the caller's stream is being captured: a graph would replay one batch's copy for ever."""
        if torch.cuda.is_current_stream_capturing():
            raise ConfigError(
                "a batch was asked for while a CUDA graph is captured; take it before, with `static=True`, and capture "
                "the step alone: the next batch then comes into the same addresses"
            )


def check_options(**options: int) -> None:
    """Refuses numbers of batches below one, before anything is started."""
    for name, value in options.items():
        if value < 1:
            raise ConfigError(f"{name} = {value}; at least 1 batch")


class DeviceTensors:
    """What one batch looks like on the device, and the memory offered for the next ones."""

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
        self._held: deque[list[Any]] = deque()
        self._ahead = ahead
        self._wanted: list[tuple[list[int], Any]] = []
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
            if ragged:
                self._wanted.append(([capacities[index] // dtype.itemsize], dtype))
                self._wanted.append(([2 * tables[index]], torch.int64))
                self._makers.append((name, _ragged(index, place, tables[index], dtype.itemsize)))
            else:
                self._wanted.append(([batch_size, *row_shape], dtype))
                self._makers.append((name, _dense(place, batch_size, channels_last and len(row_shape) == 3)))

    def _offer(self) -> None:
        """Gives the upload memory for as many batches as it may be ahead. An error (no memory) loses nothing."""
        # Counted there and not here: an interrupt may come between a batch and any line of Python.
        while self._session.offered() < self._ahead:
            tensors = self._memory.allocate(self._wanted)
            self._session.offer(tensors, [tensor.data_ptr() for tensor in tensors])

    def _refuse_more(self) -> None:
        """Raises when as many batches are held as may be."""
        if len(self._held) < self._device_hold:
            return
        self._held = deque(refs for refs in self._held if not all(ref.expired() for ref in refs))
        if len(self._held) >= self._device_hold:
            raise HoldLimit(
                f"{len(self._held)} batches are held on the device and {self._device_hold} may be (`device_hold` = "
                f"{self._device_hold}); drop batches earlier, keep copies (`.clone()`), or raise `device_hold`"
            )

    def take(self, iteration: int) -> Any:
        """The next batch of an iterator's epoch as a dict; None at its end."""
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
            # On the caller's stream, which waits for the copy from the host: two copies on the device, one address.
            if stream != self._reader:
                stream.wait_stream(self._reader)
                self._reader = stream
            for static, tensor in zip(self._static, tensors):
                static.copy_(tensor, non_blocking=True)
                static.record_stream(stream)
            tensors = self._static
        else:
            self._held.append([_weak(tensor.untyped_storage()) for tensor in tensors])
        return {name: make(tensors, rows, length_bytes) for name, make in self._makers}


def _dense(place: int, batch_size: int, channels_last: bool) -> Callable[[list[Any], int, list[int]], Any]:
    def make(tensors: list[Any], rows: int, _: list[int]) -> Any:
        tensor = tensors[place]
        if rows != batch_size:
            tensor = tensor.narrow(0, 0, rows)
        # (rows, height, width, channels) seen as (rows, channels, height, width): channels_last.
        return tensor.permute(0, 3, 1, 2) if channels_last else tensor

    return make


def _ragged(index: int, place: int, table_rows: int, itemsize: int) -> Callable[[list[Any], int, list[int]], Any]:
    def make(tensors: list[Any], rows: int, length_bytes: list[int]) -> Any:
        values, table = tensors[place], tensors[place + 1]
        return Ragged(
            values.narrow(0, 0, length_bytes[index] // itemsize),
            table.narrow(0, 0, rows),
            table.narrow(0, table_rows, rows),
        )

    return make


class DeviceEpoch(Iterator[dict[str, Any]]):
    """The batches of one epoch on the device. Ends when a newer iterator is begun."""

    def __init__(self, tensors: DeviceTensors, iteration: int) -> None:
        self._tensors = tensors
        self._iteration = iteration

    def __next__(self) -> dict[str, Any]:
        batch: Optional[dict[str, Any]] = self._tensors.take(self._iteration)
        if batch is None:
            raise StopIteration
        return batch
