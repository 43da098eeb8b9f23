"""The time of a training step with batches from a loader, against batches that lie on the device already.

All contestants read the same files and train the same network; they take turns, round by round, each with some steps
before its clock starts, so that nobody lives on what it had prepared while others ran.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import data
from place import Place, device_loader, endless, path_note, until_pinned
from rows import Measurement, NotMeasured, Outcome, say
from transfer import samples

GOAL_STEP = 1.01
CACHED = 4


class Files:
    """The same files for PyTorch's DataLoader."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(str(path) for path in folder.glob("*.npy"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number: int) -> Any:
        import numpy
        import torch

        return torch.from_numpy(numpy.load(self.paths[number])), number


def _on_device(batches: Iterator[Any], device: str) -> Iterator[Any]:
    """As one feeds a GPU from a pinning DataLoader."""
    for images, numbers in batches:
        yield images.to(device, non_blocking=True), numbers.to(device, non_blocking=True)


def _of_forebay(batches: Iterator[Any]) -> Iterator[Any]:
    while True:
        batch = next(batches)
        yield batch["array"], batch["index"]


def rounds_of(
    place: Place, rivals: dict[str, Callable[[], Iterator[Any]]]
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Seconds a step, round by round, of cached batches and of each contestant; and who failed, with the reason."""
    import torch
    from model import Trainer

    rounds, before, steps = place.many(3, 2), place.many(12, 6), place.many(30, 15)
    trainer = Trainer(place.device)
    feeds: dict[str, Iterator[Any]] = {}
    failed: dict[str, str] = {}
    seconds: dict[str, list[float]] = {name: [] for name in ("cached", *rivals)}
    for name, make in rivals.items():
        try:
            feeds[name] = make()
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}"[:200]
    kept = [(images.clone(), numbers % 1000) for images, numbers in (next(feeds["forebay"]) for _ in range(CACHED))]

    def cached() -> Iterator[Any]:
        while True:
            yield from kept

    feeds = {"cached": cached(), **feeds}
    for number in range(8):
        trainer.step(*kept[number % CACHED])
    torch.cuda.synchronize()
    for turn in range(rounds):
        for name, feed in feeds.items():
            if name in failed:
                continue
            try:
                for number in range(before + steps):
                    if number == before:
                        torch.cuda.synchronize()
                        begun = time.perf_counter()
                    images, numbers = next(feed)
                    trainer.step(images, numbers % 1000)
                    del images, numbers
                torch.cuda.synchronize()
                seconds[name].append((time.perf_counter() - begun) / steps)
            except Exception as error:
                if name in ("cached", "forebay"):
                    raise
                failed[name] = f"{type(error).__name__}: {error}"[:200]
                continue
            say(f"round {turn + 1} of {rounds}, {name}: {seconds[name][-1] * 1e3:.2f} ms a step")
    return seconds, failed


def _check_memory() -> None:
    import torch

    free, _ = torch.cuda.mem_get_info()
    if free < 24 << 30:
        raise NotMeasured(
            f"ResNet-50 at {data.BATCH_ROWS} images wants 24 GiB of the device; {free >> 30} GiB are free"
        )


def step_time(place: Place) -> Outcome:
    _check_memory()
    config = data.big_config(place.root, samples(place))
    with device_loader(place, config) as loader:
        batches = endless(loader)
        until_pinned(loader, batches)
        waited = loader.stats()["client"]["batches_waited_for"]
        seconds, _ = rounds_of(place, {"forebay": lambda: _of_forebay(batches)})
        waited = loader.stats()["client"]["batches_waited_for"] - waited
        note = path_note(loader)
        batches.close()
    ratios = [ours / cached for ours, cached in zip(seconds["forebay"], seconds["cached"])]
    ratio, step = median(ratios), median(seconds["cached"]) * 1e3
    note = f"{step:.1f} ms a step; rounds {', '.join(f'{one:.4f}' for one in ratios)}; {waited} waits; {note}"
    return Outcome(f"{ratio:.4f}", ratio <= GOAL_STEP, note, {"seconds": seconds})


def rivals(place: Place) -> Outcome:
    """The same with others, for comparison, in rounds with Forebay and cached batches."""
    import torch

    _check_memory()
    folder = data.big_images(place.root, samples(place))
    workers = max(1, min(16, len(os.sched_getaffinity(0)) - 1))

    def pytorch() -> Iterator[Any]:
        files: Any = Files(folder)
        loader = torch.utils.data.DataLoader(
            files,
            batch_size=data.BATCH_ROWS,
            shuffle=True,
            drop_last=True,
            num_workers=workers,
            pin_memory=True,
            persistent_workers=True,
        )
        return _on_device(endless(loader), place.device)

    def spdl() -> Iterator[Any]:
        return _on_device(_spdl(folder, workers), place.device)

    with device_loader(place, data.big_config(place.root, samples(place))) as ours:
        batches = endless(ours)
        until_pinned(ours, batches)
        contestants = {"forebay": lambda: _of_forebay(batches), "DataLoader": pytorch, "SPDL": spdl}
        seconds, failed = rounds_of(place, contestants)
        batches.close()
    parts = []
    for name in contestants:
        if name in failed:
            parts.append(f"{name} not measured ({failed[name]})")
        else:
            parts.append(f"{name} {median([a / b for a, b in zip(seconds[name], seconds['cached'])]):.3f}")
    note = (
        f"of cached batches' {median(seconds['cached']) * 1e3:.1f} ms a step; {workers} workers; pinned, non_blocking"
    )
    return Outcome(", ".join(parts), None, note, {"seconds": seconds, "failed": failed})


def _spdl(folder: Path, workers: int) -> Iterator[Any]:
    """Threads that read, and one that collates into pinned memory."""
    import numpy
    import torch
    from spdl.pipeline import PipelineBuilder

    paths = sorted(str(path) for path in folder.glob("*.npy"))

    def source() -> Iterator[int]:
        random = numpy.random.default_rng(3)
        while True:
            yield from random.permutation(len(paths)).tolist()

    def read(number: int) -> Any:
        return torch.from_numpy(numpy.load(paths[number])), number

    def collate(rows: Any) -> Any:
        images = torch.stack([image for image, _ in rows]).pin_memory()
        return images, torch.tensor([number for _, number in rows]).pin_memory()

    builder = PipelineBuilder().add_source(source()).pipe(read, concurrency=workers)
    pipeline = (
        builder.aggregate(data.BATCH_ROWS, drop_last=True).pipe(collate).add_sink(3).build(num_threads=workers + 1)
    )

    def batches() -> Iterator[Any]:
        with pipeline.auto_stop():
            yield from pipeline

    return batches()


MEASUREMENTS = [
    Measurement("ResNet-50 step, Forebay against cached batches", "≤ 1.01", step_time),
    Measurement("ResNet-50 step with other loaders, of cached batches' time", "", rivals, is_long=True),
]
