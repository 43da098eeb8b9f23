"""What a worker of a Python stage has from the processes above it: docs/guide/python-workers.md lists it all."""

import json
import os
import re
import signal
import socket
from pathlib import Path

import forebay
from support import ROOT

LOOK = """
import json, os

def look(sample, rng):
    descriptors = {}
    for number in os.listdir("/proc/self/fd"):
        try:
            descriptors[number] = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            pass  # That of the folder, closed by now.
    with open("/proc/self/status") as file:
        status = dict(line.split(":\\t", 1) for line in file.read().splitlines())
    found = {"descriptors": descriptors, "environment": dict(os.environ), "folder": os.getcwd(), "status": status}
    return {"found": json.dumps(found)}
"""


def test_a_worker_inherits_what_is_listed(config, tmp_path, monkeypatch):
    (tmp_path / "looking.py").write_text(LOOK)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OWN_SECRET", "of the trainer")
    called = config()
    called["stage"].append({"name": "own", "python": "looking:look", "workers": 1})
    called["output"] = {"found": {"ragged": True, "max_bytes": "64KiB"}}
    secret, (one, other) = open(tmp_path / "secret", "w"), socket.socketpair()  # noqa: SIM115
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        for kept in (secret, one, other):
            os.set_inheritable(kept.fileno(), True)
        with forebay.Loader(called) as loader:
            (text, *_) = next(iter(loader))["found"].strings()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        for kept in (secret, one, other):
            kept.close()
    found = json.loads(text)
    descriptors = found["descriptors"]
    assert descriptors.pop("0") == "/dev/null"
    log = descriptors.pop("2")
    assert descriptors.pop("1") == log
    # Each of Python's maps has a descriptor of its own of the arena.
    kinds = {re.sub(r"\[.*| \(.*", "", target) for target in descriptors.values()}
    assert kinds == {"/memfd:forebay-python", "socket:"}, descriptors
    # The trainer's own, secrets included, and what the list in the documentation sets.
    listed = (ROOT / "docs" / "guide" / "python-workers.md").read_text()
    added = dict(re.findall(r"`([A-Z_]+)=(\w+)`", listed))
    assert added["OMP_NUM_THREADS"] == "1" and "PYTHONHASHSEED" in added
    # The readline library sets two variables behind Python's back, where something has imported it.
    size = {"LINES", "COLUMNS"}
    environment = {**os.environ, **added}
    # Which worker it is, for the process that ends it: another value each time.
    assert "`FOREBAY_WORKER_MARK`" in listed and found["environment"].pop("FOREBAY_WORKER_MARK")
    assert found["environment"].keys() - size == environment.keys() - size
    assert all(found["environment"][name] == value for name, value in environment.items() if name not in size)
    assert found["folder"] == str(tmp_path)
    status = found["status"]
    assert int(status["SigBlk"], 16) == 0
    own = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines())
    for kept in ("Uid", "Gid", "Groups", "Umask", "CapEff", "NoNewPrivs", "Seccomp"):
        assert status[kept] == own[kept], kept
