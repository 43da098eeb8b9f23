"""``order.weights`` as an array: passed to the daemon as a file in this process's memory."""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

_KEY = "order.weights"


def hand_over_weights(keys: Mapping[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    """The keys with a path in place of an array of weights, and the open file that has to live as long as the loader.

    The keys are a configuration's, or dotted ones.
    """
    keys = dict(keys)
    held: list[Any] = []
    if _KEY in keys:
        keys[_KEY] = _as_path(keys[_KEY], held)
    order = keys.get("order")
    if isinstance(order, Mapping) and "weights" in order:
        keys["order"] = {**order, "weights": _as_path(order["weights"], held)}
    return keys, held


def _as_path(value: Any, held: list[Any]) -> Any:
    if value is None or isinstance(value, (str, os.PathLike)):
        return value
    # A tensor may be on a GPU or have a gradient.
    value = value.detach().cpu() if hasattr(value, "detach") else value
    array = np.asarray(value)
    if array.dtype != np.float32:
        array = array.astype(np.float64)
    file = os.fdopen(os.memfd_create("forebay-weights", os.MFD_CLOEXEC), "wb")
    held.append(file)
    np.save(file, array)
    file.flush()
    # The daemon is a child of this process, and so is the one that replaces it.
    return f"/proc/{os.getpid()}/fd/{file.fileno()}"
