"""Which rank delays the others, and why.

Ranks that synchronise in a collective every step all take as long as the slowest one, so step times do not identify it.
Times that end before a collective do:

- The wait for data ends before the step's first collective. While a rank waits in an all-reduce for another one, its
  next batch is loaded, which shortens its wait for data and never lengthens it.
- A phase without a collective is not affected by other ranks. A phase with one is long on every rank except the slow
  one, which arrives last. So a rank counts as slow in a phase only if it takes longer there than most ranks. If half of
  the ranks differ from the other half, or there are two ranks, only barriers can tell which half is slow. Without
  barriers it also remains possible that most ranks are slow and the few others wait for them.
- The daemon's measurements cover only its own work.

The result is a function of all ranks' measurements, so it is the same on every rank.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Optional

from ._durations import in_words, low_median, typical
from ._rank_figures import RankFigures, StageFigures, collect
from ._ranks import initialised_distributed, name_ranks

# The smallest share of a step that is reported.
_MATTERS = 0.05
# The smallest reported ratio of a stage's time, and of a batch's size, to the other ranks'.
_SLOWER_STAGE = 1.3
_LARGER_BATCH = 1.2
# Ranks are named as slow if, in at least this share of the slow steps, one of them is the slowest. Otherwise the
# slowest rank changes from step to step.
_STEADY = 0.6


@dataclass(frozen=True)
class StragglerReport:
    """The result of :func:`forebay.straggler_report`, the same on every rank.

    Attributes:
        cause: why the named ranks are slow: ``"waits-for-data"``, ``"slow-stage"``, ``"slow-storage"``,
            ``"larger-batches"`` or ``"slow-compute"``; ``"everywhere"``: loading is too slow on all ranks; ``"none"``:
            no rank delays the others; ``"unknown"``: no steps were timed, or no rank waits for data and phases or
            barriers are needed to find out more.
        sentence: the result in one sentence.
        figures: the measurements of all ranks, in order.
        ranks: the slow ranks, the slowest first; empty if no rank is named.
        stage: the slow stage of the daemon or phase of the trainer, if there is one.
        moves: whether the slowest rank changes from step to step.
        lost_seconds: the time of a step that the cause costs all ranks.
    """

    cause: str
    sentence: str
    figures: tuple[RankFigures, ...]
    ranks: tuple[int, ...] = ()
    stage: Optional[str] = None
    moves: bool = False
    lost_seconds: float = 0.0

    @property
    def rank(self) -> Optional[int]:
        """The slowest rank; None if no rank is named."""
        return self.ranks[0] if self.ranks else None

    def to_dict(self) -> dict[str, Any]:
        """All attributes as plain values."""
        values = {**vars(self), "rank": self.rank, "ranks": list(self.ranks)}
        return {**values, "figures": [rank.to_dict() for rank in self.figures]}

    def to_json(self) -> str:
        """:meth:`to_dict` as one line of JSON."""
        return json.dumps(self.to_dict())

    def __str__(self) -> str:
        phases = list(dict.fromkeys(name for rank in self.figures for name in rank.phase_seconds))
        stages = list(dict.fromkeys(stage.name for rank in self.figures for stage in rank.stages))
        rows = [["rank", "step", "wait", *phases, *(f"[{name}]" for name in stages)]]
        for rank in self.figures:
            by_stage = {stage.name: stage.seconds for stage in rank.stages}
            seconds = [rank.step_seconds, rank.wait_seconds]
            cells = [*seconds, *map(rank.phase_seconds.get, phases), *map(by_stage.get, stages)]
            rows.append([str(rank.rank), *("-" if cell is None else in_words(cell) for cell in cells)])
        widths = [max(map(len, column)) for column in zip(*rows)]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in rows]
        lines += [f"rank {rank.rank} has no figures of its loader: {rank.error}" for rank in self.figures if rank.error]
        return "\n".join([*lines, self.sentence])


def straggler_report(timer_or_loader: Any, group: Any = None) -> StragglerReport:
    """Gathers all ranks' measurements and names the slow rank and the cause. A collective: every rank must call it.

    Without ``torch.distributed`` there is one rank, and the report has only its wait.

    Args:
        timer_or_loader: this rank's :class:`forebay.StepTimer`, or a Forebay loader. A timer measures each step, so it
            also detects a straggler that moves between ranks; with phases it detects slow computing.
        group: the process group whose ranks are compared. Default: all ranks.
    """
    distributed = initialised_distributed()
    if distributed is None:
        return judge([collect(0, timer_or_loader)])
    own = collect(distributed.get_rank(), timer_or_loader)
    gathered: list[Any] = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(gathered, own, group=group)
    return judge(gathered)


def judge(figures: Sequence[RankFigures]) -> StragglerReport:
    """The report on these ranks' measurements."""
    report = _judge(tuple(sorted(figures, key=lambda rank: rank.rank)))
    uneven = _uneven_costs(report.figures)
    if uneven < _LARGER_BATCH:
        return report
    remedy = (
        f"; rows differ in length, and a step's most costly batch has {uneven:.1f} times the elements of the mean "
        "rank's, padded to the longest row: `batch.budget` gives all ranks batches of nearly equal cost"
    )
    return replace(report, sentence=report.sentence + remedy)


