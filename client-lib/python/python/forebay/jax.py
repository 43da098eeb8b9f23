"""The loader for JAX: batches of ``jax.Array`` objects, on the devices of your choice.

    import forebay.jax

    loader = forebay.jax.Loader("train.toml", device=jax.devices()[0])

Ownership: a ``jax.Array`` is immutable and a slot is refilled, so no array of this module aliases a slot's memory. On
the CPU, JAX creates an array from an aligned NumPy array without a copy, regardless of ``may_alias``
(jax-ml/jax#37830): there each field is copied once, and the slot is free when the batch is handed over. For an
accelerator, JAX reads the slot itself and holds the NumPy array until the transfer is complete (``HandleNumpyArray`` in
jaxlib's ``py_values.cc``) and JAX next releases such references (``python_ref_manager.h``): then the slot returns.

The module uses JAX's transfers, and does not pin the ring for JAX.
"""

import gc
import time
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Callable, Optional, Union

import numpy

from . import _loader
from ._exceptions import ConfigError, HoldLimit
from ._ragged import Ragged
from ._target import Target

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._target import ConfigKeys

__all__ = ["Loader"]

# Not by an import statement: JAX's types differ too much from version to version to be checked against.
jax: Any = import_module("jax")

# Devices with separate memory, by JAX's platform names. On any other device, JAX may alias host memory.
_ACCELERATORS = frozenset(("cuda", "gpu", "rocm", "tpu"))
# The alignment of host memory that XLA aliases on the CPU.
_ALIGNMENT_BYTES = 64
_PAUSE_SECONDS = 0.001


