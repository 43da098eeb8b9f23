"""Hugging Face's Accelerate over a Forebay loader.

    import forebay.accelerate

    batches = forebay.accelerate.prepare(accelerator, loader)
    for batch in batches:
        ...

The loader is not passed to ``accelerator.prepare``: it divides the samples among ranks itself, so there is nothing to
shard, dispatch or skip.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Optional

from . import _loader

__all__ = ["Batches", "prepare"]


def prepare(accelerator: Any, loader: _loader.Loader) -> "Batches":
    """The loader's batches on the accelerator's device.

    The loader's state becomes part of ``accelerator.save_state`` and ``load_state``: a run resumes inside its epoch at
    the next batch, also with another number of processes. Call this before ``load_state``.

    Args:
        accelerator: an ``accelerate.Accelerator``. Make the loader after it, so that it has its rank.
        loader: a :class:`forebay.torch.Loader`.

    Raises:
        ValueError: the loader was made before the process group, with another rank or world size.
    """
    check_ranks(loader, accelerator.process_index, accelerator.num_processes)
    accelerator.register_for_checkpointing(loader)
    return Batches(loader, accelerator.device)


class Batches:
    """A loader's batches on a device; one ``for`` loop is one epoch."""

    def __init__(self, loader: _loader.Loader, device: Any) -> None:
        self.loader = loader
        self.device = device

    def __iter__(self) -> Iterator[dict[str, Any]]:
        from accelerate.utils import send_to_device

        # Not a generator: iter() itself raises EpochsFinished.
        return (send_to_device(batch, self.device) for batch in iter(self.loader))

    def __len__(self) -> int:
        return len(self.loader)

    def epochs_left(self, epochs: Optional[int] = None) -> Iterable[int]:
        """As :meth:`forebay.Loader.epochs_left`."""
        return self.loader.epochs_left(epochs)

    def set_epoch(self, epoch: int) -> None:
        """As :meth:`forebay.Loader.set_epoch`."""
        self.loader.set_epoch(epoch)

    @property
    def steps_taken(self) -> int:
        """The batches of this rank from the first epoch's start to the loader's position, those of earlier runs at this
        batch size and world size included."""
        state = self.loader.state_dict()
        in_epoch = state["samples"] // (self.loader.batch_size * self.loader.world_size)
        return int(state["epoch"] * len(self.loader) + in_epoch)


def check_ranks(loader: _loader.Loader, rank: int, world_size: int) -> None:
    """Refuses a loader that has fewer ranks than the framework: each of them would train on the same samples."""
    if loader.world_size == 1 and world_size > 1:
        raise ValueError(
            f"the loader is rank {loader.rank} of {loader.world_size} ({loader.rank_source}) and this process is rank "
            f"{rank} of {world_size}; make the loader after the process group, or pass it rank={rank} and "
            f"world_size={world_size}"
        )
