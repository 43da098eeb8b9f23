"""Checks and measures Forebay on this machine's GPU. `scripts/gpu-check` starts it, with the package on its path.

Each group of rows runs in a process of its own, since a CUDA error that a row causes leaves that process's device
unusable, and a process that hangs can be ended. Rows come back as lines of JSON in a file.

Status: 0 when no goal was missed and no row failed, 1 when one was, 2 without a GPU, 130 when interrupted.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import os
import platform
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rows import ERROR, Measurement, Row, exit_status, line, measure, say, summary, table

GROUPS = ("correctness", "reuse", "transfer", "training")
# Seconds after which a group is ended, and with --quick. Above what they take: a hang, no measure.
LIMITS = {"correctness": (150, 90), "reuse": (180, 80), "transfer": (150, 80), "training": (180, 80)}
NO_GPU = 2


def why_no_gpu() -> str:
    """One line that says why nothing can be measured here; empty when it can."""
    try:
        import torch
    except ImportError as error:
        return (
            f"{sys.executable} has no PyTorch ({error}); name a Python that has one: PYTHON=/path/to/python gpu-check"
        )
    if getattr(torch.version, "hip", None):
        return "this PyTorch is built for ROCm; Forebay copies to NVIDIA GPUs only"
    if torch.version.cuda is None:
        return f"PyTorch {torch.__version__} is built without CUDA; nothing was measured"
    if not torch.cuda.is_available() or torch.cuda.device_count() == 0:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        hint = "" if visible is None else f" (CUDA_VISIBLE_DEVICES={visible!r})"
        return f"no NVIDIA GPU is visible to PyTorch {torch.__version__}{hint}; nothing was measured"
    return ""


def chosen(group: str, only: str | None, is_quick: bool) -> list[Measurement]:
    """The rows that were asked for, in order: all, or those whose name or group holds the text."""
    return [
        row
        for row in importlib.import_module(group).MEASUREMENTS
        if (only is None or only.lower() in row.name.lower() or only == group)
        and not (is_quick and row.is_long and only is None)
    ]


def run_group(arguments: argparse.Namespace) -> int:
    """In a process of its own: measures and writes each row as soon as it is there."""
    import torch
    from place import Place

    torch.cuda.set_device(0)
    place = Place("cuda:0", arguments.folder, arguments.quick, arguments.binary)
    with arguments.rows.open("a", encoding="utf-8") as file:
        for measurement in chosen(arguments.group, arguments.only, arguments.quick):
            say(f"{measurement.name} …")
            row = measure(measurement, place)
            file.write(json.dumps(asdict(row)) + "\n")
            file.flush()
    return 0


def read_rows(path: Path) -> list[Row]:
    """What a group has measured up to now. A line that was cut off is none."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [Row(**json.loads(text)) for text in lines if text.endswith("\n")]


def collect(group: str, arguments: argparse.Namespace) -> list[Row]:
    """Runs a group and prints its rows as they come; rows that it did not come to are errors that say how it ended."""
    wanted = chosen(group, arguments.only, arguments.quick)
    if not wanted:
        return []
    path = arguments.folder / f"rows.{group}"
    command = [sys.executable, str(Path(__file__).resolve()), "--group", group, "--rows", str(path)]
    command += ["--folder", str(arguments.folder)]
    command += ["--quick"] if arguments.quick else []
    command += ["--only", arguments.only] if arguments.only else []
    command += ["--binary", str(arguments.binary)] if arguments.binary else []
    limit = LIMITS[group][arguments.quick]
    end = time.monotonic() + limit
    told = 0
    # A group of processes, so that what a row started ends with it.
    process = subprocess.Popen(command, start_new_session=True)
    try:
        while True:
            status = process.poll()
            rows = read_rows(path)
            for row in rows[told:]:
                print(line(row), flush=True)
            told = len(rows)
            if status is not None or time.monotonic() > end:
                break
            time.sleep(0.2)
    finally:
        end_processes(process)
    ended = f"took longer than {limit} s" if status is None else f"ended with status {status}"
    for missing in wanted[len(rows) :]:
        rows.append(Row(missing.name, missing.goal, ERROR, note=f"the process of the rows `{group}` {ended}"))
        print(line(rows[-1]), flush=True)
    return rows


