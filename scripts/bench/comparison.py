"""What rounds of loaders come to: the table, the ratios, the plot and the raw figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import plot
import report
from contestants import Contestant
from environments import machine
from figures import Round
from report import FIGURES, Figure, Ratio

OURS = ("forebay", "first", "scaled", "float", "one-core", "npy")
NO_PEERS = (*OURS, "kernel", "memcpy")
RATE, CPU, MEMORY = "samples_per_second", "cpu_seconds_per_1000_samples", "peak_memory_bytes"


@dataclass(frozen=True)
class Comparison:
    """Rounds of the same contestants on the same work."""

    title: str
    contestants: Sequence[Contestant]
    rounds: Sequence[Round]
    # By contestant: why it has no figures, or none in some rounds.
    failures: dict[str, str]


def peers_of(compared: Comparison) -> list[str]:
    """Those that do the whole work and are not Forebay."""
    return [one.name for one in compared.contestants if one.name not in NO_PEERS and not one.does_less]


def ratios(compared: Comparison) -> list[Ratio]:
    peers = peers_of(compared)
    candidates = [
        Ratio("samples/s against the best peer", "forebay", peers, RATE, max),
        Ratio("CPU seconds per sample against the best peer", "forebay", peers, CPU, min),
        Ratio("first epoch: samples/s against the best peer", "first", peers, RATE, max),
        Ratio("first epoch: CPU seconds per sample against the best peer", "first", peers, CPU, min),
        Ratio("peak memory against PyTorch with two workers", "forebay", ["pytorch"], MEMORY, min),
        Ratio("samples/s against the kernel alone", "forebay", ["kernel"], RATE, max),
        Ratio("kernel alone: samples/s against the best peer", "kernel", peers, RATE, max),
        Ratio('scaled = "auto": samples/s against the best peer', "scaled", peers, RATE, max),
        Ratio("normalised floats: samples/s against uint8", "float", ["forebay"], RATE, max),
        Ratio("samples/s on all cores against one core", "forebay", ["one-core"], RATE, max),
        Ratio("bytes/s against memcpy on one core", "npy", ["memcpy"], "bytes_per_second", max),
    ]
    return [ratio for ratio in candidates if ratio.of(compared.rounds)]


def ordered(compared: Comparison) -> list[Contestant]:

    def rate(one: Contestant) -> float:
        spread = report.RATE.of(compared.rounds, one.name)
        return spread.median if spread else 0.0

    return sorted((one for one in compared.contestants if rate(one) > 0), key=rate, reverse=True)


def columns(compared: Comparison) -> list[Figure]:
    """Bytes instead of samples where arrays are copied."""
    if any(one.name == "memcpy" for one in compared.contestants):
        return [Figure("bytes_per_second", "GB/s", 1e-9, True), *FIGURES[1:]]
    return list(FIGURES)


def text(compared: Comparison, markdown: bool) -> str:
    """Table, ratios, who is missing and why, settings."""
    table = report.markdown if markdown else report.plain
    figures = columns(compared)
    header = ["", *(figure.title for figure in figures)]
    rows = []
    for one in ordered(compared):
        cells = [report.cell(figure.of(compared.rounds, one.name)) for figure in figures]
        rows.append([one.title + (" *" if one.does_less else ""), *cells])
    parts = [f"{compared.title}; {machine()}; {len(compared.rounds)} rounds: median (least–greatest)"]
    parts.append(table(header, rows))
    compared_ratios = [[ratio.title, report.cell(ratio.of(compared.rounds))] for ratio in ratios(compared)]
    if compared_ratios:
        parts.append(table(["ratio within each round", "median (least–greatest)"], compared_ratios))
    less = [f"* {one.title}: {one.does_less}; not counted as a peer" for one in compared.contestants if one.does_less]
    # Two lists of lines, in Markdown as items.
    for lines in (
        less,
        list(compared.failures.values()),
        [f"{one.title}: {one.described}" for one in ordered(compared)],
    ):
        if lines:
            parts.append("\n".join(f"- {line}" if markdown else line for line in lines))
    return "\n\n".join(parts)


def picture(compared: Comparison) -> str:
    rows = ordered(compared)
    panels = []
    for figure in columns(compared):
        values = [figure.of(compared.rounds, one.name) for one in rows]
        panels.append(plot.Panel(figure.title, "more is better" if figure.more_is_better else "less is better", values))
    ours = [one.name in OURS for one in rows]
    foot = f"{machine()}; {len(compared.rounds)} rounds, medians; lines: least to greatest"
    return plot.picture(compared.title, [one.title for one in rows], ours, panels, foot)


def raw(compared: Comparison) -> dict[str, Any]:
    """For --json: every figure of every run."""
    return {
        "title": compared.title,
        "machine": machine(),
        "contestants": {
            one.name: {"title": one.title, "described": one.described, "settings": dict(one.settings)}
            for one in compared.contestants
        },
        "rounds": list(compared.rounds),
        "failures": compared.failures,
        "ratios": {
            ratio.title: {"median": spread.median, "least": spread.least, "greatest": spread.greatest}
            for ratio in ratios(compared)
            for spread in [ratio.of(compared.rounds)]
            if spread
        },
    }
