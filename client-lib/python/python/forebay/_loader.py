"""The public loader class. Code that runs per batch is native; this module runs per call and per epoch."""

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
    """The GPU of a loader and its settings: read by the native module."""

    ordinal: int
    pin: str
    # For the client's own memory: (batches ahead, batches that may be held).
    pool: Optional[tuple[int, int]] = None


class Loader:
    """Batches from a Forebay daemon, as dicts of writable NumPy arrays over shared memory.

    Each ``for`` loop iterates over one epoch. An array is valid as long as it is referenced, and its batch's slot is
    not refilled before. Up to ``ring.hold`` batches may be held while the next one is requested; copy them to hold
    more. The memory is not mapped in forked children, where an access to an array ends the child: attach a new loader
    there.

    Args:
        target: a configuration file (``.toml``) or a dict of its keys, for which a private daemon is started that exits
            with the loader; or a daemon's socket; or the name of a stream under ``forebay run``. Default: the first
            stream of ``forebay run``.
        rank: this process's rank. Default: from an initialised ``torch.distributed``, RANK and WORLD_SIZE, or Slurm.
        world_size: the number of ranks that share the data; required with ``rank``.
        state: a :meth:`state_dict` to resume from.
        timeout: seconds without progress after which :class:`Timeout` is raised.
        overrides: keys of the configuration, such as ``{"batch.size": 128}``.
        force: accepts a ``state`` of another stream.
        compare_ranks: where ``torch.distributed`` is initialised and its ranks share this data, ``state`` is compared
            across all ranks, so every rank must construct its loader. False skips the comparison.

    A loader is a context manager; without ``with`` it is closed when its last reference is dropped.
    """

    # Set by a subclass whose batches are on a GPU.
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
        # The newest iterator, and the state at its start.
        self._newest: Optional[tuple[Iterator[dict[str, Any]], str]] = None
        names = self.rank, self.world_size, self.rank_source, self.stream
        _log.info("rank %d of %d, from %s; stream %s", *names)
        if state is not None and compare_ranks:
            try:
                compare_states(dict(state), self.rank, self.world_size)
            except BaseException:
                self.close()
                raise

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Begins the next epoch: after an attach, a loaded state or :meth:`set_epoch`, the epoch of that position.

        A new iterator ends the old one, whose remaining batches are given up and counted in :attr:`given_up`. An epoch
        of which no batch was taken is returned again: creating an iterator alone has no effect.

        Raises:
            EpochsFinished: after the last configured epoch.
        """
        return self._begin()

    def _begin(self) -> Iterator[dict[str, Any]]:
        if self._newest is not None and self._session.state(0) == self._newest[1]:
            # No batch was taken from it. Lightning calls `iter` once only to check that it works.
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
        """The stream's state after the last batch handed over: a JSON-serialisable dict, the same on every rank.

        Args:
            held_back: the number of batches that a wrapper has read ahead of training; they are excluded.
        """
        state: dict[str, Any] = json.loads(self._session.state(held_back))
        return state

    def load_state_dict(
        self, state_dict: Mapping[str, Any], *, force: bool = False, compare_ranks: bool = True
    ) -> None:
        """Resumes from a state, at any world size. The next iteration continues inside its epoch.

        Where ``torch.distributed`` is initialised and its ranks share this data, all ranks must load the same state: it
        is compared before anything changes, so every rank must call this (``compare_ranks=False`` skips that).

        Raises:
            StateMismatch: the state belongs to another stream (each difference is named), unless ``force``; or the
                ranks were given different states (the ranks are named).
        """
        text = _to_json("state", dict(state_dict))
        if compare_ranks:
            compare_states(dict(state_dict), self.rank, self.world_size)
        self._newest = None
        self._session.load_state(text, force)

    def set_epoch(self, epoch: int) -> None:
        """Seeks to the start of an epoch, unless the position is in that epoch already."""
        self._session.set_epoch(epoch)
        if self._newest is not None and self._session.state(0) != self._newest[1]:
            self._newest = None

    def stats(self) -> dict[str, Any]:
        """The daemon's statistics, as ``forebay stats --json`` prints them, and this loader's under ``client``.

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

    def close(self) -> None:
        """Ends the session and a private daemon. Arrays stay valid as long as they are referenced."""
        self._newest = None
        self._session.close()

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
    def hold(self) -> int:
        """The number of batches that may be held while the next one is requested."""
        return self._terms["hold"]

    @property
    def epochs(self) -> Optional[int]:
        """The configured number of epochs; None: endless."""
        return self._terms["epochs"]

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
        if hasattr(item, "item") and not isinstance(item, type):  # a NumPy or PyTorch scalar
            return item.item()
        key, kind = _path_of(item, value) or "a value", type(item).__name__
        raise TypeError(f"{key} is {item!r}, of type {kind}; write {_remedy(item)}")

    try:
        return json.dumps(value, default=plain, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{what} cannot be written as JSON: {error}") from None


def _path_of(wanted: Any, value: Any, path: str = "") -> Optional[str]:
    """The key of a value inside of a configuration, such as `output.image.dtype`."""
    if value is wanted:
        return f"`{path}`"
    if isinstance(value, Mapping):
        steps = ((f"{path}.{key}" if path else str(key), inner) for key, inner in value.items())
    elif isinstance(value, (list, tuple)):
        steps = ((f"{path}[{place}]", inner) for place, inner in enumerate(value))
    else:
        return None
    return next((found for step, inner in steps if (found := _path_of(wanted, inner, step))), None)


def _remedy(item: Any) -> str:
    # A type such as numpy.float32, a numpy.dtype or a torch.dtype.
    name = getattr(item, "__name__", None) or str(item).rpartition(".")[2]
    if "dtype" in type(item).__name__.lower() or isinstance(item, type):
        return f'its name, "{name}"'
    return "a text, a number, True or False, a list or a dict"


def _rank_argument(rank: Optional[int], world_size: Optional[int]) -> Optional[tuple[int, int]]:
    if (rank is None) != (world_size is None):
        missing = "world_size" if world_size is None else "rank"
        raise ConfigError(f"rank and world_size go together, and {missing} was left out")
    if rank is None or world_size is None:
        return None
    if not 0 <= rank < world_size:
        raise ConfigError(f"rank {rank} of world size {world_size}: a rank is counted from 0")
    return rank, world_size
