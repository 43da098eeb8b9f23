"""The steps of scripts/common.sh."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

COMMON = Path(__file__).parent / "common.sh"


def test_a_process_that_a_step_leaves_does_not_hold_the_script(tmp_path: Path) -> None:
    script = tmp_path / "steps"
    script.write_text(
        f'source "{COMMON}"\n'
        f'target="{tmp_path}"\n'
        "begin_steps some\n"
        'step first bash -c \'sleep 600 & echo said; echo $! >"$0"\' "$target/left"\n'
        "step second false\n"
    )
    try:
        # A script whose tests these are has times of its own.
        apart = {name: value for name, value in os.environ.items() if name != "FOREBAY_STEP_TIMES"}
        done = subprocess.run(["bash", script], capture_output=True, text=True, timeout=60, check=False, env=apart)
    finally:
        subprocess.run(["kill", (tmp_path / "left").read_text().strip()], check=False)
    assert done.returncode == 1
    assert "said\n== first: " in done.stdout
    assert "first left processes that hold its output" in done.stderr
    assert done.stderr.endswith("FAILED: second (status 1)\n")
    assert (tmp_path / "some-logs" / "1").read_text() == "said\n"
