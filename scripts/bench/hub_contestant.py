"""A contestant of `hub`, in a process of its own: delivers batches for some seconds and says how many samples.

    python hub_contestant.py TERMS        a JSON object: see `Terms`; prints an object with samples and seconds

`datasets` is imported here only, after HF_ENDPOINT has been set.
"""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

from process_tree import cpu_seconds

BATCH = 64


def of_forebay(terms: dict[str, Any], found: dict[str, Any]) -> Iterator[int]:
    import forebay

    with forebay.Loader(terms["config"], timeout=120) as loader:
        for _ in loader.epochs_left():
            for batch in loader:
                yield len(batch["index"])
                if "ends" in found and time.perf_counter() > found["ends"]:
                    found["stats"] = loader.stats()
                    return


def of_datasets(terms: dict[str, Any], found: dict[str, Any]) -> Iterator[int]:
    """Pictures stay bytes. Repeated before the shuffle, so that its buffer never drains."""
    import datasets
    import torch

    options: dict[str, Any] = {}
    if terms["read_ahead"]:
        import pyarrow
        import pyarrow.dataset

        cache = pyarrow.CacheOptions(prefetch_limit=1, range_size_limit=128 << 20)
        options["fragment_scan_options"] = pyarrow.dataset.ParquetFragmentScanOptions(cache_options=cache)
    rows: Any = datasets.load_dataset(
        terms["repository"], data_files=terms["files"], split="train", streaming=True, **options
    )
    rows = rows.cast_column(terms["column"], datasets.Image(decode=False))
    rows = rows.repeat(None).shuffle(seed=1, buffer_size=terms["buffer"])
    loader: Any = torch.utils.data.DataLoader(
        rows, BATCH, num_workers=terms["workers"], collate_fn=lambda batch: batch, prefetch_factor=4
    )
    for batch in loader:
        assert all(row[terms["column"]]["bytes"] for row in batch)
        yield len(batch)


def num_requests(url: str) -> int:
    with urllib.request.urlopen(f"{url}/counts") as answer:
        return int(json.load(answer)["requests"])


def main() -> None:
    terms = json.loads(sys.argv[1])
    found: dict[str, Any] = {}
    batches = {"forebay": of_forebay, "datasets": of_datasets}[terms["contestant"]](terms, found)
    launched = time.perf_counter()
    next(batches)
    found["first"] = time.perf_counter() - launched
    while time.perf_counter() - launched < found["first"] + terms["settle"]:
        next(batches)
    requests, samples, begun = num_requests(terms["counts"]), 0, time.perf_counter()
    used = cpu_seconds(os.getpid())
    found["ends"] = begun + terms["seconds"]
    for count in batches:
        samples += count
        if time.perf_counter() > found["ends"]:
            break
    seconds = time.perf_counter() - begun
    found["used"] = (cpu_seconds(os.getpid()) - used) / samples * 1000
    found |= {"rate": samples / seconds, "requests": (num_requests(terms["counts"]) - requests) / samples}
    # Forebay's generator ends itself with its figures.
    next(batches, None)
    print(json.dumps(found, default=str), flush=True)


if __name__ == "__main__":
    main()
