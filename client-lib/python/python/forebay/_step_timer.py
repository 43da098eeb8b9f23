"""Times a training step: the wait for the batch, the trainer's work, and the phases that the trainer names.

A timer belongs to one training thread of one rank. It communicates with other ranks only by the barriers that the user
requests; `_straggler` compares the ranks.
"""

import json
import math
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any, Optional

from ._durations import Durations, in_words
from ._gpu import cuda_device
from ._ragged import Ragged
from ._ranks import initialised_distributed

# The number of last steps whose times are kept one by one, to compare the ranks step by step.
RECENT_STEPS = 256
# The maximum number of phases whose events the GPU has not reached; further ones are dropped and counted. A host runs
# some hundred launches ahead of its GPU at most.
_MAX_PENDING_PHASES = 4096
# With this many pending phases, each phase also collects the finished ones.
_COLLECT_FROM = 64


class StepTimer:
    """Times a training loop: each wait for a batch, each step, and named phases within it.

        timer = forebay.StepTimer(loader)
        for batch in timer.steps():
            with timer("forward"):
                loss = model(batch)
            with timer("backward"):
                loss.backward()
        print(timer.report())

    A *wait* is one call of ``next``; a step's *work* is the time until the next call. The first wait is the loader's
    start and is reported separately. Memory use does not grow with the number of steps.

    On a GPU, CUDA events on the current stream time the phases, and the host does not wait before the report. Waits and
    steps are timed on the host, which runs ahead of the GPU: use their means over many steps.

    A phase that contains a collective (``backward`` under DDP, every phase under FSDP) includes the wait for the
    slowest rank. ``barriers=True`` separates the two by a barrier before each phase and one after it, which is timed as
    the wait for other ranks. Barriers slow training down and, on a GPU, make the host wait; use them for some hundred
    steps.

    Args:
        loader: the default loader of :meth:`steps`.
        device: the CUDA device that runs the phases. Default: the loader's ``device``. Without a CUDA device the
            host's clock times the phases.
        barriers: puts barriers of ``torch.distributed`` around the phases. Every rank must run the same phases.
        group: the process group of the barriers. Default: all ranks.
    """

    def __init__(
        self,
        loader: Optional[Iterable[Any]] = None,
        device: Any = None,
        barriers: bool = False,
        group: Any = None,
    ) -> None:
        self.loader = loader
        self.barriers = barriers
        self.group = group
        self._cuda = cuda_device(getattr(loader, "device", None) if device is None else device)
        self._spare_events: list[Any] = []
        self.first_wait_seconds: Optional[float] = None
        self.reset()

    def reset(self) -> None:
        """Discards all steps so far, such as the warm-up. Every rank must call it at the same step, or none."""
        self.wait = Durations()
        self.work = Durations()
        self.step = Durations()
        self.phases: dict[str, Durations] = defaultdict(Durations)
        self.barrier_waits: dict[str, Durations] = defaultdict(Durations)
        self.steps_done = 0
        self.phases_dropped = 0
        # The wait and the whole time of each of the last steps, oldest first.
        self.recent: deque[tuple[float, float]] = deque(maxlen=RECENT_STEPS)
        # The costs of the batches of the same steps: rows times the longest one; 0 without rows that differ in length.
        self.recent_costs: deque[int] = deque(maxlen=RECENT_STEPS)
        self._pending: deque[tuple[str, Any, Any]] = deque()

    def steps(self, loader: Optional[Iterable[Any]] = None) -> Iterator[Any]:
        """Iterates over the loader's batches and times each step. Holds no batch."""
        if loader is not None:
            self.loader = loader
        if self.loader is None:
            raise TypeError("this timer has no loader: steps(loader), or StepTimer(loader)")
        return _Steps(self, iter(self.loader))

    def __iter__(self) -> Iterator[Any]:
        return self.steps()

    def __bool__(self) -> bool:
        # A timer is truthy whatever the loader's length.
        return True

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def __call__(self, phase: str) -> "_Phase":
        """A context manager that times a phase of the step. Phases may be nested."""
        return _Phase(self, phase)

    def report(self) -> "StepReport":
        """The measurements so far. Waits for the GPU first if phases are timed on one."""
        if self._pending:
            self._wait_for_device()
        while self._pending:
            self._collect_oldest()
        return StepReport(
            steps=self.steps_done,
            first_wait_seconds=self.first_wait_seconds,
            wait=self.wait.to_dict(),
            work=self.work.to_dict(),
            step=self.step.to_dict(),
            phases={name: durations.to_dict() for name, durations in self.phases.items()},
            barrier_waits={name: durations.to_dict() for name, durations in self.barrier_waits.items()},
            phases_dropped=self.phases_dropped,
        )

    # Called by the iterator and the phases.

    def _step_ended(self, wait: Optional[float], work: float, cost: int) -> None:
        self.steps_done += 1
        self.work.record(work)
        if wait is not None:
            self.step.record(wait + work)
        self.recent.append((wait or 0.0, (wait or 0.0) + work))
        self.recent_costs.append(cost)

    def _waited(self, seconds: float) -> Optional[float]:
        """The wait to count for the step: None for the loader's start."""
        if self.first_wait_seconds is None:
            self.first_wait_seconds = seconds
            return None
        self.wait.record(seconds)
        return seconds

    def _phase_ended(self, name: str, seconds: float) -> None:
        self.phases[name].record(seconds)

    def _barrier(self) -> float:
        """Waits for the other ranks; the seconds that it took."""
        distributed = initialised_distributed()
        if distributed is None:
            return 0.0
        self._wait_for_device()
        begun = perf_counter()
        distributed.barrier(group=self.group)
        # NCCL's barrier runs on the device.
        self._wait_for_device()
        return perf_counter() - begun

    def _wait_for_device(self) -> None:
        if self._cuda is not None:
            import torch

            torch.cuda.synchronize(self._cuda)

    def _record_event(self) -> Any:
        import torch

        cuda: Any = torch.cuda
        event = self._spare_events.pop() if self._spare_events else cuda.Event(enable_timing=True)
        event.record(cuda.current_stream(self._cuda))
        return event

    def _phase_launched(self, name: str, begun: Any, ended: Any) -> None:
        self._pending.append((name, begun, ended))
        if len(self._pending) >= _COLLECT_FROM:
            while self._pending and self._pending[0][2].query():
                self._collect_oldest()
        if len(self._pending) > _MAX_PENDING_PHASES:
            self._pending.popleft()
            self.phases_dropped += 1

    def _collect_oldest(self) -> None:
        name, begun, ended = self._pending.popleft()
        self._phase_ended(name, begun.elapsed_time(ended) / 1e3)
        self._spare_events += (begun, ended)


