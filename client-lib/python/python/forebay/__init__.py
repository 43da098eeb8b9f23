"""Forebay: finished training batches in shared memory.

    import forebay

    loader = forebay.Loader("train.toml")
    for epoch in loader.epochs_left():
        for batch in loader:
            train(batch["image"], batch["label"])

A daemon next to the trainer reads, decodes, transforms and collates; this package maps its finished batches.
``forebay.torch.Loader`` returns tensors instead of arrays, ``forebay.jax.Loader`` JAX arrays on JAX's devices.
"""

from typing import Any

from ._cache_loader import CacheLoader
from ._dataset_rows import Dataset
from ._exceptions import (
    BadSample,
    ConfigError,
    DaemonLost,
    EpochsFinished,
    Error,
    HoldLimit,
    StageError,
    StateMismatch,
    Timeout,
)
from ._forebay import __version__
from ._headspace import Headspace, headspace
from ._loader import Loader
from ._ragged import Ragged
from ._step_timer import StepReport, StepTimer
from ._straggler import StragglerReport, straggler_report

__all__ = [
    "BadSample",
    "CacheLoader",
    "ConfigError",
    "DaemonLost",
    "Dataset",
    "EpochsFinished",
    "Error",
    "Headspace",
    "HoldLimit",
    "Loader",
    "Ragged",
    "StageError",
    "StateMismatch",
    "StepReport",
    "StepTimer",
    "StragglerReport",
    "Timeout",
    "__version__",
    "headspace",
    "straggler_report",
]


# Public names report the package as their module.
for _name in set(__all__) - {"__version__"}:
    globals()[_name].__module__ = "forebay"
del _name


def __getattr__(name: str) -> Any:
    # Imports forebay.torch and forebay.jax at first use, so that PyTorch or JAX is imported only then.
    if name in ("jax", "torch"):
        import importlib

        return importlib.import_module(f"forebay.{name}")
    raise AttributeError(f"module 'forebay' has no attribute {name!r}")
