"""Functions that several tests of the Python package share."""

import importlib
import json
import os
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
