"""The processes of Python stages: who is dead, what they hold, and what is left of them when something ends."""

import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import forebay
import numpy
import pytest
from support import PROGRAM, below, config_of, processes, wait_until

SAMPLES = 40
# Sleeps beyond the first look at a worker's process.
SLOW = """
import time

def slow(sample, rng):
    if sample["array"][0] % 8 == 0:
        time.sleep(0.3)
    return {"array": sample["array"], "drawn": rng.random()}
"""


@pytest.fixture
def stage(tmp_path, monkeypatch):
    """Writes a module and arrays; the configuration of a stage that calls a function of it."""
    monkeypatch.syspath_prepend(tmp_path)
    numpy.save(tmp_path / "rows.npy", numpy.arange(SAMPLES * 4, dtype=numpy.float32).reshape(SAMPLES, 4))
    counter = iter(range(100))

    def make(source, function, **keys):
        module = f"lives{next(counter)}_{os.getpid()}"
        (tmp_path / f"{module}.py").write_text(textwrap.dedent(source))
        stage = {"name": "p", "python": f"{module}:{function}", "workers": 2, **keys}
        dataset = {"format": "npy", "path": str(tmp_path / "rows.npy")}
        return config_of(dataset, stage=[stage], order={"epochs": 2, "seed": 4})

    return make


def rows(config, **keywords):
    """All rows of all epochs, in their order."""
    with forebay.Loader(config, timeout=120, **keywords) as loader:
        return [
            (int(id), float(drawn))
            for _ in loader.epochs_left()
            for batch in loader
            for id, drawn in zip(batch["index"], batch["drawn"])
        ]


def noted(path, count):
    """The processes that a function has noted, once they are as many."""
    wait_until(lambda: path.exists() and len(path.read_text().split()) >= count, "the function was not called")
    return {int(process) for process in path.read_text().split()}


class TestHiddenProcesses:
    """An ordinary user, and a /proc that shows only what one may trace, as clusters mount it."""

    def run(self, tmp_path, hidepid, script):
        if os.getuid() != 0 or not shutil.which("unshare") or not shutil.which("setpriv"):
            pytest.skip("only root may mount a /proc that hides processes")
        mounted = f"mount -t proc -o hidepid={hidepid} proc /proc"
        if subprocess.run(["unshare", "-m", "sh", "-c", mounted], capture_output=True).returncode:
            pytest.skip("this machine does not let root mount /proc")
        tmp_path.chmod(0o755)
        for folder in tmp_path.parents:
            # The folders of pytest are for its own user alone.
            if folder.name.startswith(("pytest-", "popen-")) and folder.owner() == "root":
                folder.chmod(folder.stat().st_mode | 0o011)
        packages = [str(Path(package.__file__).parent.parent) for package in (forebay, numpy)]
        path = os.pathsep.join([str(tmp_path), *packages])
        environment = {**os.environ, "PYTHONPATH": path, "HOME": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
        ordinary = 'exec setpriv --reuid 1234 --regid 1234 --clear-groups sh -c \'exec "$@"\' sh "$@"'

        def as_user(python, *arguments):
            command = ["unshare", "-m", "sh", "-c", f"{mounted} && {ordinary}", "sh", python, *arguments]
            return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=200)

        pythons = [sys.executable, "/usr/bin/python3"]
        found = [python for python in pythons if as_user(python, "-c", "import forebay").returncode == 0]
        if not found:
            pytest.skip(f"an ordinary user can import forebay with none of {pythons}")
        (tmp_path / "script.py").write_text(textwrap.dedent(script))
        return as_user(found[0], str(tmp_path / "script.py"))

    @pytest.mark.parametrize("hidepid", [1, 2])
    def test_a_worker_that_proc_hides_is_not_taken_for_dead(self, tmp_path, stage, hidepid):
        config = stage(SLOW, "slow")
        expected = rows(config)
        script = f"""
            import forebay, sys
            sys.path.insert(0, {str(tmp_path)!r})
            with forebay.Loader({config!r}, timeout=120) as loader:
                for _ in loader.epochs_left():
                    for batch in loader:
                        for id, drawn in zip(batch["index"], batch["drawn"]):
                            print(int(id), float(drawn))
                (function,) = [of["python"] for of in loader.stats()["streams"][0]["stages"] if "python" in of]
                assert function["num_starts"] == 2 and function["cpu_seconds"] > 0, function
        """
        done = self.run(tmp_path, hidepid, script)
        assert done.returncode == 0, done.stderr
        found = [(int(id), float(drawn)) for id, drawn in map(str.split, done.stdout.splitlines())]
        assert found == expected
        assert "lost" not in done.stderr, done.stderr

    def test_observing_a_private_daemon_says_that_proc_hides_the_observer(self, tmp_path, stage):
        config = stage(SLOW, "slow")
        script = f"""
            import forebay, subprocess, sys
            sys.path.insert(0, {str(tmp_path)!r})
            program = {PROGRAM!r}
            def observe(**keys):
                with forebay.Loader({config!r}, timeout=120, overrides=keys) as loader:
                    next(iter(loader))
                    seen = subprocess.run([program, "stats"], capture_output=True, text=True)
                    return seen.returncode, seen.stdout + seen.stderr
            status, said = observe()
            assert status and "/proc hides process" in said and "mount /proc without hidepid" in said, said
            status, said = observe(**{{"security.confine": "off"}})
            assert not status, said
            said = subprocess.run([program, "doctor"], capture_output=True, text=True).stdout
            assert "/proc is mounted with hidepid=" in said, said
        """
        done = self.run(tmp_path, 2, script)
        assert done.returncode == 0, done.stderr
        # The trainer has started its daemon, which is in its groups so.
        assert "scheduling group" not in done.stderr, done.stderr

    def test_a_worker_that_proc_hides_is_replaced_beyond_its_memory(self, tmp_path, stage):
        config = stage(LEAK, "leak", memory="150MiB", workers=1)
        script = f"""
            import forebay, sys
            sys.path.insert(0, {str(tmp_path)!r})
            with forebay.Loader({config!r}, timeout=120) as loader:
                for _ in loader.epochs_left():
                    for batch in loader:
                        pass
        """
        done = self.run(tmp_path, 2, script)
        assert done.returncode == 0, done.stderr
        assert "holds more memory than `memory` allows" in done.stderr


