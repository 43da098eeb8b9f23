"""The Trainer of Hugging Face's Transformers over a Forebay loader.

    import forebay.transformers

    trainer = forebay.transformers.Trainer(
        model=model,
        args=transformers.TrainingArguments("runs", per_device_train_batch_size=loader.batch_size),
        loader=loader,
        to_inputs=lambda batch: {"pixel_values": batch["image"], "labels": batch["label"]},
    )
    trainer.train(resume_from_checkpoint=True)

The Trainer's own preparation of a data loader is bypassed (a sampler for each process, dispatch of batches by the first
one, ``even_batches``): the loader divides the samples among ranks itself. The Trainer moves batches to the device as
usual. It keeps the batches of one optimizer step while it requests those of the next: ``ring.hold`` must be at least
twice ``gradient_accumulation_steps``.
"""

import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Callable, Optional

import transformers
from torch.utils.data import IterableDataset
from transformers.trainer_utils import get_last_checkpoint

from . import _loader
from .accelerate import check_ranks

__all__ = ["STATE_NAME", "Trainer"]

STATE_NAME = "forebay.json"
"""The file of a checkpoint that has the loader's state."""


class Trainer(transformers.Trainer):
    """A ``transformers.Trainer`` that trains on a loader's batches.

    Each checkpoint contains the loader's state in addition to the Trainer's; on resume the batches that the Trainer
    skips are counted but not loaded. Evaluation is the Trainer's, with its ``eval_dataset``.

    Args:
        loader: a :class:`forebay.torch.Loader` on the CPU, with at least the trained epochs.
        to_inputs: creates the model's arguments from a batch. Default: the batch without ``index`` and ``valid``.
        arguments, options: passed to ``transformers.Trainer``, without a ``train_dataset``.
    """

    def __init__(
        self,
        *arguments: Any,
        loader: _loader.Loader,
        to_inputs: Optional[Callable[[dict[str, Any]], Mapping[str, Any]]] = None,
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        check_ranks(loader, self.args.process_index, self.args.world_size)
        self.batches = Batches(loader, to_inputs or without_bookkeeping)
        self.add_callback(KeepsPlace(loader))

    def get_train_dataloader(self) -> Any:
        """The loader's batches."""
        return self.batches

    def num_examples(self, dataloader: Any) -> int:
        """The samples of an epoch: those of this rank for the loader."""
        if dataloader is not self.batches:
            examples: int = super().num_examples(dataloader)
            return examples
        return len(dataloader) * dataloader.loader.batch_size

    def train(self, resume_from_checkpoint: Any = None, *arguments: Any, **options: Any) -> Any:
        """As ``transformers.Trainer.train``.

        Raises:
            ValueError: the checkpoint's loader and Trainer are at different places, because batch size, accumulation or
                the number of processes differ from when it was saved.
        """
        if resume_from_checkpoint is True:
            find: Any = get_last_checkpoint  # it has no types
            resume_from_checkpoint = find(self.args.output_dir)
        if resume_from_checkpoint:
            self._go_to(Path(resume_from_checkpoint))
        return super().train(resume_from_checkpoint, *arguments, **options)

    def _go_to(self, checkpoint: Path) -> None:
        loader, state = self.batches.loader, json.loads((checkpoint / STATE_NAME).read_text())
        steps = transformers.TrainerState.load_from_json(str(checkpoint / "trainer_state.json")).global_step
        batches_a_step = self.args.gradient_accumulation_steps
        epoch, steps = divmod(steps, -(-len(loader) // batches_a_step))
        samples = steps * batches_a_step * loader.batch_size * loader.world_size
        if (state["epoch"], state["samples"]) != (epoch, samples) or self.args.ignore_data_skip:
            raise ValueError(
                f"the checkpoint is at epoch {state['epoch']}, sample {state['samples']}, and the Trainer would go on "
                f"at epoch {epoch}, sample {samples}: resume with the batch size, gradient_accumulation_steps and "
                "number of processes that it was saved with, and without ignore_data_skip"
            )
        loader.load_state_dict(state)


class Batches(IterableDataset[Any]):
    """Adapts a loader to the Trainer: a data loader that is also its dataset, with batches as items."""

    # Attributes that Accelerate's `skip_first_batches` reads from a data loader.
    batch_size = None
    drop_last = False
    prefetch_factor = None

    def __init__(self, loader: _loader.Loader, to_inputs: Callable[[dict[str, Any]], Mapping[str, Any]]) -> None:
        self.loader, self.to_inputs, self.dataset = loader, to_inputs, self

    def __len__(self) -> int:
        return len(self.loader)

    def set_epoch(self, epoch: int) -> None:
        """As :meth:`forebay.Loader.set_epoch`."""
        self.loader.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        # In the epoch of a resume, the Trainer discards as many items as it has trained on, without reading them.
        taken = self.loader.state_dict()["samples"] // (self.loader.batch_size * self.loader.world_size)
        yield from itertools.repeat(None, taken)
        yield from map(self.to_inputs, self.loader)


class KeepsPlace(transformers.TrainerCallback):
    """Writes the loader's state, the same on every rank, into each checkpoint."""

    def __init__(self, loader: _loader.Loader) -> None:
        self.loader = loader

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Only in the first process."""
        if state.is_world_process_zero:
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            (folder / STATE_NAME).write_text(json.dumps(self.loader.state_dict()))


def without_bookkeeping(batch: dict[str, Any]) -> dict[str, Any]:
    """A batch without the loader's additional fields, which a model does not accept."""
    return {name: value for name, value in batch.items() if name not in ("index", "valid")}
