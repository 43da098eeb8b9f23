"""Control groups for the processor, where the machine lets one make them, in either version of the interface.

A `CpuGroups` owns the groups that it makes and removes them at the end. It changes no group that was there before, but
for handing version 2's cpu controller down from the root.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from types import TracebackType

PERIOD_MICROSECONDS = 100_000


def mounted() -> tuple[Path, int]:
    """Where the cpu controller is, and the version of its interface."""
    mounts = [line.split()[1:4] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for folder, kind, options in mounts:
        if kind == "cgroup" and "cpu" in options.split(","):
            return Path(folder), 1
    for folder, kind, _ in mounts:
        if kind == "cgroup2" and "cpu" in (Path(folder) / "cgroup.controllers").read_text().split():
            return Path(folder), 2
    raise OSError("no cpu controller is mounted")


class CpuGroups:
    """A context in which groups can be made. `reason` says why none can be; it is empty where they can."""

    def __init__(self) -> None:
        self._made: list[Path] = []
        self.reason = ""
        try:
            self._root, self._version = mounted()
            if self._version == 2:
                (self._root / "cgroup.subtree_control").write_text("+cpu")
            self._sweep()
            self.make("probe")
        except OSError as error:
            self.reason = f"no control group can be made: {error}"

    def __enter__(self) -> CpuGroups:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Removes the groups; a process that just ended may keep one for a moment."""
        for path in self._made:
            for _ in range(50):
                with contextlib.suppress(OSError):
                    path.rmdir()
                    break
                time.sleep(0.02)

    def _sweep(self) -> None:
        for path in self._root.glob("forebay-bench-*-*"):
            if not Path(f"/proc/{path.name.split('-')[2]}").exists():
                with contextlib.suppress(OSError):
                    path.rmdir()

    def make(self, name: str, quota_cores: float | None = None) -> Path:
        """A group, for `quota_cores` processors' time at most; found again when it is asked for twice.

        Returns the file that takes the numbers of the processes that are to be in it.
        """
        path = self._root / f"forebay-bench-{os.getpid()}-{name}"
        if path not in self._made:
            path.mkdir()
            self._made.append(path)
        if quota_cores is not None:
            quota = int(quota_cores * PERIOD_MICROSECONDS)
            if self._version == 1:
                (path / "cpu.cfs_period_us").write_text(str(PERIOD_MICROSECONDS))
                (path / "cpu.cfs_quota_us").write_text(str(quota))
            else:
                (path / "cpu.max").write_text(f"{quota} {PERIOD_MICROSECONDS}")
        return path / "cgroup.procs"
