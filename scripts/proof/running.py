"""How the trials of scripts/prove run programs and tests, and what they are made of."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
# The folder of the programs; --debug takes the other one.
PROFILE = ["release"]
# The folder of foreign files, if one was named.
FOLDER: list[Path] = []

Found = dict[str, Any]


class Failed(Exception):
    """A trial did not end as it should; the text says how."""


@dataclass(frozen=True)
class Amounts:
    kills: int = 500
    kills_of_all: int = 100
    kills_with_server: int = 1000
    schedules: int = 100_000
    epochs: int = 500
    lives: int = 1500
    operations: int = 10_000_000
    flood_seconds: int = 10
    outage_seconds: int = 60
    fuzz_seconds: int = 900
    fuzz_executions: int = 50_000_000
    soak_seconds: int = 3600
    picture_side: int = 13_000
    index_damages: int = 1_000_000
    jpeg_mutations: int = 20_000_000


SHORT = Amounts(
    kills=25, kills_of_all=10, kills_with_server=40, schedules=500, epochs=10, lives=50, operations=300_000,
    flood_seconds=1, outage_seconds=1, fuzz_seconds=2, fuzz_executions=1000, soak_seconds=20, picture_side=2500,
    index_damages=1500, jpeg_mutations=6000,
)  # fmt: skip


@dataclass(frozen=True)
class Trial:
    """One thing that is tried: `run` gives what was found, `lines` the table's lines, `skipped` why it cannot run."""

    about: str
    run: Callable[[Amounts, int], Found]
    lines: Callable[[Found, Amounts], list[Line]]
    skipped: Callable[[], str | None] = lambda: None


@dataclass(frozen=True)
class Line:
    test: str
    goal: str
    result: str
    reached: bool


def say(text: str) -> None:
    print(f"prove: {text}", file=sys.stderr, flush=True)


def call(command: list[str], **variables: str) -> str:
    """Runs a command from the repository's root; its output. Its messages go where ours go."""
    environment = {**os.environ, **variables}
    ended = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if ended.returncode != 0:
        shown = " ".join(f"{key}={value}" for key, value in variables.items())
        raise Failed(f"`{(shown + ' ' + ' '.join(command)).strip()}` ended with {ended.returncode}\n{ended.stdout}")
    return ended.stdout


def program(name: str, *arguments: str) -> Found:
    """Runs one of the test programs; the line of JSON that it prints."""
    output = call(
        [str(TARGET / PROFILE[0] / name), *arguments],
        FOREBAY_PROGRAM=str(TARGET / PROFILE[0] / "forebay"),
        FOREBAY_LOG="error",
    )
    found: Found = json.loads(output.strip().splitlines()[-1])
    return found


def test_output(arguments: list[str], name: str, **variables: str) -> str:
    return call(["cargo", "test", "--quiet", *arguments, "--", "--nocapture", "--exact", name], **variables)


def test(arguments: list[str], name: str, pattern: str, **variables: str) -> int:
    output = test_output(arguments, name, **variables)
    match = re.search(pattern, output)
    if match is None:
        raise Failed(f"{name} printed no count:\n{output}")
    return int(match.group(1))
