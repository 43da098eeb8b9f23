"""Foreign files: a folder of other projects' test files, each read by Forebay and by the reader that others use."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from proof.running import FOLDER, PROFILE, ROOT, TARGET, Amounts, Failed, Found, Line, Trial, say

VENV = Path(os.environ.get("FOREBAY_VENV", TARGET / "venv"))
# In the order of a table's columns.
VERDICTS = ("equal", "different", "refused", "both refuse", "read beyond the reference", "not compared", "crashed")
MOST_REASONS = 12


def skipped() -> str | None:
    """Why there is nothing to compare."""
    return None if FOLDER else "skipped: it needs foreign files, `--folder DIR` with a folder for each corpus"


def run(_amounts: Amounts, _seed: int) -> Found:
    """Reads the folder in the environment that has the readers."""
    python = VENV / "bin" / "python"
    if not python.exists():
        raise Failed(f"there is no {python}; run scripts/setup --python, and install the wheel there")
    environment = {
        **os.environ,
        "FOREBAY_PROGRAM": str(TARGET / PROFILE[0] / "forebay"),
        "FOREBAY_LOG": "error",
    }
    command = [str(python), str(Path(__file__).parent / "compare_files.py"), str(FOLDER[0])]
    ended = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if ended.returncode != 0:
        raise Failed(f"`{' '.join(command)}` ended with {ended.returncode}\n{ended.stdout}")
    found: Found = json.loads(ended.stdout.strip().splitlines()[-1])
    tell(found)
    return found


def tell(found: Found) -> None:
    """Why files were refused, and which ones differ."""
    for kind in found["absent"]:
        say(f"{kind}: not compared, their reader is not installed")
    for kind, count in sorted(found["skipped"].items()):
        say(f"{count} files not tried: {kind}")
    for corpus, kinds in sorted(found["corpora"].items()):
        for kind, of in sorted(kinds.items()):
            reasons = sorted(of["reasons"].items(), key=lambda entry: (-entry[1], entry[0]))
            for why, count in reasons[:MOST_REASONS]:
                say(f"{corpus}, {kind}: {count} × {why}")
            if len(reasons) > MOST_REASONS:
                rest = sum(count for _, count in reasons[MOST_REASONS:])
                say(f"{corpus}, {kind}: {rest} for {len(reasons) - MOST_REASONS} other reasons")
            for verdict in ("different", "crashed"):
                for name in of["files"].get(verdict, []):
                    say(f"{corpus}, {kind}: {verdict}: {name}")


def lines(found: Found, _amounts: Amounts) -> list[Line]:
    """A line for each corpus and kind of files."""
    made = []
    for corpus, kinds in sorted(found["corpora"].items()):
        for kind, of in sorted(kinds.items()):
            counts = of["counts"]
            result = ", ".join(f"{counts[verdict]:,} {verdict}" for verdict in VERDICTS if verdict in counts)
            crashed = counts.get("crashed", 0)
            made.append(
                Line(f"foreign files: {corpus}, {kind}", "as the reference reads them, 0 crashed", result, not crashed)
            )
    return made


CORPORA = Trial("foreign files, against the readers that others use", run, lines, skipped)
