"""Fields whose rows differ in length."""

import math
from collections.abc import Iterable, Iterator
from typing import Any


class Ragged:
    """A field whose rows differ in their first dimension, such as tokens (``[n]``) or boxes (``[n, 4]``).

    ``ragged[i]`` returns row ``i`` as a view: ``values[offsets[i] : offsets[i] + lengths[i]]`` in the shape
    ``(-1, *row_shape)``. Rows need not be contiguous: elements of ``values`` between them are not data.

    Attributes:
        values: one-dimensional, the region of the rows.
        offsets: int64, the start of each row in ``values``, in elements. (JAX without ``jax_enable_x64``: int32.)
        lengths: of the same type, the number of elements of each row.
        row_shape: the dimensions of each row after the first; empty for rows of one dimension.
    """

    __slots__ = ("lengths", "offsets", "row_shape", "values")

    def __init__(self, values: Any, offsets: Any, lengths: Any, row_shape: Iterable[int] = ()) -> None:
        self.values = values
        self.offsets = offsets
        self.lengths = lengths
        self.row_shape = tuple(row_shape)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, row: int) -> Any:
        start = int(self.offsets[row])
        elements = self.values[start : start + int(self.lengths[row])]
        if not self.row_shape:
            return elements
        # Not -1: a row may have no elements.
        return elements.reshape((len(elements) // math.prod(self.row_shape), *self.row_shape))

    def __iter__(self) -> Iterator[Any]:
        for row in range(len(self)):
            yield self[row]

    def _elements(self) -> list[Any]:
        """Each row in one dimension."""
        return [row.reshape(-1) for row in self]

    def strings(self, errors: str = "strict") -> list[str]:
        """The rows of a field of text as a list of ``str``.

        Each row is decoded as UTF-8, with ``errors`` as in ``bytes.decode``; text of a dataset is always valid UTF-8.

        Raises:
            TypeError: the rows are not one-dimensional uint8.
        """
        if self.row_shape or str(self.values.dtype).rpartition(".")[2] != "uint8":
            raise TypeError(f"only rows of bytes can be strings, not {self!r}")
        import numpy

        # One view of the whole region, on the CPU: a tensor of PyTorch or an array of JAX is slow to slice row by row.
        values = self.values.cpu() if hasattr(self.values, "cpu") else self.values
        region = numpy.asarray(values).data
        offsets, lengths = self.offsets.tolist(), self.lengths.tolist()
        return [str(region[start : start + length], "utf-8", errors) for start, length in zip(offsets, lengths)]

    def copy(self) -> "Ragged":
        """A copy with contiguous rows."""
        lengths = self.lengths + 0
        ends = lengths.cumsum(0)
        if hasattr(self.values, "at"):  # JAX, which has a `clone` as well
            import jax

            values = jax.numpy.concatenate(self._elements()) if len(self) else self.values[:0]
        elif hasattr(self.values, "clone"):  # PyTorch
            import torch

            values = torch.cat(self._elements()) if len(self) else self.values[:0].clone()
        else:
            import numpy

            values = numpy.concatenate(self._elements()) if len(self) else self.values[:0].copy()
        return Ragged(values, ends - lengths, lengths, self.row_shape)

    def __repr__(self) -> str:
        shape = "".join(f", {side}" for side in self.row_shape)
        return f"Ragged({len(self)} rows of {self.values.dtype}{f' [n{shape}]' if shape else ''})"
