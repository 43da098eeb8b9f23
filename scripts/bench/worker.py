"""Runs one loader in its own environment and prints what it took, as one line of JSON.

    python worker.py MODULE FUNCTION WORK WARM_UP

WORK is `Work` as JSON. The first WARM_UP batches are taken and not timed: they bear the start of processes and threads
and what some loaders compile at first use. The time to the first batch is told apart from that.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from typing import Any

import process_tree
from peer_loaders.work import Work


def check(batch: Any, number: int, work: Work, first: Any) -> None:
    """A batch must be what the standard work is: a loader that delivers less is no faster."""
    if not batch.flags.c_contiguous or len(batch) != work.batch_size:
        raise ValueError(f"batch {number} has shape {batch.shape}, contiguous: {batch.flags.c_contiguous}")
    if first is not None and (batch.shape, batch.dtype) != first:
        raise ValueError(f"batch {number} is {batch.shape} of {batch.dtype}; the first was {first}")


def check_pixels(batch: Any) -> None:
    """Crops are 224 × 224 × 3, in either layout, and show something."""
    if tuple(sorted(batch.shape[1:])) != (3, 224, 224):
        raise ValueError(f"no crops of 224 × 224: {batch.shape}")
    if float(batch[: min(len(batch), 8)].std()) < 0.1:
        raise ValueError("the crops are empty")


def measure(module: Any, function: str, work: Work, warm_up: int) -> dict[str, Any]:
    process_tree.adopt_orphans()
    me = os.getpid()
    begun = time.perf_counter()
    iterator = iter(getattr(module, function)(work))
    batch = next(iterator)
    to_first = time.perf_counter() - begun
    first = batch.shape, batch.dtype
    if module.__name__ != "peer_loaders.npy" and batch.ndim == 4 and work.settings.get("recipe") != "busy":
        check_pixels(batch)
    check(batch, 0, work, None)
    for number in range(1, warm_up):
        batch = next(iterator)
        check(batch, number, work, first)
    cpu_before, warm = process_tree.cpu_seconds(me), time.perf_counter()
    samples = 0
    for number in range(warm_up, work.batches):
        # The last batch is let go before the next is asked for, as a trainer does.
        del batch
        batch = next(iterator)
        check(batch, number, work, first)
        samples += len(batch)
    seconds, cpu = time.perf_counter() - warm, process_tree.cpu_seconds(me) - cpu_before
    return {
        "samples": samples,
        "seconds": seconds,
        "samples_per_second": samples / seconds,
        "bytes_per_second": samples * (batch.nbytes // len(batch)) / seconds,
        "cpu_seconds_per_1000_samples": cpu / samples * 1000,
        "time_to_first_batch_seconds": to_first,
        "shape": list(batch.shape),
        "dtype": str(batch.dtype),
    }


def main() -> None:
    """Prints the figures and ends without waiting for what the loader left behind."""
    name, function, work, warm_up = sys.argv[1], sys.argv[2], Work(**json.loads(sys.argv[3])), int(sys.argv[4])
    module = importlib.import_module(f"peer_loaders.{name}")
    if function == "prepare":
        module.prepare(work)
        return
    # What a loader imports when it is first used is no part of its time to the first batch.
    for needed in json.loads(os.environ.get("FOREBAY_BENCH_IMPORTS", "[]")):
        importlib.import_module(needed)
    print(json.dumps(measure(module, function, work, warm_up)), flush=True)
    # Threads and worker processes of some loaders would hold the exit up; who started this ends the whole tree.
    os._exit(0)


if __name__ == "__main__":
    main()