class _Steps:
    """One iteration of a timed loader."""

    def __init__(self, timer: StepTimer, source: Iterator[Any]) -> None:
        self._timer = timer
        self._source = source
        self._taken_at: Optional[float] = None
        self._wait: Optional[float] = None
        self._cost = 0

    def __iter__(self) -> "_Steps":
        return self

    def __next__(self) -> Any:
        asked = perf_counter()
        if self._taken_at is not None:
            self._timer._step_ended(self._wait, asked - self._taken_at, self._cost)
            self._taken_at = None
        batch = next(self._source)
        self._taken_at = perf_counter()
        self._wait = self._timer._waited(self._taken_at - asked)
        self._cost = _cost_of(batch)
        return batch


def _cost_of(batch: Any) -> int:
    """The elements of the largest field whose rows differ in length, with rows padded to the longest.

    0 if there is no such field, or its lengths are not on the host.
    """
    costs = [0]
    for name, value in batch.items() if isinstance(batch, dict) else ():
        if f"{name}_lengths" in batch:
            # Padded by `batch.pad`.
            costs.append(math.prod(value.shape))
        elif isinstance(value, Ragged) and len(value) and _is_on_host(value.lengths):
            costs.append(len(value) * int(value.lengths.max()))
    return max(costs)


def _is_on_host(array: Any) -> bool:
    # NumPy's arrays have no type of device, or the word "cpu". To read an array of JAX is to wait for it.
    return not hasattr(array, "at") and getattr(getattr(array, "device", None), "type", "cpu") == "cpu"


class _Phase:
    """Times the block of its `with`."""

    def __init__(self, timer: StepTimer, name: str) -> None:
        self._timer = timer
        self._name = name
        self._begun: Any = None

    def __enter__(self) -> None:
        timer = self._timer
        if timer.barriers:
            timer._barrier()
        self._begun = perf_counter() if timer._cuda is None else timer._record_event()

    def __exit__(self, kind: object, *_: object) -> None:
        timer = self._timer
        if kind is not None:
            # A failed phase is not counted, and the other ranks may not reach the barrier.
            return
        if timer._cuda is None:
            timer._phase_ended(self._name, perf_counter() - self._begun)
        else:
            timer._phase_launched(self._name, self._begun, timer._record_event())
        if timer.barriers:
            timer.barrier_waits[self._name].record(timer._barrier())


@dataclass(frozen=True)
class StepReport:
    """The measurements of a :class:`forebay.StepTimer`, in seconds.

    Each dict of measurements has the keys count, total, mean, p50, p90 and p99; quantiles are accurate to 2.2 %.

    Attributes:
        steps: the number of completed steps.
        first_wait_seconds: the loader's start; None before the first batch.
        wait: the calls of ``next`` after the first.
        work: the times from a batch to the next call of ``next``.
        step: wait and work together.
        phases: the phases, by name.
        barrier_waits: the waits for other ranks after each phase, by name, with barriers.
        phases_dropped: the number of phases that were not counted because the GPU was too far behind.
    """

    steps: int
    first_wait_seconds: Optional[float]
    wait: dict[str, Any]
    work: dict[str, Any]
    step: dict[str, Any]
    phases: dict[str, dict[str, Any]]
    barrier_waits: dict[str, dict[str, Any]]
    phases_dropped: int

    def to_dict(self) -> dict[str, Any]:
        """All attributes as plain values."""
        return asdict(self)

    def to_json(self) -> str:
        """:meth:`to_dict` as one line of JSON."""
        return json.dumps(self.to_dict())

    def __str__(self) -> str:
        rows = [("step", self.step), ("  wait", self.wait), ("  work", self.work)]
        for name, figures in self.phases.items():
            rows.append((f"    {name}", figures))
            if name in self.barrier_waits:
                rows.append(("      then other ranks", self.barrier_waits[name]))
        width = max(len(name) for name, _ in rows)
        lines = [f"{'':{width}}  {'count':>7}  {'mean':>8}  {'p50':>8}  {'p90':>8}  {'p99':>8}"]
        for name, figures in rows:
            cells = "  ".join(f"{in_words(figures[key]):>8}" for key in ("mean", "p50", "p90", "p99"))
            lines.append(f"{name:{width}}  {figures['count']:>7}  {cells}")
        if self.first_wait_seconds is not None:
            lines.append(f"the first batch came after {in_words(self.first_wait_seconds)}")
        if self.phases_dropped:
            lines.append(f"{self.phases_dropped} phases were not counted: the GPU was too far behind")
        return "\n".join(lines)
