"""Rows that differ in length."""

from collections.abc import Iterator
from typing import Any


class Ragged:
    """A field whose rows are one-dimensional and differ in length.

    Row ``i`` is ``values[offsets[i] : offsets[i] + lengths[i]]``; ``ragged[i]`` gives it, as a view. Rows need not lie
    close together: what is between them in ``values`` is not data.

    Attributes:
        values: one-dimensional, the region that the rows lie in.
        offsets: int64, where each row starts in ``values``.
        lengths: int64, how many elements each row has.
    """

    __slots__ = ("lengths", "offsets", "values")

    def __init__(self, values: Any, offsets: Any, lengths: Any) -> None:
        self.values = values
        self.offsets = offsets
        self.lengths = lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, row: int) -> Any:
        start = int(self.offsets[row])
        return self.values[start : start + int(self.lengths[row])]

    def __iter__(self) -> Iterator[Any]:
        for row in range(len(self)):
            yield self[row]

    def copy(self) -> "Ragged":
        """A copy in memory of its own, with the rows close together."""
        lengths = self.lengths + 0
        ends = lengths.cumsum(0)
        if hasattr(self.values, "at"):  # JAX, which has a `clone` as well
            import jax

            values = jax.numpy.concatenate(list(self)) if len(self) else self.values[:0]
        elif hasattr(self.values, "clone"):  # PyTorch
            import torch

            values = torch.cat(list(self)) if len(self) else self.values[:0].clone()
        else:
            import numpy

            values = numpy.concatenate(list(self)) if len(self) else self.values[:0].copy()
        return Ragged(values, ends - lengths, lengths)

    def __repr__(self) -> str:
        return f"Ragged({len(self)} rows of {self.values.dtype})"
