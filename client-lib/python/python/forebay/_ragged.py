"""Fields whose rows differ in length."""

from collections.abc import Iterator
from typing import Any


class Ragged:
    """A field whose rows are one-dimensional and differ in length.

    Row ``i`` is ``values[offsets[i] : offsets[i] + lengths[i]]``; ``ragged[i]`` returns it as a view. Rows need not be
    contiguous: elements of ``values`` between them are not data.

    Attributes:
        values: one-dimensional, the region of the rows.
        offsets: int64, the start of each row in ``values``.
        lengths: int64, the number of elements of each row.
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
        """A copy with contiguous rows."""
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
