"""One run of one loader in a fresh process tree, and rounds of such runs in alternation.

This module owns the processes that it starts: whatever a loader leaves behind is ended before the next run begins.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol, TypeVar

import process_tree
from environments import NotInstalled, say
from figures import Round
from peer_loaders.work import Work

WORKER = Path(__file__).parent / "worker.py"


@dataclass(frozen=True)
class Contestant:
    """A loader with its settings; or, with `command`, any program that prints figures as one line of JSON."""

    name: str
    title: str
    described: str
    python: Path = Path()
    module: str = ""
    function: str = "batches"
    imports: Sequence[str] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    cores: int = 0
    command: Sequence[str] = ()
    does_less: str = ""


class RunFailed(Exception):
    """A loader ended without figures."""


def end_tree() -> None:
    """Ends every descendant of this process, and reaps it, so that nothing of one run works in the next."""
    me = os.getpid()
    deadline = time.monotonic() + 20
    while True:
        left = [process for process in process_tree.tree_of(me) if process != me]
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not left:
            return
        if time.monotonic() > deadline:
            raise RunFailed(f"processes {left} do not end")
        for process in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.05)


def allowed_cores(count: int) -> list[int]:
    mine = sorted(os.sched_getaffinity(0))
    if count > len(mine):
        raise RunFailed(f"{count} cores are asked for, and this process may use {len(mine)}")
    return mine[:count]


def lines_of(file: IO[str]) -> list[str]:
    """The lines of a file from its start, without empty ones."""
    file.seek(0)
    return [line.strip() for line in file if line.strip()]


def failure(contestant: Contestant, messages: list[str], status: int) -> RunFailed:
    """The error for a loader that ended with a status: the last line that it wrote, if any."""
    return RunFailed(f"{contestant.title}: {[f'status {status}', *messages][-1][:300]}")


def run(
    contestant: Contestant, work: Work, warm_up: int, limit_seconds: float = 900, watch_memory: bool = True
) -> dict[str, Any]:
    """The figures of one run, with `peak_memory_bytes` where that is watched."""
    cores = contestant.cores or work.cores
    if contestant.command:
        command = list(contestant.command)
    else:
        settings = {**work.settings, **contestant.settings}
        job = json.dumps({**asdict(work), "settings": settings, "cores": cores})
        command = [str(contestant.python), str(WORKER), contestant.module, contestant.function, job, str(warm_up)]
    imports = json.dumps(list(contestant.imports))
    # One thread for a library's own pool unless a loader's settings say otherwise: its workers share the cores.
    environment = {**os.environ, "FOREBAY_BENCH_IMPORTS": imports, "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    chosen = allowed_cores(cores)
    # Files, not pipes: a daemon that outlives its starter would hold a pipe open.
    with (
        tempfile.TemporaryFile("w+", errors="replace") as output,
        tempfile.TemporaryFile("w+", errors="replace") as log,
    ):
        pinned = ["taskset", "--cpu-list", ",".join(map(str, chosen)), *command]
        child = subprocess.Popen(pinned, stdout=output, stderr=log, env=environment)
        memory = process_tree.PeakMemory(child.pid) if watch_memory else None
        try:
            child.wait(limit_seconds)
        except subprocess.TimeoutExpired:
            raise RunFailed(f"{contestant.title}: no result after {limit_seconds:.0f} seconds") from None
        finally:
            peak = memory.stop() if memory else 0
            end_tree()
        lines = [line for line in lines_of(output) if line.startswith("{")]
        if child.returncode != 0 or not lines:
            raise failure(contestant, lines_of(log), child.returncode)
    figures: dict[str, Any] = json.loads(lines[-1])
    return {**figures, "peak_memory_bytes": peak} if memory else figures


def prepare(contestant: Contestant, work: Work) -> None:
    """Lets a loader bring the data into its own form, once and not timed. Fails as a run does."""
    Path(work.prepared).mkdir(parents=True, exist_ok=True)
    command = [str(contestant.python), str(WORKER), contestant.module, "prepare", json.dumps(asdict(work)), "0"]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode != 0:
        raise failure(contestant, [line for line in done.stderr.splitlines() if line.strip()], done.returncode)


class Named(Protocol):
    """A participant of a round."""

    @property
    def name(self) -> str: ...


Participant = TypeVar("Participant", bound=Named)


def rounds(
    participants: Sequence[Participant],
    runs: int,
    failures: dict[str, str],
    measure: Callable[[Participant], dict[str, Any]],
    shown: Callable[[Participant, dict[str, Any]], str],
) -> list[Round]:
    """Measures every participant once in each round, so that other load on the machine affects all of them alike.

    One that fails is left out from then on, its reason in `failures`.
    """
    process_tree.adopt_orphans()
    found: list[Round] = []
    for number in range(runs):
        results: Round = {}
        # Each round begins with another one: none always runs after the same neighbour.
        turn = number % len(participants)
        for one in [*participants[turn:], *participants[:turn]]:
            if one.name in failures:
                continue
            try:
                results[one.name] = measure(one)
                said = shown(one, results[one.name])
            except RunFailed as failed:
                failures[one.name] = said = str(failed)
            say(f"round {number + 1} of {runs}: {said}")
        found.append(results)
    return found


def run_program(main: Callable[[], int]) -> None:
    """Exits with the status that `main` returns; after an interrupt or an error, ends what still runs first."""
    try:
        status = main()
    except KeyboardInterrupt:
        end_tree()
        say("interrupted")
        status = 130
    except (RunFailed, NotInstalled, OSError, subprocess.CalledProcessError) as error:
        end_tree()
        say(str(error))
        status = 1
    sys.exit(status)
