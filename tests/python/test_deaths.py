"""What a trainer sees of the death of its daemon, and what its own forks, threads and interrupts do to the loader."""

import itertools
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import forebay
import pytest
from support import PROGRAM, WATCHDOG_SECONDS, indices, wait_until


def flat(lists):
    return list(itertools.chain.from_iterable(lists))


def is_gone(pid):
    """Whether a process has ended; a zombie has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def trainer(script, *arguments, **options):
    """A Python process of its own that runs a script."""
    command = [sys.executable, "-c", textwrap.dedent(script), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)


def test_a_daemon_that_cannot_come_back_is_lost_with_the_reason(config, tmp_path, monkeypatch):
    # A program that works once.
    wrapper, used = tmp_path / "once", tmp_path / "used"
    wrapper.write_text(
        f'#!/bin/sh\n[ -e {used} ] && {{ echo "out of luck" >&2; exit 9; }}\n: > {used}\nexec {PROGRAM} "$@"\n'
    )
    wrapper.chmod(0o700)
    monkeypatch.setenv("FOREBAY_PROGRAM", str(wrapper))
    with forebay.Loader(config(size=4), timeout=10) as loader:
        batches = iter(loader)
        next(batches)
        os.kill(loader.daemon_pid, signal.SIGKILL)
        with pytest.raises(forebay.DaemonLost, match=r"(?s)status 9.*out of luck"):
            for _ in batches:
                pass


def test_an_interrupt_at_any_moment_loses_no_batch(config):
    # As a notebook's stop button: KeyboardInterrupt inside `next`, and then the cell is run again.
    script = """
        import json, sys, threading, _thread, time, forebay
        loader = forebay.Loader(json.loads(sys.argv[1]))
        seen, interrupts = [], 0
        def interrupt():
            while not done:
                time.sleep(0.011)
                _thread.interrupt_main()
        done = False
        batches = iter(loader)
        thread = threading.Thread(target=interrupt)
        thread.start()
        while True:
            try:
                for batch in batches:
                    seen.append(batch["index"].tolist())
                break
            except KeyboardInterrupt:
                interrupts += 1
        while thread.is_alive():
            try:
                done = True
                thread.join()
            except KeyboardInterrupt:
                pass
        print(json.dumps([seen, interrupts]))
    """
    delayed = config([{"op": "delay", "milliseconds": 10}], size=2)
    process = trainer(script, json.dumps(delayed))
    output, _ = process.communicate(timeout=WATCHDOG_SECONDS)
    assert process.returncode == 0
    seen, interrupts = json.loads(output)
    ids = flat(seen)
    # An interrupt between a batch and its place in the list is the script's own loss, never a repeat or another order.
    assert ids == sorted(set(ids)) and len(ids) >= 40 - 2 * interrupts
    assert interrupts > 3


def test_a_child_that_outlives_its_trainer_does_not_keep_the_daemon(config):
    script = """
        import json, os, sys, time, forebay
        loader = forebay.Loader(json.loads(sys.argv[1]))
        next(iter(loader))
        child = os.fork()
        if child == 0:
            time.sleep(600)
            os._exit(0)
        print(loader.daemon_pid, child, flush=True)
        time.sleep(600)
    """
    process = trainer(script, json.dumps(config()))
    daemon, child = (int(word) for word in process.stdout.readline().split())
    try:
        process.kill()
        process.wait()
        wait_until(lambda: is_gone(daemon), "the daemon's end")
        assert not is_gone(child), "the child holds the socket still"
    finally:
        os.kill(child, signal.SIGKILL)
        process.communicate()


def test_the_thread_that_made_a_loader_may_end(config):
    made = []
    thread = threading.Thread(target=lambda: made.append(forebay.Loader(config())))
    thread.start()
    thread.join()
    time.sleep(0.1)
    with made[0] as loader:
        assert not is_gone(loader.daemon_pid)
        # A restart too is no matter of the thread that caused it.
        killer = threading.Thread(target=lambda: os.kill(loader.daemon_pid, signal.SIGKILL))
        killer.start()
        killer.join()
        assert indices(loader) == list(range(40))
        assert indices(loader) == list(range(40))


def test_several_threads_share_a_loader_and_each_batch_goes_to_one(config):
    with forebay.Loader(config(size=2)) as loader:
        batches = iter(loader)
        # Each may have two in its hands for a moment, the old one and the new one: three may be held, so two threads.
        seen = [[] for _ in range(2)]

        def take(mine):
            for batch in batches:
                mine += batch["index"].tolist()

        threads = [threading.Thread(target=take, args=(mine,)) for mine in seen]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(flat(seen)) == list(range(40))
        assert all(mine == sorted(mine) for mine in seen)


def test_an_epoch_goes_on_over_killed_daemons_and_forks_and_held_arrays_stay(config):
    with forebay.Loader(config(size=2)) as loader:
        batches = iter(loader)
        kept = next(batches)
        seen = kept["index"].tolist()
        for number in range(1, 20):
            held = next(batches)
            if number in (2, 5, 9):
                if number != 5:
                    os.kill(loader.daemon_pid, signal.SIGKILL)
                child = os.fork()
                if child == 0:
                    errors = []
                    for use in (loader.state_dict, lambda: next(batches), lambda: next(iter(loader))):
                        try:
                            use()
                        except forebay.Error as error:
                            errors.append("fork" in str(error))
                    del held
                    loader.close()
                    os._exit(0 if errors[-2:] == [True, True] else 1)
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            seen += held["index"].tolist()
        assert seen == list(range(40))
        assert loader.restarts == loader.stats()["client"]["restarts"] == 2
        assert kept["index"].tolist() == [0, 1] and (kept["array"][1] == 1).all()
        assert indices(loader) == list(range(40))
