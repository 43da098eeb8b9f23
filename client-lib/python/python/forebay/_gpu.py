"""The little that timing needs of a CUDA device. PyTorch is imported only when the caller names such a device."""

import sys
from typing import Any, Optional


def synchronise_all() -> None:
    """Waits for the current CUDA device, where this process uses one through PyTorch; else does nothing."""
    torch: Any = sys.modules.get("torch")
    # A device that is available and not initialised has nothing to wait for, and asking would make a context on it.
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def cuda_device(device: Any) -> Optional[Any]:
    """The device as ``torch.device`` if it is a CUDA one, by name or of PyTorch; None for anything else.

    JAX's devices are called ``cuda:0`` too, and are not meant: their programs need not have PyTorch.
    """
    of_torch = isinstance(device, str) or type(device).__module__.partition(".")[0] == "torch"
    if not of_torch or not str(device).startswith("cuda"):
        return None
    import torch

    return torch.device(device)
