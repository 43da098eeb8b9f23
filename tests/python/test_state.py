"""state_dict and load_state_dict as PyTorch's checkpoints and the frameworks around it use them."""

import itertools
import json
import os
import signal

import forebay
import pytest
from support import indices, run_ranks

torch = pytest.importorskip("torch")


def taken(loader, count):
    """The ids of the first batches of an iteration."""
    batches = iter(loader)
    return indices([next(batches) for _ in range(count)])


class ReadsAhead:
    """What Accelerate and Lightning do to a loader: the next batch is taken before the last one is handed on."""

    def __init__(self, loader, ahead):
        self.loader, self.ahead, self.waiting = loader, ahead, []

    def __iter__(self):
        self.waiting = []
        for batch in self.loader:
            self.waiting.append(batch["index"].tolist())
            if len(self.waiting) > self.ahead:
                yield self.waiting.pop(0)
        while self.waiting:
            yield self.waiting.pop(0)

    def state_dict(self):
        return self.loader.state_dict(held_back=len(self.waiting))

    def load_state_dict(self, state_dict):
        self.loader.load_state_dict(state_dict)


def test_a_state_survives_torch_save_and_distributed_checkpoint(config, tmp_path):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.stateful import Stateful

    shuffled = config()
    shuffled["order"]["shuffle"] = True
    with forebay.torch.Loader(shuffled) as loader:
        assert isinstance(loader, Stateful)
        whole = indices(loader) + indices(loader)
    with forebay.torch.Loader(shuffled) as loader:
        seen = taken(loader, 2)
        torch.save({"loader": loader.state_dict()}, tmp_path / "state.pt")
        dcp.save({"loader": loader, "step": torch.tensor(2)}, checkpoint_id=tmp_path / "dcp", no_dist=True)
        expected = loader.state_dict()
    kept = torch.load(tmp_path / "state.pt", weights_only=True)["loader"]
    assert kept == expected
    with forebay.torch.Loader(shuffled) as loader:
        loader.load_state_dict(kept)
        assert seen + indices(loader) + indices(loader) == whole
    with forebay.torch.Loader(shuffled) as loader:
        dcp.load({"loader": loader, "step": torch.tensor(0)}, checkpoint_id=tmp_path / "dcp", no_dist=True)
        assert loader.state_dict() == expected
        assert seen + indices(loader) + indices(loader) == whole


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_a_wrapper_that_reads_ahead_saves_where_the_training_stands(config, ahead):
    with forebay.Loader(config(size=4)) as loader:
        wrapper = ReadsAhead(loader, ahead)
        seen = []
        for batch in wrapper:
            seen += batch
            if len(seen) == 20:
                break
        state = json.loads(json.dumps(wrapper.state_dict()))
    assert (state["epoch"], state["samples"]) == (0, 20)
    with forebay.Loader(config(size=4)) as loader:
        wrapper = ReadsAhead(loader, ahead)
        wrapper.load_state_dict(state)
        assert seen + list(itertools.chain.from_iterable(wrapper)) == list(range(40))
        assert wrapper.state_dict()["epoch"] == 1


def test_a_function_whose_source_has_changed_is_named_at_resume(config, tmp_path, monkeypatch, capfd):
    monkeypatch.syspath_prepend(tmp_path)
    module = tmp_path / "changing.py"
    module.write_text("def times(sample, rng):\n    return {'array': sample['array'] * 2}\n")
    called = config(size=4)
    called["stage"].append({"name": "own", "python": "changing:times", "workers": 1})

    def resumed(state):
        with forebay.Loader(called, state=state) as loader:
            batch = next(iter(loader))
            rows = batch["index"].tolist(), batch["array"][:, 0, 0].tolist()
        return rows, [line for line in capfd.readouterr().err.splitlines() if "has changed since" in line]

    with forebay.Loader(called) as loader:
        assert taken(loader, 2) == list(range(8))
        state = json.loads(json.dumps(loader.state_dict()))
    assert list(state["python"]) == ["changing:times"]
    ids = [8, 9, 10, 11]
    assert resumed(state) == ((ids, [16, 18, 20, 22]), [])
    with forebay.Loader(called) as loader:
        module.write_text(module.read_text().replace("* 2", "* 3"))
        # Its last batches come from a daemon that has started since.
        batches = iter(loader)
        rows = [next(batches)["array"][:, 0, 0].tolist() for _ in range(2)]
        os.kill(loader.daemon_pid, signal.SIGKILL)
        rows += [batch["array"][:, 0, 0].tolist() for batch in batches]
        assert indices(loader) == list(range(40))
    assert rows[0] == [0, 2, 4, 6] and rows[-1] == [108, 111, 114, 117]
    assert "has changed since the daemon before was started" in capfd.readouterr().err
    found, warnings = resumed(state)
    assert found == (ids, [24, 27, 30, 33])
    (warning,) = warnings
    assert f"the source of stage `own` (`changing:times`, {module}) has changed since the state was saved" in warning
    # A release before saved no digest.
    del state["python"]
    assert resumed(state) == ((ids, [24, 27, 30, 33]), [])


RANKS = """
    import json, os, sys
    import torch.distributed as dist
    import forebay

    folder, config = sys.argv[1], json.loads(sys.argv[2])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    report = {}
    with forebay.Loader(config) as loader:
        assert loader.rank_source == "torch.distributed", loader.rank_source
        batches = iter(loader)
        next(batches)
        same = loader.state_dict()
        next(batches)
        other = loader.state_dict()
        loader.load_state_dict(same)
        report["after"] = loader.state_dict() == same
        try:
            loader.load_state_dict(same if rank == 0 else other)
        except forebay.StateMismatch as error:
            report["refused"] = str(error)
        # Nothing has changed by that.
        report["still"] = loader.state_dict() == same
        loader.load_state_dict(same if rank == 0 else other, compare_ranks=False)
    dist.barrier()
    try:
        forebay.Loader(config, state=same if rank == 0 else other).close()
    except forebay.StateMismatch as error:
        report["refused at once"] = str(error)
    with forebay.Loader(config, state=same) as loader:
        report["ids"] = [int(index) for batch in loader for index in batch["index"]]
    # A loader that does not share the data with the other ranks compares nothing.
    if rank == 0:
        with forebay.Loader(config, rank=0, world_size=1, state=same) as loader:
            report["alone"] = len(loader)
    dist.barrier()
    with open(os.path.join(folder, f"{rank}.json"), "w") as file:
        json.dump(report, file)
    dist.destroy_process_group()
"""


def test_ranks_that_load_different_states_are_named_on_every_rank(config, tmp_path):
    reports = run_ranks(tmp_path, 2, RANKS, json.dumps(config(size=4)))
    for report in reports:
        assert report["after"] and report["still"]
        for key in ("refused", "refused at once"):
            assert "epoch 0 sample 8 (" in report[key] and "on rank 0 and epoch 0 sample 16 (" in report[key], report
    assert sorted(reports[0]["ids"] + reports[1]["ids"]) == list(range(8, 40))
    assert reports[0]["alone"] == 10