class Loader(_loader.Loader):
    """As :class:`forebay.Loader`, with ``jax.Array`` values, placed as by ``jax.device_put``.

    Arrays are valid as long as they are referenced and hold no slot: ``ring.hold`` does not limit them. JAX's type
    rules apply: without ``jax_enable_x64``, int64 fields (``label``, ``index``) become int32, truncated to their lower
    bits, and float64 becomes float32. Images of layout ``NHWC`` keep that shape. A ragged field is a
    :class:`forebay.Ragged` of JAX arrays; indexing a row waits for its offset on the host.

    Args:
        device: None (JAX's default device, not committed to it), a ``jax.Device``, or a ``jax.sharding.Sharding`` for
            every field. Where a sharding spans other processes' devices too, this rank's rows are its process's part
            of a global array (``jax.make_array_from_process_local_data``).
        rank: default: ``jax.process_index()`` where JAX runs in several processes, else as in
            :class:`forebay.Loader`. Saved states are not compared across JAX's processes: load the same one on each.
    """

    # Before placing: rows of one length can be divided over devices.
    _pads_early = True

    def __init__(
        self,
        target: Target = None,
        rank: Optional[int] = None,
        world_size: Optional[int] = None,
        state: Optional[Union[Mapping[str, Any], str]] = None,
        timeout: float = 300,
        overrides: Optional[Mapping[str, Any]] = None,
        *,
        device: Any = None,
        force: bool = False,
        compare_ranks: Union[bool, str] = True,
        shared: Union[bool, str] = False,
        trainer: Optional[str] = None,
        **keywords: "Unpack[ConfigKeys]",
    ) -> None:
        if device is not None and not isinstance(device, (jax.Device, jax.sharding.Sharding)):
            raise ConfigError(
                f"device {device!r}: give a jax.Device (`jax.devices()[0]`), a jax.sharding.Sharding, or None for "
                "JAX's default device"
            )
        self.device = device
        if rank is None and world_size is None and jax.process_count() > 1:
            rank, world_size = jax.process_index(), jax.process_count()
        super().__init__(
            target,
            rank,
            world_size,
            state,
            timeout,
            overrides,
            force=force,
            compare_ranks=compare_ranks,
            shared=shared,
            trainer=trainer,
            **keywords,
        )
        self._timeout = float(timeout)
        # The batches that JAX may still be reading, oldest first: weakly, so that no device memory is kept for them.
        self._in_transfer: deque[list[weakref.ref[Any]]] = deque(maxlen=self.hold + 1)
        padded = {name for name, _, _ in self._terms["padding"]}
        ragged = [name for name, _, _, is_ragged, _ in self._terms["tensors"] if is_ragged and name not in padded]
        if ragged and isinstance(device, jax.sharding.Sharding) and len(device.device_set) > 1:
            self.close()
            raise ConfigError(
                f"field {ragged[0]!r} is ragged and the sharding has {len(device.device_set)} devices: rows of "
                "different lengths cannot be split over devices; pad them (`batch.pad`), give one device, or None "
                "and place the field yourself"
            )

    def __iter__(self) -> Iterator[Any]:
        # The epoch begins here and not at the first `next`, so that iter() itself raises EpochsFinished. Such an
        # iterator holds no batch, and continues after an exception.
        epoch = self._begin()
        return self._formed(iter(lambda: self._next_batch(epoch), None))

    def _next_batch(self, epoch: Iterator[dict[str, Any]]) -> Optional[dict[str, Any]]:
        arrays = self._take(epoch)
        if arrays is None:
            return None
        if self._padding is not None:
            arrays = self._padding(arrays)
        if self._may_alias():
            return {
                name: _convert(value, lambda part: self._place(_copy_for_jax(part))) for name, value in arrays.items()
            }
        reading: list[weakref.ref[Any]] = []

        def place(part: Any) -> Any:
            array = self._place(part)
            reading.append(weakref.ref(array))
            return array

        batch = {name: _convert(value, place) for name, value in arrays.items()}
        self._in_transfer.append(reading)
        return batch

    def _take(self, epoch: Iterator[dict[str, Any]]) -> Optional[dict[str, Any]]:
        """The next batch's slot. If too many are held, transfers in progress hold them: waits for the oldest one."""
        deadline = None
        while True:
            try:
                return next(epoch, None)
            except HoldLimit:
                deadline = deadline or time.monotonic() + self._timeout
                if time.monotonic() > deadline:
                    raise
            if self._in_transfer:
                for reference in self._in_transfer.popleft():
                    array = reference()
                    if array is not None and not array.is_deleted():
                        array.block_until_ready()
            else:
                # Their arrays were dropped or donated: only the slots can be waited for.
                time.sleep(_PAUSE_SECONDS)
            # JAX releases a NumPy array some time after its transfer, at the latest when Python collects garbage.
            gc.collect(0)

    def _place(self, array: Any) -> Any:
        if isinstance(self.device, jax.sharding.Sharding) and not self.device.is_fully_addressable:
            return jax.make_array_from_process_local_data(self.device, array)
        return jax.device_put(array, self.device)

    def _may_alias(self) -> bool:
        """Whether JAX could make an array of host memory without a copy of it."""
        if isinstance(self.device, jax.sharding.Sharding):
            return self.device.memory_kind not in (None, "device") or any(
                device.platform not in _ACCELERATORS for device in self.device.device_set
            )
        # As device_put does: a default device set by the program takes precedence.
        device = self.device or jax.config.jax_default_device or jax.default_backend()
        return getattr(device, "platform", device) not in _ACCELERATORS


def _convert(value: Any, place: Callable[[Any], Any]) -> Any:
    if not isinstance(value, Ragged):
        return place(value)
    if value.values.size > numpy.iinfo(numpy.int32).max and not jax.config.jax_enable_x64:
        raise ConfigError(
            f"a ragged field's region has {value.values.size} elements, more than JAX's int32 offsets reach; set "
            "jax_enable_x64, or lower max_bytes or batch.size"
        )
    return Ragged(place(value.values), place(value.offsets), place(value.lengths), value.row_shape)


def _copy_for_jax(array: Any) -> Any:
    """A copy with JAX's type for it, aligned so that JAX does not copy it again."""
    dtype = jax.dtypes.canonicalize_dtype(array.dtype)
    size_bytes = array.size * dtype.itemsize
    memory = numpy.empty(size_bytes + _ALIGNMENT_BYTES, numpy.uint8)
    start = -memory.ctypes.data % _ALIGNMENT_BYTES
    copy = memory[start : start + size_bytes].view(dtype).reshape(array.shape)
    numpy.copyto(copy, array, casting="unsafe")
    return copy
