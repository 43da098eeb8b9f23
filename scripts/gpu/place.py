"""Where a measurement runs: the device, the data's folder, the options; and the few things that several of them do."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import traces
from rows import NotMeasured, say

PINS = ("auto", "register", "stage", "off")


@dataclass(frozen=True)
class Place:
    device: str
    root: Path
    is_quick: bool
    binary: Path | None
    """The Rust example `device`."""

    def many(self, full: int, quick: int) -> int:
        """A number that --quick makes smaller."""
        return quick if self.is_quick else full


def device_loader(place: Place, config: Any, **options: Any) -> Any:
    import forebay.torch

    return forebay.torch.Loader(config, device=options.pop("device", place.device), **options)


def endless(loader: Any) -> Generator[Any, None, None]:
    """Batches over the epochs' ends. `yield from` keeps no batch, which a loop here would do."""
    while True:
        yield from loader


def upload_figures(loader: Any) -> dict[str, Any]:
    """What uploading did: path, reason, batches, bytes, staging_seconds."""
    figures: dict[str, Any] = loader.stats()["upload"]
    return figures


def until_pinned(loader: Any, batches: Iterator[Any], seconds: float = 15.0) -> str:
    """Takes batches until the ring is pinned, or it is clear that it will not be; gives the path.

    Some are held at once then, so that PyTorch's allocator has room for all that come later: asking the driver for more
    may wait for the device.
    """
    end = time.monotonic() + seconds
    while True:
        next(batches)
        path = str(upload_figures(loader)["path"])
        if path != "staged" or time.monotonic() > end:
            held = [next(batches) for _ in range(4)]
            del held
            return path
        time.sleep(0.05)


def rust_example(place: Place, *arguments: Any) -> dict[str, Any]:
    """The last line of JSON that the Rust example `device` prints."""
    if place.binary is None:
        raise NotMeasured("the pack holds no Rust example")
    command = [str(place.binary), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    if not done.stdout.strip():
        raise RuntimeError(f"the Rust example ended with status {done.returncode}: {done.stderr.strip()[-600:]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def path_note(loader: Any) -> str:
    """How batches came to the device, with the reason where it is not the straight way."""
    figures = upload_figures(loader)
    return f"path {figures['path']}" + (f": {figures['reason']}" if figures.get("reason") else "")


class Profiled:
    """The events of a profile, once it has ended."""

    def __init__(self) -> None:
        self.events: list[traces.Event] = []


@contextmanager
def profiled(root: Path) -> Iterator[Profiled]:
    """Profiles what happens inside on the CPU and the device."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    result = Profiled()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        yield result
        torch.cuda.synchronize()
    with tempfile.NamedTemporaryFile(dir=root, suffix=".json") as file:
        profiler.export_chrome_trace(file.name)
        result.events = traces.load(Path(file.name))
    if not any(event.get("cat") in ("kernel", "gpu_memcpy") for event in result.events):
        raise NotMeasured("the profiler shows nothing of the device here (no CUPTI, or no right to use it)")


class Progress:
    """A line every few seconds, for parts that take long."""

    def __init__(self, what: str, total: int, every_seconds: float = 10.0) -> None:
        self.what, self.total, self.every = what, total, every_seconds
        self.told = time.monotonic()

    def at(self, done: int) -> None:
        """Tells how far it is, when it is time to."""
        if time.monotonic() - self.told >= self.every:
            self.told = time.monotonic()
            say(f"{self.what}: {done:,} of {self.total:,}")
