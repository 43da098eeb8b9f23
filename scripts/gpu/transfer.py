"""How fast bytes cross the bus, what `next()` costs the trainer's thread, and whether anybody waits for a copy."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median, quantiles
from typing import Any

import data
import traces
from place import Place, device_loader, endless, path_note, profiled, rust_example, until_pinned, upload_figures
from rows import Measurement, NotMeasured, Outcome, say

GOAL_BANDWIDTH = 0.97
GOAL_PYTHON_MICROSECONDS = 20.0
GOAL_RUST_MICROSECONDS = 3.0


def samples(place: Place) -> int:
    """Names in the set of big images: enough that few measurements cross an epoch's end."""
    return place.many(40_960, 10_240)


def _plain_copy(place: Place) -> tuple[Any, Any]:
    """A batch's bytes in pinned memory, and room for them on the device."""
    import torch

    source = torch.randint(0, 256, (data.BATCH_BYTES,), dtype=torch.uint8).pin_memory()
    return source, torch.empty(data.BATCH_BYTES, dtype=torch.uint8, device=place.device)


def _milliseconds(work: Callable[[], Any]) -> float:
    """The duration of what is queued on the current stream, between two events."""
    import torch

    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    work()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end))


def _lengths(spans: Sequence[traces.Span]) -> list[float]:
    return [span.end - span.begin for span in spans]


def _speed(milliseconds: float) -> float:
    return data.BATCH_BYTES / milliseconds / 1e6


