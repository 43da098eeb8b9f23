"""Replays a loader's first batches, to run training as if loading were free.

It works for any iterable of batches. It keeps copies: a Forebay batch is a view of a slot, and a cache of views would
hold the slots. `_headspace` measures.
"""

from collections.abc import Iterable, Iterator
from types import GeneratorType
from typing import Any, Optional

from ._ragged import Ragged

_TENSOR_PROTOCOL = "__dlpack__"


class CacheLoader:
    """Wraps a loader: yields its batches first, then repeats its first batches without loading.

    Wrap your loader with it for some hundred steps: the step time after ``return_caches_after`` batches is the lower
    bound for any loader. Such a run trains on repeated batches, so discard its model. The semantics are those of SPDL's
    ``CacheDataLoader``.

    Each iteration starts over: ``return_caches_after`` batches of the source (all of them, if it has fewer), then the
    copies in order, without end or until ``stop_after``. An empty source yields nothing. Arrays, tensors and ragged
    fields are copied before they are returned, within dicts, lists and tuples too; other values are kept as they are. A
    cached batch that a step changes in place stays changed when it is repeated.

    ``len`` and every other attribute are the source's.

    Args:
        iterable: the source.
        num_caches: the number of batches that are kept as copies, the first ones.
        return_caches_after: the number of batches from the source.
        stop_after: the total number of batches of an iteration; None: unlimited.
        delete_src: drops the source's iterator when the cached batches begin, so that its workers end. The source
            itself stays, for its attributes and the next iteration; a generator is closed.

    Raises:
        ValueError: ``num_caches`` is not positive, ``return_caches_after`` is less than ``num_caches``, or
            ``stop_after`` is less than ``return_caches_after``.
    """

    def __init__(
        self,
        iterable: Iterable[Any],
        num_caches: int = 10,
        return_caches_after: int = 100,
        stop_after: Optional[int] = None,
        delete_src: bool = True,
    ) -> None:
        if num_caches <= 0:
            raise ValueError(f"num_caches is {num_caches}; keep at least one batch")
        if return_caches_after < num_caches:
            raise ValueError(
                f"return_caches_after is {return_caches_after}, less than the {num_caches} batches to keep "
                "(num_caches); raise it or keep fewer"
            )
        if stop_after is not None and stop_after < return_caches_after:
            raise ValueError(
                f"stop_after is {stop_after}, so the cached batches, which begin after {return_caches_after} "
                "(return_caches_after), would never come"
            )
        self._source = iterable
        self._num_caches = num_caches
        self._return_caches_after = return_caches_after
        self._stop_after = stop_after
        self._delete_src = delete_src

    def __iter__(self) -> Iterator[Any]:
        return _CacheIterator(
            iter(self._source), self._num_caches, self._return_caches_after, self._stop_after, self._delete_src
        )

    def __len__(self) -> int:
        """The source's length: the length of an iteration without this wrapper."""
        return len(self._source)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        # pickle and copy read attributes before __init__, when there is no source yet.
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
        return getattr(self._source, name)

    def __repr__(self) -> str:
        return (
            f"<forebay.CacheLoader of {self._source!r}: {self._num_caches} batches repeated after "
            f"{self._return_caches_after}>"
        )


class _CacheIterator:
    """One iteration. It holds only copies, and no batch that it has handed over."""

    def __init__(
        self, source: Iterator[Any], num_caches: int, after: int, stop_after: Optional[int], delete_src: bool
    ) -> None:
        self._source = source
        self._num_caches = num_caches
        self._after = after
        self._stop_after = stop_after
        self._delete_src = delete_src
        self._is_replaying = False
        self._cache: list[Any] = []
        self._given = 0
        self._replayed = 0

    def __iter__(self) -> "_CacheIterator":
        return self

    def __next__(self) -> Any:
        if self._given == self._stop_after:
            self._leave_source()
            raise StopIteration
        if not self._is_replaying and self._given < self._after:
            try:
                batch = next(self._source)
            except StopIteration:
                pass
            else:
                self._given += 1
                if len(self._cache) < self._num_caches:
                    # Before the step, which may change it in place.
                    self._cache.append(copy_batch(batch))
                return batch
        self._leave_source()
        if not self._cache:
            raise StopIteration
        batch = self._cache[self._replayed % len(self._cache)]
        self._replayed += 1
        self._given += 1
        return batch

    def _leave_source(self) -> None:
        self._is_replaying = True
        if self._delete_src:
            if isinstance(self._source, GeneratorType):
                # Its frame holds the iterable, and the caller may hold the generator.
                self._source.close()
            self._source = iter(())


def copy_batch(batch: Any) -> Any:
    """The batch with a copy of every array, tensor and ragged field."""
    if isinstance(batch, Ragged):
        return batch.copy()
    if hasattr(batch, _TENSOR_PROTOCOL):
        if hasattr(batch, "clone"):
            return _clone(batch)
        if hasattr(batch, "copy"):  # NumPy, JAX, CuPy
            return batch.copy()
    if isinstance(batch, dict):
        copied = batch.copy()
        for key, value in batch.items():
            copied[key] = copy_batch(value)
        return copied
    if isinstance(batch, tuple):
        values = [copy_batch(value) for value in batch]
        return type(batch)(*values) if hasattr(batch, "_fields") else tuple(values)
    if isinstance(batch, list):
        return [copy_batch(value) for value in batch]
    return batch


def _clone(tensor: Any) -> Any:
    """A PyTorch tensor's copy. Pinned memory stays pinned, else the copy to the GPU would take longer than before."""
    if tensor.device.type == "cpu" and tensor.is_pinned():
        import torch

        return torch.empty_like(tensor, pin_memory=True).copy_(tensor)
    return tensor.detach().clone()
