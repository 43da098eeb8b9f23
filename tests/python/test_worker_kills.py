"""Workers, and their daemon, that are killed at random instants: the short form of what `scripts/prove` does."""

import json
import subprocess
import sys
from pathlib import Path


def test_kills_of_workers_lose_nothing_and_change_no_batch():
    script = Path(__file__).with_name("worker_kills.py")
    ended = subprocess.run([sys.executable, script, "--kills", "12"], capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout.splitlines()[-1])
    assert found["ok"] and found["kills"] == 12 and found["batches"] >= 10, found