def _judge(figures: tuple[RankFigures, ...]) -> StragglerReport:
    step_seconds = low_median([rank.step_seconds for rank in figures])
    if step_seconds <= 0:
        return StragglerReport("unknown", "no steps were timed so far", figures)
    matters = _MATTERS * step_seconds
    slow_phase = _find_slow_phase(figures, matters)
    waits = [rank.wait_seconds for rank in figures]
    usual_wait = low_median(waits)
    late = sorted(
        (rank for rank in figures if rank.wait_seconds - usual_wait >= matters), key=lambda rank: -rank.wait_seconds
    )
    steps = _waits_by_step(figures)
    lost_to_data = typical([max(step) for step in steps]) if steps else max(waits)
    late_excess = late[0].wait_seconds - usual_wait if late else 0.0

    if slow_phase is not None and slow_phase.excess >= late_excess:
        return _slow_compute(figures, slow_phase, step_seconds)
    if late and _are_steady(late, figures, steps, matters):
        return _waits_for_data(figures, late, usual_wait, step_seconds)
    if lost_to_data >= matters and len(figures) > 1:
        return _everywhere(figures, steps, usual_wait, lost_to_data, step_seconds, matters)
    return _no_straggler(figures, max(waits), step_seconds, matters)


@dataclass(frozen=True)
class _SlowPhase:
    name: str
    ranks: list[int]
    seconds: float
    usual: float

    @property
    def excess(self) -> float:
        return self.seconds - self.usual


def _shared_phases(figures: Sequence[RankFigures]) -> list[str]:
    return [name for name in figures[0].phase_seconds if all(name in rank.phase_seconds for rank in figures)]


def _find_slow_phase(figures: Sequence[RankFigures], matters: float) -> Optional[_SlowPhase]:
    """The phase in which a minority of ranks (with barriers: up to half) exceeds the median the most."""
    has_barriers = all(rank.has_barriers for rank in figures)
    found: Optional[_SlowPhase] = None
    for name in _shared_phases(figures):
        usual = low_median([rank.phase_seconds[name] for rank in figures])
        slow = [rank for rank in figures if rank.phase_seconds[name] - usual >= matters]
        slow.sort(key=lambda rank: -rank.phase_seconds[name])
        if not slow or (2 * len(slow) >= len(figures) and not has_barriers):
            continue
        phase = _SlowPhase(name, [rank.rank for rank in slow], slow[0].phase_seconds[name], usual)
        if found is None or phase.excess > found.excess:
            found = phase
    return found


def _waits_by_step(figures: Sequence[RankFigures]) -> list[list[float]]:
    """The waits of all ranks, a list for each step that every rank has recorded."""
    first = max(rank.waits_from_step for rank in figures)
    last = min(rank.waits_from_step + len(rank.waits) for rank in figures)
    return [[rank.waits[step - rank.waits_from_step] for rank in figures] for step in range(first, last)]


