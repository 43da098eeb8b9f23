"""forebay.Loader over a private daemon: epochs, views, holds, state, ends."""

import gc
import json
import signal
import sys
import threading
import time
from pathlib import Path

import forebay
import numpy
import pytest
from support import indices, wait_until


def is_running(pid):
    """Whether there is such a process, a zombie included."""
    return Path(f"/proc/{pid}").exists()


def test_an_epoch_gives_every_sample_once_and_the_next_one_follows(config):
    with forebay.Loader(config()) as loader:
        assert len(loader) == 5
        assert loader.batch_size == 8 and loader.epochs == 2
        for _ in range(2):
            batches = [{name: array.copy() for name, array in batch.items()} for batch in loader]
            assert indices(batches) == list(range(40))
            for batch in batches:
                assert batch["array"].dtype == numpy.float32 and batch["array"].shape == (8, 3, 3072)
                assert (batch["array"] == batch["index"][:, None, None]).all()
        for _ in range(2):
            with pytest.raises(forebay.EpochsFinished, match="2 epochs"):
                iter(loader)
        assert loader.given_up == 0


def test_arrays_are_writable_views_that_outlive_the_loader(config):
    loader = forebay.Loader(config())
    batch = next(iter(loader))
    array = batch["array"]
    assert array.flags.writeable and array.flags.c_contiguous and not array.flags.owndata
    assert array.ctypes.data % 256 == 0
    row = array[3]
    array[3] = 7
    loader.close()
    del array, batch, loader
    gc.collect()
    assert (row == 7).all()


def test_hold_batches_may_be_kept_while_the_next_is_asked_for(config):
    with forebay.Loader(config()) as loader:
        kept = []
        with pytest.raises(forebay.HoldLimit, match=r"ring.hold.*\.copy\(\)|\.copy\(\).*ring") as caught:
            for batch in loader:
                kept.append(batch)
        assert len(kept) == loader.hold + 1 == 4
        assert "3" in str(caught.value)
        assert indices(kept) == list(range(32))


def test_small_fields_may_be_kept_for_whole_epochs(endless, make_loader):
    with make_loader(endless()) as loader:
        labels = []
        for _ in range(3):
            for batch in loader:
                labels.append(batch["index"])
                # Of a batch's view nothing else holds the slot.
                del batch
        assert loader.stats()["client"]["held"] == 0
        assert [int(label) for batch in labels for label in batch] == [*range(40)] * 3
        if make_loader is forebay.Loader:
            assert labels[0].flags.owndata and labels[0].flags.writeable and labels[0].flags.c_contiguous


def test_a_field_is_small_up_to_64_kib_in_a_full_batch(arrays_folder, config, tmp_path):
    for sample in range(6):
        numpy.savez(
            tmp_path / f"{sample}.npz",
            small=numpy.full(8192, sample, numpy.float32),
            large=numpy.full(8193, sample, numpy.float32),
        )
    changed = config(size=2, last="short")
    changed["dataset"] = {"format": "npz", "path": str(tmp_path)}
    with forebay.Loader(changed) as loader:
        batch = next(iter(loader))
        assert batch["small"].nbytes == 65536 and batch["small"].flags.owndata
        assert not batch["large"].flags.owndata
        assert (batch["small"] == [[0], [1]]).all() and (batch["large"] == [[0], [1]]).all()
    # A short batch of few bytes is like any other.
    with forebay.Loader(changed, overrides={"batch.size": 4}) as loader:
        last = list(loader)[-1]
        assert len(last["small"]) == 2 and not last["small"].flags.owndata


@pytest.mark.parametrize("max_bytes, held", [("4KiB", 0), ("64KiB", 1)])
def test_small_ragged_fields_are_copies_too(ragged, max_bytes, held):
    with forebay.Loader(ragged(), overrides={"output.tokens.max_bytes": max_bytes}) as loader:
        tokens = next(iter(loader))["tokens"]
        assert loader.stats()["client"]["held"] == held
        assert [row.tolist() for row in tokens] == [list(range(sample)) for sample in range(6)]


