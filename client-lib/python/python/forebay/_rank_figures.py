"""What one rank tells the others of its steps and its loader, as plain values that travel in one collective.

Everything in it is the rank's own: measured where it does not wait for other ranks, or marked where it does.
"""

import socket
from dataclasses import dataclass, field
from typing import Any, Optional

from ._durations import typical
from ._step_timer import StepTimer

# A slot is whole pages, so a smaller batch's bytes are mostly rounding.
_BYTES_THAT_SPEAK = 64 * 1024


@dataclass
class StageFigures:
    """One stage of the daemon: seconds a sample, and how many samples it does at once."""

    name: str
    seconds: float
    concurrency: int


@dataclass
class RankFigures:
    """One rank.

    Attributes:
        step_seconds: a step, wait included; the same on all ranks where a collective holds them together.
        wait_seconds: of it the wait for data, before any collective.
        phase_seconds: the phases' medians, in the order in which they first came.
        has_barriers: whether the phases are free of waits for other ranks.
        waits_from_step: the number of the step that the first of `waits` belongs to.
        waits: of the last steps, one by one; empty where there was no timer.
        batch_samples: of a full batch; None where the loader does not say.
        batch_bytes: of a batch, in the mean, in whole pages.
        sample_bytes: of a sample; None where batches are so small that their pages say nothing of it.
        stages: the daemon's; the first reads.
        limit: the daemon's verdict, in a word.
        limit_sentence: the same in words.
        error: why the loader's figures are missing.
    """

    rank: int
    host: str = ""
    step_seconds: float = 0.0
    wait_seconds: float = 0.0
    phase_seconds: dict[str, float] = field(default_factory=dict)
    has_barriers: bool = False
    waits_from_step: int = 0
    waits: list[float] = field(default_factory=list)
    batch_samples: Optional[int] = None
    batch_bytes: Optional[float] = None
    sample_bytes: Optional[float] = None
    stages: list[StageFigures] = field(default_factory=list)
    limit: Optional[str] = None
    limit_sentence: Optional[str] = None
    error: Optional[str] = None

    def to_dict(self) -> dict[str, Any]:
        """All but the single waits, as plain values."""
        return {
            "rank": self.rank,
            "host": self.host,
            "step_seconds": self.step_seconds,
            "wait_seconds": self.wait_seconds,
            "phase_seconds": dict(self.phase_seconds),
            "has_barriers": self.has_barriers,
            "batch_samples": self.batch_samples,
            "batch_bytes": self.batch_bytes,
            "stages": [
                {"name": stage.name, "ave_time": stage.seconds, "concurrency": stage.concurrency}
                for stage in self.stages
            ],
            "limit": self.limit,
            "error": self.error,
        }


def collect(rank: int, source: Any) -> RankFigures:
    """This rank's figures from a timer or a loader. It raises nothing: the other ranks wait in the collective."""
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
    figures.waits_from_step = timer.steps_done - len(recent)
    figures.wait_seconds = typical(figures.waits)
    figures.step_seconds = typical([step for _, step in recent])
    figures.phase_seconds = {name: phase["p50"] for name, phase in report.phases.items()}
    figures.has_barriers = timer.barriers


def _add_loader(figures: RankFigures, loader: Any, stats: dict[str, Any]) -> None:
    client = stats["client"]
    batches = client["batches"]
    session = next(
        (
            session
            for session in stats["sessions"]
            if session["stream"] == loader.stream and session["rank"] == loader.rank
        ),
        None,
    )
    if not figures.waits and batches > 1:
        # The client leaves the first wait, its start, out of the total.
        figures.wait_seconds = client["wait_seconds"]["total"] / (batches - 1)
        if session is not None:
            figures.step_seconds = session["seconds"] / batches
    figures.batch_samples = loader.batch_size
    if batches:
        figures.batch_bytes = client["bytes"] / batches
        if figures.batch_bytes >= _BYTES_THAT_SPEAK:
            figures.sample_bytes = figures.batch_bytes / max(loader.batch_size, 1)
    stages = next((stream["stages"] for stream in stats["streams"] if stream["name"] == loader.stream), stats["stages"])
    figures.stages = [
        StageFigures(stage["name"], stage["ave_time"], max(stage["concurrency"], 1))
        for stage in stages
        if stage["num_tasks"]
    ]
    figures.limit = stats["verdict"]["limit"]
    figures.limit_sentence = stats["verdict"]["sentence"]