def _uneven_costs(figures: Sequence[RankFigures]) -> float:
    """The largest cost of a step divided by the ranks' mean, in the median of the steps; 1 if it is not known."""
    first = max(rank.waits_from_step for rank in figures)
    last = min(rank.waits_from_step + len(rank.costs) for rank in figures)
    steps = [[rank.costs[step - rank.waits_from_step] for rank in figures] for step in range(first, last)]
    ratios = [max(costs) * len(costs) / sum(costs) for costs in steps if min(costs) > 0]
    return low_median(ratios) if ratios else 1.0


def _led(figures: Sequence[RankFigures], steps: list[list[float]], matters: float) -> dict[int, int]:
    """For each rank, the number of steps in which it waited longest, among those with a wait that matters."""
    counts: dict[int, int] = {}
    for step in steps:
        longest = max(step)
        if longest >= matters:
            rank = figures[step.index(longest)].rank
            counts[rank] = counts.get(rank, 0) + 1
    return counts


def _are_steady(
    late: Sequence[RankFigures], figures: Sequence[RankFigures], steps: list[list[float]], matters: float
) -> bool:
    led = _led(figures, steps, matters)
    by_late = sum(led.get(rank.rank, 0) for rank in late)
    return by_late >= _STEADY * sum(led.values())


def _waits_for_data(
    figures: tuple[RankFigures, ...], late: Sequence[RankFigures], usual_wait: float, step_seconds: float
) -> StragglerReport:
    slowest = late[0]
    ranks = [rank.rank for rank in late]
    cause, stage, why = _why_late(slowest, [rank for rank in figures if rank.rank not in ranks])
    opening = "is slow: it" if len(ranks) == 1 else f"are slow: rank {slowest.rank}"
    sentence = (
        f"{name_ranks(sorted(ranks))} {opening} waits {in_words(slowest.wait_seconds)} of a step of "
        f"{in_words(step_seconds)} for data, most ranks {in_words(usual_wait)}; {why}"
    )
    lost = slowest.wait_seconds - usual_wait
    return StragglerReport(cause, sentence, figures, ranks=tuple(ranks), stage=stage, lost_seconds=lost)


def _why_late(slowest: RankFigures, others: Sequence[RankFigures]) -> tuple[str, Optional[str], str]:
    """Cause, stage and explanation: the loader's measurements compared with the ranks that are not late."""
    more_bytes = _ratio(slowest.batch_bytes, [rank.batch_bytes for rank in others])
    more_samples = _ratio(slowest.batch_samples, [rank.batch_samples for rank in others])
    # A larger sample takes longer in every stage, which does not make the stage slow.
    fair = max(_ratio(slowest.sample_bytes, [rank.sample_bytes for rank in others]), 1.0)
    found: Optional[tuple[float, StageFigures, float]] = None
    for stage in slowest.stages:
        same = [other.seconds for rank in others for other in rank.stages if other.name == stage.name]
        usual = low_median(same) * fair
        if not same or stage.seconds < _SLOWER_STAGE * usual:
            continue
        # The additional time per sample that leaves the stage, which processes `concurrency` samples at once.
        excess = (stage.seconds - usual) / stage.concurrency
        if found is None or excess > found[0]:
            found = excess, stage, usual
    if found is not None:
        _, stage, usual = found
        if stage is slowest.stages[0]:
            why = f"its storage is slow: a read takes {in_words(stage.seconds)}, elsewhere {in_words(usual)}"
            return "slow-storage", stage.name, why
        why = f"its stage `{stage.name}` is slow: {in_words(stage.seconds)} a sample, elsewhere {in_words(usual)}"
        return "slow-stage", stage.name, why
    if max(more_bytes, more_samples) >= _LARGER_BATCH:
        more = f"{more_samples:.1f} times the samples of the others', {more_bytes:.1f} times the bytes"
        why = f"its batches are larger: {more}"
        return "larger-batches", None, why
    if slowest.limit_sentence is None:
        return "waits-for-data", None, "its loader gives no figures that would say why"
    why = f"its stages are as fast as elsewhere; its daemon says: {slowest.limit_sentence}"
    return "waits-for-data", None, why


