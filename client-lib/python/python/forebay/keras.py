"""Keras 3 with the PyTorch backend over a Forebay loader.

    import forebay.keras, forebay.torch

    batches = forebay.keras.Batches(forebay.torch.Loader("train.toml"), lambda batch: (batch["image"], batch["label"]))
    place = forebay.keras.KeepsPlace(batches, "runs/backup", save_every=1000)
    model.fit(batches, epochs=90, initial_epoch=place.restore(model), callbacks=[place], shuffle=False)

An epoch of Keras is one of the loader: leave ``steps_per_epoch`` out. ``shuffle=False`` says that the loader shuffles.

Batches are a ``DataLoader`` of PyTorch to Keras, and not a ``PyDataset``: Keras asks a ``PyDataset`` for batches by
number, up to that of a whole epoch, and the rest of an epoch, after a resume, has fewer.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable, Optional, Union

import keras
from torch.utils.data import DataLoader

from . import torch as _torch
from ._exceptions import ConfigError

__all__ = ["STATE_NAME", "WEIGHTS_NAME", "Batches", "KeepsPlace", "Validation"]

STATE_NAME = "forebay.json"
"""The file of a checkpoint that has the loader's state."""
WEIGHTS_NAME = "model.weights.h5"
"""The file of a checkpoint that has the weights of model and optimizer."""

# The batches that Keras reads to build a model, before it trains.
_MOST_TO_BUILD = 2


class Validation(DataLoader[Any]):
    """A loader's batches for ``validation_data``, ``evaluate`` and ``predict``: always the first epoch, from its start.

    Args:
        loader: a :class:`forebay.torch.Loader`, without batches by length.
        to_batch: makes ``(inputs, targets)`` or ``(inputs, targets, sample_weights)`` of a batch.

    Raises:
        ConfigError: the loader has batches by length.
    """

    def __init__(self, loader: _torch.Loader, to_batch: Callable[[dict[str, Any]], Any]) -> None:
        if loader._terms["by_length"]:
            raise ConfigError(
                "with `batch.budget` epochs differ in their number of batches, and Keras has one number for all: set "
                "`batch.size`"
            )
        # Keras takes the length of whatever has a dataset with a length.
        super().__init__(loader, batch_size=None)  # type: ignore[arg-type, unused-ignore]
        self.loader, self._to_batch = loader, to_batch

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Any:
        # A generator: Keras makes an iterator after the last epoch that it does not use.
        self.loader.set_epoch(0)
        yield from map(self._to_batch, self.loader)


class Batches(Validation):
    """A loader's batches for ``fit``, which goes through its epochs. The callback :class:`KeepsPlace` is required.

    Keras reads a batch that it does not train on, to build the model. The loader goes back to the first batch that the
    callback has not counted as trained on.
    """

    def __init__(self, loader: _torch.Loader, to_batch: Callable[[dict[str, Any]], Any]) -> None:
        super().__init__(loader, to_batch)
        # Batches handed over that are not trained on, and whether a callback counts those that are.
        self._ahead, self._is_counted = 0, False
        # An epoch that was begun and not finished.
        self._is_within = False

    def __iter__(self) -> Any:
        if self._is_within:
            # Else the loader would give up the rest of this epoch.
            self.loader.load_state_dict(self.state_dict(), compare_ranks=False)
            self._ahead = 0
        self._is_within = True
        for batch in map(self._to_batch, self.loader):
            self._ahead += 1
            if self._ahead > _MOST_TO_BUILD and not self._is_counted:
                raise ConfigError(
                    "give `fit` the callback of these batches, `callbacks=[forebay.keras.KeepsPlace(batches)]`, or "
                    "`evaluate` and `predict` a `forebay.keras.Validation`"
                )
            yield batch
        self._is_within = False

    def state_dict(self) -> dict[str, Any]:
        """The loader's state behind the last batch that was trained on."""
        return self.loader.state_dict(held_back=self._ahead)


class KeepsPlace(keras.callbacks.Callback):
    """Counts the batches that are trained on, and saves model, optimizer and the loader's state together.

    A checkpoint is a folder, which has its name only once it is complete; the newest one is kept. Of several ranks the
    first one saves.

    Args:
        batches: those of ``fit``.
        folder: where checkpoints go. Default: nothing is saved.
        save_every: the steps from one checkpoint to the next. Default: at the end of each epoch.
    """

    def __init__(
        self, batches: Batches, folder: Optional[Union[str, Path]] = None, *, save_every: Optional[int] = None
    ) -> None:
        super().__init__()
        if save_every is not None and save_every < 1:
            raise ConfigError(f"save_every={save_every}: it is a number of steps from 1")
        self._batches, self._folder, self._save_every = batches, None if folder is None else Path(folder), save_every
        self._steps = 0

    def restore(self, model: Any) -> int:
        """Loads the newest checkpoint, if there is one, into a built model, its optimizer and the loader.

        Returns the epoch to go on in, the ``initial_epoch`` of ``fit``.
        """
        newest = max(self._checkpoints(), default=None)
        if newest is not None:
            if model.optimizer is not None and not model.optimizer.built:
                model.optimizer.build(model.trainable_variables)
            model.load_weights(newest / WEIGHTS_NAME)
            self._batches.loader.load_state_dict(json.loads((newest / STATE_NAME).read_text()))
            self._batches._ahead, self._batches._is_within = 0, False
        return self._batches.loader.epoch

    def on_train_begin(self, logs: Any = None) -> None:
        """Counting begins."""
        self._batches._is_counted = True

    def on_train_end(self, logs: Any = None) -> None:
        """Counting ends."""
        self._batches._is_counted = False

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Counts, and saves after so many steps."""
        self._batches._ahead -= 1
        self._steps += 1
        if self._save_every is not None and self._steps % self._save_every == 0:
            self._save()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Saves, if nothing else is asked for."""
        if self._save_every is None:
            self._save()

    def _checkpoints(self) -> Iterator[Path]:
        return iter(()) if self._folder is None else self._folder.glob("[0-9]*-[0-9]*")

    def _save(self) -> None:
        if self._folder is None or self._batches.loader.rank != 0:
            return
        state = self._batches.state_dict()
        unnamed, named = self._folder / "unfinished", self._folder / f"{state['epoch']:06}-{state['samples']:015}"
        shutil.rmtree(unnamed, ignore_errors=True)
        unnamed.mkdir(parents=True)
        self.model.save_weights(unnamed / WEIGHTS_NAME)
        (unnamed / STATE_NAME).write_text(json.dumps(state))
        others = [other for other in self._checkpoints() if other != named]
        if named.exists():
            shutil.rmtree(named)
        unnamed.rename(named)
        for other in others:
            shutil.rmtree(other)
