"""Batches on a GPU for libraries that support DLPack: CuPy, JAX and others.

    import cupy, forebay.device

    for batch in forebay.device.Loader("train.toml", device=0):
        images = cupy.from_dlpack(batch["image"])

Batches are copied ahead on a side stream into the client's own memory. Only the stream on which an array is used waits
for its copy: DLPack's ``stream`` argument, or the legacy default stream for the CUDA array interface. For PyTorch,
:mod:`forebay.torch` returns tensors in PyTorch's memory.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Optional, Union

from . import _loader
from ._exceptions import ConfigError
from ._forebay import Array
from ._target import Target

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._target import ConfigKeys

__all__ = ["Array", "Loader"]


class Loader(_loader.Loader):
    """As :class:`forebay.Loader`, with :class:`Array` values on a GPU.

    An array supports DLPack, versioned and legacy, and the CUDA array interface, and shares its batch's memory without
    a copy. The memory is reused when every array of the batch and every consumer's view of it is dropped, and the work
    queued until then on the consumers' streams is complete. A field of up to 64 KiB in a full batch, such as labels,
    is in separate memory and holds no batch. A field in the layout ``NHWC`` has that shape.

    Args:
        device: the GPU's index among those visible to the process (CUDA_VISIBLE_DEVICES).
        pin: ``"auto"``, ``"register"``, ``"stage"`` or ``"off"``: see :class:`forebay.torch.Loader`.
        ahead: the number of batches that are copied ahead. Each takes a batch's memory on the GPU.
        device_hold: the number of batches that may be held, the last one included, before :class:`HoldLimit` is raised.
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
        device: int = 0,
        pin: str = "auto",
        ahead: int = 2,
        device_hold: int = 6,
        force: bool = False,
        compare_ranks: Union[bool, str] = True,
        shared: Union[bool, str] = False,
        trainer: Optional[str] = None,
        **keywords: "Unpack[ConfigKeys]",
    ) -> None:
        self.device = device
        self._device_request = _loader.DeviceRequest(device, pin, pool=(ahead, device_hold))
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
        if self._padding is not None:
            self.close()
            raise ConfigError(
                "`batch.pad` needs arrays that can be padded, as forebay.torch and forebay.jax have them; leave it "
                "out, and pad what your framework makes of a field's `values`, `offsets` and `lengths`"
            )

    def _new_epoch(self) -> Iterator[dict[str, Any]]:
        session = self._session
        iteration = session.begin_on_device()
        # Not over `self`, which holds its newest iterator. `next_arrays` returns None at the epoch's end.
        return iter(lambda: session.next_arrays(iteration), None)
