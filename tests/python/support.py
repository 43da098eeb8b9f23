"""Functions that several tests of the Python package share."""

import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import forebay

WATCHDOG_SECONDS = 240
PROGRAM = os.environ.get("FOREBAY_PROGRAM") or str(Path(forebay.__file__).with_name("bin") / "forebay")


def indices(batches):
    return [int(index) for batch in batches for index in batch["index"]]


def epochs_of(rows, config, count=2, world_size=1, **options):
    """The samples of each epoch in the order of the world's batches; `rows` gives those of a batch."""
    found = []
    loaders = [
        forebay.Loader(config, rank=rank, world_size=world_size, compare_ranks=False, **options)
        for rank in range(world_size)
    ]
    try:
        for _ in range(count):
            batches = [[rows(batch) for batch in loader] for loader in loaders]
            number = max(len(of_rank) for of_rank in batches)
            parts = [of_rank[place] for place in range(number) for of_rank in batches if place < len(of_rank)]
            found.append([sample for part in parts for sample in part])
    finally:
        for loader in loaders:
            loader.close()
    return found


def kill_in_each_epoch(config, whole, after):
    """Takes epochs whose daemon is killed after so many batches of each: their samples are those of `whole`."""
    with forebay.Loader(config) as loader:
        for samples in whole:
            batches = iter(loader)
            taken = indices([next(batches) for _ in range(after)])
            os.kill(loader.daemon_pid, signal.SIGKILL)
            assert taken + indices(batches) == samples
        assert loader.restarts == len(whole)


def inline(value):
    """A value as TOML has it within a line; strings, numbers and lists are written as JSON's."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {inline(of)}" for key, of in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(inline, value)) + "]"
    return json.dumps(value)


def wait_until(condition, what):
    end = time.monotonic() + WATCHDOG_SECONDS
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen"
        time.sleep(0.01)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def script_modules(folder):
    """Returns a function that imports modules of a scripts folder, which is on the path only meanwhile."""

    def load(name):
        sys.path.insert(0, str(folder))
        try:
            return importlib.import_module(name)
        finally:
            sys.path.remove(str(folder))

    return load


def run_ranks(folder, ranks, script, *arguments, launcher=(), **variables):
    """Runs a script on several ranks under torchrun, below `launcher` if there is one.

    The script's first argument is the folder, into which each rank writes its report: RANK.json. Returns the reports.
    """
    program = folder / "script.py"
    program.write_text(textwrap.dedent(script))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command += ["--no-python", *launcher, sys.executable] if launcher else []
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "FOREBAY_SOCKET"))}
    done = subprocess.run(
        [*command, program, folder, *map(str, arguments)],
        cwd=folder,
        env={**inherited, "OMP_NUM_THREADS": "1", **variables},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]
