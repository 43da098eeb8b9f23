"""Kills workers of the user's own Python at random instants, and now and then their daemon; compares every batch.

What it compares with is an undisturbed run. Two stages and an operation on batches have workers. Most kills hit a
worker that calls or waits, the others one that starts. As a program it prints what it found as one line of JSON;
`scripts/prove` and a test run it.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

import forebay
import numpy
from support import config_of, digest, workers

SAMPLES, SIZE = 60, 6
# The longest pause between two kills.
PAUSE = 0.3
# The share of kills that may hit a worker which is being started.
STARTING = 0.2

SOURCE = """
import os, random, time
from pathlib import Path
import numpy as np

Path(__file__).with_name(f"{os.getpid()}.worker").touch()

def augment(sample, rng):
    time.sleep(rng.random() / 500)
    array = sample["array"]
    array += rng.random(array.shape)
    return {"array": array, "noise": np.array([rng.random(), random.random(), np.random.random()])}

def collate(batch, rng):
    time.sleep(rng.random() / 100)
    place = rng.permutation(len(batch["noise"]))
    return {"array": batch["array"] + rng.random(), "noise": batch["noise"], "place": place}
"""


def prepare(folder):
    """Data and functions; the configuration, without a last epoch."""
    (folder / "data").mkdir()
    for sample in range(SAMPLES):
        numpy.save(folder / "data" / f"{sample:02}.npy", numpy.full((8, 16), sample, numpy.float64))
    name = f"killed_{os.getpid()}"
    (folder / f"{name}.py").write_text(SOURCE)
    sys.path.insert(0, str(folder))
    stages = [{"name": stage, "python": f"{name}:augment", "workers": 2} for stage in ("first", "second")]
    collate = {"op": "python", "call": f"{name}:collate", "workers": 2}
    dataset = {"format": "npy", "path": str(folder / "data")}
    return config_of(
        dataset, stage=stages, order={"seed": 3, "epochs": None}, batch={"size": SIZE, "operations": [collate]}
    )


def batches(config, kills_daemon=False):
    """The ids and a digest of each batch, without end; the daemon is killed behind some of them."""
    taken = 0
    with forebay.Loader(config, timeout=300) as loader:
        while True:
            for batch in loader:
                yield batch["index"].tolist(), digest(batch)
                taken += 1
                if kills_daemon and taken % 25 == 5:
                    os.kill(loader.daemon_pid, signal.SIGKILL)


def kill_at_random(folder, wanted, seed, killed):
    """Kills workers until there are enough of them in `killed`."""
    dice = random.Random(seed)
    while len(killed) < wanted:
        time.sleep(dice.uniform(0, PAUSE))
        found = workers()
        if dice.random() >= STARTING:
            found = [process for process in found if (folder / f"{process}.worker").exists()]
        if found:
            process = dice.choice(found)
            try:
                os.kill(process, signal.SIGKILL)
                killed.append(process)
            except ProcessLookupError:
                continue


def run(kills, seed, folder):
    """Kills so many; what became of it."""
    config, killed = prepare(folder), []
    killer = threading.Thread(target=kill_at_random, args=(folder, kills, seed, killed), daemon=True)
    disturbed, source = [], batches(config, kills_daemon=True)
    # The functions' first calls are answered before the first kill: an error of theirs would be one of the start.
    disturbed.append(next(source))
    killer.start()
    while killer.is_alive() or len(disturbed) % (SAMPLES // SIZE):
        disturbed.append(next(source))
    source.close()
    deadline = time.monotonic() + 20
    while workers() and time.monotonic() < deadline:
        time.sleep(0.05)
    left = len(workers())
    undisturbed = batches(config)
    mismatches = sum(batch != next(undisturbed) for batch in disturbed)
    undisturbed.close()
    epochs = [disturbed[first : first + SAMPLES // SIZE] for first in range(0, len(disturbed), SAMPLES // SIZE)]
    ids = [sorted(id for batch, _ in epoch for id in batch) for epoch in epochs]
    lost = sum(SAMPLES - len(set(epoch)) for epoch in ids)
    found = {"kills": len(killed), "batches": len(disturbed), "mismatches": mismatches, "lost": lost, "left": left}
    return {**found, "ok": mismatches == 0 and lost == 0 and left == 0}


def main():
    """Prints what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(run(arguments.kills, arguments.seed, Path(folder))))


if __name__ == "__main__":
    main()
