"""Ranks that compare their streams through a key-value store, and ranks of Ray Train.

The store is that of torch.distributed where PyTorch is installed, and a stand-in over files with the same calls.
"""

import json
import os
import re
import subprocess
import sys
import textwrap
import types

import forebay
import pytest
from support import WATCHDOG_SECONDS, free_port

# A module in the place of torch.distributed: its store is a folder, each call under a lock.
STAND_IN = """
    import fcntl, os, sys, time, types
    from pathlib import Path

    class Store:
        def __init__(self, folder):
            self.folder = Path(folder)

        def path(self, key):
            return self.folder / key.replace("/", "+")

        def set(self, key, value):
            new = self.folder / f"new.{os.getpid()}"
            new.write_bytes(value.encode() if isinstance(value, str) else value)
            new.rename(self.path(key))

        def get(self, key):
            while not self.check([key]):
                time.sleep(0.01)
            return self.path(key).read_bytes()

        def check(self, keys):
            return all(self.path(key).exists() for key in keys)

        def add(self, key, amount):
            with open(self.folder / "lock", "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                value = int(self.path(key).read_bytes()) if self.check([key]) else 0
                self.set(key, str(value + amount))
                return value + amount

    distributed = types.ModuleType("torch.distributed")
    distributed.is_available = distributed.is_initialized = lambda: True
    distributed.get_rank = lambda: int(os.environ["RANK"])
    distributed.get_world_size = lambda: int(os.environ["WORLD_SIZE"])
    distributed.distributed_c10d = types.SimpleNamespace(_get_default_store=lambda: Store(os.environ["STORE"]))
    sys.modules["torch.distributed"] = distributed
"""

TORCH = """
    import torch.distributed
    torch.distributed.init_process_group("gloo")
"""

# Each case is one loader of every rank: its configurations by rank.
RANKS = """
    import json, os, sys
    import forebay

    rank = int(os.environ["RANK"])
    for configs, options in json.loads(sys.argv[1]):
        said = {}
        try:
            with forebay.Loader(configs[rank], **options) as loader:
                said["ids"] = [int(index) for batch in loader for index in batch["index"]]
        except forebay.Error as error:
            said["error"] = f"{type(error).__name__}: {error}"
        print(json.dumps(said), flush=True)
"""


def stores():
    yield "stand-in"
    try:
        import torch.distributed  # noqa: F401
    except ImportError:
        return
    yield "torch"


@pytest.fixture(params=stores())
def run_ranks(request, tmp_path):
    """Runs every case on two ranks; gives what each said of each case."""

    def run(cases, script=RANKS, ranks=(0, 1), **variables):
        prelude = STAND_IN if request.param == "stand-in" else TORCH
        source = textwrap.dedent(prelude) + textwrap.dedent(script)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "WORLD_SIZE": "2", "STORE": str(tmp_path), **variables}
        environment.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", source, json.dumps(cases)],
                env={**environment, "RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in ranks
        ]
        said = []
        for process in processes:
            output, errors = process.communicate(timeout=WATCHDOG_SECONDS)
            assert process.returncode == 0, errors
            said.append(([json.loads(line) for line in output.splitlines()], errors))
        return said

    run.kind = request.param
    return run


def changed(config, key, value):
    """A copy in which a dotted key has another value."""
    copy = json.loads(json.dumps(config))
    *tables, last = key.split(".")
    table = copy
    for name in tables:
        table = table.setdefault(name, {})
    table[last] = value
    return copy


def test_a_difference_between_ranks_is_refused_on_both(config, arrays_folder, tmp_path, run_ranks):
    base = config(size=4)
    folders = {name: tmp_path / name for name in ("less", "renamed", "same")}
    for name, folder in folders.items():
        folder.mkdir()
        for file in arrays_folder.iterdir():
            (folder / file.name).symlink_to(file)
        if name == "less":
            (folder / "007.npy").unlink()
        if name == "renamed":
            (folder / "007.npy").rename(folder / "107.npy")
    differing = [
        (base, changed(base, "dataset.path", str(folders["less"])), "samples is 40 on rank 0 and 39 on rank 1"),
        (base, changed(base, "dataset.path", str(folders["renamed"])), "dataset is "),
        (base, changed(base, "order.seed", 4), "order.seed is 3 on rank 0 and 4 on rank 1"),
        (base, changed(changed(base, "order.seed", 4), "batch.size", 5), "batch.size is 4 on rank 0 and 5 on rank 1"),
    ]
    same = [(base, base), (base, changed(base, "dataset.path", str(folders["same"])))]
    cases = [([one, other], {}) for one, other, _ in differing] + [([one, other], {}) for one, other in same]
    # Groups of ranks with streams of their own, and no comparison.
    cases.append(([base, changed(base, "order.seed", 4)], {"compare_ranks": False}))
    by_rank = run_ranks(cases)
    for number, (_, _, part) in enumerate(differing):
        for rank, (said, _) in enumerate(by_rank):
            error = said[number].get("error", "")
            assert error.startswith("ConfigError") and "do not share one stream" in error, (rank, part, said[number])
            assert part in error and "compare_ranks" in error, (rank, part, error)
    for number in (len(differing), len(differing) + 1):
        ids = by_rank[0][0][number]["ids"] + by_rank[1][0][number]["ids"]
        assert sorted(ids) == list(range(40))
    assert all("ids" in said[-1] for said, _ in by_rank)


