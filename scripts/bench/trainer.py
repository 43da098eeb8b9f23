"""Plays a trainer on the processor, fed by one loader, and prints what its steps took as one line of JSON.

    python trainer.py JOB

A step waits for a batch, then does small tensor operations on one thread, then may sleep as a trainer does while a
device works. The wait is no part of the step's time. The loader may be put into a session or a control group of its
own; one that lives in the trainer's threads cannot be.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import process_tree
from figures import percentile
from peer_loaders import forebay as forebay_loader
from peer_loaders import pytorch, recipes, spdl
from peer_loaders.work import CROP, Work

# 300 operations on matrices of this many rows and columns take about 30 ms.
MATRIX = 136
WARM_UP_STEPS = 20


@dataclass(frozen=True)
class Job:
    """One run of a trainer with a loader."""

    loader: str
    # Where the loader is put: "" (stays with the trainer), "session", or a control group's file cgroup.procs.
    place: str
    data: str
    samples_per_step: int
    # Per step; 0 takes batches as fast as they come.
    operations: int
    # Slept after the operations.
    device_seconds: float
    seconds: float
    # A folder for a socket and a configuration.
    folder: str
    settings: dict[str, Any] = field(default_factory=dict)


def move_to(place: str) -> None:
    """Puts the calling process there, with what it starts from now on."""
    if place == "session":
        os.setsid()
    elif place:
        Path(place).write_text(str(os.getpid()))


class Move:
    """`move_to` as PyTorch calls it in each worker and SPDL in its subprocess."""

    def __init__(self, place: str) -> None:
        self.place = place

    def __call__(self, *_worker: int) -> None:
        move_to(self.place)


def forebay_batches(wanted: dict[str, Any], job: Job) -> Iterator[Any]:
    """From a private daemon, or from one that was started in the place that is asked for."""
    if not job.place:
        yield from forebay_loader.endless(wanted, "image")
        return
    socket, config = Path(job.folder) / "socket", Path(job.folder) / "train.toml"
    config.write_text(forebay_loader.toml({**wanted, "listen": {"socket": str(socket)}}))
    code = "import os, sys, trainer; trainer.move_to(sys.argv[1]); os.execv(sys.argv[2], sys.argv[2:])"
    command = [sys.executable, "-c", code, job.place, sys.executable, "-m", "forebay", "serve", str(config)]
    # Both start in a process group of their own, as a private daemon does; only `setsid` makes a session.
    daemon = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)}, stdout=sys.stderr)
    while not socket.exists():
        if daemon.poll() is not None:
            raise RuntimeError(f"forebay serve ended with status {daemon.returncode}")
        time.sleep(0.01)
    yield from forebay_loader.endless(str(socket), "image")


def batches(job: Job) -> Iterator[Any]:
    import numpy

    if job.loader == "cached":
        cached = [numpy.zeros((job.samples_per_step, 3, CROP, CROP), numpy.uint8) for _ in range(4)]
        yield from itertools.cycle(cached)
    # So many that no run comes to the end.
    settings = {**job.settings, "on_start": Move(job.place)}
    work = Work(job.data, "", job.samples_per_step, 1_000_000, len(os.sched_getaffinity(0)), settings)
    if job.loader in ("forebay", "forebay-bucket"):
        wanted = forebay_loader.configuration(work)
        if job.loader == "forebay-bucket":
            # Each run has another port, and so another dataset.
            wanted["dataset"]["index"] = f"{job.folder}/index"
        yield from forebay_batches(wanted, job)
    elif job.loader == "forebay-python":
        work = replace(work, settings={**settings, "recipe": "torchvision", "loader": "stage"})
        yield from forebay_batches(recipes.configuration_of(work), job)
    else:
        yield from (pytorch if job.loader == "pytorch" else spdl).batches(work)


def train(job: Job) -> dict[str, Any]:
    import torch

    torch.set_num_threads(1)
    weights = torch.randn(MATRIX, MATRIX) / MATRIX**0.5
    state = torch.randn(MATRIX, MATRIX)
    source = batches(job)
    steps: list[float] = []
    operations: list[int] = []
    waited, taken, me = 0.0, 0, os.getpid()
    clock = time.perf_counter_ns
    began = cpu = 0.0
    number = 0
    while number <= WARM_UP_STEPS or time.perf_counter() - began < job.seconds:
        if number == WARM_UP_STEPS:
            steps, operations, waited, taken = [], [], 0.0, 0
            cpu, began = process_tree.cpu_seconds(me), time.perf_counter()
        number += 1
        asked = time.perf_counter()
        batch = next(source)
        waited += time.perf_counter() - asked
        taken += len(batch)
        if job.operations:
            start = before = clock()
            for _ in range(job.operations):
                state = torch.tanh(state @ weights)
                now = clock()
                operations.append(now - before)
                before = now
            steps.append((before - start) / 1e9)
        if job.device_seconds:
            time.sleep(job.device_seconds)
        del batch
    seconds = time.perf_counter() - began
    figures = {
        "seconds": seconds,
        "steps_per_second": (number - WARM_UP_STEPS) / seconds,
        "samples_per_second": taken / seconds,
        "wait_share": waited / seconds,
        "cores_in_use": (process_tree.cpu_seconds(me) - cpu) / seconds,
    }
    if steps:
        figures["step_p50_seconds"], figures["step_p99_seconds"] = percentile(steps, 0.5), percentile(steps, 0.99)
        figures["operation_p999_seconds"] = percentile(operations, 0.999) / 1e9
    return figures


def main() -> None:
    process_tree.adopt_orphans()
    print(json.dumps(train(Job(**json.loads(sys.argv[1])))), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
