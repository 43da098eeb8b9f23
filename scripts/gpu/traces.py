"""Reads the traces that torch.profiler writes (Chrome's format): who waited, what was copied, when a stream was idle.

Pure: a trace is a list of dicts with times in microseconds. Events on the CPU have the thread as `tid`; a call of the
CUDA runtime or driver carries the `correlation` that the kernel or the copy which it started carries too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Event = dict[str, Any]

# Calls that make the host wait for the device. cudaMalloc and cudaFree may wait, too; a warm allocator calls neither.
WAITS = ("StreamSynchronize", "DeviceSynchronize", "EventSynchronize", "CtxSynchronize")
# The same by another way: a copy that is not asynchronous. `cudaMemcpyAsync` ends otherwise.
SLOW_COPIES = ("cudaMemcpy", "cuMemcpyHtoD_v2", "cuMemcpyDtoH_v2", "cudaMalloc", "cudaFree", "cudaHostAlloc")


@dataclass(frozen=True)
class Span:
    begin: float
    end: float


@dataclass(frozen=True)
class Copy:
    """A copy from the host to the device."""

    span: Span
    size_bytes: int
    stream: Any
    kind: str

    def gigabytes_per_second(self) -> float:
        return self.size_bytes / (self.span.end - self.span.begin) / 1e3


def load(path: Path) -> list[Event]:
    with path.open(encoding="utf-8", errors="replace") as file:
        trace = json.load(file)
    events = trace["traceEvents"] if isinstance(trace, dict) else trace
    return [event for event in events if event.get("ph") == "X"]


def _span(event: Event) -> Span:
    begin = float(event["ts"])
    return Span(begin, begin + float(event.get("dur", 0)))


def _argument(event: Event, name: str) -> Any:
    return (event.get("args") or {}).get(name)


def ranges(events: Iterable[Event], name: str) -> list[tuple[Any, Span]]:
    """What `record_function(name)` marked on the CPU, with the thread, in order."""
    found = [
        (event.get("tid"), _span(event))
        for event in events
        if event.get("name") == name and event.get("cat") == "user_annotation"
    ]
    return sorted(found, key=lambda item: item[1].begin)


def _is_call(event: Event) -> bool:
    return event.get("cat") in ("cuda_runtime", "cuda_driver")


def _calls_within(events: Sequence[Event], name: str) -> Iterator[tuple[int, Event]]:
    """The calls of CUDA that begin within these ranges, on their thread, with the number of the range."""
    marked = ranges(events, name)
    for event in events:
        if _is_call(event):
            begin = _span(event).begin
            for number, (tid, at) in enumerate(marked):
                if tid == event.get("tid") and at.begin <= begin < at.end:
                    yield number, event
                    break


def waits_within(events: Sequence[Event], name: str) -> list[str]:
    """The calls within these ranges, on their thread, that wait for the device or may do so."""
    calls = [str(event.get("name", "")) for _, event in _calls_within(events, name)]
    return [call for call in calls if call in SLOW_COPIES or any(wait in call for wait in WAITS)]


def copies_to_device(events: Iterable[Event], at_least_bytes: int) -> list[Copy]:
    """The copies from host to device of at least this size, in order."""
    found = []
    for event in events:
        name = str(event.get("name", ""))
        size = int(_argument(event, "bytes") or 0)
        if event.get("cat") == "gpu_memcpy" and "HtoD" in name and size >= at_least_bytes:
            found.append(Copy(_span(event), size, _argument(event, "stream"), name))
    return sorted(found, key=lambda copy: copy.span.begin)


def split_by_ranges(copies: Iterable[Copy], marked: Iterable[tuple[Any, Span]]) -> tuple[list[Copy], list[Copy]]:
    """The copies that began inside of the ranges, and the others. The host waits for a copy before its range ends."""
    spans = [span for _, span in marked]
    inside: list[Copy] = []
    outside: list[Copy] = []
    for copy in copies:
        is_inside = any(span.begin <= copy.span.begin < span.end for span in spans)
        (inside if is_inside else outside).append(copy)
    return inside, outside


def steps_on_device(events: Sequence[Event], name: str) -> list[Span]:
    """From the first kernel's begin to the last one's end, for the work that each of these ranges started."""
    step_of = {_argument(event, "correlation"): number for number, event in _calls_within(events, name)}
    step_of.pop(None, None)
    spans: dict[int, list[Span]] = {}
    for event in events:
        number = step_of.get(_argument(event, "correlation"), -1)
        if event.get("cat") == "kernel" and number >= 0:
            spans.setdefault(number, []).append(_span(event))
    steps = [Span(min(s.begin for s in found), max(s.end for s in found)) for found in spans.values()]
    return sorted(steps, key=lambda step: step.begin)


def gaps(steps: Sequence[Span]) -> list[Span]:
    return [Span(one.end, max(one.end, two.begin)) for one, two in zip(steps, steps[1:])]


def idle_because_of_copies(steps: Sequence[Span], copies: Sequence[Copy]) -> list[float]:
    """For each gap between steps the microseconds in which a copy ran that ended inside the gap, that is, that the next
    step waited for. A copy for a later step may run on; it delays nobody."""
    idle = []
    for gap in gaps(steps):
        ends = [copy for copy in copies if gap.begin < copy.span.end <= gap.end]
        idle.append(max((copy.span.end - max(gap.begin, copy.span.begin) for copy in ends), default=0.0))
    return idle