# Anonymous memory, shared memory, and that of a child.
LEAK = """
import mmap, subprocess, sys, time
KEPT = []

def keep_nothing(sample, rng):
    return {"drawn": rng.random()}

def leak(sample, rng):
    KEPT.append(bytes(8 << 20) + b"x")
    time.sleep(0.05)
    return {"drawn": rng.random()}

def leak_shared(sample, rng):
    memory = mmap.mmap(-1, 8 << 20)
    memory.write(bytes(8 << 20))
    KEPT.append(memory)
    time.sleep(0.05)
    return {"drawn": rng.random()}

def leak_in_child(sample, rng):
    if not KEPT:
        held = "import sys; x = b'x' * (200 << 20); print(flush=True); sys.stdin.read()"
        KEPT.append(subprocess.Popen([sys.executable, "-c", held], stdin=-1, stdout=-1))
        KEPT[0].stdout.readline()
    time.sleep(0.05)
    return {"drawn": rng.random()}

def fork(sample, rng):
    import os
    if not KEPT:
        KEPT.append(b"x" * (100 << 20))
        for _ in range(3):
            if os.fork() == 0:
                while True:
                    signal.pause()
    time.sleep(0.05)
    return {"drawn": rng.random()}
"""


@pytest.mark.parametrize("function", ["leak", "leak_shared", "leak_in_child"])
def test_memory_counts_what_a_worker_shares_and_what_it_has_started(stage, capfd, function):
    found = rows(stage(LEAK, function, memory="150MiB", workers=1))
    assert found == rows(stage(LEAK, "keep_nothing", workers=1))
    assert "holds more memory than `memory` allows" in capfd.readouterr().err


def test_pages_that_forked_children_share_count_once(stage, capfd):
    source = LEAK.replace("import mmap", "import mmap, signal")
    rows(stage(source, "fork", memory="400MiB", workers=1))
    assert "holds more memory" not in capfd.readouterr().err


