"""Times the transforms of torchvision and albumentations within the user's function, for ``forebay doctor``."""

import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Optional

_PACKAGES = ("torchvision.transforms", "albumentations")
_MAX_NAMES = 256


class TransformTimes:
    """Times every transform that is called, by its class.

    The classes' ``__call__`` is replaced permanently, but only in workers that measure times. A transform's time
    excludes the transforms within it."""

    def __init__(self) -> None:
        self._is_on = False
        self._timed = threading.get_ident()
        self._replaced: set[type] = set()
        # For each running transform, outermost first: itself, and the nanoseconds of the transforms within it.
        self._running: list[list[Any]] = []
        self._spent: dict[str, int] = {}

    def begin(self) -> None:
        """Starts timing all calls."""
        for name, module in list(sys.modules.items()):
            if _is_of_a_package(name):
                for one in list(vars(module).values()):
                    if isinstance(one, type) and _is_of_a_package(one.__module__):
                        self._replace(one)
        self._spent = {}
        self._is_on = True

    def end(self) -> list[tuple[str, int]]:
        """The nanoseconds of each class that was called since the beginning: ``("torchvision.Resize", 812345)``."""
        self._is_on = False
        return list(self._spent.items())[:_MAX_NAMES]

    def _replace(self, kind: type) -> None:
        owner = next((base for base in kind.__mro__ if "__call__" in vars(base)), None)
        # A class that inherits from one of the package is timed by the inherited method.
        if owner is None or kind in self._replaced or (owner is not kind and _is_of_a_package(owner.__module__)):
            return
        changed: Any = kind
        call: Callable[..., Any] = changed.__call__

        def timed(transform: Any, *arguments: Any, **keywords: Any) -> Any:
            if not self._is_on or threading.get_ident() != self._timed:
                return call(transform, *arguments, **keywords)
            if self._running and self._running[-1][0] is transform:  # by `super().__call__`
                return call(transform, *arguments, **keywords)
            running = [transform, 0]
            self._running.append(running)
            begun = time.perf_counter_ns()
            try:
                return call(transform, *arguments, **keywords)
            finally:
                spent = time.perf_counter_ns() - begun
                self._running.pop()
                if self._running:
                    self._running[-1][1] += spent
                name = _name(type(transform))
                if name is not None:
                    self._spent[name] = self._spent.get(name, 0) + spent - running[1]

        self._replaced.add(kind)
        changed.__call__ = timed


def _is_of_a_package(module: str) -> bool:
    return any(module == package or module.startswith(package + ".") for package in _PACKAGES)


def _name(kind: type) -> Optional[str]:
    """``torchvision.Resize`` for both of its versions; None for a user-defined class, whatever its base class."""
    if not _is_of_a_package(kind.__module__):
        return None
    return f"{kind.__module__.partition('.')[0]}.{kind.__qualname__}"
