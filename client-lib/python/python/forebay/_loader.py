"""The public loader class. Code that runs per batch is native; this module runs per call and per epoch."""

import itertools
import json
import logging
import operator
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Optional, SupportsIndex, Union

from . import _forebay
from ._data_loader import refuse_index, refuse_worker_process
from ._dataset import ItemForm, is_dataset
from ._dataset_rows import Dataset, Indices
from ._exceptions import ConfigError, StateMismatch
from ._forked import watch_forks
from ._padding import Padding
from ._rank_comparison import RankComparison, job_store
from ._ranks import ask_ray, ask_torch
from ._stages import worker_keys
from ._target import Target, resolve_target, to_json

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray
    from typing_extensions import Unpack

    from ._target import ConfigKeys

_log = logging.getLogger("forebay")
watch_forks()


@dataclass(frozen=True)
class DeviceRequest:
    """The GPU of a loader and its settings: read by the native module."""

    ordinal: int
    pin: str
    # For the client's own memory: (batches ahead, batches that may be held).
    pool: Optional[tuple[int, int]] = None


def state_text_of(state: Union[Mapping[str, Any], str]) -> str:
    """A state as the text that a session reads: what ``state_dict`` returned, or its JSON."""
    if isinstance(state, str):
        return state
    if not isinstance(state, Mapping):
        raise StateMismatch(
            f"a state is what state_dict() returned, or its JSON text; a value of type {type(state).__name__} is none"
        )
    return to_json("the state", dict(state))