def bandwidth(place: Place) -> Outcome:
    """Forebay's own copies, as the profiler saw the device make them, by turns with plain pinned ones of the size."""
    import torch

    rounds = place.many(40, 15)
    plain, target = _plain_copy(place)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    # One ahead: each `next` lets one copy begin, which has the bus to itself.
    with device_loader(place, data.big_config(place.root, samples(place)), ahead=1) as loader:
        batches = endless(loader)
        path = until_pinned(loader, batches)
        for _ in range(4):
            next(batches)
        time.sleep(0.3)
        with profiled(place.root) as profile:
            for _ in range(rounds):
                next(batches)
                # The copy is queued by a thread of its own, and the daemon fills the slot that came back.
                time.sleep(0.04)
                torch.cuda.synchronize()
                with torch.profiler.record_function("gpu-check.plain"), torch.cuda.stream(stream):
                    target.copy_(plain, non_blocking=True)
                    stream.synchronize()
        note = path_note(loader)
        batches.close()
    copies = traces.copies_to_device(profile.events, data.BATCH_BYTES * 9 // 10)
    ours_plain, ours = traces.split_by_ranges(copies, traces.ranges(profile.events, "gpu-check.plain"))
    if len(ours) < rounds // 2 or len(ours_plain) < rounds // 2:
        raise NotMeasured(f"the trace shows {len(ours)} copies of Forebay's and {len(ours_plain)} plain ones")
    ring = median([copy.gigabytes_per_second() for copy in ours])
    pinned = median([copy.gigabytes_per_second() for copy in ours_plain])
    note = f"{ring:.1f} of {pinned:.1f} GB/s; {ours[0].kind}; {note}"
    figures = {"ring_gb_per_second": ring, "pinned_gb_per_second": pinned, "path": path, "copies": len(ours)}
    return Outcome(f"{ring / pinned:.3f}", ring / pinned >= GOAL_BANDWIDTH, note, figures)


def bandwidth_of_the_memory(place: Place) -> Outcome:
    """The ring's memory registered here and copied by PyTorch, by turns with plain pinned memory, timed by events."""
    import forebay.torch
    import torch

    rounds = place.many(60, 20)
    plain, target = _plain_copy(place)
    runtime: Any = torch.cuda.cudart()
    with forebay.torch.Loader(data.big_config(place.root, samples(place))) as loader:
        batch = next(iter(loader))
        image = batch["array"].reshape(-1)
        # 1: portable, as Forebay registers it.
        status = int(runtime.cudaHostRegister(image.data_ptr(), image.numel(), 1))
        if status != 0:
            raise NotMeasured(f"cudaHostRegister refuses the ring's memory with error {status}")
        try:
            time.sleep(0.5)  # the daemon fills the other slots meanwhile
            ratios, ring, pinned = [], [], []
            for turn in range(rounds + 4):
                one = _milliseconds(partial(target.copy_, image, non_blocking=True))
                two = _milliseconds(partial(target.copy_, plain, non_blocking=True))
                if turn >= 4:
                    ring.append(_speed(one))
                    pinned.append(_speed(two))
                    ratios.append(two / one)
            is_whole = bool(torch.equal(target.copy_(image).cpu(), image))
        finally:
            torch.cuda.synchronize()
            runtime.cudaHostUnregister(image.data_ptr())
        del batch, image
    ratio = median(ratios)
    note = f"{median(ring):.1f} of {median(pinned):.1f} GB/s" + (
        "" if is_whole else "; the copy is not what was copied"
    )
    return Outcome(f"{ratio:.3f}", ratio >= GOAL_BANDWIDTH and is_whole, note, {"ring": ring, "pinned": pinned})


def next_in_python(place: Place) -> Outcome:
    """The call of `next` alone, with the batch before it dropped already."""
    import torch

    turns = place.many(400, 120)
    with device_loader(place, data.big_config(place.root, samples(place))) as loader:
        batches = iter(loader)
        until_pinned(loader, batches)
        for _ in range(6):
            next(batches)
            time.sleep(0.03)
        waited = loader.stats()["client"]["batches_waited_for"]
        times, drops = [], []
        for _ in range(turns):
            time.sleep(0.02)
            begin = time.perf_counter_ns()
            batch = next(batches, None)
            taken = time.perf_counter_ns()
            if batch is None:
                batches = iter(loader)
                continue
            # What reads it is queued before it is dropped, as in training.
            next(iter(batch.values())).view(-1)[:1].clone()
            before = time.perf_counter_ns()
            del batch
            drops.append((time.perf_counter_ns() - before) / 1e3)
            times.append((taken - begin) / 1e3)
        waited = loader.stats()["client"]["batches_waited_for"] - waited
        torch.cuda.synchronize()
        note = path_note(loader)
    middle, slow = median(times), quantiles(times, n=100)[98]
    note = (
        f"median of {len(times)}; p99 {slow:.1f} µs; the drop {median(drops):.1f} µs; {waited} were waited for; {note}"
    )
    figures = {"median_microseconds": middle, "p99_microseconds": slow, "drop_microseconds": median(drops)}
    return Outcome(f"{middle:.1f} µs", middle <= GOAL_PYTHON_MICROSECONDS, note, figures)


def next_in_rust(place: Place) -> Outcome:
    """The same in Rust, over batches that were ready."""
    config = data.write_toml(place.root, "big", data.big_config(place.root, samples(place)))
    found = rust_example(place, "latency", config, place.many(400, 120), 20)
    if not found["batches"]:
        raise NotMeasured("no batch was ready when it was asked for: the data does not come fast enough here")
    middle = found["median_nanoseconds"] / 1e3
    note = f"median of {found['batches']}; p99 {found['p99_nanoseconds'] / 1e3:.1f} µs; path {found['path']}"
    return Outcome(f"{middle:.2f} µs", middle <= GOAL_RUST_MICROSECONDS, note, found)


def no_waits(place: Place) -> Outcome:
    """No call in `next` waits: the trace shows none, and `next` returns while the stream before it is busy."""
    import torch

    turns = place.many(60, 30)
    with device_loader(place, data.big_config(place.root, samples(place))) as loader:
        batches = endless(loader)
        until_pinned(loader, batches)
        for _ in range(8):
            next(batches)
            time.sleep(0.03)
        with profiled(place.root) as profile:
            for _ in range(turns):
                time.sleep(0.02)
                with torch.profiler.record_function("forebay.next"):
                    next(batches)
            with torch.profiler.record_function("gpu-check.known"):
                torch.cuda.synchronize()
        early, busy = 0, 8
        for _ in range(busy):
            time.sleep(0.1)
            done = torch.cuda.Event()
            torch.cuda._sleep(200_000_000)  # about 0.1 s
            done.record()
            next(batches)
            early += not done.query()
            torch.cuda.synchronize()
        batches.close()
    if not traces.waits_within(profile.events, "gpu-check.known"):
        raise NotMeasured("the trace does not show a synchronisation that is known to be there")
    calls = traces.waits_within(profile.events, "forebay.next")
    seen = len(traces.ranges(profile.events, "forebay.next"))
    value = f"{len(calls)} in {seen} calls"
    note = f"{early} of {busy} returned while the stream was busy"
    if calls:
        note = f"{', '.join(sorted(set(calls)))}; {note}"
    return Outcome(value, not calls and early == busy and seen == turns, note, {"calls": calls})


def _matmuls(milliseconds: float, device: str) -> tuple[Any, Any, int]:
    """Matrices, and how many of their products take about so long."""
    import torch

    one = torch.randn(4096, 4096, device=device, dtype=torch.bfloat16)
    out = torch.empty_like(one)

    def multiply() -> None:
        for _ in range(40):
            torch.mm(one, one, out=out)

    multiply()
    return one, out, max(4, round(40 * milliseconds / _milliseconds(multiply)))


def idle_between_steps(place: Place) -> Outcome:
    """How long the trainer's stream stood still for a copy, in a trace of steps that take longer than their copy."""
    import torch

    steps, step_ms = place.many(40, 20), 60.0
    one, out, products = _matmuls(step_ms, place.device)
    config = data.big_config(place.root, samples(place))
    with device_loader(place, config) as loader:
        batches = endless(loader)
        until_pinned(loader, batches)
        time.sleep(1.0)
        sink = torch.zeros(1, device=place.device)

        def run(take: Any, count: int, name: str) -> None:
            behind: list[Any] = []
            for _ in range(count):
                batch = take()
                with torch.profiler.record_function(name):
                    sink.add_(next(iter(batch.values())).view(-1)[:1024].float().sum())
                    for _ in range(products):
                        torch.mm(one, one, out=out)
                    behind.append(torch.cuda.Event())
                    behind[-1].record()
                del batch
                if len(behind) > 2:
                    # Two steps are queued, so that the device never waits for this thread.
                    behind.pop(0).synchronize()

        cached = next(batches)
        run(lambda: next(batches), 3, "gpu-check.warm")
        run(lambda: cached, 3, "gpu-check.warm")
        torch.cuda.synchronize()
        waited = loader.stats()["client"]["batches_waited_for"]
        with profiled(place.root) as profile:
            run(lambda: next(batches), steps, "gpu-check.step")
            torch.cuda.synchronize()
            run(lambda: cached, steps, "gpu-check.cached")
        waited = loader.stats()["client"]["batches_waited_for"] - waited
        note = path_note(loader)
        batches.close()
    fed = traces.steps_on_device(profile.events, "gpu-check.step")
    kept = traces.steps_on_device(profile.events, "gpu-check.cached")
    copies = traces.copies_to_device(profile.events, data.BATCH_BYTES * 9 // 10)
    if len(fed) < steps or len(kept) < steps or not copies:
        raise NotMeasured(f"the trace shows {len(fed)} of {steps} steps and {len(copies)} copies")
    idle = traces.idle_because_of_copies(fed, copies)
    gap, gap_cached = _lengths(traces.gaps(fed)), _lengths(traces.gaps(kept))
    copy_ms = median(_lengths([copy.span for copy in copies])) / 1e3
    step = median(_lengths(fed)) / 1e3
    worst, total = max(idle), sum(idle)
    note = (
        f"{len(idle)} gaps of {median(gap):.1f} µs (with a cached batch {median(gap_cached):.1f} µs); "
        f"step {step:.1f} ms, copy {copy_ms:.2f} ms; worst {worst:.1f} µs; {waited} batches were waited for; {note}"
    )
    figures = {"idle_microseconds": idle, "gaps": gap, "gaps_cached": gap_cached, "step_ms": step, "copy_ms": copy_ms}
    return Outcome(f"{total / len(idle):.2f} µs a step", total == 0, note, figures)


def bytes_over_the_bus(place: Place) -> Outcome:
    """What the device's copies of one image batch weigh when it finishes them, against float32 from the host."""
    form = {"dtype": "float32", "layout": "NCHW", "mean": data.MEAN, "std": data.STD}
    told: dict[str, float] = {}
    seen: dict[str, float] = {}
    for where in ("cpu", "gpu"):
        config = data.photo_config(place.root, {**form, "on": where}, size=224, rows=64)
        config["order"] = {"seed": 10}
        with device_loader(place, config) as loader:
            batches = endless(loader)
            next(batches)
            try:
                with profiled(place.root) as profile:
                    for _ in range(12):
                        next(batches)
                copies = traces.copies_to_device(profile.events, 1 << 20)
                if copies:
                    seen[where] = median([float(copy.size_bytes) for copy in copies])
            except NotMeasured as reason:
                say(str(reason))
            figures = upload_figures(loader)
            told[where] = figures["bytes"] / figures["batches"]
            batches.close()
    ratio = told["gpu"] / told["cpu"]
    note = f"{told['gpu'] / 1e6:.2f} of {told['cpu'] / 1e6:.2f} MB a batch, labels included"
    if len(seen) == 2:
        ratio = max(ratio, seen["gpu"] / seen["cpu"])
        note += f"; in the trace {seen['gpu'] / 1e6:.2f} of {seen['cpu'] / 1e6:.2f} MB"
    return Outcome(f"{ratio:.3f}", round(ratio, 2) <= 0.25, note, {"told": told, "seen": seen})


MEASUREMENTS = [
    Measurement("host-to-device bandwidth from ring slots, 38 MB batches", "≥ 0.97 of plain pinned", bandwidth),
    Measurement("bandwidth of the ring's memory alone", "≥ 0.97 of plain pinned", bandwidth_of_the_memory),
    Measurement("next() in Python, data ready", "≤ 20 µs", next_in_python),
    Measurement("next() in Rust, data ready", "≤ 3 µs", next_in_rust),
    Measurement("calls in next() that wait for the device", "0", no_waits),
    Measurement("trainer's stream idle because of a copy", "0", idle_between_steps),
    Measurement('bytes over the bus, on = "gpu" against float32', "0.25", bytes_over_the_bus),
]
