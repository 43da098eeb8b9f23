"""`forebay.torch.Loader(device="cuda:0")` over the stand-in for the driver's library (tests/gpu/stand_in_driver.c).

PyTorch's own CUDA half needs a real driver, so its allocator and streams are played here: "device" memory is the CPU's,
a stream is a handle of the stand-in's. What is shown: the native half and what stands between it and PyTorch. What is
not: PyTorch's allocator, `record_stream`, graphs. `scripts/gpu-check` shows those where there is a GPU.
"""

import textwrap

import pytest

torch = pytest.importorskip("torch")

import forebay  # noqa: E402
import forebay.torch  # noqa: E402

# Plays PyTorch's half of a device. A stream's work is done when it is synchronised, as late as that.
PLAY = """
import ctypes, gc, json, sys
import torch
import forebay, forebay.torch
from forebay import _torch_device

driver = ctypes.CDLL("libcuda.so")

class Stream:
    def __init__(self, handle=None):
        made = ctypes.c_void_p(handle)
        if handle is None:
            assert driver.cuStreamCreate(ctypes.byref(made), 1) == 0
        self.cuda_stream = made.value
    def synchronize(self):
        assert driver.cuStreamSynchronize(ctypes.c_void_p(self.cuda_stream)) == 0
    def wait_stream(self, other):
        other.synchronize()

class Memory:
    capturing = False
    def __init__(self, device):
        driver.cuInit(0)
        driver.cuCtxSetCurrent(ctypes.c_void_p(1))
        self.device, self.ordinal = torch.device("cpu"), 0
        self.current, self.recorded, self.kept = Stream(), 0, []
        self.full = False
        Memory.last = self
    def use_side_stream(self, handle):
        assert handle
        self.side = Stream(handle)
    def current_stream(self):
        return self.current
    def allocate(self, wanted):
        if self.full:
            raise torch.OutOfMemoryError("the device is full")
        return [self.memory(shape, dtype) for shape, dtype in wanted]
    def memory(self, shape, dtype):
        # Never freed, as PyTorch's allocator keeps a block until the side stream's work on it is done.
        tensor = torch.empty(shape, dtype=dtype)
        self.kept.append(bytearray(tensor.nbytes))
        return torch.frombuffer(self.kept[-1], dtype=dtype).reshape(shape)
    def refuse_capture(self):
        pass

_torch_device.DeviceMemory = Memory
torch.Tensor.record_stream = lambda tensor, stream: setattr(Memory.last, "recorded", Memory.last.recorded + 1)

def loader(**arguments):
    return forebay.torch.Loader(json.loads(sys.argv[1]), device="cuda:0", **arguments)

def content(batch):
    Memory.last.current.synchronize()
    def plain(value):
        if isinstance(value, forebay.Ragged):
            return [plain(value[row]) for row in range(len(value))]
        return value.to(torch.float64).tolist()
    return {name: plain(value) for name, value in batch.items()}
"""


@pytest.fixture
def play(run_on_device):
    """Runs a script behind the play of PyTorch's half; gives what it prints as JSON."""
    return lambda config, script, **variables: run_on_device(PLAY + textwrap.dedent(script), config, **variables)


def on_host(config, epochs=1):
    def plain(value):
        if isinstance(value, forebay.Ragged):
            return [plain(value[row]) for row in range(len(value))]
        return value.to(torch.float64).tolist()

    with forebay.torch.Loader(config) as loader:
        return [{name: plain(value) for name, value in batch.items()} for _ in range(epochs) for batch in loader]


def test_batches_are_the_hosts(config, play):
    config = config(last="short", size=7)
    seen = play(
        config,
        """
        with loader(pin="register") as batches:
            seen = [content(batch) for _ in range(2) for batch in batches]
            stats = batches.stats()
        print(json.dumps([seen, stats["upload"], stats["client"]["batches"], Memory.last.recorded]))
        """,
    )
    assert seen[0] == on_host(config, epochs=2)
    assert seen[1]["path"] == "registered" and seen[1]["batches"] == 12
    # Each tensor of each batch was marked for the caller's stream.
    assert seen[2] == 12 and seen[3] == 12 * len(seen[0][0])


def test_rows_of_different_lengths_are_ragged_tensors(ragged, play):
    config = ragged(20)
    seen = play(config, "print(json.dumps([content(batch) for batch in loader(ahead=3)]))")
    assert seen == on_host(config)


