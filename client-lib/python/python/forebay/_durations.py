"""A histogram of durations with bounded size, and robust means of a series."""

import math
from collections.abc import Sequence
from typing import Any

_BUCKETS_PER_OCTAVE = 16
_MIN_SECONDS = 1e-9


class Durations:
    """Counts durations in sixteen buckets per octave: quantiles are accurate to 2.2 % in a few kilobytes.

    Count, total, least and greatest are exact.
    """

    __slots__ = ("_buckets", "count", "greatest", "least", "total")

    def __init__(self) -> None:
        self._buckets: dict[int, int] = {}
        self.count = 0
        self.total = 0.0
        self.least = math.inf
        self.greatest = 0.0

    def record(self, seconds: float) -> None:
        """Counts one duration. A negative one, possible after a change of the clock, counts as zero."""
        seconds = max(seconds, 0.0)
        bucket = math.floor(math.log2(max(seconds, _MIN_SECONDS)) * _BUCKETS_PER_OCTAVE)
        self._buckets[bucket] = self._buckets.get(bucket, 0) + 1
        self.count += 1
        self.total += seconds
        self.least = min(self.least, seconds)
        self.greatest = max(self.greatest, seconds)

    def mean(self) -> float:
        """The mean in seconds; 0 without values."""
        return self.total / self.count if self.count else 0.0

    def quantile(self, share: float) -> float:
        """The quantile `share` (0 to 1) in seconds; 0 without values."""
        rank = max(1, math.ceil(share * self.count))
        seen = 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen >= rank:
                middle: float = 2.0 ** ((bucket + 0.5) / _BUCKETS_PER_OCTAVE)
                return min(max(middle, self.least), self.greatest)
        return 0.0

    def to_dict(self) -> dict[str, Any]:
        """Count, and total, mean, p50, p90 and p99 in seconds."""
        return {
            "count": self.count,
            "total": self.total,
            "mean": self.mean(),
            "p50": self.quantile(0.5),
            "p90": self.quantile(0.9),
            "p99": self.quantile(0.99),
        }


def middle_mean(values: Sequence[float]) -> float:
    """The interquartile mean: the mean without the lowest and the highest quarter. 0 without values."""
    ordered = sorted(values)
    quarter = len(ordered) // 4
    middle = ordered[quarter : len(ordered) - quarter]
    return sum(middle) / len(middle) if middle else 0.0


def low_median(values: Sequence[float]) -> float:
    """The median; the lower of the two middle values if their number is even; 0 without values."""
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2] if ordered else 0.0


def typical(values: Sequence[float], blocks: int = 8) -> float:
    """The interquartile mean of the means of blocks: robust against outliers, and accurate for bursty values."""
    if len(values) < 2 * blocks:
        return sum(values) / len(values) if values else 0.0
    edges = [len(values) * block // blocks for block in range(blocks + 1)]
    return middle_mean([sum(values[begin:end]) / (end - begin) for begin, end in zip(edges, edges[1:])])


def in_words(seconds: float) -> str:
    """A duration with a suitable unit: ``412 µs``, ``12.3 ms``, ``2.06 s``."""
    if seconds < 0.9995e-3:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.3g} ms" if seconds < 0.0995 else f"{seconds * 1e3:.0f} ms"
    return f"{seconds:.3g} s" if seconds < 99.5 else f"{seconds:.0f} s"
