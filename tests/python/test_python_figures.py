"""Where the time of the user's own Python goes: in statistics, the verdict, traces and figures over HTTP."""

import itertools
import json
import os
import re
import subprocess
import sys
import textwrap
import urllib.request
from pathlib import Path

import forebay
import numpy
import pytest
from support import PROGRAM, config_of, run_program, wait_until, write_toml

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

    def collate_slowly(batch, rng):
        for _ in range(20):
            BLUR.run(batch["array"])
        return batch

    CALLS = []

    def hanging(batch, rng):
        CALLS.append(batch)
        if len(CALLS) > 4:
            time.sleep(3600)
        return batch
"""


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """An endless configuration with one stage of Python behind a native one that takes `before` milliseconds."""
    monkeypatch.syspath_prepend(tmp_path)
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


def place_of(loader):
    """Where commands find the loader's daemon: others of this user may run."""
    sockets = re.findall(r"@\S+", Path("/proc/net/unix").read_text())
    return next(socket for socket in sockets if f"/{loader.daemon_pid}-" in socket)


def cpu_seconds_of(process):
    """The processor time of a process without its children, as the kernel counts it."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def stage_of(stats, name="augment"):
    return next(stage for stage in stats["streams"][0]["stages"] if stage["name"] == name)


def test_statistics_say_what_the_functions_cost_and_where(recipe):
    of_batches = {"op": "python", "call": f"{recipe.module}:collate", "workers": 1}
    config = recipe(operations=[of_batches], listen={"metrics": "127.0.0.1:0"})

    def is_known(stats):
        [of_batches] = stats["streams"][0]["batch_functions"]
        spots = [one["python"]["hot_spot"] for one in (stage_of(stats), of_batches)]
        return all(spot and spot["name"] == f"{recipe.module}.Blur" for spot in spots)

    with forebay.Loader(config, timeout=120) as loader:
        stats = stats_when(loader, is_known)
        text = run_program("stats", place_of(loader)).stdout
        with urllib.request.urlopen(f"http://{stats['metrics']}/metrics", timeout=60) as answer:
            metrics = dict(line.rsplit(" ", 1) for line in answer.read().decode().splitlines() if line[0] != "#")
        own_cpu_seconds = cpu_seconds_of(loader.daemon_pid)
    stage, [of_batches] = stage_of(stats), stats["streams"][0]["batch_functions"]
    assert (stage["concurrency"], stage["ave_time"] >= BUSY_SECONDS) == (2, True), "the function's times"
    assert all(seconds >= BUSY_SECONDS for seconds, _ in stage["times"])
    # A thread's time, with its wait for a worker, would be half as long again.
    assert stage["busy_seconds"] == pytest.approx(stage["python"]["function_seconds"], rel=0.4)
    assert (of_batches["name"], of_batches["is_of_batches"]) == ("batch.operations[0]", True)
    assert (of_batches["concurrency"], of_batches["num_failures"]) == (1, 0)
    assert of_batches["ave_time"] >= BUSY_SECONDS and all(seconds >= BUSY_SECONDS for seconds, _ in of_batches["times"])
    assert of_batches["queue"] and not stage["queue"], "the ring comes behind what works on batches"
    for reported, function, workers in ((stage, "augment", 2), (of_batches, "collate", 1)):
        one = reported["python"]
        assert one["function"] == f"{recipe.module}:{function}"
        assert one["workers"] == workers and 1 <= one["num_starts"] <= workers
        assert one["ave_time"] >= BUSY_SECONDS and one["num_calls"] > 1
        assert one["function_seconds"] == pytest.approx(one["ave_time"] * one["num_calls"])
        assert all(one[key] > 0 for key in ("beside_seconds", "wait_seconds", "copy_seconds", "start_seconds"))
        assert 0.5 <= one["hot_spot"]["share"] <= 1
        labels = f'stream="dict",stage="{one["place"]}"'
        assert float(metrics[f"forebay_python_function_seconds_total{{{labels}}}"]) >= one["function_seconds"]
        assert float(metrics[f'forebay_python_hot_share{{{labels},name="{recipe.module}.Blur"}}']) >= 0.5
        assert f"{one['place']}: `{one['function']}`: " in text and f" in {recipe.module}.Blur" in text
        # The function computes all the time, where it has a core.
        assert one["cpu_seconds"] >= 0.02 * one["function_seconds"]
        assert float(metrics[f"forebay_python_cpu_seconds_total{{{labels}}}"]) >= one["cpu_seconds"]
        # The rows on which the function on batches was tried at the start are calls, but no tasks.
        assert float(metrics[f"forebay_stage_task_seconds_count{{{labels}}}"]) >= reported["num_tasks"] > 0
    assert of_batches["python"]["place"] == "batch.operations[0]"
    of_both = stage["python"]["cpu_seconds"] + of_batches["python"]["cpu_seconds"]
    assert stats["python_cpu_seconds"] == pytest.approx(of_both)
    # What workers use is no part of the daemon's.
    assert re.search(r" s of CPU and [0-9.]+ s in Python workers, ", text)
    assert float(metrics["forebay_cpu_seconds_total"]) <= own_cpu_seconds + 0.05
    assert "python" not in stage_of(stats, "before")


def test_the_verdict_names_the_stage_and_what_takes_most_of_it(recipe):
    def is_found(stats):
        return stats["verdict"]["limit"] == "augment" and recipe.module in stats["verdict"]["sentence"]

    with forebay.Loader(recipe(), timeout=120) as loader:
        verdict = stats_when(loader, is_found)["verdict"]
    assert verdict["what"] == "the stage `augment` (Python) is the limit"
    assert verdict["sentence"].startswith(verdict["what"] + ": ")
    assert f" ms a sample, most of it in `{recipe.module}.Blur` (" in verdict["sentence"]
    assert " of 2 workers are busy while the trainer waits " in verdict["sentence"]


def test_the_verdict_names_a_function_on_batches_and_what_takes_most_of_it(recipe):
    of_batches = {"op": "python", "call": f"{recipe.module}:collate_slowly", "workers": 1}

    def is_found(stats):
        # A short window has a few batches, whose rows another window may count.
        window = stats["sessions"][0]["window"]
        counts_batches = window and 0 < window["stages"][-1]["tasks_per_second"] < window["samples_per_second"] / 2
        is_named = stats["verdict"]["limit"] == "batch.operations[0]" and "Blur" in stats["verdict"]["sentence"]
        return counts_batches and is_named

    with forebay.Loader(recipe("nothing", operations=[of_batches]), timeout=120) as loader:
        stats = stats_when(loader, is_found)
    verdict, window = stats["verdict"], stats["sessions"][0]["window"]
    assert verdict["what"] == "the function on batches `batch.operations[0]` (Python) is the limit"
    of_function = f" ms a batch in `{recipe.module}:collate_slowly`, most of it in `{recipe.module}.Blur` ("
    assert of_function in verdict["sentence"]
    assert " of 1 worker are busy while the trainer waits " in verdict["sentence"]
    assert [stage["name"] for stage in window["stages"]] == ["fetch", "before", "augment", "batch.operations[0]"]
    assert window["python_cores"] > 0.01
    python = stats["streams"][0]["batch_functions"][0]["python"]
    assert python["wait_seconds"] > python["function_seconds"], "several batches wait for one worker"


def test_a_function_on_batches_that_hangs_is_a_stall(recipe):
    of_batches = {"op": "python", "call": f"{recipe.module}:hanging", "workers": 1}
    config = recipe("nothing", operations=[of_batches], errors={"stall_after": "500ms"})
    with forebay.Loader(config, timeout=120) as loader:
        # Which batches are called first is not known: none is taken.
        batches = iter(loader)
        wait_until(lambda: loader.stats()["stalls"], "a stall")
        stall = loader.stats()["stalls"][0]
        del batches
    assert (stall["stage"], stall["sample"]) == ("batch.operations", None)
    assert re.match(r"batch \d+ of stream `dict` has been in `batch.operations` for \d+ s: ", stall["sentence"])


def test_bench_has_the_workers_cpu_time_beside_its_own(recipe, tmp_path):
    of_batches = {"op": "python", "call": f"{recipe.module}:collate", "workers": 1}
    dataset = {"format": "npy", "path": str(tmp_path / "samples.npy")}
    config = config_of(dataset, batch={"size": 8, "operations": [of_batches]})
    path = write_toml(tmp_path / "bench.toml", {**config, "python": {"interpreter": sys.executable}})
    found = json.loads(run_program("bench", path, "--json").stdout)
    # 125 batches of 5 ms each: 0.625 s for 1,000 samples, much less where other processes take the cores.
    assert found["samples"] == 1000
    assert found["python_cpu_seconds_per_1000_samples"] > 0.02
    text = run_program("bench", path).stdout
    assert re.search(r" CPU seconds per 1,000 samples \(daemon and client\) and [0-9.]+ \(Python workers\), ", text)
    assert re.search(r"^ *batch\.operations\[0\] +1 +125 ", text, re.MULTILINE), text


def test_a_function_that_does_nothing_is_not_the_limit(recipe):
    def is_found(stats):
        verdict, calls = stats["verdict"], stage_of(stats)["python"]["num_calls"]
        # A start, whose work another process may hold up, is behind these calls.
        return calls > 800 and verdict["limit"] == "before" and "Python" not in verdict["sentence"]

    with forebay.Loader(recipe("nothing", before=2), timeout=120) as loader:
        stats_when(loader, is_found)


def trace_of(config, tmp_path):
    """The events of a second."""
    with forebay.Loader(config, timeout=120) as loader:
        batches = endless(loader)
        list(itertools.islice(batches, 10))
        trace = [PROGRAM, "trace", "--seconds", "1", "-o", tmp_path / "trace.json", place_of(loader)]
        with subprocess.Popen(trace) as recorder:
            while recorder.poll() is None:
                next(batches)
        assert recorder.returncode == 0
    return json.loads((tmp_path / "trace.json").read_text())["traceEvents"]


def test_a_trace_has_each_batch_in_a_function_on_the_track_of_its_worker(recipe, tmp_path):
    of_batches = {"op": "python", "call": f"{recipe.module}:collate", "workers": 1}
    events = trace_of(recipe("nothing", operations=[of_batches]), tmp_path)
    tracks = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    spans = [event for event in events if event["name"] == "batch.operations[0] (Python)"]
    assert len(spans) > 10 and all(span["dur"] > BUSY_SECONDS * 1e6 - 1 for span in spans)
    assert {tracks[span["tid"]] for span in spans} == {"batch.operations[0] 0 (Python, dict)"}
    assert set(spans[0]["args"]) == {"batch", "session"}
    assert len({span["args"]["batch"] for span in spans}) == len(spans)


def test_a_trace_has_each_sample_in_the_function_on_the_track_of_its_worker(recipe, tmp_path):
    events = trace_of(recipe(), tmp_path)
    tracks = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    spans = [event for event in events if event["ph"] == "X"]
    rows = [span for span in spans if span["name"] == "augment (Python)"]
    calls = [(span["ts"], span["ts"] + span["dur"]) for span in spans if span["name"] == "augment"]
    assert len(rows) > 10 and {"sample", "batch", "row", "session"} <= set(rows[0]["args"])
    # A nanosecond is lost where a span ends, and some where a number of microseconds is rounded.
    assert all(row["dur"] > BUSY_SECONDS * 1e6 - 1 for row in rows)
    places = {tracks[row["tid"]] for row in rows}
    assert places <= {"augment 0 (Python, dict)", "augment 1 (Python, dict)"}, places
    for worker in {row["tid"] for row in rows}:
        own = sorted((row["ts"], row["ts"] + row["dur"]) for row in rows if row["tid"] == worker)
        assert all(end <= begin + 1 for (_, end), (begin, _) in zip(own, own[1:])), "one sample at a time"
    for row in rows:
        begin, end = row["ts"], row["ts"] + row["dur"]
        assert any(first <= begin + 1 and end <= last + 1 for first, last in calls), "within a call"
