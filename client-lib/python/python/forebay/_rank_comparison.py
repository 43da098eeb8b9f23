"""Compares what a job's ranks must share through a key-value store: their streams and the states they begin from, when
their loaders are made, and the states that they load.

Not a collective: a rank that states nothing is awaited for a limited time, and named. The store is that of
``torch.distributed``; any object with ``set``, ``get``, ``add`` and ``check`` of its kind does.

The keys of a group's n-th loader, below ``forebay/GROUP/RESTART/n/``, and of the m-th state that it loads, below
``forebay/GROUP/RESTART/n/state/m/``:

- ``rank/R``   how many processes made a statement as rank R (the processes of one model replica are one rank)
- ``first``    how many did at all: the first one writes ``reference``
- ``reference``, ``differ/N``   ``RANK STATEMENT``: the first one, and each that differs from it
- ``differing``, ``differ``   how many write, and have written, that they differ
- ``ranks``    how many ranks are done: counted after the difference is written, so that a process that reads the world
  size here sees every difference

A waiting rank requests two counts, however many ranks there are.
"""

import logging
import os
import time
from typing import Any, Optional

from . import _forebay
from ._exceptions import Error, Timeout
from ._ranks import initialised_distributed, name_ranks

_log = logging.getLogger("forebay")

FIRST_DELAY = 0.005
MAX_DELAY = 0.25
# A longer gap between two checks is a suspension of this process.
MAX_GAP = 1.0


def job_store() -> Optional[Any]:
    """The key-value store of an initialised torch.distributed; None without one, and in versions that hide it."""
    distributed = initialised_distributed()
    if distributed is None:
        return None
    get = getattr(getattr(distributed, "distributed_c10d", None), "_get_default_store", None)
    return None if get is None else get()


class RankComparison:
    """This rank's part in the comparison of one loader.

    Args:
        store: the key-value store.
        group: the name of the ranks that share the stream.
        statement: what they must share, as text.
    """

    def __init__(
        self, store: Any, group: str, rank: int, world_size: int, statement: str, prefix: Optional[str] = None
    ) -> None:
        self._store = store
        self._rank = rank
        self._world_size = world_size
        self._group = group
        self._statement = statement
        self._states_loaded = 0
        # torchrun keeps its store over restarts of the workers, and over changes of the world size.
        restart = f"{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}.{os.environ.get('WORLD_SIZE', '')}"
        self._prefix = prefix or f"forebay/{group}/{restart}/{_forebay.next_loader(group)}/"
        # The state of this process: nothing written, its presence, its statement.
        self._announced = False
        self._stated = False
        self._is_first_of_rank = False

    def of_state(self, text: str) -> "RankComparison":
        """The comparison of the next state that the ranks load, given as JSON."""
        self._states_loaded += 1
        prefix = f"{self._prefix}state/{self._states_loaded}/"
        statement = _forebay.with_state("", text)
        return RankComparison(self._store, self._group, self._rank, self._world_size, statement, prefix)

    def look(self) -> bool:
        """Whether every rank has stated the same, as far as is known.

        Raises:
            ConfigError: with each difference; StateMismatch if only the states differ.
        """
        if not self._stated and not self._state():
            return False
        # Counted before differences are read: every counted rank has written its difference.
        is_complete = self._count("ranks") >= self._world_size
        if self._count("differ"):
            keys = ["reference"] + [f"differ/{number + 1}" for number in range(self._count("differing"))]
            members = sorted(member for member in map(self._read, keys) if member is not None)
            _forebay.refuse_differences(members)
        return is_complete

    def look_again(self) -> bool:
        """As :meth:`look`, long after the start: True as well where the store is gone with its process group."""
        try:
            return self.look()
        except Error:
            raise
        except Exception as error:
            _log.debug("the ranks' key-value store is gone: %s", error)
            return True

    def wait(self, limit: float) -> bool:
        """Waits up to ``limit`` seconds for the other ranks, then warns. True: all have stated the same stream, or
        the store cannot be used, as that of the ``mpi`` backend."""
        try:
            if self._wait(limit):
                return True
            _log.warning("%s", _forebay.describe_missing(self.missing(), limit).strip())
            return False
        except Error:
            raise
        except Exception as error:
            _log.warning("the ranks are not compared: their key-value store failed: %s", error)
            return True

    def require(self, limit: float) -> None:
        """Waits for the other ranks to load the same state.

        Raises:
            StateMismatch: theirs differ.
            Timeout: a rank has loaded none within ``limit`` seconds.
        """
        try:
            if self._wait(limit):
                return
            missing = self.missing()
        except Error:
            raise
        except Exception as error:
            _log.warning("the ranks' states are not compared: their key-value store failed: %s", error)
            return
        # Empty if the last rank came after the last check.
        if missing:
            raise Timeout(
                f"{name_ranks(missing)} did not call load_state_dict within {limit:g} s of rank {self._rank}; call it "
                "with the same state on every rank (`compare_ranks=False` skips the comparison; the loader's `timeout` "
                "is the limit; nothing has changed)"
            )

    def _wait(self, limit: float) -> bool:
        waited, delay, last = 0.0, FIRST_DELAY, time.monotonic()
        while not self.look():
            if waited >= limit:
                return False
            time.sleep(delay)
            delay = min(delay * 2, MAX_DELAY)
            now = time.monotonic()
            waited += min(now - last, MAX_GAP)
            last = now
        return True

    def missing(self) -> list[int]:
        """The ranks that made no statement."""
        return [rank for rank in range(self._world_size) if not self._store.check([f"{self._prefix}rank/{rank}"])]

    def _state(self) -> bool:
        """Makes this rank's statement. False: the first rank's is not there yet."""
        own = f"{self._rank} {self._statement}"
        if not self._announced:
            self._announced = True
            self._is_first_of_rank = self._store.add(f"{self._prefix}rank/{self._rank}", 1) == 1
            if self._store.add(f"{self._prefix}first", 1) == 1:
                self._store.set(f"{self._prefix}reference", own)
        reference = self._read("reference")
        if reference is None:
            return False
        if reference[1] != self._statement:
            number = self._store.add(f"{self._prefix}differing", 1)
            self._store.set(f"{self._prefix}differ/{number}", own)
            # Counted once it can be read.
            self._store.add(f"{self._prefix}differ", 1)
        if self._is_first_of_rank:
            self._store.add(f"{self._prefix}ranks", 1)
        self._stated = True
        return True

    def _count(self, key: str) -> int:
        return int(self._store.add(self._prefix + key, 0))

    def _read(self, key: str) -> Optional[tuple[int, str]]:
        key = self._prefix + key
        # `get` would wait for a key that is not there.
        if not self._store.check([key]):
            return None
        rank, _, statement = bytes(self._store.get(key)).decode().partition(" ")
        return int(rank), statement
