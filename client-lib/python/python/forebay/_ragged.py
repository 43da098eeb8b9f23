"""Fields whose rows differ in length."""

import math
from collections.abc import Iterable, Iterator
from typing import Any, Optional


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

    def padded(self, value: Any, multiple_of: int = 1, max_length: Optional[int] = None) -> Any:
        """The rows as one array ``[rows, length, *row_shape]`` of the same type and on the same device.

        ``length`` is the length of the longest row, rounded up to a multiple of ``multiple_of``. ``ragged.lengths`` and
        :meth:`mask` say which elements are data.

        Args:
            value: the padding after a row's end, such as a tokenizer's padding token.
            multiple_of: 8 or 64 keep matrix shapes efficient; equal to ``max_length``, every batch has that length.
            max_length: longer rows are cut to it. It must be a multiple of ``multiple_of``.

        Raises:
            ValueError: a number below 1, or a ``max_length`` that is not a multiple of ``multiple_of``.
        """
        return self._padded(value, self._padded_length(multiple_of, max_length))

    def mask(self, multiple_of: int = 1, max_length: Optional[int] = None) -> Any:
        """For :meth:`padded` with the same arguments: ``[rows, length]`` of booleans, true where there is data."""
        length = self._padded_length(multiple_of, max_length)
        return self._positions(length)[None, :] < (self.lengths // math.prod(self.row_shape))[:, None]

    def to(self, device: Any, non_blocking: bool = False) -> "Ragged":
        """The same rows on another device, as ``Tensor.to(device, non_blocking)`` moves a tensor; also for JAX.

        Raises:
            TypeError: the rows are NumPy arrays, for which there is no device.
        """
        if hasattr(self.values, "at"):  # JAX
            import jax

            values, offsets, lengths = jax.device_put((self.values, self.offsets, self.lengths), device)
        elif hasattr(self.values, "clone"):  # PyTorch
            parts = (self.values, self.offsets, self.lengths)
            values, offsets, lengths = (part.to(device, non_blocking=non_blocking) for part in parts)
        else:
            raise TypeError(
                f"{self!r} has NumPy arrays, which have no device; make the loader as forebay.torch.Loader or "
                "forebay.jax.Loader, or pass `.padded(value)` to your framework"
            )
        return Ragged(values, offsets, lengths, self.row_shape)

    def _padded_length(self, multiple_of: int, max_length: Optional[int]) -> int:
        if multiple_of < 1 or (max_length is not None and max_length < 1):
            raise ValueError(f"multiple_of = {multiple_of} and max_length = {max_length} must be 1 or more")
        if max_length is not None and max_length % multiple_of:
            raise ValueError(
                f"max_length = {max_length} is not a multiple of multiple_of = {multiple_of}; give "
                f"max_length = {-(-max_length // multiple_of) * multiple_of}"
            )
        longest = int(self.lengths.max()) // math.prod(self.row_shape) if len(self) else 0
        if max_length is not None:
            longest = min(longest, max_length)
        return -(-longest // multiple_of) * multiple_of

    def _padded(self, value: Any, length: int) -> Any:
        width = math.prod(self.row_shape)
        shape = (len(self), length * width)
        values = self.values
        module: Any
        rows: Any
        if hasattr(values, "at"):  # JAX
            import jax

            module = jax.numpy

            rows = module.full(shape, value, values.dtype)
        elif hasattr(values, "clone"):  # PyTorch
            import torch

            module = torch

            rows = torch.full(shape, value, dtype=values.dtype, device=values.device)
            if values.device.type == "cpu":
                # Row by row in NumPy, as bits: it has no bfloat16.
                bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[values.element_size()]
                offsets, lengths = self.offsets.numpy(), self.lengths.numpy()
                _copy_rows(values.view(bits).numpy(), offsets, lengths, rows.view(bits).numpy())
                return rows.reshape(len(self), length, *self.row_shape)
        else:
            import numpy

            rows = numpy.full(shape, value, values.dtype)
            _copy_rows(values, self.offsets, self.lengths, rows)
            return rows.reshape(len(self), length, *self.row_shape)
        if len(values):
            # All rows in one kernel: a copy of each takes a launch.
            places = self._positions(length * width)[None, :]
            found = values[(self.offsets[:, None] + places).clip(0, len(values) - 1)]
            rows = module.where(places < self.lengths[:, None], found, rows)
        return rows.reshape(len(self), length, *self.row_shape)

    def _positions(self, length: int) -> Any:
        if hasattr(self.values, "at"):  # JAX
            import jax

            return jax.numpy.arange(length)
        if hasattr(self.values, "clone"):  # PyTorch
            import torch

            return torch.arange(length, device=self.values.device)
        import numpy

        return numpy.arange(length)

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


def _copy_rows(values: Any, offsets: Any, lengths: Any, rows: Any) -> None:
    """Copies each row of a NumPy array to the start of its row, as far as it fits."""
    width = rows.shape[1]
    for row, (start, length) in enumerate(zip(offsets.tolist(), lengths.tolist())):
        length = min(length, width)
        rows[row, :length] = values[start : start + length]
