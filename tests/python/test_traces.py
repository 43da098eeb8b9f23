"""The trainer's steps in `forebay trace` beside PyTorch's own profiler, on one clock."""

import json
import os
import shutil
import subprocess
import sys
import time

import numpy
import pytest

torch = pytest.importorskip("torch")

import forebay  # noqa: E402


@pytest.fixture
def program():
    named = os.environ.get("FOREBAY_PROGRAM")
    beside = shutil.which("forebay", path=os.path.dirname(sys.executable))
    return named or beside or pytest.skip("no forebay program beside this Python")


def test_the_trainers_steps_lie_within_the_profilers_on_one_clock(program, tmp_path):
    numpy.save(tmp_path / "samples.npy", numpy.zeros((400, 2), numpy.float32))
    (tmp_path / "train.toml").write_text(
        f"""
dataset = {{ format = "npy", path = "{tmp_path}/samples.npy", index = "{tmp_path}/index" }}
batch.size = 4
stage = [{{ name = "slow", concurrency = 1, operations = [{{ op = "delay", milliseconds = 1 }}] }}]
cpu.policy = "normal"
"""
    )
    socket = tmp_path / "daemon.sock"
    with subprocess.Popen([program, "serve", tmp_path / "train.toml", "--socket", socket]) as daemon:
        try:
            deadline = time.monotonic() + 60
            while not socket.exists():
                assert daemon.poll() is None and time.monotonic() < deadline
                time.sleep(0.01)
            trace = [program, "trace", "--seconds", "0.6", "-o", tmp_path / "ours.json", socket]
            with forebay.Loader(str(socket)) as loader, subprocess.Popen(trace) as recorder:
                with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
                    batches = iter(loader)
                    while recorder.poll() is None:
                        with torch.profiler.record_function("take"):
                            next(batches)
                        with torch.profiler.record_function("train"):
                            time.sleep(0.02)
                assert recorder.returncode == 0
        finally:
            daemon.terminate()
    profiler.export_chrome_trace(str(tmp_path / "torch.json"))
    merge = ["--recorded", tmp_path / "ours.json", "--merge", tmp_path / "torch.json", "-o", tmp_path / "both.json"]
    subprocess.run([program, "trace", *merge], check=True)

    both = json.loads((tmp_path / "both.json").read_text())
    spans = [event for event in both["traceEvents"] if event["ph"] == "X"]
    takes = [(span["ts"], span["ts"] + span["dur"]) for span in spans if span["name"] == "take"]
    steps = [span["ts"] + span["dur"] for span in spans if span["name"] == "step"]
    assert len(takes) > 10 and len(steps) > 10 and any(span["name"] == "slow" for span in spans)
    # Takes are short beside the steps of 20 ms, so none lies in one by chance. Half a millisecond for the profiler's own
    # clock, which it fits to the system's. Of the steps at the edges the profiler may have no take.
    inside = [step for step in steps if any(begin - 500 <= step <= end + 500 for begin, end in takes)]
    assert len(inside) >= len(steps) - 2, (len(inside), len(steps))
