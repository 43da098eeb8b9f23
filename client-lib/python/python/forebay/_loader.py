"""The loader that users see. What runs per batch is native; this is what runs per call and per epoch."""

import json
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional, Union

from . import _forebay
from ._exceptions import ConfigError
from ._ranks import ask_torch, compare_states

_log = logging.getLogger("forebay")

Target = Union[str, "os.PathLike[str]", Mapping[str, Any], None]


@dataclass(frozen=True)
class DeviceRequest:
    """Which GPU batches come to, and how: read by the native half."""

    ordinal: int
    pin: str
    # Of the client's own memory: batches ahead, and batches that may be held.
    pool: Optional[tuple[int, int]] = None


class Loader:
    """Batches from a Forebay daemon, as dicts of writable NumPy arrays over shared memory.

    Iterating gives one epoch; the next ``for`` gives the next one. An array is valid for as long as it is held, and its
    batch's slot is not filled again before. Up to ``ring.hold`` batches may be kept while the next is asked for; keep
    more as copies. The memory is not shared with forked children: a view touched in one ends that child; attach there.

    Args:
        target: a configuration file (``.toml``) or a dict of its keys: a daemon of this loader's own is started and
            ends with it; or a daemon's socket; or the name of a stream under ``forebay run``; left out: its first one.
        rank: this process's rank; left out: an initialised ``torch.distributed``, RANK and WORLD_SIZE, or Slurm says.
        world_size: how many ranks share the data; goes with ``rank``.
        state: what :meth:`state_dict` gave: goes on there.
        timeout: seconds without progress anywhere before :class:`Timeout` is raised.
        overrides: keys of the configuration, such as ``{"batch.size": 128}``.
        force: takes ``state`` also when it belongs to another stream.
        compare_ranks: where ``torch.distributed`` is initialised and its ranks share this data, a given ``state`` is
            compared over all of them; every rank makes its loader then. False leaves that out.

    A loader is a context manager; left alone, it ends when its last reference goes.
    """

    # Of a subclass whose batches are on a GPU.
    _device_request: Optional[DeviceRequest] = None

    def __init__(
        self,
        target: Target = None,
        rank: Optional[int] = None,
        world_size: Optional[int] = None,
        state: Optional[Mapping[str, Any]] = None,
        timeout: float = 300,
        overrides: Optional[Mapping[str, Any]] = None,
        *,
        force: bool = False,
        compare_ranks: bool = True,
    ) -> None:
        kind, text = _describe_target(target)
        self._session = _forebay.Session(
            kind,
            text,
            rank=_rank_argument(rank, world_size),
            distributed=ask_torch(),
            state=None if state is None else _to_json("state", dict(state)),
            force=force,
            timeout=float(timeout),
            overrides=[(key, _to_json(f"override {key}", value)) for key, value in (overrides or {}).items()],
            program=Path(__file__).with_name("bin") / "forebay",
            device=self._device_request,
        )
        self._terms = self._session.terms()
        # The newest iterator, and the state that it was begun at.
        self._newest: Optional[tuple[Iterator[dict[str, Any]], str]] = None
        _log.info(
            "rank %d of %d, from %s; stream %s",
            self.rank,
            self.world_size,
            self.rank_source,
            self.stream,
        )
        if state is not None and compare_ranks:
            try:
                compare_states(dict(state), self.rank, self.world_size)
            except BaseException:
                self.close()
                raise

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Begins the next epoch: after an attach, a loaded state or :meth:`set_epoch` the one that they stand in.

        A new iterator ends the old one; what it had left is given up and counted in :attr:`given_up`. An epoch of
        which no batch was taken is given again: asking for an iterator alone costs nothing.

        Raises:
            EpochsFinished: after the last configured epoch.
        """
        return self._begin()

    def _begin(self) -> Iterator[dict[str, Any]]:
        if self._newest is not None and self._session.state(0) == self._newest[1]:
            # Nothing was taken from it. Lightning calls `iter` once only to see whether that works.
            return self._newest[0]
        epoch = self._new_epoch()
        self._newest = epoch, self._session.state(0)
        return epoch

    def _new_epoch(self) -> Iterator[dict[str, Any]]:
        return self._session.begin()

    def __len__(self) -> int:
        """This rank's batches of a full epoch."""
        return self._terms["batches_per_epoch"]

    def state_dict(self, held_back: int = 0) -> dict[str, Any]:
        """Where the stream stands after what was handed over: a plain dict for JSON, the same on every rank.

        Args:
            held_back: for wrappers that read so many batches ahead of what was trained on.
        """
        state: dict[str, Any] = json.loads(self._session.state(held_back))
        return state

    def load_state_dict(
        self, state_dict: Mapping[str, Any], *, force: bool = False, compare_ranks: bool = True
    ) -> None:
        """Goes on where a state stands, at any world size. The next iteration continues inside its epoch.

        Where ``torch.distributed`` is initialised and its ranks share this data, all of them must load the same state:
        it is compared before anything changes, so every rank calls this (``compare_ranks=False`` leaves that out).

        Raises:
            StateMismatch: the state belongs to another stream (names each difference), unless ``force``; or the ranks
                were given different ones (names the ranks).
        """
        text = _to_json("state", dict(state_dict))
        if compare_ranks:
            compare_states(dict(state_dict), self.rank, self.world_size)
        self._newest = None
        self._session.load_state(text, force)

    def set_epoch(self, epoch: int) -> None:
        """Does nothing when this is the current or the loaded epoch, else goes to its start."""
        self._session.set_epoch(epoch)
        if self._newest is not None and self._session.state(0) != self._newest[1]:
            self._newest = None

    def stats(self) -> dict[str, Any]:
        """The daemon's figures, as ``forebay stats --json`` prints them, and under ``client`` this loader's own.

        Where batches are on a GPU, ``upload`` says how they get there: ``path`` is ``registered`` (straight from the
        pinned ring), ``staged`` or ``pageable``, and ``reason`` why not the first.

        ``client["interpreter_lock_seconds"]`` is what each ``next`` that had to wait took, after its wait, to get the
        interpreter lock back: ``count``, ``total``, ``p50``, ``p99`` and ``max``. Beside idle threads it is some
        microseconds. Whole milliseconds are the sign of an interpreter that is busy with other Python threads: each
        holds the lock for up to ``sys.getswitchinterval()`` (5 ms) before it lets another one on. The loader cannot
        make that shorter; less Python code in other threads does.
        """
        text, client = self._session.stats()
        figures: dict[str, Any] = json.loads(text)
        if "upload" in client:
            figures["upload"] = client.pop("upload")
        figures["client"] = client
        return figures

    def close(self) -> None:
        """Ends the session, and a daemon of its own. Arrays stay valid for as long as they are held."""
        self._newest = None
        self._session.close()

    def __enter__(self) -> "Loader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def given_up(self) -> int:
        """The batches that early ends of epochs left behind."""
        return self._session.given_up()

    @property
    def replaying(self) -> bool:
        """Whether the batch returned last was one that the trainer had before (``forebay headspace --replay``).

        Batches shown again for a measurement do not move the position: a script that counts its steps by itself, or
        steps a learning-rate schedule, may leave them out.
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
        """How many ranks share the data."""
        return self._terms["world_size"]

    @property
    def rank_source(self) -> str:
        """Who said which rank this is."""
        return self._terms["rank_source"]

    @property
    def batch_size(self) -> int:
        """The samples of a full batch."""
        return self._terms["batch_size"]

    @property
    def hold(self) -> int:
        """How many batches may be kept while the next is asked for."""
        return self._terms["hold"]

    @property
    def epochs(self) -> Optional[int]:
        """The configured number of epochs; None: endless."""
        return self._terms["epochs"]

    @property
    def daemon_pid(self) -> Optional[int]:
        """The process of this loader's own daemon, another one after a restart; None when it is another's."""
        return self._session.daemon()[0]

    @property
    def restarts(self) -> int:
        """How often a daemon that had died was replaced by another one, without a sample lost or repeated."""
        return self._session.daemon()[1]

    def __repr__(self) -> str:
        names = ", ".join(tensor[0] for tensor in self._terms["tensors"])
        return (
            f"<{type(self).__module__}.{type(self).__qualname__} of stream {self.stream!r}: {names}; "
            f"rank {self.rank} of {self.world_size}, {len(self)} batches an epoch>"
        )


def _describe_target(target: Target) -> tuple[str, str]:
    if target is None:
        return "first", ""
    if isinstance(target, Mapping):
        return "json", _to_json("the configuration", dict(target))
    path = os.fspath(target)
    # A name given as a path object is a path, never a stream's name.
    return "word", path if isinstance(target, str) else os.path.abspath(path)


def _to_json(what: str, value: Any) -> str:
    def plain(item: Any) -> Any:
        if isinstance(item, os.PathLike):
            return os.fspath(item)
        if hasattr(item, "item"):  # a NumPy or PyTorch scalar
            return item.item()
        raise TypeError(f"a value of type {type(item).__name__}")

    try:
        return json.dumps(value, default=plain, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{what} cannot be written as JSON: {error}") from None


def _rank_argument(rank: Optional[int], world_size: Optional[int]) -> Optional[tuple[int, int]]:
    if (rank is None) != (world_size is None):
        missing = "world_size" if world_size is None else "rank"
        raise ConfigError(f"rank and world_size go together, and {missing} was left out")
    if rank is None or world_size is None:
        return None
    if not 0 <= rank < world_size:
        raise ConfigError(f"rank {rank} of world size {world_size}: a rank is counted from 0")
    return rank, world_size