# Each way of leaving: none, the own group, a session of a child, a double fork without a parent or an environment.
LEAVING = """
import os, pathlib, signal, subprocess, sys, time
NOTE = pathlib.Path(__file__).with_suffix(".pids")

def note(process):
    with NOTE.open("a") as file:
        file.write(f"{process}\\n")

def hang():
    signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals))
    time.sleep(1000)

def child(sample, rng):
    if sample["array"][0] == 32 * 4:
        note(subprocess.Popen(["sleep", "1000"]).pid)
        hang()
    return {"drawn": rng.random()}

def other_group(sample, rng):
    if sample["array"][0] == 32 * 4:
        os.setpgid(0, os.getpgid(os.getppid()))
        note(os.getpid())
        hang()
    return {"drawn": rng.random()}

def other_session(sample, rng):
    if sample["array"][0] == 32 * 4:
        child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        note(child.pid)
        child = subprocess.Popen(["sleep", "1000"], start_new_session=True, env={})
        note(child.pid)
        hang()
    return {"drawn": rng.random()}

def double_fork(sample, rng):
    if sample["array"][0] == 32 * 4:
        read, write = os.pipe()
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.write(write, b"%d" % os.getpid())
                hang()
            os._exit(0)
        note(int(os.read(read, 100)))
        os.wait()
        hang()
    return {"drawn": rng.random()}
"""
WAYS = ["child", "other_group", "other_session", "double_fork"]


@pytest.mark.parametrize("function", WAYS)
def test_a_time_out_ends_a_worker_and_what_it_has_started_wherever_they_went(stage, tmp_path, function):
    config = stage(LEAVING, function, timeout="1s")
    config["errors"] = {"on_bad_sample": "substitute", "budget": 4}
    note = next(tmp_path.glob("lives*.py")).with_suffix(".pids")
    with forebay.Loader(config, timeout=120) as loader:
        for _ in loader:
            pass
        left = noted(note, 1)
        wait_until(lambda: not left & set(processes()), "processes outlive their worker")


@pytest.mark.parametrize("function", WAYS)
@pytest.mark.parametrize("victim", ["daemon", "trainer"])
def test_nothing_is_left_when_the_daemon_or_the_trainer_is_killed(stage, tmp_path, function, victim):
    config = stage(LEAVING, function)
    note = next(tmp_path.glob("lives*.py")).with_suffix(".pids")
    script = (
        f"import forebay, sys\nsys.path.insert(0, {str(tmp_path)!r})\nloader = forebay.Loader({config!r})\n"
        "print(loader.daemon_pid, flush=True)\n[0 for batch in loader]"
    )
    trainer = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        daemon = int(trainer.stdout.readline())
        started = noted(note, 1) | {daemon, *below(daemon, "")}
        assert len(started) >= 4
        if victim == "daemon":
            os.kill(trainer.pid, signal.SIGSTOP)  # It starts no other.
            os.kill(daemon, signal.SIGKILL)
        else:
            trainer.kill()
        wait_until(lambda: not started - {trainer.pid} & set(processes()), "processes are left behind")
    finally:
        trainer.kill()
        trainer.wait()


def test_a_daemon_ends_while_the_process_that_starts_workers_is_stopped(stage, tmp_path):
    config = stage(SLOW, "slow")
    script = (
        f"import forebay, sys\nsys.path.insert(0, {str(tmp_path)!r})\nloader = forebay.Loader({config!r})\n"
        "batches = iter(loader)\nnext(batches)\nprint(loader.daemon_pid, flush=True)\nsys.stdin.read()"
    )
    pipe = subprocess.PIPE
    trainer = subprocess.Popen([sys.executable, "-c", script], stdin=pipe, stdout=pipe, text=True)
    try:
        daemon = int(trainer.stdout.readline())
        spawners = below(daemon, "spawn-workers")
        started = {daemon, *below(daemon, "")}
        assert len(spawners) == 1
        os.kill(spawners[0], signal.SIGSTOP)
        trainer.kill()
        wait_until(lambda: not started & set(processes()), "processes are left behind")
    finally:
        trainer.kill()
        trainer.wait()


@pytest.mark.parametrize("confine", ["auto", "off"])
def test_a_kill_of_the_process_that_starts_workers_loses_nothing(stage, confine):
    config = {**stage(SLOW, "slow"), "security": {"confine": confine}}
    expected = rows(config)
    found = []
    with forebay.Loader(config, timeout=120) as loader:
        for _ in loader.epochs_left():
            for batch in loader:
                found += [(int(id), float(drawn)) for id, drawn in zip(batch["index"], batch["drawn"])]
                if len(found) in (4, 40):
                    for spawner in below(loader.daemon_pid, "spawn-workers"):
                        os.kill(spawner, signal.SIGKILL)
        assert loader.restarts == 2
    assert found == expected
    wait_until(lambda: not below(os.getpid(), "forebay.worker"), "workers are left behind")


