"""Forebay on a folder of `.npy` files: no decoding, so that what is measured is reading and handing over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .forebay import endless
from .work import Work


def configuration(work: Work) -> dict[str, Any]:
    """A folder of arrays with every key at its default, but for what `settings` names."""
    config: dict[str, Any] = {
        "dataset": {"format": "npy", "path": work.data},
        "order": {"seed": 17},
        "batch": {"size": work.batch_size},
        "stage": [{"name": "pass", "operations": []}],
    }
    if "policy" in work.settings:
        config["cpu"] = {"policy": work.settings["policy"]}
    return config


def batches(work: Work) -> Iterator[Any]:
    """Arrays that are views of the ring's slots."""
    return endless(configuration(work), "array")


def copies(work: Work) -> Iterator[Any]:
    """The same arrays, in memory already, copied by one core into one of eight places: memcpy and nothing else."""
    import numpy

    sources = [numpy.random.default_rng(n).random((work.batch_size, 256, 1024), numpy.float32) for n in range(8)]
    places = [numpy.zeros_like(source) for source in sources]
    turn = 0
    while True:
        numpy.copyto(places[(turn + 3) % 8], sources[turn])
        yield places[(turn + 3) % 8]
        turn = (turn + 1) % 8
