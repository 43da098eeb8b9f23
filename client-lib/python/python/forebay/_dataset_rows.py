"""``forebay.Dataset``: the samples of a configuration by index."""

import operator
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional, SupportsIndex, Union, overload

import numpy

from . import _forebay
from ._exceptions import ConfigError
from ._ragged import Ragged
from ._stages import worker_keys
from ._target import Target, resolve_target, to_json

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._target import ConfigKeys

_KEYS: dict[str, Any] = {"listen.max_sessions": 16, "ring.slots": 3, "ring.hold": 1}

Indices = Union[slice, Sequence[SupportsIndex]]


class Dataset:
    """The samples of a configuration by index: decoded, transformed and cast as a loader's, made by a daemon.

    ``dataset[i]`` is a dict with the row of each field as a NumPy array. A slice, a list or an array of indices gives a
    dict of arrays with a row for each of them (of lists, for ragged fields). Iterating goes through the samples in the
    order of their ids. If ``dataset.where`` or ``dataset.split`` selects samples, indices count the selected ones, and
    the field ``index`` has their ids in the whole dataset. A sample's random operations are those of the epoch
    ``epoch``: the same sample and epoch have the same bytes as in a loader's batch, in any process (with
    ``order.weights`` the number of the draw takes the epoch's place, in a mixture and with ``order.samples_per_epoch``
    the pass of the dataset).

    It is a map-style Dataset for PyTorch's ``DataLoader``, also with workers: each process that uses it, forked or
    spawned, opens a session of its own. Threads may share it.

    Args:
        target: as of :class:`Loader`, without a Dataset object.
        epoch: whose draws random operations use; :meth:`set_epoch` changes it.
        overrides, timeout, keyword arguments: as of :class:`Loader`. ``batch_size`` bounds the rows of a request.
        shared: whether the processes of this host that have this Dataset share a daemon, and its name; see
            :class:`Loader`. It is not the daemon of a loader: up to 16 sessions (``listen.max_sessions``), each with a
            ring of three slots.

    Raises:
        ConfigError: the target, the configuration or an argument is refused; the stream has ``batch.operations``, which
            need whole batches of its order.
        BadSample, StageError: of an index, if its sample cannot be made. It is never substituted.
    """

    def __init__(
        self,
        target: Target = None,
        *,
        epoch: int = 0,
        overrides: Optional[Mapping[str, Any]] = None,
        timeout: float = 300,
        shared: Union[bool, str] = True,
        **keywords: "Unpack[ConfigKeys]",
    ) -> None:
        resolved = resolve_target(target, overrides, keywords)
        if resolved.is_dataset:
            resolved.close()
            raise ConfigError("a Dataset object has its items by index already; give a configuration")
        if resolved.held:
            raise ConfigError("`order.weights` has no meaning for samples by index; leave it out")
        self._arguments: dict[str, Any] = {
            "kind": resolved.kind,
            "target": resolved.text,
            "timeout": float(timeout),
            "overrides": resolved.keys,
            # Of a configuration, under the caller's own. Each process has a session, and a request takes one slot.
            "worker_keys": [(key, to_json(key, value)) for key, value in {**worker_keys(), **_KEYS}.items()],
            "program": Path(__file__).with_name("bin") / "forebay",
            "shared": shared if isinstance(shared, str) else "" if shared else None,
        }
        self._epoch = 0
        self.set_epoch(epoch)
        # Session and locks are of this process: a forked child opens another session, with free locks.
        self._process = os.getpid()
        self._lock = threading.Lock()
        # Held from a request until its rows are copied: a session answers one at a time.
        self._asking = threading.Lock()
        self._session: Optional[_forebay.RowSession] = None
        self._length = self._attached().samples

    def _attached(self) -> "_forebay.RowSession":
        if self._process != os.getpid():
            self._session, self._lock, self._asking = None, threading.Lock(), threading.Lock()
            self._process = os.getpid()
        with self._lock:
            if self._session is None:
                self._session = _forebay.RowSession(**self._arguments)
            return self._session

    @property
    def epoch(self) -> int:
        """The epoch whose draws random operations use."""
        return self._epoch

    def set_epoch(self, epoch: SupportsIndex) -> None:
        """Uses the draws of another epoch."""
        epoch = operator.index(epoch)
        if epoch < 0:
            raise ValueError(f"epoch {epoch}: epochs are counted from 0")
        self._epoch = epoch

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: SupportsIndex) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: Indices) -> dict[str, Any]: ...
    def __getitem__(self, index: Any) -> dict[str, Any]:
        if isinstance(index, slice):
            return self._stacked(range(*index.indices(self._length)))
        if not hasattr(index, "__index__") or getattr(index, "shape", ()) != ():
            return self._stacked([self._checked(one) for one in index])
        (row,) = self._rows([self._checked(index)])
        return row

    def by_ids(self, ids: Indices) -> dict[str, Any]:
        """The rows of samples by their ids, as the field ``index`` has them: a dict of arrays.

        Ids are those of the whole dataset. They are the indices of ``dataset[…]``, unless ``dataset.where`` or
        ``dataset.split`` selects samples; samples that these leave out can be had by id too.
        """
        count = self._attached().ids
        if isinstance(ids, slice):
            return self._stacked(range(*ids.indices(count)), by_id=True)
        return self._stacked([self._checked(one, count) for one in ids], by_id=True)

    def __getitems__(self, indices: Sequence[SupportsIndex]) -> list[dict[str, Any]]:
        """Several rows; PyTorch's ``DataLoader`` fetches a batch by one call."""
        return self._rows([self._checked(index) for index in indices])

    def __iter__(self) -> Iterator[dict[str, Any]]:
        most = self._attached().most_rows
        for start in range(0, self._length, most):
            yield from self._rows(range(start, min(start + most, self._length)))

    def _checked(self, index: SupportsIndex, count: Optional[int] = None) -> int:
        count = self._length if count is None else count
        number = operator.index(index)
        if not -count <= number < count:
            raise IndexError(f"index {number} of {count} samples")
        return number % count

    def _requests(self, indices: Sequence[int], by_id: bool = False) -> Iterator[tuple[int, dict[str, Any]]]:
        """The batches of the indices, each with its number of rows. Copies, so that the batch's slot is free again."""
        session = self._attached()
        for start in range(0, len(indices), session.most_rows):
            part = list(indices[start : start + session.most_rows])
            with self._asking:
                copies = {name: values.copy() for name, values in session.get(part, self._epoch, by_id).items()}
            yield len(part), copies

    def _rows(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        return [
            # A copy: a view would keep the other rows in memory.
            {name: values[row].copy() if count > 1 else values[row] for name, values in batch.items()}
            for count, batch in self._requests(indices)
            for row in range(count)
        ]

    def _stacked(self, indices: Sequence[int], by_id: bool = False) -> dict[str, Any]:
        found: dict[str, list[Any]] = {}
        ragged = set()
        for _, batch in self._requests(indices, by_id):
            for name, values in batch.items():
                if isinstance(values, Ragged):
                    ragged.add(name)
                    found.setdefault(name, []).extend(values)
                else:
                    found.setdefault(name, []).append(values)
        if not found:
            raise IndexError("no index is given")
        return {name: parts if name in ragged else numpy.concatenate(parts) for name, parts in found.items()}

    def close(self) -> None:
        """Ends this process's session; the next use opens another one."""
        if self._process == os.getpid():
            with self._lock:
                if self._session is not None:
                    self._session.close()
                self._session = None

    def __getstate__(self) -> dict[str, Any]:
        # Another process opens another session.
        return {**self.__dict__, "_session": None, "_lock": None, "_asking": None, "_process": None}

    def __repr__(self) -> str:
        return f"<forebay.Dataset of {self._length} samples, epoch {self._epoch}>"
