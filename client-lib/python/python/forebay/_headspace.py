"""Headspace: the share of a step that loading costs, measured by a run whose data are free for a while.

The steps are timed in blocks. A step time is the mean of the middle half of the blocks' means. A loader with several
workers gives its batches in bursts: a median of single steps would show the steps without a wait and forget the others,
and a median of blocks would choose between those with two bursts and those with three. A mean of all would count a
checkpoint or a busy neighbour. A GPU is waited for at the edges of blocks alone, so within them the host runs ahead
as it does in training.
"""

import gc
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import Any, Callable, Optional

from ._cache_loader import CacheLoader
from ._durations import in_words, middle_mean
from ._exceptions import EpochsFinished
from ._gpu import synchronise_all

# SPDL's rule: below, a faster loader is not worth the work; above, it is.
NOT_WORTH_BELOW = 0.05
WORTH_ABOVE = 0.10
# Blocks a phase: few, so that a block is longer than a burst of a loader with many workers.
_BLOCKS = 5
# A difference of step times before and after that the result should not hide.
_DRIFT = 0.05


@dataclass(frozen=True)
class Headspace:
    """What :func:`forebay.headspace` found. Times are seconds a step, each the mean of the middle half of blocks.

    Attributes:
        step_seconds: with data: over the steps before and after the replay.
        step_seconds_without_loading: of the replayed batches.
        headspace: the share of the step that free data would save, 0 to 1; 0 where the replay was not faster.
        hours_saved: the hours that this is over the remaining steps; None where their number is not known.
        hours_remaining: what those steps take with data; None likewise.
        worth: ``"no"`` below 5 %, ``"yes"`` above 10 %, between them ``"maybe"``.
        wait_seconds: how much of the difference is waiting in ``next``.
        disturbance_seconds: the rest of it: the step itself is slower while the loader works.
        step_seconds_before: with data, before the replay.
        step_seconds_after: with data, after it; None where that was left out.
        uncertainty: of the headspace, as a share: half the spread of the middle half of the blocks.
        steps_measured: with data and replayed, warm-up left out.
        notes: what makes the result doubtful, if anything.
    """

    step_seconds: float
    step_seconds_without_loading: float
    headspace: float
    hours_saved: Optional[float]
    hours_remaining: Optional[float]
    worth: str
    wait_seconds: float
    disturbance_seconds: float
    step_seconds_before: float
    step_seconds_after: Optional[float]
    uncertainty: float
    steps_measured: tuple[int, int]
    notes: tuple[str, ...] = field(default=())

    @property
    def sentence(self) -> str:
        """The result for a person, in one sentence."""
        opening = {
            "no": "making loading faster is not worth the work",
            "maybe": "making loading faster may be worth the work",
            "yes": "making loading faster is worth the work",
        }[self.worth]
        text = (
            f"{opening}: a step takes {in_words(self.step_seconds)} and would take "
            f"{in_words(self.step_seconds_without_loading)} if data were free, {_percent(self.headspace)} less (± "
            f"{_percent(self.uncertainty)})"
        )
        if self.hours_saved is not None and self.hours_remaining is not None:
            text += f", {_hours(self.hours_saved)} of the remaining {_hours(self.hours_remaining)} hours"
        saved = self.wait_seconds + self.disturbance_seconds
        if self.worth != "no" and saved > 0:
            text += (
                f"; of the {in_words(saved)}, {in_words(self.wait_seconds)} are waiting for the next batch and "
                f"{in_words(self.disturbance_seconds)} the loader slowing the step down"
            )
        return text

    def to_dict(self) -> dict[str, Any]:
        """Every figure and the sentence, as plain values."""
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
            lines.append(f"hours saved             {_hours(self.hours_saved):>9}   (of {_hours(self.hours_remaining)})")
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
    """Measures what training would gain if loading were free: works with any loader and any framework.

    Trains `after` steps on the loader's batches, then `steps` on the first `batches` of them again and again, with the
    loader dropped, then `after` steps with data again. This changes the model and trains on repeated batches: call it
    with a model to throw away. A source that ends is iterated again. Under ``torch.distributed`` every rank calls it
    with the same numbers, and every rank's loader must last for the same number of steps.

        result = forebay.headspace(lambda: forebay.torch.Loader("train.toml"), train_step, remaining_epochs=90)
        print(result)

    Args:
        make_loader: makes the loader, once for each of the two phases with data. It should be made in there, so that
            it ends when it is dropped.
        step: what the trainer does with a batch, whole: copy to the device, forward, backward, optimizer.
        batches: how many batches are kept for the replay, as copies.
        after: the steps with data before the replay; after it, as many again.
        steps: the replayed steps.
        warm_up: steps that are left out at the start of each phase; left out: a fifth of `after`, and at least
            `batches`. Take more than the loader reads ahead: what it had ready at the start says nothing of its speed.
        measure_after: False leaves the third phase out, and with it the check that nothing else changed meanwhile.
        remaining_steps: for the hours that free data would save.
        remaining_epochs: the same in epochs of ``len(loader)`` steps. Left out both: a loader's own `epochs`, if it
            has them.

    Raises:
        ValueError: too few steps for a measurement, or the loader gives too few batches.
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
    # The generator has it; this frame must not keep it through the replay.
    del loader
    run = iter(CacheLoader(source, num_caches=batches, return_caches_after=after, stop_after=after + steps))
    before = _measure(run, step, after, left_out)
    replay = _measure(run, step, steps, left_out)
    del run, source
    with_data = before
    later: Optional[_Phase] = None
    if measure_after:
        # What the replay kept is garbage now, and should not be collected within a step.
        gc.collect()
        later = _measure(_epochs(make_loader(), after), step, after, left_out)
        with_data = before.joined(later)
    return _judge(before, later, with_data, replay, hours_per_step_second)


@dataclass(frozen=True)
class _Phase:
    """Means of blocks: of the whole step, and of the wait within it."""

    step_means: list[float]
    wait_means: list[float]
    steps: int

    def joined(self, other: "_Phase") -> "_Phase":
        return _Phase(self.step_means + other.step_means, self.wait_means + other.wait_means, self.steps + other.steps)

    def relative_spread(self) -> float:
        """Half of what the middle half of the blocks spans, as a share of their mean."""
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
            # Else it would be held while the next one is asked for, one slot more than the trainer's own loop holds.
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
    # Of the wait only what the step gains without it: what passes while the GPU works costs nothing.
    waiting = min(max(middle_mean(with_data.wait_means) - middle_mean(replay.wait_means), 0.0), saved)
    before_seconds = middle_mean(before.step_means)
    after_seconds = None if later is None else middle_mean(later.step_means)
    notes = []
    if after_seconds is not None and abs(after_seconds - before_seconds) > _DRIFT * step_seconds:
        notes.append(
            f"the step with data took {in_words(before_seconds)} before the replay and {in_words(after_seconds)} after "
            "it: another change affected the measurement; measure again, or longer"
        )
    uncertainty = max(with_data.relative_spread(), replay.relative_spread())
    if uncertainty > _DRIFT:
        notes.append(
            f"step times vary by {_percent(uncertainty)}, as much as what is asked: raise `after` and `steps`, or keep "
            "other work off the machine"
        )
    return Headspace(
        step_seconds=step_seconds,
        step_seconds_without_loading=free_seconds,
        headspace=share,
        hours_saved=None if remaining_steps is None else saved * remaining_steps / 3600,
        hours_remaining=None if remaining_steps is None else step_seconds * remaining_steps / 3600,
        worth="no" if share < NOT_WORTH_BELOW else "yes" if share > WORTH_ABOVE else "maybe",
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


def _hours(hours: float) -> str:
    return f"{hours:.2f}" if hours < 1 else f"{hours:.1f}"
