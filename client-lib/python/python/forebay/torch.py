"""The loader for PyTorch: batches of ``torch.Tensor`` objects, in CPU memory or on a GPU.

    import forebay.torch

    loader = forebay.torch.Loader("train.toml", device="cuda:0")

On the CPU, tensors are writable views of the slot, without a copy, and valid as long as they are referenced; a field of
up to 64 KiB a batch, such as labels, is a copy, so that keeping it holds no slot. For a GPU, batches are copied ahead
of the trainer on a side stream into ordinary tensors of PyTorch's allocator. A field in the layout ``NHWC`` is an
NCHW-shaped tensor in channels_last memory format.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Callable, Optional, Union

import numpy
import torch

from . import _group_timeout, _loader
from ._exceptions import ConfigError
from ._ragged import Ragged
from ._target import Target

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._target import ConfigKeys

__all__ = ["Loader"]


class Loader(_loader.Loader):
    """As :class:`forebay.Loader`, with ``torch.Tensor`` values.

    Args:
        device: the device of the tensors: ``"cpu"`` or a CUDA device such as ``"cuda:0"``.
        pin: on a GPU, how the ring's memory is prepared for the copy engine: ``"auto"`` pins it once in the background
            and copies through pinned buffers until then and where the platform refuses it; ``"register"``, ``"stage"``
            and ``"off"`` (pageable memory) force one path. ``stats()["upload"]`` says which path is in use.
        ahead: on a GPU, the number of batches that are copied ahead of the trainer. Each takes a batch's memory there.
        device_hold: on a GPU, the number of batches that may be held, the last one included, before
            :class:`HoldLimit` is raised. Fields of up to 64 KiB a batch hold none.
        static: on a GPU, all batches have the same addresses, for CUDA graphs: ``next`` queues the copy to them on the
            caller's current stream, so a batch is valid until the next one is requested.

    On a GPU the caller's current stream waits for a batch's copy, the caller does not. A tensor's memory is reused when
    it is dropped and the work queued on that stream is complete; for use on another stream call
    ``Tensor.record_stream``, as for any tensor of PyTorch.
    """

    def __init__(
        self,
        target: Target = None,
        rank: Optional[int] = None,
        world_size: Optional[int] = None,
        state: Optional[Union[Mapping[str, Any], str]] = None,
        timeout: float = 300,
        overrides: Optional[Mapping[str, Any]] = None,
        *,
        device: Any = "cpu",
        pin: str = "auto",
        ahead: int = 2,
        device_hold: int = 6,
        static: bool = False,
        force: bool = False,
        compare_ranks: Union[bool, str] = True,
        shared: Union[bool, str] = False,
        trainer: Optional[str] = None,
        **keywords: "Unpack[ConfigKeys]",
    ) -> None:
        self.device = torch.device(device)
        self._on_device: Any = None
        memory: Any = None
        if self.device.type == "cuda":
            from . import _torch_device

            _torch_device.check_options(ahead=ahead, device_hold=device_hold)
            memory = _torch_device.DeviceMemory(self.device)
            self.device = memory.device
            self._device_request = _loader.DeviceRequest(memory.ordinal, pin)
        elif self.device.type != "cpu":
            raise ConfigError(
                f"device {str(device)!r}: supported are CPU memory and CUDA devices; omit `device` and copy each batch "
                "with `tensor.to(device)`"
            )
        elif static:
            raise ConfigError("static=True is for a CUDA device; on the CPU tensors are views of the ring's slots")
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
        try:
            _group_timeout.warn_if_shorter(self)
        except BaseException:
            self.close()
            raise
        if static and self._padding is not None:
            self.close()
            raise ConfigError(
                "static=True keeps addresses and shapes, and fields that are padded to the longest row of their batch "
                "(`batch.pad`) have others in each batch; leave one of them out"
            )
        if memory is not None:
            self._on_device = _torch_device.DeviceTensors(
                self._session,
                memory,
                self._terms["tensors"],
                self.batch_size,
                ahead=ahead,
                device_hold=device_hold,
                static=static,
            )
            return
        self._converters = {
            name: _converter(dtype, ragged, channels_last)
            for name, dtype, _, ragged, channels_last in self._terms["tensors"]
        }

    def __iter__(self) -> Iterator[Any]:
        # The epoch begins here and not at the first `next`, so that iter() itself raises EpochsFinished.
        if self._on_device is not None:
            return self._formed(self._begin())
        # `map` holds no reference to a batch.
        return self._formed(map(self._convert, self._begin()))

    def _new_epoch(self) -> Iterator[dict[str, Any]]:
        if self._on_device is None:
            return super()._new_epoch()
        tensors, iteration = self._on_device, self._session.begin_on_device()
        # Not over `self`, which holds its newest iterator. `take` returns None at the epoch's end.
        return iter(lambda: tensors.take(iteration), None)

    def _convert(self, arrays: dict[str, Any]) -> dict[str, Any]:
        return {name: self._converters[name](array) for name, array in arrays.items()}


def _converter(dtype: str, ragged: bool, channels_last: bool) -> Callable[[Any], Any]:
    convert: Callable[[Any], Any] = torch.from_numpy
    if dtype == "bfloat16":
        # torch.from_numpy does not support ml_dtypes' bfloat16: convert the bits as int16, then view as bfloat16.
        def convert(array: Any) -> Any:
            return torch.from_numpy(array.view(numpy.int16)).view(torch.bfloat16)

    if ragged:
        return lambda field: Ragged(
            convert(field.values),
            torch.from_numpy(field.offsets),
            torch.from_numpy(field.lengths),
            field.row_shape,
        )
    if channels_last:
        return lambda array: _to_channels_last(convert(array))
    return convert


def _to_channels_last(rows: Any) -> Any:
    """A view of (rows, height, width, channels) as (rows, channels, height, width)."""
    return rows.permute(0, 3, 1, 2) if rows.dim() == 4 else rows
