"""A worker in the foreground, for ``forebay run-sample``: it has the terminal, and prints what the function returns."""

import contextlib
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any, Optional

import numpy as np

from ._stage import Stage, raised, serve, tell


def serve_in_foreground(spec: dict[str, Any], connection_number: int, arena: int) -> None:
    """Calls the function once for each row that the program asks for, until it closes the socket."""
    # An interrupt ends the function, or the debugger's command, also if the program was started in the background.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, connection_number)
    try:
        stage = _Shown(spec)
    except BaseException as error:  # whatever the user's module raises
        tell(connection, arena, {"raised": raised(error, own_frames=0)})
        return
    tell(connection, arena, stage.hello)
    # An interrupt between two calls ends the program as well.
    with contextlib.suppress(KeyboardInterrupt):
        serve(stage, connection, arena, None)


class _Shown(Stage):
    """A stage whose results are printed and kept: the program asks twice for its row."""

    def __init__(self, spec: dict[str, Any]) -> None:
        super().__init__(spec)
        self._name = spec["stage"]
        self._kept: Optional[tuple[list[int], Any]] = None

    def call(self, make: Callable[[], dict[str, Any]], words: list[int]) -> Any:
        if self._kept is not None and self._kept[0] == words:
            return self._kept[1]
        try:
            result = super().call(make, words)
        finally:
            # The function's output precedes the program's lines.
            sys.stdout.flush()
        if isinstance(result, dict):
            print(f"stage `{self._name}` returns")
            for name, value in result.items():
                print(f"  {name!s:<20}{described(value)}")
            sys.stdout.flush()
        self._kept = words, result
        return result


def described(value: Any) -> str:
    """A result's type, shape and range on one line."""
    if isinstance(value, (str, bytes, bytearray)):
        shown = repr(value[:60]) + (" …" if len(value) > 60 else "")
        return f"{type(value).__name__} of {len(value)}: {shown}"
    if isinstance(value, (bool, int, float, np.generic)):
        return f"{type(value).__name__} {value}"
    kind = "" if isinstance(value, np.ndarray) else f"{type(value).__module__}.{type(value).__qualname__} as "
    try:
        if hasattr(value, "detach"):
            value = value.detach().cpu()
        array = np.asarray(value)
        text = f"{kind}{array.dtype} {list(array.shape)}"
        if array.size and array.dtype.kind in "biuf":
            text += f", {array.min():.6g} to {array.max():.6g}, mean {array.mean(dtype=np.float64):.6g}"
        return text
    except Exception:  # A value that no batch can contain is refused later, with the remedy.
        return f"{type(value).__module__}.{type(value).__qualname__}"