def test_a_world_size_that_differs_is_refused(config, run_ranks):
    script = RANKS.replace("**options", "rank=rank, world_size=2 + rank, **options")
    for said, _ in run_ranks([([config(size=4)] * 2, {})], script=script):
        assert "world_size is 2 on rank 0 and 3 on rank 1" in said[0]["error"], said


def test_groups_of_ranks_have_streams_of_their_own(config, run_ranks):
    # Two jobs of one rank each would not be compared: here each has two, of which one is here.
    script = RANKS.replace("**options", "compare_ranks=['actor', 'critic'][rank], **options")
    base = config(size=4)
    configs = [base, changed(base, "order.seed", 4)]
    by_rank = run_ranks([(configs, {})], script=script, FOREBAY_RANKS_WAIT="0.2")
    for rank, (said, errors) in enumerate(by_rank):
        assert "ids" in said[0], said
        assert f"rank {1 - rank} did not make this loader within 0.2 s" in errors, errors


def test_a_rank_without_a_loader_is_named_and_hangs_nobody(config, run_ranks):
    # Rank 1 makes no loader at first; then it makes a differing one, which is refused on both.
    script = """
        import json, os, sys, time
        import forebay

        rank = int(os.environ["RANK"])
        [[configs, _]] = json.loads(sys.argv[1])
        go = os.path.join(os.environ["STORE"], "go")
        said = {}
        try:
            if rank == 0:
                loader = forebay.Loader(configs[0])
                said["ids"] = len([1 for _ in loader])
                open(go, "w").close()
                while not os.path.exists(go + "ne"):
                    time.sleep(0.01)
                iter(loader)
            else:
                while not os.path.exists(go):
                    time.sleep(0.01)
                try:
                    forebay.Loader(configs[1])
                finally:
                    open(go + "ne", "w").close()
        except forebay.Error as error:
            said["error"] = str(error)
        print(json.dumps(said), flush=True)
    """
    base = config(size=4)
    cases = [([base, changed(base, "order.seed", 4)], {})]
    [first, second] = run_ranks(cases, script=script, FOREBAY_RANKS_WAIT="0.2")
    assert first[0][0]["ids"] == 5
    assert "rank 1 did not make this loader" in first[1]
    for said, _ in (first, second):
        assert "order.seed is 3 on rank 0 and 4 on rank 1" in said[0]["error"], said


# Each case is a loader of every rank at the state of its rank, then states that the ranks load into it, each with its
# options; a rank without one loads none.
STATES = """
    import json, os, sys
    import forebay

    rank = int(os.environ["RANK"])
    for config, states, loads in json.loads(sys.argv[1]):
        said = []
        try:
            with forebay.Loader(config, state=states[rank]) as loader:
                said.append(loader.state_dict()["samples"])
                for load in loads:
                    try:
                        if None in load:
                            loader._timeout = 0.5
                        if load[rank] is not None:
                            loader.load_state_dict(load[rank])
                        said.append(loader.state_dict()["samples"])
                    except forebay.Error as error:
                        said.append(f"{type(error).__name__}: {error}")
                        said.append(loader.state_dict()["samples"])
        except forebay.Error as error:
            said.append(f"{type(error).__name__}: {error}")
        print(json.dumps(said), flush=True)
"""


def saved_states(config):
    with forebay.Loader(config, rank=0, world_size=2, compare_ranks=False) as loader:
        batches = iter(loader)
        next(batches)
        first = loader.state_dict()
        next(batches)
        return first, loader.state_dict()


def test_a_state_that_one_rank_alone_passes_is_refused_on_both(config, run_ranks):
    base = config(size=4)
    first, second = saved_states(base)
    cases = [[base, [first, None], []], [base, [None, first], []], [base, [first, second], []], [base, [first] * 2, []]]
    expected = [
        "state is epoch 0 sample 8 (DIGEST) on rank 0 and none on rank 1",
        "state is none on rank 0 and epoch 0 sample 8 (DIGEST) on rank 1",
        "state is epoch 0 sample 8 (DIGEST) on rank 0 and epoch 0 sample 16 (DIGEST) on rank 1",
    ]
    for said, _ in run_ranks(cases, script=STATES):
        for [error], part in zip(said, expected):
            error = re.sub("[0-9a-f]{16}", "DIGEST", error)
            assert error.startswith("StateMismatch") and part in error and "every rank" in error, error
        assert said[-1] == [8]