@pytest.mark.parametrize("make_loader", ["Loader", "torch.Loader"], indirect=True)
def test_a_hold_limit_names_the_field_that_is_held(config, make_loader):
    with make_loader(config()) as loader:
        kept = []
        with pytest.raises(forebay.HoldLimit, match=r"4 batches are held by `array` and .*`\.clone\(\)` of a tensor"):
            for batch in loader:
                kept.append(batch["array"])


def test_a_view_of_one_field_keeps_its_batch_and_no_other(config):
    with forebay.Loader(config()) as loader:
        kept = [batch["array"][:1] for batch, _ in zip(loader, range(3))]
        assert [int(view[0, 0, 0]) for view in kept] == [0, 8, 16]
        assert loader.stats()["client"]["held"] == 3
        kept.clear()
        assert loader.stats()["client"]["held"] == 0


def test_an_early_break_gives_the_rest_up_and_a_new_iterator_ends_the_old_one(config):
    with forebay.Loader(config()) as loader:
        old = iter(loader)
        next(old)
        state = loader.state_dict()
        assert (state["epoch"], state["samples"], loader.given_up) == (0, 8, 0)
        new = iter(loader)
        assert next(old, None) is None and loader.given_up == 4
        assert indices(new) == list(range(40))
        assert loader.state_dict()["epoch"] == 2


def test_an_iterator_that_gave_nothing_costs_no_epoch(config, make_loader):
    with make_loader(config()) as loader:
        # Lightning does so to see whether a loader can be iterated.
        iter(loader)
        loader.set_epoch(0)
        assert indices(loader) == list(range(40))
        iter(loader)
        second = iter(loader)
        seen = indices([next(second), next(second)])
        assert loader.given_up == 0
        # A begun epoch that was left is given up as ever.
        loader.load_state_dict(loader.state_dict())
        iter(loader)
        assert seen + indices(loader) == list(range(40))
        with pytest.raises(forebay.EpochsFinished):
            iter(loader)
        # Nor does an iterator live on where the loader was moved away and back.
        loader.set_epoch(0)
        tried = iter(loader)
        loader.set_epoch(1)
        loader.set_epoch(0)
        again = indices(loader)
        assert again == list(range(40)) and next(tried, None) is None


def test_set_epoch_makes_the_next_iteration_one_of_that_epoch(config, make_loader):
    with make_loader(config()) as loader:
        whole = indices(loader)
        # A break leaves epoch 1, and it is asked for again: all of it comes, as from DistributedSampler.
        iterator = iter(loader)
        next(iterator)
        loader.set_epoch(1)
        assert list(loader.epochs_left()) == [1] and loader.epoch == 1
        assert indices([next(iterator)]) == whole[8:16], "the iteration under way goes on"
        assert loader.state_dict()["samples"] == 16
        assert indices(loader) == whole and loader.given_up == 3
        # To a finished epoch as ever, and the mark of a finished iteration is gone.
        loader.set_epoch(0)
        for number, _ in enumerate(loader):
            if number < 4:
                loader.set_epoch(0)
        assert list(loader.epochs_left()) == [1]
        state = {**loader.state_dict(), "epoch": 0, "samples": 16}
    with make_loader(config(), state=state) as loader:
        # A resumed epoch is named, not begun anew; once left it is.
        loader.set_epoch(0)
        assert indices([next(iter(loader))]) == whole[16:24]
        loader.set_epoch(0)
        assert indices(loader) == whole


def test_a_state_goes_on_where_it_was_taken(config):
    shuffled = config()
    shuffled["order"]["shuffle"] = True
    with forebay.Loader(shuffled) as loader:
        whole = indices(loader) + indices(loader)
        loader.set_epoch(0)
        batches = iter(loader)
        seen = indices([next(batches) for _ in range(3)])
        state = json.loads(json.dumps(loader.state_dict()))
        behind = loader.state_dict(held_back=2)
        assert behind["samples"] == 8 and state["samples"] == 24
        with pytest.raises(forebay.ConfigError, match="held_back"):
            loader.state_dict(held_back=4)
        loader.load_state_dict(state)
        assert seen + indices(loader) + indices(loader) == whole
        loader.load_state_dict(behind)
        assert indices(loader) == whole[8:40]
    with forebay.Loader(shuffled, state=state) as loader:
        assert loader.state_dict() == state
        loader.set_epoch(0)
        assert seen + indices(loader) + indices(loader) == whole
        assert loader.state_dict() == {**state, "epoch": 2, "samples": 0}


