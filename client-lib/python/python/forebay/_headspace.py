"""Headspace: the share of a step that loading costs, measured by repeating batches that are already loaded.

The steps are timed in blocks. A step time is the interquartile mean of the blocks' means. A loader with several workers
delivers batches in bursts, so a median of single steps would ignore the steps that wait, and a median of few blocks
depends on how many bursts a block contains. A mean of all would include a checkpoint or other load on the machine. The
GPU is synchronised only between blocks: within a block the host runs ahead as it does in training.
"""

import gc
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import Any, Callable, Optional

from ._cache_loader import CacheLoader
from ._durations import in_words, middle_mean
from ._exceptions import EpochsFinished
from ._gpu import synchronise_all

# SPDL's thresholds: below the first a faster loader is not worth the work, above the second it is. The daemon's verdict
# and `forebay headspace` have the same.
NOT_WORTH_BELOW = 0.05
WORTH_ABOVE = 0.10
# Blocks of a phase: few, so that a block is longer than a burst of a loader with many workers.
_BLOCKS = 5
# A relative difference of the step times before and after the replay, or an uncertainty, that gets a note.
_DRIFT = 0.05


@dataclass(frozen=True)
class Headspace:
    """The result of :func:`forebay.headspace`. Times are seconds a step, each the interquartile mean over blocks.

    Attributes:
        step_seconds: with data, before and after the replay.
        step_seconds_without_loading: with the repeated batches.
        headspace: the share of the step that free data would save, 0 to 1; 0 if the replay was not faster.
        hours_saved: the hours saved over the remaining steps; None if their number is unknown.
        hours_remaining: the hours that those steps take with data; None likewise.
        headspace_at_least: the headspace by the shorter of the step times before and after the replay, less the
            uncertainty.
        headspace_at_most: the headspace by the longer one, plus the uncertainty.
        worth: ``"no"`` below 5 %, ``"yes"`` above 10 %, between them ``"maybe"``.
        clear: false if step times vary by more than 5 % and ``headspace_at_least`` and ``headspace_at_most`` give
            different values of ``worth``. The sentence then makes no claim.
        wait_seconds: the part of the difference that is waiting in ``next``.
        disturbance_seconds: the rest of the difference: the step itself is slower while the loader works.
        step_seconds_before: with data, before the replay.
        step_seconds_after: with data, after the replay; None with ``measure_after=False``.
        uncertainty: of the headspace: half the interquartile range of the blocks' step times, as a share of
            their mean; the larger one of the steps with data and the replayed steps.
        steps_measured: the numbers of steps with data and replayed, without warm-up.
        notes: what affected the measurement, if anything.
    """

    step_seconds: float
    step_seconds_without_loading: float
    headspace: float
    headspace_at_least: float
    headspace_at_most: float
    hours_saved: Optional[float]
    hours_remaining: Optional[float]
    worth: str
    clear: bool
    wait_seconds: float
    disturbance_seconds: float
    step_seconds_before: float
    step_seconds_after: Optional[float]
    uncertainty: float
    steps_measured: tuple[int, int]
    notes: tuple[str, ...] = field(default=())

    @property
    def sentence(self) -> str:
        """The result in one sentence."""
        verdict = {"no": "is not", "maybe": "may be", "yes": "is"}[self.worth]
        claim = f"making loading faster {verdict} worth the work" if self.clear else "no clear result, measure again"
        text = (
            f"{claim}: a step takes {in_words(self.step_seconds)} and would "
            f"take {in_words(self.step_seconds_without_loading)} if data were free, {_percent(self.headspace)} less "
            f"(± {_percent(self.uncertainty)})"
        )
        drift = _drift(self.step_seconds, self.step_seconds_before, self.step_seconds_after)
        if self.clear and max(self.uncertainty, drift) > _DRIFT:
            if self.worth == "no":
                text += f", at most {math.ceil(self.headspace_at_most * 100)} %"
            else:
                text += f", at least {math.floor(self.headspace_at_least * 100)} %"
        if self.hours_saved is not None and self.hours_remaining is not None:
            text += f", {_span(self.hours_saved)} of the remaining {_span(self.hours_remaining)}"
        saved = self.wait_seconds + self.disturbance_seconds
        if self.worth != "no" and saved > 0 and self.clear:
            text += (
                f"; of the {in_words(saved)}, {in_words(self.wait_seconds)} are waiting for the next batch and "
                f"{in_words(self.disturbance_seconds)} the loader slowing the step down"
            )
        return text

    def to_dict(self) -> dict[str, Any]:
        """All attributes and the sentence, as plain values."""
        return {
            **asdict(self),
            "steps_measured": {"with_data": self.steps_measured[0], "replayed": self.steps_measured[1]},
            "notes": list(self.notes),
            "sentence": self.sentence,
        }

    def to_json(self) -> str:
        """:meth:`to_dict` as one line of JSON."""
        return json.dumps(self.to_dict())

    def __str__(self) -> str:
        with_data, replayed = self.steps_measured
        lines = [
            f"step time with data     {in_words(self.step_seconds):>9}   ({with_data} steps)",
            f"step time, data free    {in_words(self.step_seconds_without_loading):>9}   ({replayed} steps, replayed)",
            f"headspace               {_percent(self.headspace):>9}   (± {_percent(self.uncertainty)})",
            f"  waiting for batches   {in_words(self.wait_seconds):>9}",
            f"  loader slows the step {in_words(self.disturbance_seconds):>9}",
        ]
        if self.hours_saved is not None and self.hours_remaining is not None:
            lines.append(f"time saved              {_span(self.hours_saved):>9}   (of {_span(self.hours_remaining)})")
        lines += [self.sentence, *(f"note: {note}" for note in self.notes)]
        return "\n".join(lines)


