"""`forebay.ray.FeederGroup` on Ray's own cluster of several raylets. Skipped without Ray.

A stand-in takes the place of `forebay feed`: it listens, prints where, and ends at SIGTERM. What is tested is what the
group does: places, restarts, counts, writes files and leaves nothing.
"""

import http.server
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

ray = pytest.importorskip("ray")
cluster_utils = pytest.importorskip("ray.cluster_utils")

import forebay.ray  # noqa: E402
from support import PROGRAM  # noqa: E402

STAND_IN = """#!{python}
import os, signal, socket, sys, time
assert sys.argv[1] == "feed" and sys.argv[-2] == "--listen", sys.argv
host, _, port = sys.argv[-1].rpartition(":")
server = socket.create_server((host, int(port)))
record = os.path.join({folder!r}, str(os.getpid()))
def end(*_):
    os.rename(record, record + ".drained")
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
with open(record + ".new", "w") as file:
    file.write(" ".join(sys.argv[2:]))
os.rename(record + ".new", record)
print(f"listening on {{host}}:{{server.getsockname()[1]}}", flush=True)
while True:
    time.sleep(60)
"""


def eventually(check, seconds=60):
    """Waits for what other processes do."""
    until = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.05)


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


class StandIn:
    """The program, and what its processes leave in its folder."""

    def __init__(self, folder):
        self.folder = folder / "processes"
        self.folder.mkdir()
        self.path = folder / "forebay"
        self.path.write_text(STAND_IN.format(python=sys.executable, folder=str(self.folder)))
        self.path.chmod(0o755)

    def pids(self):
        return {int(file.name) for file in self.folder.iterdir() if file.name.isdigit() and is_alive(file.name)}

    def drained(self):
        return len(list(self.folder.glob("*.drained")))

    def arguments(self):
        return {file.read_text() for file in self.folder.iterdir() if file.name.isdigit()}


@pytest.fixture(scope="module")
def cluster():
    """Three nodes; two of them have the label of feeders."""
    made = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    for _ in range(2):
        made.add_node(num_cpus=4, labels={"kind": "feeders"})
    ray.init(address=made.address, log_to_driver=False)
    made.wait_for_nodes()
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture
def stand_in(tmp_path):
    return StandIn(tmp_path)


class Metrics:
    """A trainer's daemon's metrics, with a gauge that the test sets."""

    def __init__(self):
        self.wanted = None
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                text = "# TYPE forebay_feeders_wanted gauge\nforebay_feeders_wanted_other 9\n"
                if outer.wanted is not None:
                    text += f'forebay_feeders_wanted{{stream="train"}} {outer.wanted}\n'
                self.send_response(200)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def address(self):
        return f"localhost:{self.server.server_address[1]}"


@pytest.fixture
def metrics():
    made = Metrics()
    yield made
    made.server.shutdown()


def listed(group):
    return Path(group.file).read_text().split()


def test_feeders_are_placed_listed_and_gone_after_close(cluster, stand_in):
    group = forebay.ray.FeederGroup(
        "/etc/feed.toml",
        3,
        cpus=2,
        label_selector={"kind": "feeders"},
        program=str(stand_in.path),
        overrides={"a.b": 1},
    )
    with group:
        group.wait(timeout=90)
        assert listed(group) == group.addresses and len(set(listed(group))) == 3
        assert stat.S_IMODE(os.stat(group.file).st_mode) == 0o600
        assert group.overrides == {"feeders.file": group.file}
        assert len(stand_in.pids()) == 3
        assert all(text.startswith("/etc/feed.toml --set a.b=1 --listen ") for text in stand_in.arguments())
        # Two CPUs each on nodes with the label: the head, which has none, is not used.
        placed = {actor["node"] for actor in alive_feeders()}
        assert len(placed) == 2
    assert stand_in.pids() == set() and stand_in.drained() == 3
    assert not os.path.exists(group.file)
    eventually(lambda: not alive_feeders())
    assert not [thread for thread in threading.enumerate() if thread.name == "forebay-feeders"]


def alive_feeders():
    """Ray's records of the actors that run a feeder."""
    records = ray._private.state.actors().values()
    return [
        {"node": record["Address"]["NodeID"], "pid": record["Pid"]}
        for record in records
        if record["State"] == "ALIVE" and record["ActorClassName"].endswith("_Feeder")
    ]


def test_killed_actors_and_killed_feeders_come_back_under_new_addresses(cluster, stand_in):
    with forebay.ray.FeederGroup("feed.toml", 2, program=str(stand_in.path)) as group:
        group.wait(timeout=90)
        before, processes = set(group.addresses), stand_in.pids()
        for actor in alive_feeders():
            os.kill(actor["pid"], signal.SIGKILL)
        # The kernel ends the children, which no handler of a killed actor could.
        eventually(lambda: not processes & stand_in.pids())
        eventually(lambda: len(set(listed(group)) - before) == 2)
        assert len(stand_in.pids()) == 2
        # Now a child alone.
        before, victim = set(listed(group)), stand_in.pids().pop()
        os.kill(victim, signal.SIGKILL)
        eventually(lambda: len(set(listed(group)) - before) == 1 and len(listed(group)) == 2)
    assert stand_in.pids() == set()


