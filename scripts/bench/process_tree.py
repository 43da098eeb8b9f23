"""What a tree of processes uses: CPU time and memory, with shared memory counted once.

It reads /proc and owns no process. A loader's workers, daemons and helpers are all in the tree of the process that
started them; one that was orphaned is too, where an ancestor is a subreaper (see `adopt_orphans`).
"""

from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
# The numbers of /proc/PID/stat after the name: state is 0.
PARENT, USER, SYSTEM, USER_OF_REAPED, SYSTEM_OF_REAPED = 1, 11, 12, 13, 14


def adopt_orphans() -> None:
    """Makes this process the parent of every descendant whose own parent ends, so that none leaves the tree."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def stat_fields(text: str) -> list[str]:
    """The fields of /proc/PID/stat after the process's name, which may hold spaces and brackets of its own."""
    return text.rpartition(")")[2].split()


def tree_of(root: int) -> list[int]:
    """The process and its descendants that live now."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = stat_fields(Path(f"/proc/{entry}/stat").read_text())
            except OSError:
                continue
            children.setdefault(int(fields[PARENT]), []).append(int(entry))
    found, waiting = [], [root]
    while waiting:
        process = waiting.pop()
        found.append(process)
        waiting.extend(children.get(process, []))
    return found


def cpu_seconds(root: int) -> float:
    """User and system time of the tree since each process began; what was reaped counts with its parent."""
    ticks = 0
    for process in tree_of(root):
        try:
            fields = stat_fields(Path(f"/proc/{process}/stat").read_text())
        except OSError:
            continue
        ticks += sum(int(fields[index]) for index in (USER, SYSTEM, USER_OF_REAPED, SYSTEM_OF_REAPED))
    return ticks / TICKS_PER_SECOND


def rollup_bytes(text: str) -> tuple[int, int]:
    """Of one /proc/PID/smaps_rollup: (proportional share of all memory, the shared memory's part of it)."""
    sizes = {"Pss": 0, "Pss_Shmem": 0}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        if name in sizes:
            sizes[name] = int(rest.split()[0]) * 1024
    return sizes["Pss"], sizes["Pss_Shmem"]


def open_shared_memory(process: int) -> dict[tuple[int, int], int]:
    """The allocated bytes of the shared memory that a process holds open, by (device, inode)."""
    found = {}
    folder = f"/proc/{process}/fd"
    for descriptor in os.listdir(folder):
        path = f"{folder}/{descriptor}"
        try:
            if os.readlink(path).startswith(("/memfd:", "/dev/shm/")):
                status = os.stat(path)
                found[(status.st_dev, status.st_ino)] = status.st_blocks * 512
        except OSError:
            continue
    return found


def memory_bytes(root: int) -> int:
    """The tree's memory: each process's proportional share, and every piece of shared memory in full and once.

    Memory that is allocated but mapped by nobody at the moment (a ring's slots, a batch on its way between two
    processes) has no share in any process, but an open descriptor; where descriptors show more than the shares, they
    are taken for the shared memory.
    """
    others = shares = 0
    objects: dict[tuple[int, int], int] = {}
    for process in tree_of(root):
        try:
            all_memory, shared = rollup_bytes(Path(f"/proc/{process}/smaps_rollup").read_text())
            others += all_memory - shared
            shares += shared
            objects.update(open_shared_memory(process))
        except OSError:
            # It has ended, or is about to.
            continue
    return others + max(shares, sum(objects.values()))


class PeakMemory:
    """Watches a tree's memory in a thread of its own until `stop`."""

    def __init__(self, root: int, every_seconds: float = 0.5) -> None:
        """Begins at once. Each look costs some milliseconds of CPU, so it is not taken more often than needed."""
        self.bytes = 0
        self._root, self._every_seconds = root, every_seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stopped.wait(self._every_seconds):
            self.bytes = max(self.bytes, memory_bytes(self._root))

    def stop(self) -> int:
        self._stopped.set()
        self._thread.join()
        return self.bytes