# An import ends only after as many have begun as are to go on at the same time, or never will.
IMPORTS = """
import os, pathlib, subprocess, threading, time
NOTES = pathlib.Path(__file__).with_name("imports")

def note(what):
    # One write: lines of several processes do not mix.
    with NOTES.open("ab", buffering=0) as file:
        cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        file.write(f"{what} {os.getpid()} {os.sched_getscheduler(0)} {cores}\\n".encode())

note("begin")
for _ in range(400):
    if NOTES.read_text().count("begin") >= TOGETHER:
        break
    time.sleep(0.05)
note("end")

def keep(sample, rng):
    note("call")
    return {**sample, "drawn": rng.random()}

def keep_batch(batch, rng):
    return batch
"""


def imports(tmp_path):
    """What the imports and calls have noted, in their order: what, process, scheduling class and cores."""
    lines = [line.split() for line in (tmp_path / "imports").read_text().splitlines()]
    return [(what, int(process), int(policy), cores) for what, process, policy, cores in lines]


def test_no_worker_of_any_stage_waits_with_its_import_for_the_end_of_another_import(stage, tmp_path, capfd):
    config = stage(IMPORTS.replace("TOGETHER", "4"), "keep")
    (first,) = config["stage"]
    module = first["python"].partition(":")[0]
    config["stage"] = [first, {**first, "name": "q", "workers": 1}]
    config["batch"]["operations"] = [{"op": "python", "call": f"{module}:keep_batch", "workers": 1}]
    rows(config)
    order = [what for what, *_ in imports(tmp_path) if what != "call"]
    assert order == ["begin"] * 4 + ["end"] * 4
    said = capfd.readouterr().err
    assert f"starting 2 workers of stage `p`: importing {module}" in said
    assert f"starting 1 worker of stage `q`: importing {module}" in said
    assert said.count("is ready after") == 3


# What an import leaves running: a thread, and a process.
LEAVES = """
threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
CHILD = subprocess.Popen(["sleep", "1000"])

def classes(sample, rng):
    tasks = [*os.listdir("/proc/self/task"), CHILD.pid]
    assert {os.sched_getscheduler(int(task)) for task in tasks} == {os.SCHED_IDLE}, tasks
    return keep(sample, rng)
"""


def test_nothing_that_an_import_has_started_keeps_the_class_of_the_import(stage, tmp_path):
    rows(stage(IMPORTS.replace("TOGETHER", "2") + LEAVES, "classes"))
    noted = imports(tmp_path)
    assert {policy for what, _, policy, _ in noted if what == "end"} == {os.SCHED_OTHER}
    assert {policy for what, _, policy, _ in noted if what == "call"} == {os.SCHED_IDLE}


def test_a_worker_that_replaces_another_disturbs_no_trainer_by_its_import(stage, tmp_path):
    config = stage(IMPORTS.replace("TOGETHER", "1"), "keep", workers=1)
    with forebay.Loader(config, timeout=120) as loader:
        batches = iter(loader)
        next(batches)
        (worker,) = below(loader.daemon_pid, "forebay.worker")
        os.kill(worker, signal.SIGKILL)
        assert sum(1 for _ in batches) == SAMPLES // 4 - 1
        os.kill(loader.daemon_pid, signal.SIGKILL)
        assert sum(1 for _ in loader) == SAMPLES // 4
    begun = [policy for what, _, policy, _ in imports(tmp_path) if what == "begin"]
    assert begun == [os.SCHED_OTHER, os.SCHED_IDLE, os.SCHED_IDLE]


def test_workers_that_start_with_the_daemon_keep_to_its_cores(stage, tmp_path):
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        pytest.skip("this machine lends one core")
    rows({**stage(IMPORTS.replace("TOGETHER", "2"), "keep"), "cpu": {"cores": str(allowed[-1])}})
    assert {cores for *_, cores in imports(tmp_path)} == {str(allowed[-1])}