def end_processes(process: subprocess.Popen[bytes]) -> None:
    """Ends a group's process and what it started; daemons end by themselves when their trainer does."""
    for kind, seconds in ((signal.SIGTERM, 5), (signal.SIGKILL, 10)):
        try:
            os.killpg(process.pid, kind)
        except (ProcessLookupError, PermissionError):
            break
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            continue
    process.poll()


def describe(arguments: argparse.Namespace) -> dict[str, Any]:
    """The machine and the versions, in the order in which they are printed."""
    import torch

    asked = "name,driver_version,memory.total,pcie.link.gen.current,pcie.link.width.current,mig.mode.current"
    command = ["nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        answer = ""
    device = torch.cuda.get_device_properties(0)
    manifest = {}
    if arguments.manifest and arguments.manifest.exists():
        manifest = json.loads(arguments.manifest.read_text(encoding="utf-8"))
    try:
        import forebay

        version = forebay.__version__
    except Exception as error:
        version = f"cannot be imported: {error}"
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "device": f"{device.name}, {device.total_memory / (1 << 30):.0f} GiB, {torch.cuda.device_count()} visible",
        "driver": answer.splitlines()[0] if answer else "nvidia-smi does not answer",
        "torch": f"{torch.__version__}, CUDA {torch.version.cuda}",
        "python": platform.python_version(),
        "system": f"Linux {platform.release()}, {platform.machine()}, {len(os.sched_getaffinity(0))} cores",
        "forebay": f"{version}, commit {manifest.get('commit', 'unknown')}",
        "options": "--quick" if arguments.quick else "full",
    }


def all_rows(arguments: argparse.Namespace) -> int:
    begun = time.monotonic()
    about = describe(arguments)
    for key, value in about.items():
        print(f"{key}: {value}", flush=True)
    rows: list[Row] = []
    was_interrupted = False
    try:
        for group in GROUPS:
            rows += collect(group, arguments)
    except KeyboardInterrupt:
        was_interrupted = True
    about["seconds"] = f"{time.monotonic() - begun:.0f}"
    print("\n" + table(rows) + "\n")
    for key, value in about.items():
        print(f"- {key}: {value}")
    print(f"\n{summary(rows)}" + ("; interrupted" if was_interrupted else ""))
    if not rows and arguments.only and not was_interrupted:
        print(f"no row's name holds `{arguments.only}`; groups are {', '.join(GROUPS)}")
    if arguments.json:
        found = {"about": about, "rows": [asdict(row) for row in rows], "interrupted": was_interrupted}
        arguments.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 130 if was_interrupted else exit_status(rows) if rows else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--look", action="store_true", help="only say whether there is a GPU")
    parser.add_argument("--quick", action="store_true", help="fewer steps, no comparison with other loaders")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--only", help="only rows whose name holds this text, or a group: " + ", ".join(GROUPS))
    parser.add_argument("--folder", type=Path, help="where the data goes")
    parser.add_argument("--binary", type=Path, help="the Rust example `device`")
    parser.add_argument("--manifest", type=Path, help="the pack's manifest")
    parser.add_argument("--group", choices=GROUPS, help=argparse.SUPPRESS)
    parser.add_argument("--rows", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    # Ended by TERM as by Ctrl-C, so that loaders and files are cleaned up.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    reason = why_no_gpu()
    if reason:
        print(f"gpu-check: {reason}", file=sys.stderr)
        return NO_GPU
    if arguments.look:
        return 0
    if arguments.folder is None:
        parser.error("--folder is needed")
    arguments.folder = arguments.folder.resolve()
    # The daemon's index of a data set goes there too, and not to the user's cache.
    os.environ["XDG_CACHE_HOME"] = str(arguments.folder / "cache")
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "FOREBAY_SOCKET"):
        os.environ.pop(name, None)
    if arguments.group:
        from data import program

        os.environ.setdefault("FOREBAY_PROGRAM", str(program()))
        return run_group(arguments)
    return all_rows(arguments)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
