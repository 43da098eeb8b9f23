"""forebay.jax.Loader: arrays that no refill of a slot shows in, on the devices that were asked for.

All on the CPU, as four devices. What an accelerator does, reading a slot after the hand-over, is played by a stand-in.
"""

import json
import queue
import subprocess
import sys
import textwrap
import threading
from itertools import islice

import forebay
import numpy
import pytest
from support import WATCHDOG_SECONDS, free_port

jax = pytest.importorskip("jax")
jax.config.update("jax_platforms", "cpu")
# Before anything asks for a device.
jax.config.update("jax_num_cpu_devices", 4)

from jax.sharding import NamedSharding, PartitionSpec  # noqa: E402


def deliver(loader, count):
    """So many batches, over as many epochs as that takes."""
    batches = []
    while len(batches) < count:
        batches += islice(loader, count - len(batches))
    return batches


def assert_right(batches):
    """Every element of a sample's array is the sample's id, and the ids go on in order over the epochs."""
    for number, batch in enumerate(batches):
        expected = numpy.arange(8) + 8 * (number % 5)
        assert numpy.asarray(batch["index"]).tolist() == expected.tolist()
        assert (numpy.asarray(batch["array"]) == expected[:, None, None]).all(), number


def over_rows(count=4):
    return NamedSharding(jax.make_mesh((count,), ("rows",)), PartitionSpec("rows"))


def on_each(count=4):
    return NamedSharding(jax.make_mesh((count,), ("rows",)), PartitionSpec())


@pytest.mark.parametrize("place", ["left out", "device", "rows over four", "whole on each"])
def test_no_refill_shows_in_an_array_that_is_kept(endless, place):
    device = {
        "left out": lambda: None,
        "device": lambda: jax.devices()[2],
        "rows over four": over_rows,
        "whole on each": on_each,
    }[place]()
    with forebay.jax.Loader(endless(), device=device, timeout=5) as loader:
        kept = deliver(loader, 60)
        # They take no slot, though the ring lets one batch be kept.
        assert loader.stats()["client"]["held"] == 0
        for batch in kept:
            assert batch["array"].dtype == numpy.float32 and batch["array"].shape == (8, 3, 3072)
            for array in batch.values():
                assert array.committed == (device is not None)
                if place == "device":
                    assert array.devices() == {device}
                elif device is not None:
                    assert array.sharding == device
    assert_right(kept)


def test_rows_lie_on_the_devices_of_the_sharding(config):
    with forebay.jax.Loader(config(), device=over_rows()) as loader:
        array = next(iter(loader))["array"]
    rows = {shard.device: numpy.asarray(shard.data)[:, 0, 0].tolist() for shard in array.addressable_shards}
    assert rows == {device: [2 * n, 2 * n + 1] for n, device in enumerate(jax.devices())}


def test_a_default_device_of_the_program_is_used(config):
    with forebay.jax.Loader(config()) as loader, jax.default_device(jax.devices()[3]):
        assert next(iter(loader))["array"].devices() == {jax.devices()[3]}


def test_types_are_those_of_device_put(config):
    with forebay.jax.Loader(config()) as loader:
        assert next(iter(loader))["index"].dtype == jax.device_put(numpy.arange(8)).dtype == numpy.int32
        with jax.enable_x64(True):
            assert next(iter(loader))["index"].dtype == numpy.int64


def test_bfloat16_is_jaxs_own(narrow):
    with forebay.jax.Loader(narrow) as loader:
        array = next(iter(loader))["array"]
    assert array.dtype == jax.numpy.bfloat16 and float(array[3, 0, 0]) == 3.0


def test_ragged_rows_are_jax_arrays(ragged):
    with forebay.jax.Loader(ragged()) as loader:
        tokens = next(iter(loader))["tokens"]
        assert loader.stats()["client"]["held"] == 0
    assert isinstance(tokens, forebay.Ragged) and len(tokens) == 6
    for part in (tokens.values, tokens.offsets, tokens.lengths, tokens[3]):
        assert isinstance(part, jax.Array) and part.dtype == numpy.int32
    copy = tokens.copy()
    assert isinstance(copy.values, jax.Array) and copy.values.size == 15
    for rows in (tokens, copy):
        assert [row.tolist() for row in rows] == [list(range(sample)) for sample in range(6)]


def test_a_ragged_field_is_not_split_over_devices(ragged):
    config = ragged()
    with pytest.raises(forebay.ConfigError, match="'tokens' is ragged and the sharding has 4 devices"):
        forebay.jax.Loader(config, device=over_rows())
    with forebay.jax.Loader(config, device=over_rows(1)) as loader:
        assert next(iter(loader))["tokens"][5].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("device", ["cpu", 0, numpy.float32])
def test_what_is_no_device_is_refused_with_what_is_one(config, device):
    with pytest.raises(forebay.ConfigError, match=r"jax\.devices\(\)\[0\]"):
        forebay.jax.Loader(config(), device=device)


