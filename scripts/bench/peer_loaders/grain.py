"""Grain: Pillow's work on a sample, in Grain's reading threads or worker processes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .pillow_crop import crop_of_file
from .work import Work, files_of


def crop(path: str, generator: Any) -> Any:
    """One sample; the draws come from Grain's generator, so that they are Grain's to repeat."""
    return crop_of_file(Path(path).read_bytes(), random.Random(int(generator.integers(1 << 62))))


def batches(work: Work) -> Iterator[Any]:
    import grain

    samples = grain.MapDataset.source(files_of(work)).seed(17).shuffle().repeat().random_map(crop)
    if work.settings["place"] == "threads":
        options = grain.ReadOptions(num_threads=work.settings["workers"], prefetch_buffer_size=2 * work.batch_size)
        yield from samples.to_iter_dataset(options).batch(work.batch_size)
        return
    # Each worker decodes on one thread and hands over whole batches through shared memory.
    options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)
    workers = grain.MultiprocessingOptions(num_workers=work.settings["workers"], per_worker_buffer_size=1)
    yield from samples.batch(work.batch_size).to_iter_dataset(options).mp_prefetch(workers)
