"""What the programs print and write: tables, plain or in Markdown for docs/results/; raw figures; plots."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from environments import BENCH, say
from figures import Round, Spread, ratios


@dataclass(frozen=True)
class Figure:
    """One column: where its value lies in a run's figures, and how it is shown."""

    key: str
    title: str
    scale: float = 1.0
    more_is_better: bool = False

    def of(self, rounds: Sequence[Round], name: str) -> Spread | None:
        """Over all rounds that have it: the kernel alone, say, has no first batch."""
        values = [results[name][self.key] * self.scale for results in rounds if self.key in results.get(name, {})]
        return Spread.of(values) if values else None


RATE = Figure("samples_per_second", "samples/s", more_is_better=True)
CPU = Figure("cpu_seconds_per_1000_samples", "CPU s per 1,000")
MEMORY = Figure("peak_memory_bytes", "peak memory, MB", 1e-6)
FIRST = Figure("time_to_first_batch_seconds", "first batch, s")
FIGURES = (RATE, CPU, MEMORY, FIRST)


@dataclass(frozen=True)
class Ratio:
    """One line of the comparison: ours over the best of theirs, within each round."""

    title: str
    ours: str
    theirs: Sequence[str]
    figure: str
    best: Callable[..., float]

    def of(self, rounds: Sequence[Round]) -> Spread | None:
        values = ratios(rounds, self.ours, self.theirs, self.figure, self.best)
        return Spread.of(values) if values else None


def plain(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their content; the first to the left, the others to the right."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths))
        ).rstrip()
        for row in [header, *rows]
    )


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def cell(spread: Spread | None) -> str:
    return spread.text() if spread else "–"


def add_options(parser: argparse.ArgumentParser, name: str) -> None:
    """The options that all comparisons have."""
    parser.add_argument("--runs", type=int, default=5, help="rounds (5)")
    parser.add_argument("--cores", type=int, default=2, help="cores that every loader gets, with its trainer (2)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="all raw figures")
    parser.add_argument("--svg", type=Path, metavar="FILE", help=f"the plot (target/bench/{name}.svg)")
    parser.add_argument("--markdown", action="store_true", help="print the section for docs/results/")
    parser.add_argument("--skip-build", action="store_true", help="use the Forebay that an earlier run installed")
    parser.add_argument("--smoke", action="store_true", help="tiny data, one short run, with what this interpreter has")


def write_files(arguments: argparse.Namespace, name: str, raw: dict[str, Any], picture: Callable[[], str]) -> None:
    """The files that the options ask for; the plot in any case but a smoke run."""
    if arguments.json:
        arguments.json.write_text(json.dumps(raw, indent=1) + "\n")
    svg = arguments.svg or (None if arguments.smoke else BENCH / f"{name}.svg")
    if svg:
        svg.parent.mkdir(parents=True, exist_ok=True)
        svg.write_text(picture())
        say(f"the plot is {svg}")
