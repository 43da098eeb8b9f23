"""`forebay trace` beside PyTorch's own profiler on one clock, and the pictures of `forebay profile`."""

import json
import subprocess
import time
from xml.etree import ElementTree

import forebay
import numpy
import pytest
from support import PROGRAM, wait_until


@pytest.fixture
def socket(tmp_path):
    """A daemon whose one stage `slow` sleeps a millisecond for each sample."""
    numpy.save(tmp_path / "samples.npy", numpy.zeros((20000, 2), numpy.float32))
    (tmp_path / "train.toml").write_text(
        f"""
dataset = {{ format = "npy", path = "{tmp_path}/samples.npy", index = "{tmp_path}/index" }}
batch.size = 4
stage = [{{ name = "slow", concurrency = 1, operations = [{{ op = "delay", milliseconds = 1 }}] }}]
cpu.policy = "normal"
"""
    )
    path = tmp_path / "daemon.sock"
    with subprocess.Popen([PROGRAM, "serve", tmp_path / "train.toml", "--socket", path]) as daemon:
        wait_until(lambda: path.exists() or daemon.poll() is not None, "the daemon's start")
        yield path
        daemon.terminate()


def test_the_trainers_steps_lie_within_the_profilers_on_one_clock(socket, tmp_path):
    torch = pytest.importorskip("torch")
    trace = [PROGRAM, "trace", "--seconds", "0.6", "-o", tmp_path / "ours.json", socket]
    # The profiler takes its time to start.
    activities = [torch.profiler.ProfilerActivity.CPU]
    with (
        torch.profiler.profile(activities=activities) as profiler,
        forebay.Loader(str(socket)) as loader,
        subprocess.Popen(trace) as recorder,
    ):
        batches = iter(loader)
        while recorder.poll() is None:
            with torch.profiler.record_function("take"):
                next(batches)
            with torch.profiler.record_function("train"):
                time.sleep(0.02)
        assert recorder.returncode == 0
    profiler.export_chrome_trace(str(tmp_path / "torch.json"))
    merge = ["--recorded", tmp_path / "ours.json", "--merge", tmp_path / "torch.json", "-o", tmp_path / "both.json"]
    subprocess.run([PROGRAM, "trace", *merge], check=True)

    both = json.loads((tmp_path / "both.json").read_text())
    spans = [event for event in both["traceEvents"] if event["ph"] == "X"]
    takes = [(span["ts"], span["ts"] + span["dur"]) for span in spans if span["name"] == "take"]
    steps = [span["ts"] + span["dur"] for span in spans if span["name"] == "step"]
    assert len(takes) > 5 and len(steps) > 5 and any(span["name"] == "slow" for span in spans)
    # Takes are short beside the steps of 20 ms, so few lie in one by chance. Half a millisecond for the profiler's own
    # clock, which it fits to the system's. Of the steps at the edges the profiler may have no take.
    inside = [step for step in steps if any(begin - 500 <= step <= end + 500 for begin, end in takes)]
    assert len(inside) >= len(steps) - 2, (len(inside), len(steps))


@pytest.mark.parametrize("kind", [["--clock"], ["--hertz", "999"]])
def test_a_profile_is_a_picture_that_names_the_stages(socket, tmp_path, kind):
    picture = tmp_path / "flame.svg"
    command = [PROGRAM, "profile", "--seconds", "0.5", "-o", picture, *kind, socket]
    names = []
    with forebay.Loader(str(socket)) as loader:
        batches = iter(loader)
        # Work threads that mostly sleep may be in none of the samples of half a second.
        for _ in range(20):
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as asked:
                while asked.poll() is None:
                    next(batches)
                said = asked.stdout.read()
            assert asked.returncode == 0
            svg = "{http://www.w3.org/2000/svg}"
            root = ElementTree.parse(picture).getroot()
            assert root.tag == f"{svg}svg"
            names = [title.text.split(":")[0] for title in root.iter(f"{svg}title")]
            if "work" in names:
                break
    assert {"all", "work"} <= set(names), names
    by_clock = "wall-clock time" in said
    assert by_clock or "user CPU time" in said
    if by_clock:
        assert {"train", "slow", "delay", "fetch", "read"} <= set(names), names