def test_number_follows_the_gauge_within_its_limits(cluster, stand_in, metrics, monkeypatch):
    group = forebay.ray.FeederGroup("feed.toml", 1, 4, program=str(stand_in.path), metrics=lambda: [metrics.address])
    with group:
        group.wait(timeout=90)
        reading = group._read_wanted
        assert reading() is None, "a daemon without the gauge says nothing"
        metrics.wanted = 2.2
        # Each of the three nodes asks its own loopback address, which is one machine's here.
        assert reading() == 7
        metrics.wanted = 1
        group._scale(reading())
        assert group.wanted == 3
        group.wait(3, timeout=90)
        group._scale(99)
        assert group.wanted == 4
        for expected in (4, 4, 2):
            group._scale(2)
            assert group.wanted == expected
        group._scale(None)
        group._scale(0)
        assert group.wanted == 2
        eventually(lambda: len(listed(group)) == 2 and len(stand_in.pids()) == 2)
        assert stand_in.drained() >= 1
    assert stand_in.pids() == set()


def test_node_that_joins_gets_the_file_and_one_that_leaves_takes_its_feeders_along(cluster, stand_in):
    with forebay.ray.FeederGroup(
        "feed.toml", 1, cpus=1, label_selector={"kind": "late"}, program=str(stand_in.path)
    ) as group:
        with pytest.raises(TimeoutError, match=r"0 of 1 feeders listen.*ray status"):
            group.wait(timeout=3)
        node = cluster.add_node(num_cpus=1, labels={"kind": "late"})
        group.wait(timeout=90)
        assert len(group._written) == 4
        (process,) = stand_in.pids()
        cluster.remove_node(node, allow_graceful=False)
        eventually(lambda: not is_alive(process))
        eventually(lambda: listed(group) == [])
        # It waits for another node.
        cluster.add_node(num_cpus=1, labels={"kind": "late"})
        eventually(lambda: len(listed(group)) == 1, 120)
    assert stand_in.pids() == set()


def test_program_that_fails_is_reported_and_ends_with_the_group(cluster, tmp_path):
    program = tmp_path / "forebay"
    program.write_text("#!/bin/sh\necho 'a configuration is wrong' >&2\nexit 3\n")
    program.chmod(0o755)
    with forebay.ray.FeederGroup("feed.toml", 1, program=str(program)) as group:
        with pytest.raises(TimeoutError):
            group.wait(timeout=5)
        eventually(lambda: group._members[0].failing is not None)


def test_child_dies_with_its_actors_process_whatever_kills_that():
    # Ray, too, ends what a killed worker leaves, but for a node whose raylet dies with it.
    starter = """if True:
        import os, subprocess, sys, time
        guarded = [sys.executable, "-I", "-S", "-c", sys.argv[1], str(os.getpid()), "sleep", "1000"]
        print(subprocess.Popen(guarded).pid, flush=True)
        time.sleep(1000)"""
    command = [sys.executable, "-c", starter, forebay.ray.GUARD]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        child = int(parent.stdout.readline())
        eventually(lambda: b"sleep" in Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")[:1])
        parent.kill()
    eventually(lambda: not is_alive(child))
    late = [sys.executable, "-I", "-S", "-c", forebay.ray.GUARD, "1", "sleep", "1000"]
    assert "died before" in subprocess.run(late, stderr=subprocess.PIPE, text=True).stderr


def test_rows_of_real_feeders_are_the_same_while_their_number_changes(cluster, arrays_folder, tmp_path):
    usage = subprocess.run([PROGRAM, "feed", "--help"], capture_output=True, text=True)
    if "--listen" not in usage.stdout:
        pytest.skip("the program has no feeders")
    file = tmp_path / "train.toml"
    file.write_text(
        f'[dataset]\nformat = "npy"\npath = "{arrays_folder}"\n[order]\nseed = 3\nepochs = 30\n[batch]\nsize = 8\n'
        '[[stage]]\nname = "preprocess"\nconcurrency = 1\noperations = [{ op = "delay", milliseconds = 2 }]\n'
        "[ring]\nslots = 5\nhold = 1\n[feed]\nallow_plain = true\n[feeders]\nallow_plain = true\n"
    )

    def rows(batch):
        return batch["index"].tolist(), batch["array"][:, 0, 0].tolist()

    with forebay.Loader(file, overrides={"order.epochs": 30}) as loader:
        expected = [rows(batch) for _ in range(30) for batch in loader]
    with forebay.ray.FeederGroup(file, 1, 4, program=PROGRAM) as group:
        group.wait(timeout=90)
        # This host makes no row.
        overrides = {**group.overrides, "feeders.local": "never"}
        found = []
        with forebay.Loader(file, overrides=overrides) as loader:
            for _ in range(30):
                for batch in loader:
                    found.append(rows(batch))
                    if len(found) == 20:
                        group._scale(4)
                        group.wait(4, timeout=90)
                    elif len(found) in (60, 80):
                        os.kill(alive_feeders()[0]["pid"], signal.SIGKILL)
                    elif len(found) == 110:
                        for _ in range(forebay.ray.PATIENCE):
                            group._scale(1)
    assert found == expected


def test_gauge_is_the_sum_over_streams():
    text = 'forebay_feeders_wanted{stream="a"} 1.5\nforebay_feeders_wanted{stream="b c"} 2\nother 7\n'
    assert forebay.ray.read_gauge(text) == 3.5
    assert forebay.ray.read_gauge("forebay_feeders_wanted 2\n") == 2
    assert forebay.ray.read_gauge("other 7\n") is None
    assert forebay.ray.read_gauge("forebay_feeders_wanted NaN\n") is None


@pytest.mark.parametrize(("least", "most"), [(-1, 2), (3, 2)])
def test_contradicting_numbers_are_refused(least, most):
    with pytest.raises(forebay.ConfigError, match="min <= max"):
        forebay.ray.FeederGroup("feed.toml", least, most)
