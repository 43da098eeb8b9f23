"""The user's function on complete batches, in a worker: a batch is one row of a call.

A column of one size is an array under the field's name. A column whose rows differ in length has two parts, named as
in daemon/crates/transform/src/python/batch.rs: its elements, and the rows' lengths.
"""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from ._stage import Stage

_PART = "\x1f"
_TEXT, _BYTES, _LIST, _LENGTHS = "text", "bytes", "list", "lengths"


class BatchStage(Stage):
    """A function that is called with batches."""

    is_of_batches = True

    def call(self, make: Callable[[], dict[str, Any]], words: list[int]) -> Any:
        """Calls the function with a batch."""
        rows = 0

        def batch() -> dict[str, Any]:
            nonlocal rows
            columns = make()
            # Lengths also have one entry per row.
            rows = next(len(columns[name]) for name in columns if name.partition(_PART)[2] in ("", _LENGTHS))
            return _joined(columns)

        result = super().call(batch, words)
        return _parts(result, rows) if isinstance(result, dict) else result


def _joined(columns: dict[str, Any]) -> dict[str, Any]:
    """The fields of a batch: arrays, and lists where rows differ in length."""
    fields: dict[str, Any] = {}
    for name, column in columns.items():
        field, _, part = name.partition(_PART)
        if part == "":
            fields[field] = column
        elif part != _LENGTHS:
            ends = np.cumsum(columns[field + _PART + _LENGTHS])
            rows = np.split(column, ends[:-1])
            if part == _LIST:
                fields[field] = rows
            elif part == _BYTES:
                fields[field] = [row.tobytes() for row in rows]
            else:
                fields[field] = [row.tobytes().decode() for row in rows]
    return fields


def _parts(result: dict[str, Any], rows: int) -> dict[str, Any]:
    """The columns of the function's result."""
    columns: dict[str, Any] = {}
    for name, value in result.items():
        if not isinstance(name, str) or _PART in name:
            raise TypeError(f"the function returned the key {name!r}; the names of fields are strings")
        if (
            not hasattr(value, "__len__")
            or isinstance(value, (str, bytes, dict))
            or getattr(value, "shape", None) == ()
        ):
            raise TypeError(
                f"`{name}` is a {type(value).__name__}; return an array with a row for each sample, or a list of text, "
                "bytes or arrays"
            )
        if len(value) != rows:
            raise ValueError(f"`{name}` has {len(value)} rows, and the batch {rows}")
        part = _part_of(value)
        if part is None:
            columns[name] = value
            continue
        elements = [_elements(name, row, part) for row in value]
        lengths = np.array([len(row) for row in elements], np.int64)
        columns[name + _PART + part] = np.concatenate(elements)
        columns[name + _PART + _LENGTHS] = lengths
    return columns


def _part_of(value: Any) -> Any:
    """The part for the rows of a list, which may differ in length."""
    if not isinstance(value, (list, tuple)):
        return None
    if all(isinstance(row, str) for row in value):
        return _TEXT
    if all(isinstance(row, (bytes, bytearray)) for row in value):
        return _BYTES
    return _LIST if any(len(getattr(row, "shape", ())) > 0 for row in value) else None


def _elements(name: str, row: Any, part: str) -> "np.ndarray[Any, Any]":
    if part == _TEXT:
        return np.frombuffer(row.encode(), np.uint8)
    if part == _BYTES:
        return np.frombuffer(row, np.uint8)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(row, torch.Tensor):
        row = row.detach().cpu().numpy()
    array = np.asarray(row)
    if not array.shape:
        raise TypeError(f"`{name}` has a row that is one number among rows that are arrays")
    return array