def test_a_state_of_another_stream_is_refused_by_name(config):
    with forebay.Loader(config()) as loader:
        state = loader.state_dict()
    changed = config()
    changed["order"]["seed"] = 4
    with pytest.raises(forebay.StateMismatch, match=r"configuration differs in order\.seed;"):
        forebay.Loader(changed, state=state)
    with forebay.Loader(changed, state=state, force=True) as loader:
        with pytest.raises(forebay.StateMismatch, match="dataset differs") as caught:
            loader.load_state_dict({**state, "dataset": "00ff"})
        assert "00ff" in str(caught.value)
        with pytest.raises(forebay.StateMismatch, match="not a saved state"):
            loader.load_state_dict({"epoch": 1})


def test_ranks_share_an_epoch_and_the_launcher_is_believed(config, monkeypatch, caplog):
    seen = []
    for rank in range(2):
        with forebay.Loader(config(), rank=rank, world_size=2) as loader:
            assert loader.rank_source == "arguments"
            seen += indices(loader)
    assert sorted(seen) == list(range(32))  # the short global batch is dropped
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with caplog.at_level("INFO", logger="forebay"), forebay.Loader(config()) as loader:
        assert (loader.rank, loader.world_size) == (1, 2)
    assert "RANK and WORLD_SIZE" in caplog.records[0].message
    monkeypatch.delenv("WORLD_SIZE")
    with pytest.raises(forebay.ConfigError, match="WORLD_SIZE"):
        forebay.Loader(config())
    with pytest.raises(forebay.ConfigError, match="world_size"):
        forebay.Loader(config(), rank=0)


def test_mistakes_are_config_errors_that_name_them(config, tmp_path, monkeypatch):
    broken = config()
    broken["batch"]["sizes"] = 3
    with pytest.raises(forebay.ConfigError, match="sizes"):
        forebay.Loader(broken)
    with pytest.raises(forebay.ConfigError, match=r"absent\.toml"):
        forebay.Loader(tmp_path / "absent.toml")
    with pytest.raises(forebay.ConfigError, match="FOREBAY_SOCKET"):
        forebay.Loader("train")
    with pytest.raises(forebay.ConfigError, match=r"at `batch\.size`, cannot be written as JSON: .* type object"):
        forebay.Loader({"batch": {"size": object()}})
    for kind in [numpy.float32, numpy.dtype("float32")]:
        with pytest.raises(forebay.ConfigError, match=r'`output\.array\.dtype`, cannot .*; write its name, "float32"'):
            forebay.Loader({"output": {"array": {"dtype": kind}}})
    with pytest.raises(forebay.ConfigError, match=r"`order\.seed` cannot be written as JSON"):
        forebay.Loader(config(), overrides={"order.seed": object()})
    monkeypatch.setenv("FOREBAY_PROGRAM", str(tmp_path / "nothing"))
    with pytest.raises(forebay.ConfigError, match="FOREBAY_PROGRAM"):
        forebay.Loader(config())


def test_the_exceptions_are_one_family():
    for name in ("ConfigError", "BadSample", "DaemonLost", "Timeout", "HoldLimit", "StateMismatch", "EpochsFinished"):
        assert issubclass(getattr(forebay, name), forebay.Error)
    assert issubclass(forebay.Timeout, TimeoutError)


def test_a_bad_sample_ends_the_run_by_name(config, arrays_folder, tmp_path):
    for file in arrays_folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "021.npy").write_bytes(b"no array")
    broken = config()
    broken["dataset"]["path"] = str(tmp_path)
    with forebay.Loader(broken) as loader, pytest.raises(forebay.BadSample, match=r"021\.npy"):
        for _ in loader:
            pass


