"""`forebay headspace` beside a trainer in Python: what it sees of a replay, in host memory and on a device."""

import json
import os
import subprocess
import sys
import threading
import time

import forebay
import pytest


@pytest.fixture
def endless(config):
    """A configuration of 5 batches an epoch, for ever."""

    def make():
        made = config([{"op": "delay", "milliseconds": 1}])
        del made["order"]["epochs"]
        return made

    return make


def headspace(loader, *arguments):
    socket = f"@forebay-{os.geteuid()}/{loader.daemon_pid}-{loader.stream}"
    return subprocess.run(
        [sys.executable, "-m", "forebay", "headspace", *arguments, socket],
        capture_output=True,
        text=True,
        timeout=120,
    )


REPLAY = ("--replay", "--after", "20", "--steps", "20", "--json")


class Trainer(threading.Thread):
    """Takes epoch after epoch until it is stopped; keeps whether each batch was shown again, and the first sample."""

    def __init__(self, loader, change=False):
        super().__init__()
        self.loader, self.change = loader, change
        self.seen = []
        self.error = None
        self.stopped = threading.Event()

    def run(self):
        try:
            while not self.stopped.is_set():
                for batch in self.loader:
                    self.seen.append((self.loader.replaying, int(batch["index"][0]), self.loader.state_dict()))
                    if self.change:
                        batch["array"] += 1
                    time.sleep(0.004)
        except BaseException as error:  # Told by the test's own thread.
            self.error = error

    def stop(self):
        self.stopped.set()
        self.join(60)
        assert not self.is_alive() and self.error is None, self.error


def test_the_trainer_sees_replayed_batches_and_its_state_stands_still(endless):
    with forebay.Loader(endless()) as loader:
        assert loader.replaying is False
        trainer = Trainer(loader)
        trainer.start()
        done = headspace(loader, *REPLAY)
        trainer.stop()
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["replayed"] is True and told["step_seconds"] > 0
    replays = [place for place, (again, _, _) in enumerate(trainer.seen) if again]
    assert len(replays) == 20 and replays == list(range(replays[0], replays[0] + 20))
    before = trainer.seen[replays[0] - 1][2]
    assert all(trainer.seen[place][2] == before for place in replays)
    # Without them each epoch is whole: 0, 8, 16, 24, 32.
    fresh = [first for again, first, _ in trainer.seen if not again]
    assert fresh == [place % 5 * 8 for place in range(len(fresh))]


def test_a_trainer_that_changes_its_batches_is_refused(endless):
    with forebay.Loader(endless()) as loader:
        trainer = Trainer(loader, change=True)
        trainer.start()
        done = headspace(loader, *REPLAY)
        trainer.stop()
    assert done.returncode == 1 and "in place" in done.stderr, done
    assert not any(again for again, _, _ in trainer.seen)


ON_DEVICE = """
import json, os, subprocess, sys, threading, time
import forebay.device
loader = forebay.device.Loader(json.loads(sys.argv[1]), device=0)
done = []

def ask():
    socket = f"@forebay-{os.geteuid()}/{loader.daemon_pid}-{loader.stream}"
    words = ["headspace", "--replay", "--after", "20", "--steps", "20", "--json", socket]
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


def test_batches_on_a_device_are_replayed_too(run_on_device, endless):
    again, status, errors = run_on_device(ON_DEVICE, endless())
    assert status == 0, errors
    assert again == 20
