"""The loader for PyTorch: the same batches as ``torch.Tensor`` objects.

    import forebay.torch

    loader = forebay.torch.Loader("train.toml")

Tensors are writable views of the slot, without a copy, and valid for as long as they are held. A field in the layout
``NHWC`` comes as an NCHW-shaped tensor in channels_last memory format.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Callable, Optional

import numpy
import torch

from . import _loader
from ._exceptions import ConfigError
from ._ragged import Ragged

__all__ = ["Loader"]


class Loader(_loader.Loader):
    """As :class:`forebay.Loader`, with ``torch.Tensor`` values.

    Args:
        device: where the tensors are; ``"cpu"`` is the only device of this release.
    """

    def __init__(
        self,
        target: _loader.Target = None,
        rank: Optional[int] = None,
        world_size: Optional[int] = None,
        state: Optional[Mapping[str, Any]] = None,
        timeout: float = 300,
        overrides: Optional[Mapping[str, Any]] = None,
        *,
        device: Any = "cpu",
        force: bool = False,
        compare_ranks: bool = True,
    ) -> None:
        self.device = torch.device(device)
        if self.device.type != "cpu":
            raise ConfigError(
                f"device {str(device)!r}: this release gives tensors in the CPU's memory only; leave `device` out and "
                "copy each batch yourself, with `tensor.to(device)`"
            )
        super().__init__(target, rank, world_size, state, timeout, overrides, force=force, compare_ranks=compare_ranks)
        self._converters = {
            name: _converter(dtype, ragged, channels_last)
            for name, dtype, _, ragged, channels_last in self._terms["tensors"]
        }

    def __iter__(self) -> Iterator[dict[str, Any]]:
        # Begun here and not at the first `next`, so that iter() raises EpochsFinished itself. `map` keeps no batch.
        return map(self._convert, self._begin())

    def _convert(self, arrays: dict[str, Any]) -> dict[str, Any]:
        return {name: self._converters[name](array) for name, array in arrays.items()}


def _converter(dtype: str, ragged: bool, channels_last: bool) -> Callable[[Any], Any]:
    convert: Callable[[Any], Any] = torch.from_numpy
    if dtype == "bfloat16":
        # torch.from_numpy does not know ml_dtypes' type: the same bits as int16, then seen as bfloat16.
        def convert(array: Any) -> Any:
            return torch.from_numpy(array.view(numpy.int16)).view(torch.bfloat16)

    if ragged:
        return lambda field: Ragged(
            convert(field.values),
            torch.from_numpy(field.offsets),
            torch.from_numpy(field.lengths),
        )
    if channels_last:
        return lambda array: _to_channels_last(convert(array))
    return convert


def _to_channels_last(rows: Any) -> Any:
    """(rows, height, width, channels) seen as (rows, channels, height, width)."""
    return rows.permute(0, 3, 1, 2) if rows.dim() == 4 else rows
