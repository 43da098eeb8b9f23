"""The benchmark's programs run, and what they compute of their figures is right."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from support import script_modules, wait_until

BENCH = Path(__file__).resolve().parents[2] / "scripts" / "bench"
module = script_modules(BENCH)


def test_percentiles_are_by_nearest_rank():
    percentile = module("figures").percentile
    values = list(range(100, 0, -1))
    assert [percentile(values, share) for share in (0.01, 0.5, 0.99, 0.995, 1)] == [1, 50, 99, 100, 100]
    # 0.07 · 100 is 7.000000000000001 in floats.
    assert percentile(values, 0.07) == 7
    with pytest.raises(ValueError, match="no percentile"):
        percentile([], 0.5)


def test_a_spread_names_median_and_range():
    spread = module("figures").Spread
    assert spread.of([1204, 1180.2, 1230]).text() == "1,204 (1,180–1,230)"
    assert spread.of([0.98765]).text() == "0.988"


def test_ratios_are_to_the_best_of_the_same_round():
    figures = module("figures")
    rounds = [
        {"ours": {"rate": 200}, "one": {"rate": 100}, "two": {"rate": 50}},
        # The other peer is ahead here, and is the one to compare with.
        {"ours": {"rate": 150}, "one": {"rate": 30}, "two": {"rate": 75}},
        {"ours": {"rate": 90}, "two": {"rate": 45}},
        {"one": {"rate": 10}},
        {"ours": {"rate": 90}},
    ]
    assert figures.ratios(rounds, "ours", ["one", "two"], "rate", max) == [2, 2, 2]
    assert figures.ratios(rounds, "ours", ["one", "two"], "rate", min) == [4, 5, 2]


def test_a_rollup_tells_shared_memory_apart():
    text = "55d0-7ffd ---p 00000000 00:00 0  [rollup]\nRss: 900 kB\nPss: 300 kB\nPss_Anon: 100 kB\nPss_Shmem: 150 kB\n"
    assert module("process_tree").rollup_bytes(text) == (300 * 1024, 150 * 1024)


def test_a_process_may_be_called_anything():
    fields = module("process_tree").stat_fields("17 (a) b (c)) S 4 17 17 0 -1 4194560 1 2 3 4 50 60 70 80 20")
    assert (fields[0], fields[1], fields[11:15]) == ("S", "4", ["50", "60", "70", "80"])


def test_shared_memory_counts_once_and_in_full():
    """Two processes hold 64 MiB, of which one has touched a half; both together use 64 MiB."""
    # Processes of their own: the tests' own memory comes and goes.
    touch = "m[: len(m) // 2] = bytes(len(m) // 2)"
    child = f"import mmap, sys; m = mmap.mmap(int(sys.argv[1]), 0); {touch}; print(); input()"
    holder = """
