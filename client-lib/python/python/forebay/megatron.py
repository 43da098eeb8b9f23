"""Megatron-LM over a Forebay loader of tokens; Megatron-Bridge, which NeMo trains with, calls it alike.

    import forebay.megatron, forebay.torch
    from megatron.core import parallel_state

    def train_valid_test_datasets_provider(train_val_test_num_samples):
        loader = forebay.torch.Loader(
            "train.toml",
            rank=parallel_state.get_data_parallel_rank(),
            world_size=parallel_state.get_data_parallel_world_size(),
        )
        return forebay.megatron.Batches(loader), None, None

``--dataloader-type external`` passes such an object on to the training loop, which calls ``next`` on it and, with
``--dataloader-save``, ``save_state``. Megatron itself is not imported here.
"""

from collections.abc import Iterator
from typing import Any, Optional

import torch

from . import torch as _torch
from ._exceptions import ConfigError

__all__ = ["IGNORED", "Batches", "fields_of"]

IGNORED = -100
"""The label of a token that is not trained on."""


class Batches:
    """A loader's batches with the fields of ``GPTDataset``: an external data loader of Megatron.

    ``next`` goes through the epochs that are left, one behind the other. ``iter`` gives one epoch, and ``len`` its
    number of batches, as ``--full-validation`` expects.

    Args:
        loader: a :class:`forebay.torch.Loader` whose batches have ``tokens`` and ``labels``. ``ring.hold`` must be
            above the number of micro-batches of a step, unless Megatron runs with ``--rerun-mode disabled``.
        attention_mask: adds ``attention_mask``, as ``--create-attention-mask-in-dataloader`` expects: causal, and with
            ``position_ids`` within documents.
        consumed_samples: Megatron's ``args.consumed_train_samples``, to resume at with the same number of ranks and
            micro-batch size. A state of :meth:`save_state` is given to the loader instead, and is exact at any.

    Raises:
        ConfigError: the batches lack a field, or there is no batch at ``consumed_samples``.
    """

    def __init__(
        self, loader: _torch.Loader, *, attention_mask: bool = False, consumed_samples: Optional[int] = None
    ) -> None:
        names = {name for name, *_ in loader._terms["tensors"]}
        lacking = {"tokens", "labels"} - names
        if lacking:
            raise ConfigError(
                f"the batches have no {' and no '.join(f'`{name}`' for name in sorted(lacking))}: Megatron trains on "
                "rows of tokens (`[dataset.tokens]`) with their labels"
            )
        self.loader, self._attention_mask = loader, attention_mask
        self._epochs: Optional[Iterator[Any]] = None
        if consumed_samples:
            self._go_to(consumed_samples)

    def __next__(self) -> dict[str, Any]:
        if self._epochs is None:
            # `epochs_left` reads the position of the loader, which a state may have changed until now.
            self._epochs = (batch for _ in self.loader.epochs_left() for batch in self)
        return next(self._epochs)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        # `map` holds no batch.
        return map(self._fields_of, iter(self.loader))

    def __len__(self) -> int:
        return len(self.loader)

    def save_state(self) -> dict[str, Any]:
        """The loader's state, the same on every rank; Megatron saves it for each data-parallel rank."""
        return self.loader.state_dict()

    def _fields_of(self, batch: dict[str, Any]) -> dict[str, Any]:
        return fields_of(batch, attention_mask=self._attention_mask)

    def _go_to(self, consumed_samples: int) -> None:
        loader = self.loader
        at_once = loader.batch_size * loader.world_size
        if consumed_samples % at_once or loader._terms["by_length"]:
            raise ConfigError(
                f"consumed_samples={consumed_samples} is not a whole number of batches of {loader.batch_size} samples "
                f"on {loader.world_size} ranks: load the state that `save_state` gave (`--dataloader-save`)"
            )
        epoch, steps = divmod(consumed_samples // at_once, len(loader))
        loader.load_state_dict({**loader.state_dict(), "epoch": epoch, "samples": steps * at_once})


def fields_of(batch: dict[str, Any], *, attention_mask: bool = False) -> dict[str, Any]:
    """A batch of tokens with the fields of a batch of ``GPTDataset``.

    ``labels`` are tokens everywhere and ``loss_mask`` says which ones count. ``position_ids`` start at 0 in each
    document if the configuration's ``boundaries`` name them, else in each row; ``cu_seqlens`` and ``max_seqlen`` are
    there if ``boundaries`` names ``cu_seqlens``.
    """
    labels = batch["labels"]
    counts = labels != IGNORED
    given = batch.get("position_ids")
    positions = torch.arange(labels.shape[1]).repeat(len(labels), 1) if given is None else given.long()
    made = {
        "tokens": batch["tokens"].long(),
        "labels": labels.long().masked_fill(~counts, 0),
        "loss_mask": counts.float(),
        "position_ids": positions,
    }
    if "cu_seqlens" in batch:
        made["cu_seqlens"] = batch["cu_seqlens"]
        made["max_seqlen"] = batch["cu_seqlens"].diff(dim=1).amax(dim=1)
    if attention_mask:
        document = (positions == 0).cumsum(1)
        # True: not to be seen.
        made["attention_mask"] = ~(document[:, None, :, None] == document[:, None, None, :]).tril()
    return made