class Loader:
    """Batches from a Forebay daemon, as dicts of writable NumPy arrays over shared memory.

    Each ``for`` loop iterates over one epoch. An array is valid as long as it is referenced, and its batch's slot is
    not refilled before. Up to ``ring.hold`` batches may be held while the next one is requested; copy them to hold
    more. A field of up to 64 KiB in a full batch, such as labels, is a copy and holds no batch.

    A forked child can use neither the loader nor its batches, whose memory is not mapped there: a call raises
    :class:`Error`, and so does the use of a batch's array. Views of an array that were made before the fork, and
    tensors over its memory, end the child (SIGSEGV). Pass copies to a forked process, or attach a new loader there.

    Args:
        target: a configuration file (``.toml``), a dict of its keys (``{"batch.size": 64, ...}`` or dicts within the
            dict), or a folder of data together with ``preset`` or ``stages``: for these, a private daemon is started,
            which exits with the loader. Or a running daemon's socket, or the name of a stream of ``forebay run``.
            Default: its first stream. A folder is given with a ``/`` or as a path object.
        rank: this process's rank among those that share the data: with tensor or pipeline parallelism the data-parallel
            one. Default: from an initialised ``torch.distributed``, Ray Train, or the launcher's variables.
        world_size: the number of ranks that share the data; required with ``rank``.
        state: a :meth:`state_dict` to resume from, or its JSON text.
        timeout: seconds without progress after which :class:`Timeout` is raised.
        overrides: keys of the configuration, such as ``{"batch.size": 128}``.
        force: accepts a ``state`` of another stream.
        compare_ranks: the ranks of a job check that they have the same data, configuration, world size and ``state``,
            through the key-value store of ``torch.distributed`` where it is initialised (docs/guide/ranks.md, "Several
            ranks"). Not a collective: a rank that creates no loader is awaited for a limited time. A string names a
            group of ranks with a separate stream. False skips the comparison, and that of :meth:`load_state_dict`.
        shared: the loaders of this user and host with the same configuration share one daemon: one plan of memory, one
            index, one cache. The first of them starts it, any of them replaces it after its death, and it ends a
            second after the last one. A string separates jobs with the same configuration. Default: a private daemon.
        trainer: this trainer's name among several that train on the same data at once (a sweep, an evaluation beside
            training): each has its own ranks, position, state and speed, and a row that several want is made once and
            copied to each (docs/guide/trainers.md). With a configuration it implies ``shared``, and ``batch_size`` is
            this trainer's: it changes no sample.
        stages: your own functions or classes, as ``{"augment": augment}``: sets the key ``python`` of the ``[[stage]]``
            of that name; a new name adds a last stage. Each is called as ``function(sample, rng)`` in worker
            processes (docs/guide/python.md), so it must be defined at the top of a module or of the script.
        preset, batch_size, epochs, seed, shuffle, part: the keys ``preset``, ``batch.size``, ``order.epochs``,
            ``order.seed``, ``order.shuffle`` and ``dataset.split.part`` of the configuration, over its own. All other
            keys go into ``overrides``.

    Raises:
        ConfigError: the target, the configuration, the dataset, the rank or an argument is refused, or ranks differ.
        DaemonLost, Timeout: no daemon answers at the socket, or it makes no progress.
        StateMismatch: ``state`` belongs to another stream, unless ``force``; or the ranks were given different ones.

    A loader is a context manager; without ``with`` it is closed when its last reference is dropped.
    """

    # Set by a subclass whose batches are on a GPU.
    _device_request: Optional[DeviceRequest] = None
    # Whether a subclass pads batches itself, before it forms them.
    _pads_early = False

    def __init__(
        self,
        target: Target = None,
        rank: Optional[int] = None,
        world_size: Optional[int] = None,
        state: Optional[Union[Mapping[str, Any], str]] = None,
        timeout: float = 300,
        overrides: Optional[Mapping[str, Any]] = None,
        *,
        force: bool = False,
        compare_ranks: Union[bool, str] = True,
        shared: Union[bool, str] = False,
        trainer: Optional[str] = None,
        **keywords: "Unpack[ConfigKeys]",
    ) -> None:
        refuse_worker_process()
        if trainer and is_dataset(target):
            raise ConfigError("a Dataset object is run by the daemon of its own loader alone: leave `trainer` out")
        # Of several trainers each chooses its batches.
        batch_size = keywords.pop("batch_size", None) if trainer else None
        if batch_size is not None and (isinstance(batch_size, bool) or not 1 <= operator.index(batch_size) < 1 << 32):
            raise ConfigError(f"batch_size={batch_size!r}: a batch has at least one sample")
        resolved = resolve_target(target, overrides, keywords)
        if batch_size is not None and not resolved.may_have_batch_size:
            raise ConfigError(
                "with `trainer`, `batch_size` is this trainer's; the configuration that all trainers share has none: "
                'add one, as `overrides={"batch.size": 64}` or in the dict, with the same value for every trainer'
            )
        if (trainer or shared not in (False, None)) and resolved.held:
            raise ConfigError(
                "`order.weights` is an array in this process's memory, and a shared daemon may outlive this process; "
                "save it with numpy.save and give the file's path, or leave `shared` and `trainer` out"
            )
        if resolved.is_dataset and timeout == 0:
            # A DataLoader's value for "no time-out".
            timeout = 300
        without_batches = {**(overrides or {}), "batch.operations": []} if resolved.is_configured else overrides
        self._dataset_arguments = (target, without_batches, float(timeout), keywords)
        self._dataset: Optional[Dataset] = None
        # Weights for the daemon and its successors.
        self._held = resolved.held
        group = compare_ranks if isinstance(compare_ranks, str) else ""
        store = job_store() if compare_ranks is not False else None
        state_text = None if state is None else state_text_of(state)
        try:
            self._session = _forebay.Session(
                resolved.kind,
                resolved.text,
                rank=_rank_argument(rank, world_size),
                distributed=ask_torch(),
                ray_train=ask_ray(),
                state=state_text,
                force=force,
                timeout=float(timeout),
                overrides=resolved.keys,
                worker_keys=[(key, to_json(key, value)) for key, value in worker_keys().items()],
                program=Path(__file__).with_name("bin") / "forebay",
                group=group if compare_ranks is not False and store is None else None,
                device=self._device_request,
                object=resolved.object,
                shared=shared if isinstance(shared, str) else "" if shared else None,
                trainer=trainer or "",
                batch_size=batch_size,
            )
        finally:
            resolved.close()
        self._terms = self._session.terms()
        self._padding = Padding.of(self._terms)
        self._item_form: Optional[ItemForm] = None
        if resolved.is_dataset:
            try:
                self._item_form = ItemForm([tensor[0] for tensor in self._terms["tensors"]])
            except BaseException:
                self._session.close()
                raise
        self._classes: Optional[list[str]] = None
        self._labels: Optional[NDArray[numpy.int64]] = None
        # The newest iterator, and the position at its start.
        self._newest: Optional[tuple[Iterator[dict[str, Any]], tuple[int, int]]] = None
        names = self.rank, self.world_size, self.rank_source, self.stream
        _log.info("rank %d of %d, from %s; stream %s", *names)
        # The current epoch was requested again: the next iteration restarts it.
        self._again = False
        self._timeout = float(timeout)
        self._comparison: Optional[RankComparison] = None
        self._all_ranks_agree = True
        if store is not None and self.world_size > 1:
            statement = _forebay.with_state(self._terms["identity"], state_text)
            group = f"{group}.{trainer}" if trainer else group
            self._comparison = RankComparison(store, group, self.rank, self.world_size, statement)
            try:
                self._all_ranks_agree = self._comparison.wait(_forebay.wait_limit(self._timeout))
            except BaseException:
                self.close()
                raise

    def __iter__(self) -> Iterator[Any]:
        """Begins the next epoch: after an attach, a loaded state or :meth:`set_epoch`, the epoch of that position.

        A new iterator ends the old one, whose remaining batches are given up and counted in :attr:`given_up`. An epoch
        of which no batch was taken is returned again: merely creating an iterator has no effect.

        Raises:
            EpochsFinished: after the last configured epoch. The iterator's ``next`` raises :class:`HoldLimit`,
                :class:`Timeout`, :class:`DaemonLost`, :class:`BadSample`, :class:`StageError` or :class:`Error`.
        """
        return self._formed(self._begin())

    def _formed(self, batches: Iterator[dict[str, Any]]) -> Iterator[Any]:
        """Batches with padded fields, and in the form of a Dataset object's items."""
        # `map` holds no reference to a batch.
        if self._padding is not None and not self._pads_early:
            batches = map(self._padding, batches)
        return batches if self._item_form is None else map(self._item_form.batch, batches)

    def _begin(self) -> Iterator[dict[str, Any]]:
        # A late rank may have made its statement in the meantime.
        if self._comparison is not None and not self._all_ranks_agree:
            self._all_ranks_agree = self._comparison.look_again()
        if self._newest is not None and self._session.position() == self._newest[1]:
            # No batch was taken from it. Lightning calls `iter` once only to check that it works.
            return self._newest[0]
        if self._again and self._left_early():
            self._session.seek_epoch(self._session.position()[0])
        self._again = False
        epoch = self._new_epoch()
        self._newest = epoch, self._session.position()
        return epoch

    def _left_early(self) -> bool:
        """Whether an iteration has delivered only a part of its epoch."""
        if self._newest is None:
            return False
        position = self._session.position()
        return position != self._newest[1] and position[1] > 0

    def _new_epoch(self) -> Iterator[dict[str, Any]]:
        return self._session.begin()

    def epochs_left(self, epochs: Optional[int] = None) -> Iterable[int]:
        """The numbers of the remaining epochs, for the loop around the loop over the loader::

            for epoch in loader.epochs_left():
                for batch in loader:
                    ...

        For a new loader these are all epochs. After a resume the first one is the state's, of which the loader delivers
        the rest; an epoch that was left early is not included, unless :meth:`set_epoch` names it.

        Args:
            epochs: how many epochs the training has in all, the finished ones included. Default: :attr:`epochs`;
                without an end if that is None.

        Raises:
            ConfigError: the configuration has fewer than ``epochs``.
        """
        if epochs is not None and self.epochs is not None and epochs > self.epochs:
            raise ConfigError(
                f"epochs_left({epochs}) and the configuration has {self.epochs} epochs (`order.epochs` = "
                f"{self.epochs}); raise `order.epochs`, or leave it out for an endless stream"
            )
        total = self.epochs if epochs is None else epochs
        # The next iteration gives up an epoch that has begun, so it is the following epoch.
        first = self._session.position()[0] + (self._left_early() and not self._again)
        return itertools.count(first) if total is None else range(first, total)

    def __len__(self) -> int:
        """This rank's batches of a full epoch: of :attr:`epoch`, if batches are by length."""
        if self._terms["by_length"]:
            return self._session.batches_per_epoch()
        return self._terms["batches_per_epoch"]

    def __getitem__(self, index: object) -> NoReturn:
        """Not supported: a loader has batches in order, not samples by index."""
        refuse_index(index)

    def state_dict(self, held_back: int = 0) -> dict[str, Any]:
        """The stream's state after the last batch handed over: a JSON-serialisable dict, the same on every rank.

        Args:
            held_back: the number of batches that a wrapper has read ahead of training; they are excluded.

        Raises:
            ConfigError: ``held_back`` is above 1024, or above the number of batches handed over since the last seek.
        """
        state: dict[str, Any] = json.loads(self._session.state(held_back))
        return state

    def load_state_dict(
        self, state_dict: Union[Mapping[str, Any], str], *, force: bool = False, compare_ranks: bool = True
    ) -> None:
        """Resumes from a state, at any world size. The next iteration continues inside its epoch.

        Where ``torch.distributed`` is initialised, all ranks of the loader must load the same state: it is compared
        through the key-value store before anything changes, so every rank must call this within the loader's
        ``timeout`` (``compare_ranks=False``, here or of the loader, skips that).

        Raises:
            StateMismatch: the state belongs to another stream (each difference is named), unless ``force``; or the
                ranks were given different states (the ranks are named).
            Timeout: a rank did not call this (it is named).
        """
        text = state_text_of(state_dict)
        if compare_ranks and self._comparison is not None:
            self._comparison.of_state(text).require(self._timeout)
        self._newest, self._again = None, False
        self._session.load_state(text, force)

    def set_epoch(self, epoch: int) -> None:
        """Makes the next iteration one of this epoch, as ``DistributedSampler.set_epoch`` does.

        That iteration begins at the epoch's start; only after a resume inside this epoch does it deliver the rest. An
        iteration of this epoch that is under way goes on; one of another epoch ends.
        """
        is_elsewhere = self._session.position()[0] != epoch
        self._again = not is_elsewhere and self._left_early()
        if is_elsewhere:
            self._session.seek_epoch(epoch)
            self._newest = None

    def stats(self) -> dict[str, Any]:
        """The daemon's statistics, as ``forebay stats --json`` prints them, and this loader's under ``client``.

        A Python stage has ``python``: the cost of its workers, and the function's hot spot
        (docs/guide/python-workers.md).

        For batches on a GPU, ``upload`` describes the copies: ``path`` is ``registered`` (directly from the pinned
        ring), ``staged`` or ``pageable``, and ``reason`` is why it is not ``registered``.

        ``client["interpreter_lock_seconds"]`` is the time that each ``next`` which had to wait took, after its wait, to
        reacquire the interpreter lock (GIL): ``count``, ``total``, ``p50``, ``p99`` and ``max``. With idle threads it
        is some microseconds. Milliseconds mean that other Python threads are busy: each holds the GIL for up to
        ``sys.getswitchinterval()`` (5 ms). The loader cannot shorten that; run less Python code in other threads.
        """
        text, client = self._session.stats()
        figures: dict[str, Any] = json.loads(text)
        if "upload" in client:
            figures["upload"] = client.pop("upload")
        figures["client"] = client
        return figures

    @property
    def classes(self) -> list[str]:
        """The names of the classes in label order, as ``ImageFolder.classes`` of torchvision; empty without classes.

        They are requested from the daemon once, at the first access.
        """
        if self._classes is None:
            self._classes = self._session.classes()
        return list(self._classes)

    @property
    def labels(self) -> "NDArray[numpy.int64]":
        """The label of every sample of the dataset, an int64 array by the value in the field ``index``.

        It is the first field of integers. Formats whose index has it are folders of classes and manifests
        (CSV, TSV, JSON lines). No sample is read. Draw rare classes more often with::

            weights = 1 / numpy.bincount(loader.labels)[loader.labels]
            loader = forebay.Loader("train.toml", overrides={"order.weights": weights})

        Raises:
            ConfigError: the index of this dataset has no labels.
        """
        if self._labels is None:
            self._labels = self._session.labels()
            self._labels.flags.writeable = False
        return self._labels

    def path(self, index: SupportsIndex) -> str:
        """The file of a sample, by its value in the field ``index``.

        Raises:
            IndexError: the dataset has no such sample.
        """
        return self.paths([index])[0]

    def paths(self, indices: Iterable[SupportsIndex]) -> list[str]:
        """As :meth:`path`, for several samples at once, such as ``batch["index"]``."""
        samples = [operator.index(index) for index in indices]
        for sample in samples:
            if not 0 <= sample < self._terms["samples"]:
                raise IndexError(
                    f"sample {sample} is not in the dataset, which has samples 0 to {self._terms['samples'] - 1}; give "
                    "values of the field `index`"
                )
        return self._session.paths(samples)

    def samples(self, indices: Indices, epoch: Optional[int] = None) -> dict[str, Any]:
        """The rows of samples by id, as in this loader's batches but without ``batch.operations``: a dict of
        NumPy arrays.

        The first call opens a :class:`Dataset` of the same target: another daemon, or on a running one another session.

        Args:
            indices: ids, as in the field ``index``; or a slice.
            epoch: whose draws random operations use; default: :attr:`epoch`.

        Raises:
            ConfigError: the target is a Dataset object.
            BadSample, StageError: a sample cannot be made. It is never substituted.
        """
        if self._dataset is None:
            target, overrides, timeout, keywords = self._dataset_arguments
            self._dataset = Dataset(target, overrides=overrides, timeout=timeout, **keywords)
        self._dataset.set_epoch(self.epoch if epoch is None else epoch)
        return self._dataset.by_ids(indices)

    def close(self) -> None:
        """Ends the session and a private daemon. Arrays stay valid as long as they are referenced.

        Does nothing in a forked child: the session is its parent's.
        """
        self._newest = None
        self._session.close()
        if self._dataset is not None:
            self._dataset.close()
        self._held = []

    def __enter__(self) -> "Loader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def given_up(self) -> int:
        """The number of batches given up by leaving epochs early."""
        return self._session.given_up()

    @property
    def replaying(self) -> bool:
        """Whether the last batch was a replay of an earlier one (``forebay headspace --replay``).

        Replayed batches do not advance the position: a script that counts steps itself, or steps a learning-rate
        schedule, can skip them.
        """
        return self._session.replaying()

    @property
    def stream(self) -> str:
        """The stream's name."""
        return self._terms["stream"]

    @property
    def rank(self) -> int:
        """This process's rank."""
        return self._terms["rank"]

    @property
    def world_size(self) -> int:
        """The number of ranks that share the data."""
        return self._terms["world_size"]

    @property
    def rank_source(self) -> str:
        """The source of rank and world size."""
        return self._terms["rank_source"]

    @property
    def batch_size(self) -> int:
        """The number of samples in a full batch."""
        return self._terms["batch_size"]

    @property
    def num_samples(self) -> int:
        """The number of samples of all ranks together: those of the dataset that the configuration selects.

        An epoch of mixtures or weights may draw another number; ``len(loader)`` counts this rank's batches.
        """
        return self._terms["selected"]

    @property
    def hold(self) -> int:
        """The number of batches that may be held while the next one is requested."""
        return self._terms["hold"]

    @property
    def epochs(self) -> Optional[int]:
        """The configured number of epochs; None: endless."""
        return self._terms["epochs"]

    @property
    def epoch(self) -> int:
        """The epoch that is iterated over, until its iterator has ended; then the next one. Counted from 0.

        Before the first iteration it is the epoch at which the loader begins: that of the state after a resume.
        """
        return self._session.epoch()

    @property
    def daemon_pid(self) -> Optional[int]:
        """The private daemon's process id, which changes with a restart; None for a served daemon."""
        return self._session.daemon()[0]

    @property
    def restarts(self) -> int:
        """How often a dead daemon was replaced, without a lost or repeated sample."""
        return self._session.daemon()[1]

    def __repr__(self) -> str:
        names = ", ".join(tensor[0] for tensor in self._terms["tensors"])
        return (
            f"<{type(self).__module__}.{type(self).__qualname__} of stream {self.stream!r}: {names}; "
            f"rank {self.rank} of {self.world_size}, {len(self)} batches an epoch>"
        )


def _rank_argument(rank: Optional[int], world_size: Optional[int]) -> Optional[tuple[int, int]]:
    if (rank is None) != (world_size is None):
        missing = "world_size" if world_size is None else "rank"
        raise ConfigError(f"rank and world_size go together, and {missing} was left out")
    if rank is None or world_size is None:
        return None
    if not 0 <= rank < world_size:
        raise ConfigError(f"rank {rank} of world size {world_size}: a rank is counted from 0")
    return rank, world_size
