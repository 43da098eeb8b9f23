"""CUDA helpers for timing. PyTorch is imported only when the caller names a CUDA device."""

import sys
from typing import Any, Optional


def synchronise_all() -> None:
    """Synchronises the current CUDA device if this process uses one through PyTorch; else does nothing."""
    torch: Any = sys.modules.get("torch")
    # An uninitialised device has no pending work, and a synchronisation would create a context on it.
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def cuda_device(device: Any) -> Optional[Any]:
    """The device as ``torch.device`` if it is a CUDA one, by name or of PyTorch; None for anything else.

    JAX's devices, whose names are ``cuda:0`` too, are not included: their programs may not have PyTorch.
    """
    of_torch = isinstance(device, str) or type(device).__module__.partition(".")[0] == "torch"
    if not of_torch or not str(device).startswith("cuda"):
        return None
    import torch

    return torch.device(device)