def test_padded_fields_have_no_static_memory(ragged, play):
    config = ragged(20)
    config["batch"]["pad"] = "batch"
    seen = play(
        config,
        """
        try:
            loader(static=True)
        except forebay.ConfigError as error:
            print(json.dumps(str(error)))
        """,
    )
    assert "static=True keeps addresses and shapes" in seen and "`batch.pad`" in seen


def test_more_batches_than_device_hold_are_refused_until_one_goes(config, play):
    seen = play(
        config(),
        """
        batches = loader(device_hold=2)
        epoch = iter(batches)
        # A view of one field holds its batch.
        held = [next(epoch)["array"][0:1], next(epoch)]
        try:
            next(epoch)
            said = ""
        except forebay.HoldLimit as error:
            said = str(error)
        del held[0]
        print(json.dumps([said, content(next(epoch))["index"], content(held[0])["index"]]))
        """,
    )
    host = on_host(config())
    assert "2 batches are held on the device by `array`" in seen[0] and "`.clone()`" in seen[0]
    assert seen[1] == host[2]["index"] and seen[2] == host[1]["index"]


def test_small_fields_on_the_device_hold_no_batch(config, play):
    seen = play(
        config(),
        """
        labels = []
        for batch in loader(device_hold=1):
            labels.append(batch["index"])
            del batch
        Memory.last.current.synchronize()
        print(json.dumps([label for batch in labels for label in batch.tolist()]))
        """,
    )
    assert seen == list(range(40))


def test_static_gives_one_address_and_the_state_counts_what_was_given(config, play):
    seen = play(
        config(),
        """
        batches = loader(static=True, ahead=3)
        addresses, seen = set(), []
        for batch in batches:
            addresses.add(batch["array"].data_ptr())
            Memory.last.current.synchronize()
            seen.append(batches.state_dict()["samples"])
        print(json.dumps([len(addresses), seen]))
        """,
    )
    assert seen == [1, [8, 16, 24, 32, 0]]


def test_a_full_device_loses_no_batch(config, play):
    seen = play(
        config(),
        """
        batches = loader(ahead=1)
        epoch = iter(batches)
        seen = [content(next(epoch))["index"]]
        Memory.last.full = True
        try:
            next(epoch)
        except torch.OutOfMemoryError:
            seen.append("full")
        Memory.last.full = False
        seen += [content(batch)["index"] for batch in epoch]
        print(json.dumps(seen))
        """,
    )
    host = [batch["index"] for batch in on_host(config())]
    assert seen == [host[0], "full", *host[1:]]


def test_an_epoch_left_early_a_state_and_a_jump(config, play):
    seen = play(
        config(),
        """
        batches = loader(ahead=3)
        epoch = iter(batches)
        seen = [content(next(epoch))["index"] for _ in range(2)]
        state = batches.state_dict()
        old = iter(batches)  # the second epoch
        first = content(next(old))["index"]
        behind_the_break = batches.state_dict()
        stale = list(epoch)  # has ended, though an epoch is open
        batches.load_state_dict(state)
        rest = [content(batch)["index"] for batch in batches]
        print(json.dumps([seen, first, rest, batches.given_up, stale, list(old), behind_the_break]))
        """,
    )
    host = [batch["index"] for batch in on_host(config(), epochs=2)]
    assert seen[:3] == [host[:2], host[5], host[2:5]]
    # Three of the first epoch, four of the second; iterators that were begun before have ended.
    assert seen[3:6] == [7, [], []]
    assert (seen[6]["epoch"], seen[6]["samples"]) == (1, 8)


def test_without_pytorchs_cuda_the_error_says_so(config):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(forebay.ConfigError, match=r"PyTorch sees no CUDA device.*omit `device`"):
        forebay.torch.Loader(config(), device="cuda:0")
    with pytest.raises(forebay.ConfigError, match="static=True is for a CUDA device"):
        forebay.torch.Loader(config(), static=True)


def test_a_refused_device_or_policy_starts_no_daemon(config, play):
    seen = play(
        config(),
        """
        said = []
        for arguments in ({"pin": "glue"}, {"ahead": 0}):
            try:
                loader(**arguments)
            except forebay.ConfigError as error:
                said.append(str(error))
        print(json.dumps(said))
        """,
    )
    assert 'it is "auto", "register", "stage" or "off"' in seen[0] and seen[1] == "ahead = 0; at least 1 batch"
    failed = play(
        config(),
        """
        try:
            loader()
        except forebay.ConfigError as error:
            print(json.dumps(str(error)))
        """,
        FOREBAY_STAND_IN_FAIL="cuDevicePrimaryCtxRetain=101",
    )
    assert failed.startswith("cuda:0: this process sees 2 devices")
