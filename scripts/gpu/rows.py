"""What a row of the report is, how one is made without ending the others, and how they are shown.

Pure: nothing here knows of CUDA, so that it is tested on any machine.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MET, MISSED, REPORTED, NOT_MEASURED, ERROR = "met", "missed", "reported", "not measured", "error"


class NotMeasured(Exception):
    """The row has no value on this machine; the text says why."""


@dataclass
class Outcome:
    """What a measurement found: a value in words, whether it meets the goal (None: there is none), and its grounds."""

    value: str
    met: bool | None = None
    note: str = ""
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass
class Row:
    name: str
    goal: str
    status: str
    value: str = ""
    note: str = ""
    seconds: float = 0.0
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Measurement:
    """A row that can be measured: `work` gets the place and gives an outcome."""

    name: str
    goal: str
    work: Callable[[Any], Outcome]
    is_long: bool = False
    """Left out by --quick."""


def measure(measurement: Measurement, place: Any) -> Row:
    """Makes the row. Whatever goes wrong is in the row, and nothing but an interrupt comes out."""
    begun = time.perf_counter()
    try:
        outcome = measurement.work(place)
    except NotMeasured as reason:
        row = Row(measurement.name, measurement.goal, NOT_MEASURED, note=str(reason))
    except Exception as error:
        text = f"{type(error).__name__}: {error}".strip().splitlines()[0][:300]
        row = Row(measurement.name, measurement.goal, ERROR, note=text)
        row.figures["traceback"] = traceback.format_exc()
    else:
        status = REPORTED if outcome.met is None else MET if outcome.met else MISSED
        row = Row(measurement.name, measurement.goal, status, outcome.value, outcome.note, figures=outcome.figures)
    row.seconds = round(time.perf_counter() - begun, 2)
    return row


def line(row: Row) -> str:
    """A row as it is told while others are still being measured."""
    parts = [f"{row.name}: {row.value or row.status}"]
    if row.goal:
        parts.append(f"goal {row.goal}")
    if row.value:
        parts.append(row.status)
    text = "; ".join(parts) + (f" ({row.note})" if row.note else "")
    if row.status == ERROR and "traceback" in row.figures:
        text += "\n" + str(row.figures["traceback"]).rstrip()
    return text


def table(rows: Iterable[Row]) -> str:
    """The rows as a table in Markdown, which docs/guide/gpu.md takes as it is."""

    def cell(text: str) -> str:
        return " ".join(text.replace("|", "\\|").split()) or "–"

    lines = ["| row | value | goal | result | note |", "|---|---|---|---|---|"]
    lines += [
        "| " + " | ".join(cell(text) for text in (row.name, row.value, row.goal, row.status, row.note)) + " |"
        for row in rows
    ]
    return "\n".join(lines)


def summary(rows: Sequence[Row]) -> str:
    counts = Counter(row.status for row in rows)
    every = (MET, MISSED, ERROR, REPORTED, NOT_MEASURED)
    return ", ".join(f"{counts[status]} {status}" for status in every if counts[status]) or "no row"


def exit_status(rows: Iterable[Row]) -> int:
    """1 when a goal was missed or a row failed. What could not be measured is no failure, and is in the table."""
    return int(any(row.status in (MISSED, ERROR) for row in rows))


def toml(value: Any) -> str:
    """A value of a configuration as TOML on one line. JSON's strings, numbers and arrays are TOML's too."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(toml(item) for item in value) + "]"
    return json.dumps(value)


def say(text: str) -> None:
    print(f"gpu-check: {text}", file=sys.stderr, flush=True)
