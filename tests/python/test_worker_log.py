"""What a worker prints: lines with stage and sample, also where the output has no lines."""

import os
import subprocess
import sys
import textwrap
import threading

import numpy
import pytest
from forebay import _worker_log


@pytest.fixture
def log(monkeypatch):
    """A log, and what it wrote."""
    written = []
    monkeypatch.setattr(_worker_log, "_write_all", lambda _, data: written.append(data.decode()))
    log = _worker_log.Log("stage `augment`")
    log.written = written
    return log


def test_a_line_has_stage_and_the_sample_it_began_with(log):
    log.output.write("before\n")
    log.sample = 3
    print("one", file=log.output)
    print("two", end="", file=log.output)
    log.sample = 4
    print(" and on", file=log.output)
    assert log.written == [
        "forebay: stage `augment`: before\n",
        "forebay: stage `augment`, sample 3: one\n",
        "forebay: stage `augment`, sample 3: two and on\n",
    ]


def lines(log):
    return [line.partition(": stage `augment`: ")[2][:-1] for line in log.written]


def test_a_carriage_return_begins_the_line_again(log):
    for percent in range(101):
        log.error.write(f"\r{percent} %")
    assert log.written == []
    log.error.write("\n")
    log.error.write("a\r\nb\r")
    log.error.write("\nc\rlonger\rd\n\n")
    assert lines(log) == ["100 %", "a", "b", "d", ""]


def test_a_line_without_an_end_is_cut_and_takes_no_memory(log):
    for _ in range(5000):
        log.output.write("é" * 5)
        assert len(log.output._line) <= 8192
    log.output.write("x" * 100_000)
    log.output.write("y" * (8192 - len(log.output._line)))
    log.output.write("\nz\n")
    assert "".join(lines(log)) == "é" * 25_000 + "x" * 100_000 + "".join(lines(log))[125_000:]
    assert lines(log)[-1] == "z" and lines(log)[-2].endswith("y")
    assert max(len(line.encode()) for line in lines(log)) <= 8192


def test_what_was_begun_is_logged_at_the_end(log):
    log.output.write("out")
    log.error.write("err")
    assert log.written == [] and log.has_rest()
    log.end_lines()
    log.end_lines()
    assert lines(log) == ["out", "err"] and not log.has_rest()


def test_lines_of_threads_are_whole(log):
    def write(name):
        for _ in range(500):
            log.output.write(f"{name * 50}\n")

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(set(lines(log))) == [name * 50 for name in "abcd"] and len(lines(log)) == 2000


def test_a_worker_logs_output_without_lines_when_it_waits(tmp_path):
    (tmp_path / "dots.py").write_text(
        textwrap.dedent("""
            import sys

            def augment(sample, rng):
                sys.stderr.write("\\rsecond %d" % sample["x"][0])
                sys.stdout.write(".")
                return sample
            """)
    )
    for row in range(20):
        numpy.save(tmp_path / f"{row}.npy", numpy.full(2, row, numpy.float32))
    (tmp_path / "data.jsonl").write_text("".join(f"""{{"x": "{row}.npy"}}\n""" for row in range(20)))
    script = f"""
import forebay
config = {{"dataset": {{"format": "manifest", "path": {str(tmp_path / "data.jsonl")!r}}},
          "order": {{"shuffle": False, "epochs": 1}}, "batch": {{"size": 10}},
          "stage": [{{"name": "augment", "python": "dots:augment", "workers": 1}}]}}
with forebay.Loader(config, timeout=100) as loader:
    assert len(list(loader)) == 2
    input()
"""
    environment = dict(os.environ, PYTHONPATH=str(tmp_path), PYTHONUNBUFFERED="1")
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    ) as trainer:  # fmt: skip
        watchdog = threading.Timer(100, trainer.kill)
        watchdog.start()
        printed = ""
        while printed.partition("augment`, ")[2].count(".") < 20 or ": second " not in printed:
            line = trainer.stderr.readline()
            assert line, printed
            printed += line
        _, rest = trainer.communicate("\n")
        watchdog.cancel()
    assert (printed + rest).count("second") < 20


def test_what_was_begun_is_logged_if_the_loader_is_closed_at_once(tmp_path):
    (tmp_path / "dots.py").write_text(
        textwrap.dedent("""
            def augment(sample, rng):
                print(".", end="", flush=True)
                return sample
            """)
    )
    numpy.save(tmp_path / "rows.npy", numpy.zeros((400, 2), numpy.float32))
    # A loader waits only a moment for its daemon, and a busy machine takes longer: the lines go on to be passed on.
    script = f"""
import os, time
import forebay
config = {{"dataset": {{"format": "npy", "path": {str(tmp_path / "rows.npy")!r}}},
          "order": {{"epochs": 2}}, "batch": {{"size": 8}}, "cpu": {{"policy": "normal"}},
          "stage": [{{"name": "augment", "python": "dots:augment", "workers": 2}}]}}
with forebay.Loader(config, timeout=100) as loader:
    daemon = loader.daemon_pid
    for _ in loader.epochs_left():
        for _ in loader:
            pass
end = time.monotonic() + 60
while os.path.exists(f"/proc/{{daemon}}") and time.monotonic() < end:
    time.sleep(0.01)
time.sleep(0.5)
"""
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    run = subprocess.run(
        [sys.executable, "-c", script], stderr=subprocess.PIPE, text=True, env=environment, timeout=200, check=True
    )
    lines = [line for line in run.stderr.splitlines() if "augment`, sample" in line]
    # The probe's calls print, too.
    assert sum(line.partition(": stage ")[2].count(".") for line in lines) >= 800, run.stderr