import mmap, os, subprocess, sys
descriptor = os.memfd_create("ring")
os.posix_fallocate(descriptor, 0, 64 << 20)
with mmap.mmap(descriptor, 0):
    command = [sys.executable, "-c", sys.argv[1], str(descriptor)]
    print(); input()
    child = subprocess.Popen(command, pass_fds=[descriptor], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    child.stdout.readline()
    print(); input()
    child.communicate(b"\\n")
os.close(descriptor)
print(); input()
"""
    size = 64 << 20
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", holder, child], text=True, **pipes) as process:

        def measured():
            process.stdout.readline()
            memory = module("process_tree").memory_bytes(process.pid)
            process.stdin.write("\n")
            process.stdin.flush()
            return memory

        before, both, without = measured(), measured(), measured()
    assert before > size
    # An interpreter of its own is less than 64 MiB, and the ring did not count again.
    assert 0 < both - before < size
    assert size * 0.9 < before - without < size * 1.1


def test_the_tree_s_time_keeps_what_was_reaped():
    tree = module("process_tree")
    before = tree.cpu_seconds(os.getpid())
    burn = "import time; end = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
    subprocess.run([sys.executable, "-c", burn], check=True)
    # Both are in ticks of 10 ms.
    assert tree.cpu_seconds(os.getpid()) - before > 0.27


def test_a_tree_holds_grandchildren():
    tree = module("process_tree")
    shell = subprocess.Popen(["sh", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE, text=True)
    grandchild = int(shell.stdout.readline())
    assert set(tree.tree_of(shell.pid)) == {shell.pid, grandchild}
    os.kill(grandchild, 9)
    shell.wait()


def test_crops_fit_and_cover_the_range():
    draw = module("peer_loaders.work").random_crop
    generator = random.Random(1)
    shares = []
    for width, height in [(500, 375), (375, 500), (1, 1), (2000, 3)] * 300:
        left, top, crop_width, crop_height = draw(width, height, generator)
        assert 0 <= left <= width - crop_width and 0 <= top <= height - crop_height
        if width in (500, 375):
            shares.append(crop_width * crop_height / (width * height))
    assert 0.07 < min(shares) < 0.12 and 0.9 < max(shares) <= 1
    # torchvision's own mean over this shape is 0.46.
    assert 0.42 < sum(shares) / len(shares) < 0.5


def test_a_plot_is_well_formed_and_shows_every_row():
    from xml.etree import ElementTree

    plot, spread = module("plot"), module("figures").Spread
    panels = [plot.Panel("samples/s", "more is better", [spread.of([1, 2, 3]), None])]
    root = ElementTree.fromstring(plot.picture("A & B", ["ours", "<theirs>"], [True, False], panels, "foot"))
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"ours", "<theirs>", "A & B", "2"} <= set(texts)


def run(program, *arguments):
    """One of the programs, its standard output, and its raw figures."""
    done = subprocess.run(
        [sys.executable, str(BENCH / program), *map(str, arguments)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_loader_is_described():
    listed = run("peers", "--list")
    for name in ("Forebay", "DALI", "FFCV", "PyTorch", "tf.data", "Grain", "WebDataset", "datago", "SPDL"):
        assert name in listed


def test_the_comparison_runs(tmp_path):
    printed = run("peers", "--smoke", "--json", tmp_path / "raw.json", "--svg", tmp_path / "plot.svg", "--markdown")
    assert "| Forebay |" in printed and "samples/s" in printed
    results = json.loads((tmp_path / "raw.json").read_text())
    assert not results["failures"]
    figures = results["rounds"][0]["forebay"]
    assert figures["samples"] == 23 * 16 and figures["shape"] == [16, 3, 224, 224] and figures["dtype"] == "uint8"
    assert figures["cpu_seconds_per_1000_samples"] > 0 and figures["time_to_first_batch_seconds"] > 0
    assert "</svg>" in (tmp_path / "plot.svg").read_text()


def test_the_neighbour_runs(tmp_path):
    pytest.importorskip("torch")
    printed = run("neighbour", "--smoke", "--json", tmp_path / "raw.json")
    assert "Forebay" in printed and "own session" in printed
    results = json.loads((tmp_path / "raw.json").read_text())
    assert not results["failures"]
    loaders = ("forebay", "forebay-bucket")
    places = ("same", "session")
    for case in ("cached/half/same", *(f"{loader}/half/{place}" for loader in loaders for place in places)):
        figures = results["rounds"][0][case]
        assert figures["step_p99_seconds"] >= figures["step_p50_seconds"] > 0


def test_the_recipes_run():
    pytest.importorskip("torchvision")
    printed = run("recipes", "--smoke", "--only", "torchvision", "--python", sys.executable)
    assert "torchvision v2: Python stage against PyTorch" in printed
    assert "torchvision v2: operations against PyTorch" in printed


def test_an_interrupt_leaves_no_process(tmp_path):
    code, waits = "import time; print('started', flush=True); time.sleep(300)", tmp_path / "waits"
    # A file says that the run waits for its process: an interrupt that comes earlier would leave it.
    script = (
        "import pathlib, subprocess, sys, contestants, peer_loaders.work as w\n"
        "class Popen(subprocess.Popen):\n"
        "    def wait(self, *terms):\n"
        f"        pathlib.Path({str(waits)!r}).touch()\n"
        "        return super().wait(*terms)\n"
        "subprocess.Popen = Popen\n"
        f"one = contestants.Contestant('x', 'x', '', command=[sys.executable, '-c', {code!r}])\n"
        "try: contestants.run(one, w.Work('', '', 1, 1, 1), 1)\n"
        "except KeyboardInterrupt: print('ended')\n"
    )
    runner = subprocess.Popen([sys.executable, "-c", script], cwd=BENCH, stdout=subprocess.PIPE, text=True)
    tree = module("process_tree")
    wait_until(lambda: waits.exists() or runner.poll() is not None, "the start of the run's process")
    below = [process for process in tree.tree_of(runner.pid) if process != runner.pid]
    runner.send_signal(2)
    assert runner.communicate(timeout=60)[0] == "ended\n"
    assert below and not any(Path(f"/proc/{process}").exists() for process in below)
