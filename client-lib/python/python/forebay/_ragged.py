"""Rows that differ in length."""

from typing import Any, Iterator


class Ragged:
    """A field whose rows are one-dimensional and differ in length.

    Row ``i`` is ``values[offsets[i] : offsets[i] + lengths[i]]``; ``ragged[i]`` gives it, as a view. Rows need not lie
    close together: what is between them in ``values`` is not data.

    Attributes:
        values: one-dimensional, the region that the rows lie in.
        offsets: int64, where each row starts in ``values``.
        lengths: int64, how many elements each row has.
    """

    __slots__ = ("values", "offsets", "lengths")

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
        """A copy of its own memory, with the rows close together."""
        import numpy

        rows = [numpy.asarray(row) for row in self]
        lengths = numpy.array([len(row) for row in rows], dtype=numpy.int64)
        ends = numpy.cumsum(lengths)
        values = numpy.concatenate(rows) if rows else numpy.array(self.values[:0])
        return Ragged(values, ends - lengths, lengths)

    def __repr__(self) -> str:
        return f"Ragged({len(self)} rows of {self.values.dtype})"