def test_states_that_the_ranks_load_are_compared_and_a_rank_that_loads_none_is_named(config, run_ranks):
    base = config(size=4)
    first, second = saved_states(base)
    torn = {**first, "epoch": "one"}
    cases = [[base, [None, None], [[first, second], [second, second], [first, torn], [first, None]]]]
    for rank, ([said], _) in enumerate(run_ranks(cases, script=STATES)):
        start, differing, kept, same, unread, kept_again, *last = said
        assert (start, kept, same, kept_again) == (0, 0, 16, 16), said
        assert differing.startswith("StateMismatch") and "on rank 0 and epoch 0 sample 16 (" in differing, said
        assert unread.startswith("StateMismatch"), said
        assert unread.endswith("nothing has changed)") and "not a saved state on rank 1" in unread, said
        if rank == 0:
            assert last[0].startswith("Timeout: rank 1 did not call load_state_dict within 0.5 s of rank 0"), said
        assert last[-1] == 16, said


def in_a_folder(folder, rank, cases, **variables):
    """A rank that compares itself in a folder."""
    environment = {"RANK": str(rank), "WORLD_SIZE": "2", "FOREBAY_RANKS_FOLDER": str(folder / "ranks"), **variables}
    command = [sys.executable, "-c", textwrap.dedent(STATES), json.dumps(cases)]
    environment = {**os.environ, **environment, "FOREBAY_JOB": "one"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def test_a_state_that_one_rank_alone_passes_is_refused_through_a_folder(config, tmp_path):
    base = config(size=4)
    first, _ = saved_states(base)
    # One after the other, so that no wait decides: the first is alone and goes on.
    said = [
        json.loads(in_a_folder(tmp_path, rank, [[base, [first, None], []]], FOREBAY_RANKS_WAIT="0.2").communicate()[0])
        for rank in range(2)
    ]
    assert said[0] == [8]
    [error] = said[1]
    assert error.startswith("StateMismatch") and " on rank 0 and none on rank 1" in error, error


def test_a_job_that_starts_again_under_its_name_goes_on_from_its_state(config, tmp_path):
    base = config(size=4)
    first, _ = saved_states(base)
    for state, samples in ((None, 0), (first, 8)):
        for process in [in_a_folder(tmp_path, rank, [[base, [state, state], []]]) for rank in range(2)]:
            assert json.loads(process.communicate(timeout=WATCHDOG_SECONDS)[0]) == [samples]


def test_a_store_that_is_gone_ends_no_later_epoch(config, run_ranks):
    if run_ranks.kind == "torch":
        pytest.skip("a process group of two needs both")
    script = """
        import json, os, sys
        import forebay

        [[configs, _]] = json.loads(sys.argv[1])
        loader = forebay.Loader(configs[0])

        def gone(*_):
            raise RuntimeError("the store is gone")

        loader._comparison._store = type("Gone", (), {"add": gone, "check": gone, "get": gone, "set": gone})()
        print(json.dumps({"ids": len([1 for _ in loader])}), flush=True)
    """
    [(said, _)] = run_ranks([([config(size=4)], {})], script=script, ranks=(0,), FOREBAY_RANKS_WAIT="0.2")
    assert said[0]["ids"] == 5


def test_processes_of_one_rank_are_compared_too(config, run_ranks):
    # Tensor parallelism: both processes hold parts of rank 0 of a world of 2; the other rank does not come.
    script = RANKS.replace("**options", "rank=0, world_size=2, **options")
    base = config(size=4)
    configs = [base, changed(base, "order.seed", 4)]
    by_rank = run_ranks([([base, base], {}), (configs, {})], script=script, FOREBAY_RANKS_WAIT="1")
    assert all("ids" in said[0] for said, _ in by_rank)
    # Whichever comes first is refused if it still waits; the other one always.
    assert any("order.seed is" in said[1].get("error", "") for said, _ in by_rank), by_rank


def test_a_loader_of_one_rank_is_not_compared(config, run_ranks):
    script = RANKS.replace("**options", "rank=0, world_size=1, **options")
    base = config(size=4)
    configs = [base, changed(base, "order.seed", 4)]
    for said, errors in run_ranks([(configs, {})], script=script):
        assert len(said[0]["ids"]) == 40 and "did not make" not in errors


@pytest.mark.parametrize("outside", ["raises", "answers one"])
def test_ray_train_states_the_rank_inside_a_worker_only(config, monkeypatch, outside):
    class Context:
        def __init__(self, rank, world_size):
            self.get_world_rank, self.get_world_size = lambda: rank, lambda: world_size

    train = types.ModuleType("ray.train")
    train.get_context = lambda: Context(1, 2)
    monkeypatch.setitem(sys.modules, "ray.train", train)
    with forebay.Loader(config(size=4), compare_ranks=False) as loader:
        assert (loader.rank, loader.world_size, loader.rank_source) == (1, 2, "Ray Train")

    def no_session():
        if outside == "raises":
            raise RuntimeError("not in a worker")
        return Context(0, 1)

    train.get_context = no_session
    with forebay.Loader(config(size=4)) as loader:
        assert (loader.world_size, loader.rank_source) == (1, "no launcher")


def test_a_rank_that_is_not_understood_is_refused(config, monkeypatch):
    monkeypatch.setenv("PMIX_RANK", "3")
    with pytest.raises(forebay.ConfigError, match="PMIX_RANK = `3` looks like the rank"):
        forebay.Loader(config())
    with forebay.Loader(config(), rank=3, world_size=4, compare_ranks=False) as loader:
        assert loader.rank == 3
