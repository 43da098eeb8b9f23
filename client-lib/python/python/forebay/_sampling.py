"""Samples the user's function: a thread that reads the stack of the main thread periodically."""

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

_INTERVAL_SECONDS = 0.05
_SWITCH_SECONDS = 0.0005
# The time between two reports.
_REPORT_SECONDS = 1.0
# Bounds the size of a report.
_MAX_DEPTH, _MAX_STACKS, _MAX_NAME = 8, 64, 80
_OWN = os.path.dirname(__file__)


class Sampler:
    """Counts the stacks under the user's function, while one is called."""

    def __init__(self, is_called: Callable[[], bool]) -> None:
        self._is_called = is_called
        self._watched = threading.get_ident()
        self._counts: dict[tuple[str, ...], int] = {}
        self._reported = time.monotonic()
        # A sample waits up to this time for the interpreter; with a longer wait, short calls would not be sampled.
        sys.setswitchinterval(min(sys.getswitchinterval(), _SWITCH_SECONDS))
        threading.Thread(target=self._run, name="forebay-sampler", daemon=True).start()

    def take(self) -> bytes:
        """The stacks since the last report, as JSON: ``[[[name, …], count], …]``; empty between reports."""
        now = time.monotonic()
        if not self._counts or now - self._reported < _REPORT_SECONDS:
            return b""
        self._reported = now
        counts, self._counts = self._counts, {}
        return json.dumps(list(counts.items())).encode()

    def _run(self) -> None:
        while True:
            time.sleep(_INTERVAL_SECONDS)
            frame = sys._current_frames().get(self._watched) if self._is_called() else None
            stack = _stack(frame)
            # Empty if the user's function does not run at this moment.
            if stack and (stack in self._counts or len(self._counts) < _MAX_STACKS):
                self._counts[stack] = self._counts.get(stack, 0) + 1


def _stack(frame: "FrameType | None") -> tuple[str, ...]:
    """The names of the stack's functions, beginning with the user's function."""
    names: list[str] = []
    while frame is not None and not frame.f_code.co_filename.startswith(_OWN):
        name = _name(frame)
        if not names or names[-1] != name:
            names.append(name)
        frame = frame.f_back
    return tuple(reversed(names))[:_MAX_DEPTH]


def _name(frame: FrameType) -> str:
    """``albumentations.Blur`` of a method, ``package.function`` of a function."""
    code = frame.f_code
    if code.co_argcount and code.co_varnames[0] == "self":
        kind = type(frame.f_locals.get("self"))
        # A class may have any value there.
        package, name = str(kind.__module__), kind.__qualname__
    else:
        package, name = str(frame.f_globals.get("__name__", "?")), code.co_name
    return f"{package.partition('.')[0]}.{name}"[:_MAX_NAME]