def test_a_waiting_next_leaves_the_interpreter_to_others(slow):
    with forebay.Loader(slow(), timeout=3) as loader:
        counted = []
        stop = threading.Event()

        def count():
            while not stop.is_set():
                counted.append(time.monotonic())
                time.sleep(0.001)

        thread = threading.Thread(target=count)
        thread.start()
        with pytest.raises(forebay.Timeout, match="epoch 0"):
            next(iter(loader))
        stop.set()
        thread.join()
        assert len(counted) > 20


def test_a_signal_handler_may_use_the_loader_that_waits(slow):
    loader = forebay.Loader(slow())
    states = []

    def handler(*_):
        # As one that saves a checkpoint before the machine is taken away.
        states.append(loader.state_dict())
        loader.close()
        raise TimeoutError("the machine goes")

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(TimeoutError, match="the machine goes"):
            next(iter(loader))
    finally:
        signal.signal(signal.SIGALRM, before)
    assert (states[0]["epoch"], states[0]["samples"]) == (0, 0)


def test_a_dropped_loader_ends_its_daemon_and_leaves_no_zombie(config):
    loader = forebay.Loader(config())
    daemon = loader.daemon_pid
    batches = iter(loader)
    next(batches)
    del loader
    gc.collect()
    assert is_running(daemon), "the iterator keeps the session"
    assert sum(1 for _ in batches) == 4
    del batches
    gc.collect()
    wait_until(lambda: not is_running(daemon), "the daemon's end")


def test_stats_tell_of_both_sides(config):
    with forebay.Loader(config()) as loader:
        assert sum(1 for _ in loader) == 5
        figures = loader.stats()
        client = figures["client"]
        assert client["batches"] == 5 and client["held"] == 0 and client["bytes"] > 0
        assert client["wait_seconds"]["p99"] >= client["wait_seconds"]["p50"] >= 0
        assert "stages" in figures


def test_a_closed_loader_says_so(config):
    loader = forebay.Loader(config())
    loader.close()
    loader.close()
    with pytest.raises(forebay.Error, match="closed"):
        iter(loader)


def test_ragged_rows_are_views_with_their_own_lengths(ragged):
    with forebay.Loader(ragged()) as loader:
        tokens = next(iter(loader))["tokens"]
        assert isinstance(tokens, forebay.Ragged) and len(tokens) == 6
        assert tokens.values.dtype == numpy.int32 and tokens.lengths.dtype == numpy.int64
        for sample, row in enumerate(tokens):
            assert row.tolist() == list(range(sample))
            assert row.base is not None
        copy = tokens.copy()
        assert [row.tolist() for row in copy] == [row.tolist() for row in tokens]
        assert len(copy.values) == 15
        with pytest.raises(IndexError):
            tokens[6]


def boxes_and_features(folder, compact=False):
    """Boxes ``[n, 4]`` of 0 to 5, and features ``[T, 2, 3]`` in Fortran order and the other byte order."""
    for sample in range(6):
        boxes = numpy.arange(4 * sample, dtype=numpy.float32).reshape(-1, 4)
        features = numpy.arange(6 * (sample + 1), dtype=">i2").reshape(-1, 2, 3)
        numpy.savez(folder / f"{sample}.npz", boxes=boxes, features=numpy.asfortranarray(features))
    return {
        "dataset": {"format": "npz", "path": str(folder)},
        "order": {"shuffle": False, "epochs": 1},
        "batch": {"size": 6},
        "stage": [{"name": "unpack", "operations": []}],
        "output": {
            "boxes": {"ragged": True, "max_bytes": "4KiB", "compact": compact},
            "features": {"ragged": True, "max_bytes": "4KiB", "dtype": "int32", "compact": compact},
        },
    }


@pytest.mark.parametrize("compact", [False, True])
def test_ragged_rows_have_their_other_dimensions(tmp_path, compact):
    with forebay.Loader(boxes_and_features(tmp_path, compact)) as loader:
        batch = next(iter(loader))
        boxes, features = batch["boxes"], batch["features"]
        assert boxes.row_shape == (4,) and features.row_shape == (2, 3)
        for kept in (boxes, boxes.copy()):
            assert [row.shape for row in kept] == [(sample, 4) for sample in range(6)]
            for sample, row in enumerate(kept):
                assert numpy.array_equal(row, numpy.arange(4 * sample).reshape(-1, 4)) and row.dtype == numpy.float32
        for sample, row in enumerate(features):
            assert numpy.array_equal(row, numpy.arange(6 * (sample + 1)).reshape(-1, 2, 3))
            assert row.dtype == numpy.int32 and row.base is not None
        assert "[n, 2, 3]" in repr(features) and len(boxes.copy().values) == 4 * 15


