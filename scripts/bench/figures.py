"""Statistics of a few runs: medians with ranges, percentiles, and ratios that compare run by run."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """Median, least and greatest of several runs."""

    median: float
    least: float
    greatest: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        numbers = list(values)
        return cls(statistics.median(numbers), min(numbers), max(numbers))

    def text(self) -> str:
        if self.least == self.greatest:
            return number(self.median)
        return f"{number(self.median)} ({number(self.least)}–{number(self.greatest)})"


def number(value: float) -> str:
    """Three or four digits, with thousands marked: more would be noise."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}"


def percentile(values: Sequence[float], share: float) -> float:
    """The least value that at least `share` (above 0, at most 1) of all values do not exceed: nearest rank."""
    if not values or not 0 < share <= 1:
        raise ValueError(f"no percentile {share} of {len(values)} values")
    # The product of a share and a count may lie a hair above the whole number that is meant.
    return sorted(values)[math.ceil(round(share * len(values), 9)) - 1]


Round = dict[str, dict[str, float]]


def ratios(
    rounds: Iterable[Round], ours: str, theirs: Sequence[str], figure: str, best: Callable[..., float]
) -> list[float]:
    """In each round, our figure over the best of theirs in that same round; a round that lacks either is left out.

    The best peer is chosen anew in each round, so that a peer's lucky run counts against us.
    """
    found = []
    for results in rounds:
        others = [results[name][figure] for name in theirs if name in results]
        if ours in results and others:
            found.append(results[ours][figure] / best(others))
    return found