def test_epochs_and_states_are_those_of_every_loader(config):
    with forebay.jax.Loader(config()) as loader:
        first = list(loader)
        second = iter(loader)
        seen = [next(second), next(second)]
        state = loader.state_dict()
        list(second)
        with pytest.raises(forebay.EpochsFinished):
            iter(loader)
    with forebay.jax.Loader(config(), state=state) as loader:
        assert_right(first + seen + list(loader))


class Accelerator:
    """Stands in for a device with memory of its own: reads the NumPy array some time after ``device_put``, and holds it
    until then, as JAX does. A transfer is done when somebody waits for it, or for slots to come free."""

    def __init__(self, monkeypatch, donated):
        self.donated = donated
        self.under_way = queue.Queue()
        self.most_under_way = 0
        self.may_go_on = threading.Semaphore(0)
        monkeypatch.setattr(forebay.jax, "_ACCELERATORS", {"cpu"})
        monkeypatch.setattr(jax, "device_put", self.device_put)
        threading.Thread(target=self.transfer, daemon=True).start()

    def device_put(self, array, device):
        landing = Landing(self, numpy.zeros_like(array))
        self.under_way.put((array, landing))
        self.most_under_way = max(self.most_under_way, self.under_way.qsize())
        return landing

    def transfer(self):
        while True:
            self.may_go_on.acquire()
            array, landing = self.under_way.get()
            landing.array[...] = array
            landing.done.set()
            del array, landing
            self.under_way.task_done()

    def finish(self):
        self.may_go_on.release(10_000)
        self.under_way.join()


class Landing:
    """The array that the stand-in gives. One that was donated to a computation cannot be waited for."""

    def __init__(self, accelerator, array):
        self.accelerator, self.array, self.done = accelerator, array, threading.Event()

    def is_deleted(self):
        return self.accelerator.donated

    def block_until_ready(self):
        if not self.done.is_set():
            self.accelerator.may_go_on.release()
        assert self.done.wait(WATCHDOG_SECONDS)

    def __array__(self, dtype=None, copy=None):
        return self.array


@pytest.mark.parametrize("donated", [False, True])
def test_slots_stay_held_until_they_were_read_and_that_is_no_hold_limit(endless, monkeypatch, donated):
    with forebay.jax.Loader(endless(), timeout=60) as loader:
        accelerator = Accelerator(monkeypatch, donated)
        if donated:
            monkeypatch.setattr(forebay.jax.time, "sleep", lambda _: accelerator.may_go_on.release(2))
        kept = deliver(loader, 60)
        # Two batches of two fields: what is kept and what is asked for. A small field holds no slot: one more.
        assert accelerator.most_under_way in (4, 5)
        accelerator.finish()
    assert_right(kept)


def test_a_transfer_that_never_ends_is_a_hold_limit_after_the_timeout(config, monkeypatch):
    with forebay.jax.Loader(config(), overrides={"ring.hold": 1}, timeout=3) as loader:
        accelerator = Accelerator(monkeypatch, donated=True)
        batches = iter(loader)
        kept = [next(batches), next(batches)]
        with pytest.raises(forebay.HoldLimit):
            next(batches)
        # Nothing is lost by that: once the transfers are done, it goes on where it was.
        accelerator.may_go_on.release(10_000)
        kept += batches
        accelerator.finish()
    assert len(kept) == 5
    assert_right(kept)


PROCESS = """
    import json, sys
    import jax
    import numpy
    import forebay.jax
    from jax.sharding import NamedSharding, PartitionSpec

    config, port, rank = json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 2)
    jax.distributed.initialize(f"127.0.0.1:{port}", 2, rank)
    rows = NamedSharding(jax.make_mesh((4,), ("rows",)), PartitionSpec("rows"))
    report = {"shapes": [], "ids": []}
    with forebay.jax.Loader(config, device=rows) as loader:
        report["rank"], report["world_size"] = loader.rank, loader.world_size
        for batch in list(loader):
            report["shapes"].append(batch["array"].shape)
            for shard in batch["array"].addressable_shards:
                start = shard.index[0].start
                report["ids"].append([start, numpy.asarray(shard.data)[:, 0, 0].tolist()])
    print(json.dumps(report), flush=True)
    jax.distributed.shutdown()
"""


def test_two_processes_make_one_global_array(config, tmp_path):
    script = tmp_path / "process.py"
    script.write_text(textwrap.dedent(PROCESS))
    command = [sys.executable, str(script), json.dumps(config(size=4)), str(free_port())]
    processes = [subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, text=True) for rank in range(2)]
    reports = [json.loads(process.communicate(timeout=WATCHDOG_SECONDS)[0]) for process in processes]
    for rank, report in enumerate(reports):
        assert (report["rank"], report["world_size"]) == (rank, 2)
        assert report["shapes"] == [[8, 3, 3072]] * 5
        # Of each global batch of eight, in pieces of two, this process holds its four rows.
        starts = [4 * rank, 4 * rank + 2]
        expected = [[start, [8 * batch + start, 8 * batch + start + 1]] for batch in range(5) for start in starts]
        assert report["ids"] == expected
