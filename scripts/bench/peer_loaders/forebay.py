"""Forebay itself: a private daemon beside the consumer, as `forebay.Loader(config)` starts it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from typing import Any

from .work import CROP, MEAN, STD, Work


def inline(value: Any) -> str:
    """A value as inline TOML; JSON's strings, numbers and arrays are TOML's too."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {inline(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(inline(inner) for inner in value) + "]"
    return json.dumps(value)


def toml(config: dict[str, Any]) -> str:
    return "".join(f"{key} = {inline(value)}\n" for key, value in config.items())


def configuration(work: Work) -> dict[str, Any]:
    """The standard work with every key at its default, but for what `settings` names."""
    settings = work.settings
    decode: dict[str, Any] = {"op": "decode-image"}
    if "scaled" in settings:
        decode["scaled"] = settings["scaled"]
    output: dict[str, Any] = {"dtype": settings.get("output", "uint8"), "layout": "NCHW"}
    if output["dtype"] != "uint8":
        output.update(mean=list(MEAN), std=list(STD))
    operations = [
        decode,
        {"op": "random-resized-crop", "size": CROP},
        {"op": "random-horizontal-flip", "probability": 0.5},
    ]
    config: dict[str, Any] = {
        "dataset": {"format": "image-folder", "path": work.data},
        "order": {"seed": 17},
        "batch": {"size": work.batch_size},
        "stage": [{"name": "preprocess", "operations": operations}],
        "output": {"image": output},
    }
    if "fresh_index" in settings:
        config["dataset"]["index"] = tempfile.mkdtemp(prefix="forebay-bench-") + "/index"
    if "policy" in settings:
        config["cpu"] = {"policy": settings["policy"]}
    return config


def endless(target: Any, field: str) -> Iterator[Any]:
    """One field of each batch, epoch after epoch."""
    import forebay

    loader = forebay.Loader(target)
    while True:
        for batch in loader:
            yield batch[field]


def batches(work: Work) -> Iterator[Any]:
    """Arrays that are views of the ring's slots."""
    return endless(configuration(work), "image")