def _ratio(value: Optional[float], others: Sequence[Optional[float]]) -> float:
    """The ratio of the value to the others' median; 1 if one of them is unknown."""
    known = [other for other in others if other]
    return value / low_median(known) if value and known else 1.0


def _slow_compute(figures: tuple[RankFigures, ...], phase: _SlowPhase, step_seconds: float) -> StragglerReport:
    several = len(phase.ranks) > 1
    sentence = (
        f"{name_ranks(sorted(phase.ranks))} {'compute' if several else 'computes'} slowly: `{phase.name}` takes "
        f"{'up to ' if several else ''}{in_words(phase.seconds)} there and {in_words(phase.usual)} on most ranks, "
        f"of a step of {in_words(step_seconds)}; look for other work on that machine, clocks and temperature"
    )
    if not all(rank.has_barriers for rank in figures):
        sentence += f"; if `{phase.name}` is where ranks wait for each other, StepTimer(barriers=True) makes sure"
    ranks = tuple(phase.ranks)
    return StragglerReport("slow-compute", sentence, figures, ranks, phase.name, lost_seconds=phase.excess)


def _everywhere(
    figures: tuple[RankFigures, ...],
    steps: list[list[float]],
    usual_wait: float,
    lost: float,
    step_seconds: float,
    matters: float,
) -> StragglerReport:
    led = _led(figures, steps, matters)
    # If all ranks wait equally long in the same steps, the slightly longest wait is chance.
    moves = bool(steps) and usual_wait < 0.8 * lost
    if moves:
        most = sorted(led.items(), key=lambda item: (-item[1], item[0]))[:4]
        shares = ", ".join(f"rank {rank} in {count / sum(led.values()):.0%}" for rank, count in most)
        opening = f"the straggler moves from step to step ({shares} of the slow ones)"
    else:
        opening = f"all ranks wait for data, {in_words(usual_wait)} and more"
    limits: dict[str, list[int]] = {}
    for rank in figures:
        if rank.limit not in (None, "none", "trainer"):
            limits.setdefault(str(rank.limit), []).append(rank.rank)
    named = "; ".join(f"the limit of {name_ranks(ranks)} is `{limit}`" for limit, ranks in limits.items())
    sentence = (
        f"{opening}; in all, a step of {in_words(step_seconds)} loses {in_words(lost)}: loading is too slow on all "
        f"ranks{'; ' + named if named else ''}"
    )
    return StragglerReport("everywhere", sentence, figures, moves=moves, lost_seconds=lost)


def _no_straggler(
    figures: tuple[RankFigures, ...], longest_wait: float, step_seconds: float, matters: float
) -> StragglerReport:
    waits = f"{in_words(longest_wait)} of a step of {in_words(step_seconds)}"
    if len(figures) == 1:
        return StragglerReport("none", f"there is one rank, and it waits {waits} for data", figures)
    sentence = f"no rank waits for data, at most {waits}"
    phases = _shared_phases(figures)
    if not phases:
        sentence += (
            "; whether one of them computes more slowly than the others cannot be told without phases: put "
            '`with timer("forward"):` and so on around the parts of the step'
        )
        return StragglerReport("unknown", sentence, figures)
    has_barriers = all(rank.has_barriers for rank in figures)
    by_phase = {name: [rank.phase_seconds[name] for rank in figures] for name in phases}
    # The range over all ranks, which chance alone widens: twice the threshold for one rank's distance from the median.
    unclear = [name for name, times in by_phase.items() if not has_barriers and max(times) - min(times) >= 2 * matters]
    if unclear:
        sentence += (
            f"; the ranks differ in {' and '.join(f'`{name}`' for name in unclear)}, and which of them compute and "
            "which wait for the others there cannot be told without StepTimer(barriers=True)"
        )
        return StragglerReport("unknown", sentence, figures)
    sentence += ", and no phase takes one rank longer than the others: no rank is slow"
    return StragglerReport("none", sentence, figures)
