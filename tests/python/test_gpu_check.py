"""What scripts/gpu-check and scripts/gpu-pack do without a GPU: end with a clear line, pack, read traces, show rows.

What they measure needs a GPU; docs/guide/gpu.md has the last run on one.
"""

import dataclasses
import json
import os
import subprocess
import sys
import tarfile
import textwrap
from pathlib import Path

import forebay
import pytest
from support import script_modules

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
module = script_modules(SCRIPTS / "gpu")
WHEEL = f"forebay-{forebay.__version__}-cp39-abi3-manylinux_2_28_x86_64.whl"


PRETENDED = """
import os, types

__version__ = "9.9"
version = types.SimpleNamespace(cuda={cuda!r}, hip={hip!r})
cuda = types.SimpleNamespace(
    is_available=lambda: {devices} > 0,
    device_count=lambda: {devices},
    set_device=lambda number: os._exit(7),
    get_device_properties=lambda number: types.SimpleNamespace(name="Pretended", total_memory=80 << 30),
)
"""


def environment(folder, cuda="13.0", hip=None, devices=0, **more):
    """Where `import torch` gives a module that says so much, and temporary files go to a folder of the test's."""
    torch = folder / "pretended"
    torch.mkdir(exist_ok=True)
    (torch / "torch.py").write_text(textwrap.dedent(PRETENDED.format(cuda=cuda, hip=hip, devices=devices)))
    (folder / "tmp").mkdir(exist_ok=True)
    path = os.pathsep.join(filter(None, [str(torch), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": path, "TMPDIR": str(folder / "tmp"), **more}


def run(*command, **options):
    """A program's end: status and both outputs."""
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=120, **options)


@pytest.mark.parametrize(
    ("torch", "line"),
    [
        ({}, "no NVIDIA GPU is visible to PyTorch 9.9; nothing was measured"),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, "no NVIDIA GPU is visible to PyTorch 9.9 (CUDA_VISIBLE_DEVICES='-1')"),
        ({"cuda": None}, "PyTorch 9.9 is built without CUDA"),
        ({"cuda": None, "hip": "6.0"}, "this PyTorch is built for ROCm"),
    ],
)
def test_without_a_gpu_it_ends_with_one_line_and_status_2(tmp_path, torch, line):
    variables = environment(tmp_path, **torch)
    if "CUDA_VISIBLE_DEVICES" not in torch:
        variables.pop("CUDA_VISIBLE_DEVICES", None)
    ended = run(SCRIPTS / "gpu-check", "--quick", env=variables)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith(f"gpu-check: {line}")
    assert len(ended.stderr.splitlines()) == 1
    assert list((tmp_path / "tmp").iterdir()) == []


def test_an_unknown_option_is_named():
    ended = run(SCRIPTS / "gpu-check", "--fast")
    assert ended.returncode == 1
    assert "unknown option --fast" in ended.stderr


def test_a_process_that_dies_leaves_errors_that_say_so_and_the_others_go_on(tmp_path):
    out = tmp_path / "out.json"
    command = [sys.executable, SCRIPTS / "gpu" / "check.py", "--folder", tmp_path, "--json", out, "--only", "E"]
    ended = run(*command, env=environment(tmp_path, devices=1))
    assert ended.returncode == 1, ended.stderr
    rows = json.loads(out.read_text())["rows"]
    # Rows of every group.
    assert {row["note"].split("`")[1] for row in rows} == {"correctness", "reuse", "transfer", "training"}
    assert all(row["status"] == "error" and row["note"].endswith("ended with status 7") for row in rows)
    assert "| every type, short batches, four ways of pinning |" in ended.stdout
    assert "device: Pretended, 80 GiB, 1 visible" in ended.stdout
    assert ended.stdout.rstrip().endswith(f"{len(rows)} error")


def test_a_row_that_fails_is_an_error_with_its_traceback():
    rows = module("rows")

    def fails(_):
        raise ValueError("the device said no\nand more")

    def is_skipped(_):
        raise rows.NotMeasured("one device is visible here")

    made = [
        rows.measure(rows.Measurement("fails", "0", fails), None),
        rows.measure(rows.Measurement("skipped", "0", is_skipped), None),
        rows.measure(rows.Measurement("good", "≤ 3 µs", lambda _: rows.Outcome("2 µs", True)), None),
        rows.measure(rows.Measurement("bad", "≤ 3 µs", lambda _: rows.Outcome("4 µs", False, "slow | late")), None),
        rows.measure(rows.Measurement("told", "", lambda _: rows.Outcome("5", None)), None),
    ]
    assert [row.status for row in made] == ["error", "not measured", "met", "missed", "reported"]
    assert made[0].note == "ValueError: the device said no"
    assert 'raise ValueError("the device said no' in rows.line(made[0])
    assert rows.line(made[3]) == "bad: 4 µs; goal ≤ 3 µs; missed (slow | late)"
    assert rows.table(made).splitlines()[2:] == [
        "| fails | – | 0 | error | ValueError: the device said no |",
        "| skipped | – | 0 | not measured | one device is visible here |",
        "| good | 2 µs | ≤ 3 µs | met | – |",
        "| bad | 4 µs | ≤ 3 µs | missed | slow \\| late |",
        "| told | 5 | – | reported | – |",
    ]
    assert rows.summary(made) == "1 met, 1 missed, 1 error, 1 reported, 1 not measured"
    assert [rows.exit_status(made[start:]) for start in (0, 1, 4)] == [1, 1, 0]
    assert rows.exit_status(made[1:3]) == 0


def test_rows_come_back_whole_also_when_their_process_was_ended_in_a_line(tmp_path):
    rows, check = module("rows"), module("check")
    row = rows.Row("name", "goal", "met", "1", figures={"deep": [1, 2]})
    text = json.dumps(dataclasses.asdict(row)) + "\n"
    (tmp_path / "rows").write_text(text + text[:20])
    assert check.read_rows(tmp_path / "rows") == [row]
    assert check.read_rows(tmp_path / "none") == []


def test_configurations_for_other_programs_are_toml(tmp_path):
    tomllib = pytest.importorskip("tomllib")
    data = module("data")
    config = data.small_config(tmp_path)
    config["output"] = {"tokens": {"ragged": True, "max_bytes": '4"KiB\\', "mean": [0.5, 1]}}
    assert tomllib.loads(data.write_toml(tmp_path, "small", config).read_text()) == config


def event(cat, name, begin, length, tid=1, **arguments):
    """One of a trace."""
    return {"ph": "X", "cat": cat, "name": name, "ts": begin, "dur": length, "tid": tid, "args": arguments}


def mark(name, begin, length, tid=1):
    """What record_function writes."""
    return event("user_annotation", name, begin, length, tid)


def test_waits_are_found_on_the_thread_and_in_the_range_alone():
    traces = module("traces")
    events = [
        mark("next", 100, 10),
        mark("next", 200, 10),
        event("cuda_runtime", "cudaStreamSynchronize", 205, 3),
        event("cuda_driver", "cuEventSynchronize", 101, 3),
        event("cuda_runtime", "cudaMemcpy", 102, 1),
        # Asynchronous, of another thread, between the ranges, at the end, and no call.
        event("cuda_runtime", "cudaMemcpyAsync", 103, 1),
        event("cuda_runtime", "cudaDeviceSynchronize", 104, 1, tid=2),
        event("cuda_runtime", "cudaDeviceSynchronize", 150, 1),
        event("cuda_runtime", "cudaDeviceSynchronize", 210, 1),
        event("cpu_op", "aten::cudaStreamSynchronize", 105, 1),
    ]
    assert sorted(traces.waits_within(events, "next")) == ["cuEventSynchronize", "cudaMemcpy", "cudaStreamSynchronize"]
    assert traces.waits_within(events, "other") == []


def test_copies_are_told_apart_by_who_waited_for_them(tmp_path):
    traces = module("traces")
    kind = "Memcpy HtoD (Pinned -> Device)"
    events = [
        mark("plain", 100, 50),
        event("gpu_memcpy", kind, 110, 10, tid=7, bytes=500_000, stream=7),
        event("gpu_memcpy", kind, 90, 20, tid=8, bytes=500_000, stream=8),
        event("gpu_memcpy", kind, 200, 5, tid=8, bytes=8, stream=8),
        event("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", 300, 5, tid=8, bytes=500_000, stream=8),
        {"ph": "M", "name": "process_name"},
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    copies = traces.copies_to_device(traces.load(path), 1000)
    plain, ours = traces.split_by_ranges(copies, traces.ranges(events, "plain"))
    assert [(copy.stream, copy.gigabytes_per_second()) for copy in plain] == [(7, 50.0)]
    assert [(copy.stream, copy.gigabytes_per_second()) for copy in ours] == [(8, 25.0)]


def test_steps_are_from_their_first_kernel_to_their_last():
    traces = module("traces")
    events = [
        mark("step", 0, 10),
        mark("step", 20, 10),
        event("cuda_runtime", "cudaLaunchKernel", 1, 1, correlation=1),
        event("cuda_runtime", "cudaLaunchKernel", 2, 1, correlation=2),
        event("cuda_runtime", "cudaLaunchKernel", 15, 1, correlation=3),
        event("cuda_driver", "cuLaunchKernelEx", 21, 1, correlation=4),
        event("kernel", "one", 100, 50, tid=7, correlation=1),
        event("kernel", "two", 150, 50, tid=7, correlation=2),
        event("kernel", "outside of the steps", 200, 50, tid=7, correlation=3),
        event("kernel", "three", 260, 40, tid=7, correlation=4),
    ]
    assert traces.steps_on_device(events, "step") == [traces.Span(100, 200), traces.Span(260, 300)]


def test_a_stream_is_idle_for_a_copy_only_when_the_copy_ends_in_the_gap():
    traces = module("traces")
    steps = [traces.Span(0, 100), traces.Span(130, 200), traces.Span(203, 300), traces.Span(350, 400)]

    def copy(begin, end):
        return traces.Copy(traces.Span(begin, end), 10, 8, "HtoD")

    copies = [copy(90, 128), copy(150, 190), copy(199, 250), copy(320, 345)]
    # Waited for from the step's end on; hidden behind a step; for a later step; begun in the gap.
    assert traces.idle_because_of_copies(steps, copies) == [28, 0, 25]
    assert traces.idle_because_of_copies(steps, []) == [0, 0, 0]


def test_what_a_program_and_a_wheel_need_of_glibc():
    pack = module("pack")
    assert pack.glibc_of(b"\0GLIBC_2.9\0GLIBC_2.34\0GLIBC_2.4\0") == "2.34"
    assert pack.glibc_of(b"nothing") is None
    assert pack.glibc_of_wheel(WHEEL) == "2.28"
    assert pack.newest(["2.9", None, "2.28"]) == "2.28"
    assert pack.newest([None]) is None


def test_a_pack_says_what_it_holds_and_checks_from_where_it_is_unpacked(tmp_path):
    wheel = tmp_path / WHEEL
    wheel.write_bytes(b"no wheel")
    binary = tmp_path / "built"
    binary.write_bytes(b"GLIBC_2.31")
    command = [SCRIPTS / "gpu-pack", "--wheel", wheel.name, "--binary", binary, "--out", "out/pack.tar.gz"]
    made = run(*command, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    assert "needs Linux with glibc 2.31 or newer" in made.stdout
    with tarfile.open(tmp_path / "out" / "pack.tar.gz") as archive:
        archive.extractall(tmp_path)
    folder = tmp_path / "forebay-gpu-check"
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["wheel"] == wheel.name
    assert len(manifest["commit"].split()[0]) == 40 or manifest["commit"] == "unknown"
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert files == {*manifest["files"], "manifest.json"}
    assert {"gpu-check", "device", "gpu/check.py", "gpu/traces.py"} < files
    assert manifest["files"]["device"]["bytes"] == len(b"GLIBC_2.31")
    assert os.access(folder / "device", os.X_OK)

    ended = run(folder / "gpu-check", env=environment(tmp_path))
    assert ended.returncode == 2, ended.stderr
    # With a GPU it comes as far as the wheel, which is none; nothing is left behind.
    ended = run(folder / "gpu-check", env=environment(tmp_path, devices=1))
    assert ended.returncode == 1
    assert f"installing forebay-{forebay.__version__}" in ended.stderr
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_pack_that_is_too_large_is_refused_and_names_the_largest_file():
    pack = module("pack")
    files = {"small": b"1", "device": os.urandom(3 << 20)}
    with pytest.raises(
        pack.TooLarge, match=r"has 3\.0 MiB, and 1 MiB is the most; the largest file is device with 3\.0"
    ):
        pack.archive(files, 1 << 20)
    assert pack.archive(files) == pack.archive(files)


def test_batches_are_compared_over_the_smallest_rings(tmp_path, monkeypatch):
    """Both loaders on the CPU here. `zip` kept a batch too many, and a ring that lets one be kept refused the next."""
    pytest.importorskip("torch")
    forebay_torch = pytest.importorskip("forebay.torch")
    correctness, data = module("correctness"), module("data")
    monkeypatch.setattr(correctness, "device_loader", lambda place, config, **_: forebay_torch.Loader(config))
    monkeypatch.setattr(correctness, "path_note", lambda loader: "here")
    place = module("place").Place("cpu", tmp_path, True, None)
    outcome = correctness.types(place)
    assert (outcome.value, outcome.met) == ("0 differences in 80 batches", True)
    assert correctness.ragged(place).met

    config = data.typed_config(tmp_path)
    differences = correctness.Differences()
    differences.compare(place, "seeds", config, {**config, "order": {"seed": 1, "epochs": 2}})
    outcome = differences.outcome()
    assert outcome.met is False
    assert outcome.note.startswith("seeds, epoch 0, batch 0: as_bool, as_float16, ")
    shorter = correctness.Differences()
    shorter.compare(place, "sizes", config, {**config, "batch": {"size": 32, "last": "short"}})
    assert any("only on the CPU" in text for text in shorter.found)
