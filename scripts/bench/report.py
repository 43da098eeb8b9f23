"""Tables of rounds: plain for a terminal, Markdown for docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

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
        """Nothing when no round has both."""
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
    """A table as Markdown has it."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def cell(spread: Spread | None) -> str:
    """A dash where nothing was measured."""
    return spread.text() if spread else "–"