def headspace(
    make_loader: Callable[[], Iterable[Any]],
    step: Callable[[Any], Any],
    *,
    batches: int = 10,
    after: int = 100,
    steps: int = 200,
    warm_up: Optional[int] = None,
    measure_after: bool = True,
    remaining_steps: Optional[int] = None,
    remaining_epochs: Optional[float] = None,
) -> Headspace:
    """Measures how much faster training would be if loading were free. Works with any loader and any framework.

    Trains `after` steps on the loader's batches, then `steps` steps on copies of the first `batches` of them, with the
    loader dropped, then `after` steps with data again. The model trains on repeated batches: use a throw-away model. A
    loader whose epoch ends is iterated again. Under ``torch.distributed`` every rank must call this with the same
    numbers, and every rank's loader must deliver the same number of batches.

        result = forebay.headspace(lambda: forebay.torch.Loader("train.toml"), train_step, remaining_epochs=90)
        print(result)

    Args:
        make_loader: creates the loader, once for each of the two phases with data. A loader created elsewhere would
            continue to load during the replay.
        step: the trainer's whole step: copy to the device, forward, backward, optimizer.
        batches: the number of batches that are copied for the replay.
        after: the number of steps with data before the replay, and again after it.
        steps: the number of replayed steps.
        warm_up: the number of steps discarded at the start of each phase; in any case at least `batches`. Default: a
            fifth of `after`. Choose more than the loader prefetches: batches ready at the start do not show its speed.
        measure_after: False omits the third phase, which checks that nothing else changed meanwhile.
        remaining_steps: the number of steps for which the saved hours are computed.
        remaining_epochs: the same in epochs of ``len(loader)`` steps. Default of both: the loader's ``epochs``, if any.

    Raises:
        ValueError: too few steps for a measurement, the loader gives too few batches, or both `remaining_steps`
            and `remaining_epochs` are given.
        TypeError: `make_loader` is not a function.
    """
    if not callable(make_loader):
        raise TypeError("make_loader is a function that makes a loader, such as `lambda: Loader(...)`")
    if remaining_steps is not None and remaining_epochs is not None:
        raise ValueError("remaining_steps and remaining_epochs say the same; give one of them")
    left_out = max(after // 5 if warm_up is None else warm_up, batches)
    for name, count in (("after", after), ("steps", steps)):
        if count < left_out + _BLOCKS:
            raise ValueError(
                f"{name} is {count}, of which {left_out} are warm-up: at least {left_out + _BLOCKS} steps are needed; "
                f"raise {name}, or lower warm_up or batches"
            )

    loader = make_loader()
    hours_per_step_second = _remaining_steps(loader, remaining_steps, remaining_epochs)
    source = _epochs(loader, after)
    # Only the generator may hold the loader, so that it is dropped for the replay.
    del loader
    run = iter(CacheLoader(source, num_caches=batches, return_caches_after=after, stop_after=after + steps))
    before = _measure(run, step, after, left_out)
    replay = _measure(run, step, steps, left_out)
    del run, source
    with_data = before
    later: Optional[_Phase] = None
    if measure_after:
        # The replay's copies are garbage now and should not be collected during a step.
        gc.collect()
        later = _measure(_epochs(make_loader(), after), step, after, left_out)
        with_data = before.joined(later)
    return _judge(before, later, with_data, replay, hours_per_step_second)


@dataclass(frozen=True)
class _Phase:
    """The means of a phase's blocks: of the whole step, and of its wait."""

    step_means: list[float]
    wait_means: list[float]
    steps: int

    def joined(self, other: "_Phase") -> "_Phase":
        return _Phase(self.step_means + other.step_means, self.wait_means + other.wait_means, self.steps + other.steps)

    def relative_spread(self) -> float:
        """Half the interquartile range of the blocks, as a share of their mean."""
        ordered = sorted(self.step_means)
        quarter = len(ordered) // 4
        span = ordered[-1 - quarter] - ordered[quarter]
        return span / 2 / max(middle_mean(ordered), 1e-12)


def _measure(source: Iterator[Any], step: Callable[[Any], Any], count: int, left_out: int) -> _Phase:
    for _ in range(left_out):
        step(next(source))
    measured = count - left_out
    phase = _Phase([], [], measured)
    done = 0
    for block in range(1, _BLOCKS + 1):
        length = measured * block // _BLOCKS - done
        done += length
        waited = 0.0
        synchronise_all()
        begun = perf_counter()
        for _ in range(length):
            asked = perf_counter()
            batch = next(source)
            waited += perf_counter() - asked
            step(batch)
            # Not held while the next one is requested: that would be one slot more than in the trainer's loop.
            del batch
        synchronise_all()
        phase.step_means.append((perf_counter() - begun) / length)
        phase.wait_means.append(waited / length)
    return phase


def _epochs(loader: Iterable[Any], wanted: int) -> Iterator[Any]:
    """The loader's batches, epoch after epoch."""
    given = 0

    def count(batch: Any) -> Any:
        nonlocal given
        given += 1
        return batch

    while True:
        at_start = given
        try:
            # `map` keeps no batch, which a loop with `yield` would do.
            yield from map(count, loader)
        except EpochsFinished:
            break
        if given == at_start:
            break
    raise ValueError(
        f"the loader gave {given} batches, and {wanted} are needed before and after the replay; lower `after`, or give "
        "the loader more epochs"
    )


def _remaining_steps(loader: Any, steps: Optional[int], epochs: Optional[float]) -> Optional[float]:
    if steps is not None:
        return float(steps)
    if epochs is None:
        epochs = getattr(loader, "epochs", None)
    if not isinstance(epochs, (int, float)):
        return None
    try:
        return float(epochs) * len(loader)
    except TypeError:
        return None


def _judge(
    before: _Phase,
    later: Optional[_Phase],
    with_data: _Phase,
    replay: _Phase,
    remaining_steps: Optional[float],
) -> Headspace:
    step_seconds = middle_mean(with_data.step_means)
    free_seconds = middle_mean(replay.step_means)
    saved = max(step_seconds - free_seconds, 0.0)
    share = saved / step_seconds
    # At most the time saved: a wait that overlaps with work of the GPU costs nothing.
    waiting = min(max(middle_mean(with_data.wait_means) - middle_mean(replay.wait_means), 0.0), saved)
    before_seconds = middle_mean(before.step_means)
    after_seconds = None if later is None else middle_mean(later.step_means)
    uncertainty = max(with_data.relative_spread(), replay.relative_spread())
    ends = [step_seconds, before_seconds, before_seconds if after_seconds is None else after_seconds]
    least, most = (max(1 - free_seconds / end, 0.0) for end in (min(ends), max(ends)))
    least, most = max(least - uncertainty, 0.0), min(most + uncertainty, 1.0)
    drift = _drift(step_seconds, before_seconds, after_seconds)
    clear = max(uncertainty, drift) <= _DRIFT or _worth(least) == _worth(most)
    notes = []
    if after_seconds is not None and drift > _DRIFT:
        notes.append(
            f"the step with data took {in_words(before_seconds)} before the replay and {in_words(after_seconds)} after "
            "it: another change affected the measurement; "
            + ("the result holds for both" if clear else "measure again, or longer")
        )
    if uncertainty > _DRIFT and not clear:
        notes.append(
            f"step times vary by {_percent(uncertainty)}, too much for a clear result: raise `after` and `steps`, or "
            "keep other work off the machine"
        )
    return Headspace(
        step_seconds=step_seconds,
        step_seconds_without_loading=free_seconds,
        headspace=share,
        headspace_at_least=least,
        headspace_at_most=most,
        hours_saved=None if remaining_steps is None else saved * remaining_steps / 3600,
        hours_remaining=None if remaining_steps is None else step_seconds * remaining_steps / 3600,
        worth=_worth(share),
        clear=clear,
        wait_seconds=waiting,
        disturbance_seconds=saved - waiting,
        step_seconds_before=before_seconds,
        step_seconds_after=after_seconds,
        uncertainty=uncertainty,
        steps_measured=(with_data.steps, replay.steps),
        notes=tuple(notes),
    )


def _percent(share: float) -> str:
    return f"{share * 100:.1f} %"


def _drift(step: float, before: float, after: Optional[float]) -> float:
    """The difference of the steps before and after the replay, as a share of a step."""
    return 0.0 if after is None else abs(after - before) / max(step, 1e-12)


def _worth(share: float) -> str:
    return "no" if share < NOT_WORTH_BELOW else "yes" if share > WORTH_ABOVE else "maybe"


def _span(hours: float) -> str:
    """A part of a run in seconds, minutes, hours or days."""
    seconds = hours * 3600
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    units = (("min", 60, 3570.0), ("h", 3600, 172_800.0), ("days", 86_400, float("inf")))
    value, unit = next((seconds / length, name) for name, length, end in units if seconds < end)
    return f"{value:.1f} {unit}" if value < 9.95 else f"{value:.0f} {unit}"
