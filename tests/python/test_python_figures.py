"""Where the time of the user's own Python goes: in statistics, the verdict, traces and figures over HTTP."""

import json
import os
import subprocess
import textwrap
import urllib.request

import forebay
import numpy
import pytest
from support import PROGRAM, free_port, wait_until

BUSY_SECONDS = 0.005
SOURCE = f"""
    import time

    class Blur:
        def run(self, array):
            end = time.perf_counter() + {BUSY_SECONDS}
            while time.perf_counter() < end:
                pass
            return array

    BLUR = Blur()

    def augment(sample, rng):
        return {{"array": BLUR.run(sample["array"])}}

    def nothing(sample, rng):
        return sample

    def collate(batch, rng):
        return {{"array": BLUR.run(batch["array"])}}
"""


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """An endless configuration with one stage of Python behind a native one that takes `before` milliseconds."""
    monkeypatch.syspath_prepend(tmp_path)
    # The only daemon that commands find there.
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    module = f"figures_{os.getpid()}_{tmp_path.name}"
    (tmp_path / f"{module}.py").write_text(textwrap.dedent(SOURCE))
    numpy.save(tmp_path / "samples.npy", numpy.zeros((1000, 8), numpy.float32))

    def make(function="augment", before=0, operations=(), **keys):
        native = {"name": "before", "concurrency": 1, "operations": []}
        if before:
            native["operations"] = [{"op": "delay", "milliseconds": before}]
        return {
            "dataset": {"format": "npy", "path": str(tmp_path / "samples.npy")},
            "batch": {"size": 8, "operations": list(operations)},
            "stage": [native, {"name": "augment", "python": f"{module}:{function}", "workers": 2}],
            "cpu": {"policy": "normal"},
            **keys,
        }

    make.module = module
    return make


def endless(loader):
    while True:
        yield from loader


def stats_when(loader, is_enough):
    """Takes batches until the statistics say enough, and returns them."""
    found = {}

    def is_there():
        next(batches)
        found.update(loader.stats())
        return is_enough(found)

    batches = endless(loader)
    wait_until(is_there, "enough in the statistics")
    return found


def stage_of(stats, name="augment"):
    return next(stage for stage in stats["streams"][0]["stages"] if stage["name"] == name)


def test_statistics_say_what_the_functions_cost_and_where(recipe):
    config = recipe(operations=[{"op": "python", "call": f"{recipe.module}:collate", "workers": 1}])

    def is_known(stats):
        [of_batches] = stats["streams"][0]["batch_functions"]
        return all(one["hot_spot"] for one in (stage_of(stats)["python"], of_batches))

    with forebay.Loader(config, timeout=120) as loader:
        stats = stats_when(loader, is_known)
        text = subprocess.run([PROGRAM, "stats"], capture_output=True, text=True, check=True).stdout
    stage, [of_batches] = stage_of(stats), stats["streams"][0]["batch_functions"]
    assert (stage["concurrency"], stage["ave_time"] >= BUSY_SECONDS) == (2, True), "the function's times"
    assert all(seconds >= BUSY_SECONDS for seconds, _ in stage["times"])
    for one, function, workers in ((stage["python"], "augment", 2), (of_batches, "collate", 1)):
        assert one["function"] == f"{recipe.module}:{function}"
        assert one["workers"] == workers and 1 <= one["num_starts"] <= workers
        assert one["ave_time"] >= BUSY_SECONDS and one["num_calls"] > 1
        assert one["function_seconds"] == pytest.approx(one["ave_time"] * one["num_calls"])
        assert all(one[key] > 0 for key in ("beside_seconds", "wait_seconds", "copy_seconds", "start_seconds"))
        assert one["hot_spot"]["name"] == f"{recipe.module}.Blur" and 0.5 < one["hot_spot"]["share"] <= 1
        assert f"{one['place']}: `{one['function']}`: " in text and f" in {recipe.module}.Blur" in text
    assert of_batches["place"] == "batch.operations[0]"
    assert "python" not in stage_of(stats, "before")
