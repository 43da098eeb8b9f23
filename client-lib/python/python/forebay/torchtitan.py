"""torchtitan's data loader over a Forebay configuration of tokens.

    from forebay.torchtitan import DataLoader

    config = Trainer.Config(
        ...,
        training=TrainingConfig(local_batch_size=8, seq_len=2048),
        dataloader=DataLoader.Config(file="train.toml"),
    )

torchtitan saves the loader's state in its checkpoints, and resumes from it at the next batch, also at another
``dp_world_size``.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torchtitan.components.dataloader import BaseDataLoader

from . import torch as _torch
from ._exceptions import ConfigError

__all__ = ["STATE_NAME", "DataLoader"]

STATE_NAME = "forebay"
"""The key of a checkpoint's data loader that has the loader's state, the same on every rank."""


class DataLoader(BaseDataLoader):
    """A ``BaseDataLoader`` of torchtitan: ``({"input", "positions"}, labels)`` from ``tokens``, ``position_ids`` and
    ``labels``.

    ``positions`` are there if ``boundaries`` of the configuration has ``"position_ids"``. torchtitan keeps the batches
    of an optimizer step: ``ring.hold`` must be at least gradient accumulation times pipeline micro-batches.

    Raises:
        ConfigError: the batches have no ``tokens`` or ``labels``, or rows of another length than ``seq_len``.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        """``dataset`` and ``dataset_path`` of the base class are not used."""

        file: str = "train.toml"
        """The configuration. ``local_batch_size`` of the training takes the place of its ``batch.size``."""

        infinite: bool = True
        """Whether the configuration's epochs follow one another; else one epoch. The validator sets it."""

    def __init__(
        self, config: Config, *, dp_world_size: int, dp_rank: int, seq_len: int, local_batch_size: int, **_: Any
    ) -> None:
        self._infinite = config.infinite
        self.loader = _torch.Loader(config.file, rank=dp_rank, world_size=dp_world_size, batch_size=local_batch_size)
        rows = {name: shape for name, _, shape, *_ in self.loader._terms["tensors"]}
        if rows.get("tokens") != [seq_len] or rows.get("labels") != [seq_len]:
            self.loader.close()
            raise ConfigError(
                f"{config.file}: a row has {', '.join(f'`{name}` {shape}' for name, shape in rows.items())}, and "
                f"torchtitan trains on `tokens` and `labels` of seq_len = {seq_len}: set `dataset.tokens.length` to it"
            )
        self._has_positions = "position_ids" in rows

    def __iter__(self) -> Iterator[tuple[dict[str, Any], Any]]:
        for _ in self.loader.epochs_left(None if self._infinite else 1):
            # `map` holds no batch.
            yield from map(self._item, self.loader)

    def _item(self, batch: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        inputs = {"input": batch["tokens"]}
        if self._has_positions:
            inputs["positions"] = batch["position_ids"].long()
        return inputs, batch["labels"]

    def state_dict(self) -> dict[str, Any]:
        """The loader's state, as text, for a checkpoint."""
        return {STATE_NAME: json.dumps(self.loader.state_dict())}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resumes at the next batch; an empty state is that of a new run."""
        if state_dict:
            self.loader.load_state_dict(json.loads(state_dict[STATE_NAME]))
