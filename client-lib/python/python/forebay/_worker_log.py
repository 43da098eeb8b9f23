"""The output of a worker's Python code: lines for the log, each with the stage and the sample."""

import io
import os
import threading
from typing import Optional

# A longer line is cut, so that endless output uses no memory.
_MAX_LINE_BYTES = 8 << 10


class Log:
    """The log of a worker: standard output and standard error, which end their lines independently."""

    def __init__(self, place: str) -> None:
        self._place = place
        # Of a batch, its first sample.
        self.sample: Optional[int] = None
        self.output, self.error = Stream(self), Stream(self)

    def where(self) -> str:
        """The prefix of a line that begins now."""
        return self._place if self.sample is None else f"{self._place}, sample {self.sample}"

    def has_rest(self) -> bool:
        """Whether a line is incomplete."""
        return self.output.has_rest() or self.error.has_rest()

    def end_lines(self) -> None:
        """Logs incomplete lines."""
        self.output.end_line()
        self.error.end_line()


class Stream(io.TextIOBase):
    """Standard output or standard error. A line ends with a line feed, or at the maximum length. A carriage return
    discards the line so far, as on a terminal, so the last state of a progress bar is logged."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        # Reentrant: a signal handler that interrupts the writing thread may print, too.
        self._lock = threading.RLock()
        self._line = bytearray()
        self._where = ""
        self._is_returned = self._is_cut = False

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return 2

    def write(self, text: str) -> int:
        data = text.encode(errors="replace")
        with self._lock:
            # For bytes: only at line feeds and carriage returns.
            for line in data.splitlines(keepends=True):
                self._take(line)
        return len(text)

    def has_rest(self) -> bool:
        return len(self._line) > 0

    def end_line(self) -> None:
        """Logs the incomplete line, if there is one."""
        with self._lock:
            if self._line:
                self._emit()

    def _take(self, line: bytes) -> None:
        """Adds a part of a line, with the line feed or carriage return that ends it, if any."""
        text = line.rstrip(b"\r\n")
        if text and self._is_returned:
            self._line.clear()
            self._is_returned = self._is_cut = False
        at = 0
        while len(self._line) + len(text) - at > _MAX_LINE_BYTES:
            cut = _character_start(text, at, at + _MAX_LINE_BYTES - len(self._line))
            self._add(text[at:cut])
            self._emit()
            self._is_cut = True
            at = cut
        self._add(text[at:])
        if line.endswith(b"\n"):
            # The end of a line that was cut right there has been logged.
            if self._line or not self._is_cut:
                self._emit()
            self._is_returned = self._is_cut = False
        elif line.endswith(b"\r"):
            self._is_returned = True

    def _add(self, text: bytes) -> None:
        if text and not self._line:
            self._where = self._log.where()
        self._line += text

    def _emit(self) -> None:
        where = (self._where if self._line else self._log.where()).encode(errors="replace")
        # At once, so that lines of several workers do not mix.
        _write_all(2, b"forebay: %b: %b\n" % (where, bytes(self._line)))
        self._line.clear()


def _character_start(text: bytes, first: int, at: int) -> int:
    """The last start of a character after ``first`` and not after ``at``; ``at`` if there is none."""
    start = at
    while start > first and text[start] & 0xC0 == 0x80:
        start -= 1
    return start if start > first or at == first else at


def _write_all(descriptor: int, data: bytes) -> None:
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError:
        pass  # Nobody reads the log.
