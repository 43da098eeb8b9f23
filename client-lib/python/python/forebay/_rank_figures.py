"""One rank's measurements of its steps and its loader, which the ranks exchange in one collective.

All values are of this rank only: measured where it does not wait for other ranks, or marked if it does.
"""

import socket
from dataclasses import asdict, dataclass, field
from typing import Any, Optional

from ._durations import typical
from ._step_timer import StepTimer

# The size of a slot is rounded up to pages, so the size of a smaller batch does not show its samples' sizes.
_MIN_BATCH_BYTES = 64 * 1024


@dataclass
class StageFigures:
    """One stage of the daemon: the mean seconds of a sample, and the maximum number of concurrent samples."""

    name: str
    seconds: float
    concurrency: int


@dataclass
class RankFigures:
    """The measurements of one rank.

    Attributes:
        step_seconds: a step, wait included; the same on all ranks that synchronise in a collective.
        wait_seconds: the step's wait for data, before any collective.
        phase_seconds: the phases' medians, in order of first use.
        has_barriers: whether barriers exclude waits for other ranks from the phases.
        waits_from_step: the number of the step of the first of `waits`.
        waits: the waits of the last steps; empty without a timer.
        costs: of the same steps the batch's rows times its longest row, 0 where rows do not differ in length.
        batch_samples: the samples of a full batch; None if the loader does not report it.
        batch_bytes: the mean bytes of a batch, in whole pages.
        sample_bytes: the mean bytes of a sample; None if batches are too small to tell.
        stages: the daemon's stages; the first one reads.
        limit: the limit that the daemon's verdict names.
        limit_sentence: the verdict's sentence.
        error: why the loader's measurements are missing.
    """

    rank: int
    host: str = ""
    step_seconds: float = 0.0
    wait_seconds: float = 0.0
    phase_seconds: dict[str, float] = field(default_factory=dict)
    has_barriers: bool = False
    waits_from_step: int = 0
    waits: list[float] = field(default_factory=list)
    costs: list[int] = field(default_factory=list)
    batch_samples: Optional[int] = None
    batch_bytes: Optional[float] = None
    sample_bytes: Optional[float] = None
    stages: list[StageFigures] = field(default_factory=list)
    limit: Optional[str] = None
    limit_sentence: Optional[str] = None
    error: Optional[str] = None

    def to_dict(self) -> dict[str, Any]:
        """The measurements as plain values, without `waits`, `costs`, `waits_from_step`, `sample_bytes` and
        `limit_sentence`; a stage's `seconds` are `ave_time` here."""
        values = asdict(self)
        for key in ("waits", "costs", "waits_from_step", "sample_bytes", "limit_sentence"):
            del values[key]
        for stage in values["stages"]:
            stage["ave_time"] = stage.pop("seconds")
        return values


def collect(rank: int, source: Any) -> RankFigures:
    """This rank's measurements, from a timer or a loader. Raises nothing, since other ranks wait in the collective."""
    figures = RankFigures(rank, socket.gethostname())
    loader = source
    try:
        if isinstance(source, StepTimer):
            _add_steps(figures, source)
            loader = source.loader
        if callable(getattr(loader, "stats", None)):
            _add_loader(figures, loader, loader.stats())
    except Exception as error:
        figures.error = f"{type(error).__name__}: {error}"
    return figures


def _add_steps(figures: RankFigures, timer: StepTimer) -> None:
    report = timer.report()
    recent = list(timer.recent)
    figures.waits = [wait for wait, _ in recent]
    figures.costs = list(timer.recent_costs)
    figures.waits_from_step = timer.steps_done - len(recent)
    figures.wait_seconds = typical(figures.waits)
    figures.step_seconds = typical([step for _, step in recent])
    figures.phase_seconds = {name: phase["p50"] for name, phase in report.phases.items()}
    figures.has_barriers = timer.barriers


def _add_loader(figures: RankFigures, loader: Any, stats: dict[str, Any]) -> None:
    client = stats["client"]
    batches = client["batches"]
    if not figures.waits and batches > 1:
        figures.wait_seconds = client["wait_seconds"]["after_start"] / (batches - 1)
        for session in stats["sessions"]:
            if session["stream"] == loader.stream and session["rank"] == loader.rank:
                figures.step_seconds = session["seconds"] / batches
    figures.batch_samples = loader.batch_size
    if batches:
        figures.batch_bytes = client["bytes"] / batches
        if figures.batch_bytes >= _MIN_BATCH_BYTES:
            figures.sample_bytes = figures.batch_bytes / max(loader.batch_size, 1)
    stages = next((stream["stages"] for stream in stats["streams"] if stream["name"] == loader.stream), stats["stages"])
    figures.stages = [
        StageFigures(stage["name"], stage["ave_time"], max(stage["concurrency"], 1))
        for stage in stages
        if stage["num_tasks"]
    ]
    figures.limit = stats["verdict"]["limit"]
    figures.limit_sentence = stats["verdict"]["sentence"]