def test_a_ragged_sample_of_other_dimensions_is_named(tmp_path):
    config = boxes_and_features(tmp_path)
    numpy.savez(tmp_path / "3.npz", boxes=numpy.zeros((2, 5), numpy.float32), features=numpy.zeros((1, 2, 3), ">i2"))
    with forebay.Loader(config) as loader, pytest.raises(forebay.Error, match=r"3\.npz.*\[2, 5\].*\[any, 4\]"):
        next(iter(loader))


@pytest.mark.parametrize("is_installed", [True, False])
def test_bfloat16_has_the_type_of_ml_dtypes_or_its_bits(narrow, monkeypatch, is_installed):
    if is_installed:
        ml_dtypes = pytest.importorskip("ml_dtypes")
    else:
        monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with forebay.Loader(narrow) as loader:
        array = next(iter(loader))["array"]
    bits = array.view(numpy.uint16)
    assert bits[1, 0, 0] == 0x3F80 and bits[2, 0, 0] == 0x4000
    if is_installed:
        assert array.dtype == ml_dtypes.bfloat16 and float(array[3, 0, 0]) == 3.0
    else:
        assert array.dtype == numpy.uint16


@pytest.mark.parametrize("taken", range(11))
def test_one_loop_serves_a_new_run_and_a_resumed_one(config, make_loader, taken):
    seen, epochs, state = [], [], None

    def train(loader, stop):
        for epoch in loader.epochs_left():
            for batch in loader:
                assert loader.epoch == epoch
                seen.append(indices([batch]))
                epochs.append(epoch)
                if len(seen) == stop:
                    return loader.state_dict()
        return loader.state_dict()

    with make_loader(config()) as loader:
        if taken > 0:
            state = train(loader, taken)
    with make_loader(config(), state=state) as loader:
        assert loader.epoch == (taken // 5)
        end = train(loader, None)
        assert list(loader.epochs_left()) == [] and loader.epoch == 2
    assert seen == [list(range(start, start + 8)) for start in range(0, 40, 8)] * 2
    assert epochs == [0] * 5 + [1] * 5 and (end["epoch"], end["samples"]) == (2, 0)


def test_epochs_left_are_those_that_the_next_iterations_deliver(config, endless):
    with forebay.Loader(config()) as loader:
        assert list(loader.epochs_left()) == [0, 1] == list(loader.epochs_left(2))
        assert list(loader.epochs_left(1)) == [0]
        with pytest.raises(forebay.ConfigError, match=r"epochs_left\(3\).*order\.epochs"):
            loader.epochs_left(3)
        iter(loader)
        assert list(loader.epochs_left()) == [0, 1], "no batch was taken"
        next(iter(loader))
        assert loader.epoch == 0 and list(loader.epochs_left()) == [1], "the next iteration gives the begun epoch up"
        assert indices(loader) == list(range(40)) and loader.epoch == 2
        assert list(loader.epochs_left()) == []
    with forebay.Loader(endless()) as loader:
        loader.set_epoch(7)
        left = iter(loader.epochs_left())
        assert [next(left), next(left)] == [7, 8] and list(loader.epochs_left(9)) == [7, 8]


@pytest.mark.parametrize("epochs", [1, None])
def test_a_finished_epoch_that_set_epoch_names_is_delivered_again(config, epochs):
    # A validation loader iterates over the same epoch each time.
    keys = config(size=4)
    keys["order"]["epochs"] = epochs
    if epochs is None:
        del keys["order"]["epochs"]
    with forebay.Loader(keys) as loader:
        for _ in range(3):
            loader.set_epoch(0)
            assert [id for batch in loader for id in batch["index"].tolist()] == list(range(40))
