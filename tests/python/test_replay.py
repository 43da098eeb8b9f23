"""`forebay headspace` beside a trainer in Python: what it sees of a replay, in host memory and on a device."""

import json
import os
import pty
import subprocess
import sys
import time

import forebay
import pytest


@pytest.fixture
def slow_endless(config):
    """5 batches an epoch, without a last epoch."""
    made = config([{"op": "delay", "milliseconds": 1}])
    del made["order"]["epochs"]
    return made


def test_the_trainer_sees_replayed_batches_and_its_state_stands_still(slow_endless):
    seen = []
    with forebay.Loader(slow_endless) as loader:
        assert loader.replaying is False
        socket = f"@forebay-{os.geteuid()}/{loader.daemon_pid}-{loader.stream}"
        options = ["--replay", "--yes", "--after", "20", "--steps", "20", "--json", socket]
        command = [sys.executable, "-m", "forebay", "headspace", *options]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as measuring:
            while measuring.poll() is None:
                for batch in loader:
                    seen.append((loader.replaying, int(batch["index"][0]), loader.state_dict()))
                    time.sleep(0.004)
            output = measuring.stdout.read()
    assert measuring.returncode == 0
    report = json.loads(output)
    assert report["replayed"] is True and report["step_seconds"] > 0
    replays = [place for place, (again, _, _) in enumerate(seen) if again]
    assert len(replays) == 20 and replays == list(range(replays[0], replays[0] + 20))
    before = seen[replays[0] - 1][2]
    assert all(seen[place][2] == before for place in replays)
    # Without them each epoch is whole: 0, 8, 16, 24, 32.
    fresh = [first for again, first, _ in seen if not again]
    assert fresh == [place % 5 * 8 for place in range(len(fresh))]


@pytest.mark.parametrize("answer", ["y", "", "no"])
def test_a_replay_asks_on_a_terminal(slow_endless, answer):
    replayed = 0
    with forebay.Loader(slow_endless) as loader:
        socket = f"@forebay-{os.geteuid()}/{loader.daemon_pid}-{loader.stream}"
        options = ["--replay", "--after", "20", "--steps", "20", socket]
        command = [sys.executable, "-m", "forebay", "headspace", *options]
        terminal, side = pty.openpty()
        with subprocess.Popen(command, stdin=side, stderr=side, stdout=subprocess.DEVNULL) as measuring:
            os.close(side)
            shown = b""
            while b"[y/N]" not in shown:
                shown += os.read(terminal, 1000)
            assert b"changes the model" in shown
            os.write(terminal, answer.encode() + b"\n")
            while measuring.poll() is None:
                for _ in loader:
                    replayed += loader.replaying
                    time.sleep(0.004)
        os.close(terminal)
    assert (measuring.returncode == 0, replayed) == ((True, 20) if answer == "y" else (False, 0))


ON_DEVICE = """
import json, os, subprocess, sys, threading, time
import forebay.device
loader = forebay.device.Loader(json.loads(sys.argv[1]), device=0)
done = []

def ask():
    socket = f"@forebay-{os.geteuid()}/{loader.daemon_pid}-{loader.stream}"
    words = ["headspace", "--replay", "--yes", "--after", "20", "--steps", "20", "--json", socket]
    command = [sys.executable, "-m", "forebay", *words]
    done.append(subprocess.run(command, capture_output=True, text=True, timeout=100))

asking = threading.Thread(target=ask)
asking.start()
again = 0
while asking.is_alive():
    for batch in loader:
        again += loader.replaying
        del batch
        time.sleep(0.004)
asking.join()
print(json.dumps([again, done[0].returncode, done[0].stderr]))
"""


def test_batches_on_a_device_are_replayed_too(run_on_device, slow_endless):
    again, status, errors = run_on_device(ON_DEVICE, slow_endless)
    assert status == 0, errors
    assert again == 20
