"""PyTorch Lightning over Forebay loaders.

    import forebay.lightning

    data = forebay.lightning.DataModule("train.toml", "val.toml")
    trainer = Trainer(use_distributed_sampler=False)
    trainer.fit(model, datamodule=data)

A loader may also be passed to ``fit`` as it is. The data module makes its loaders once the strategy has started its
processes, so that each has its rank however they are started.

Lightning calls the training loader's ``state_dict`` for every checkpoint and ``load_state_dict`` on resume: a run
resumes inside its epoch at the next batch. ``use_distributed_sampler=False``: with several processes Lightning would
otherwise try to replace a sampler; the loader divides the samples among ranks itself.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Optional

from . import torch as _torch
from ._target import Target

if TYPE_CHECKING:
    from pytorch_lightning import LightningDataModule
else:
    # Either name of the package; a program that has imported one of them uses that one.
    import sys

    if "lightning.pytorch" in sys.modules and "pytorch_lightning" not in sys.modules:
        from lightning.pytorch import LightningDataModule
    else:
        try:
            from pytorch_lightning import LightningDataModule
        except ModuleNotFoundError:
            from lightning.pytorch import LightningDataModule

__all__ = ["DataModule"]


class DataModule(LightningDataModule):
    """Loaders for training and validation, which are created when Lightning requests them and closed after its run.

    Args:
        train: the target of a :class:`forebay.torch.Loader`.
        validation: the same for validation; without one there is no validation loop. Each validation iterates over the
            stream's first epoch.
        options: further arguments of both loaders, such as ``{"batch_size": 64}``.
        train_options, validation_options: arguments of one of them, which take precedence over ``options``.
    """

    def __init__(
        self,
        train: Target,
        validation: Target = None,
        options: Optional[Mapping[str, Any]] = None,
        *,
        train_options: Optional[Mapping[str, Any]] = None,
        validation_options: Optional[Mapping[str, Any]] = None,
    ) -> None:
        super().__init__()
        self._targets = {"train": train, "validation": validation}
        self._options = {
            "train": {**(options or {}), **(train_options or {})},
            "validation": {**(options or {}), **(validation_options or {})},
        }
        self._loaders: dict[str, _torch.Loader] = {}
        if validation is not None:
            # Lightning runs a validation loop if this method exists.
            self.__dict__["val_dataloader"] = self._validation_loader

    def train_dataloader(self) -> _torch.Loader:
        """The training loader."""
        return self._loader("train")

    def _validation_loader(self) -> "_SameEpoch":
        return _SameEpoch(self._loader("validation"))

    def teardown(self, stage: str) -> None:
        """Closes the loaders."""
        for loader in self._loaders.values():
            loader.close()
        self._loaders.clear()

    def _loader(self, name: str) -> _torch.Loader:
        if name not in self._loaders:
            from .accelerate import check_ranks

            loader = _torch.Loader(self._targets[name], **self._options[name])
            trainer = self.trainer
            if trainer is not None:
                check_ranks(loader, trainer.global_rank, trainer.world_size)
            self._loaders[name] = loader
        return self._loaders[name]


class _SameEpoch:
    """A loader whose every iteration is the first epoch, from its start."""

    def __init__(self, loader: _torch.Loader) -> None:
        self._loader = loader

    def __iter__(self) -> Any:
        self._loader.set_epoch(0)
        return iter(self._loader)

    def __len__(self) -> int:
        return len(self._loader)
