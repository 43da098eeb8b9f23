"""`forebay.device.Loader`: arrays on a GPU over the stand-in for the driver's library (tests/gpu/stand_in_driver.c).

No consumer of DLPack takes a CUDA tensor without a GPU, so one is played here by ctypes: it takes capsules, both kinds,
reads their structs and frees them, as CuPy and JAX do.
"""

import textwrap

import forebay
import pytest

PLAY = """
import ctypes, gc, json, sys
import forebay, forebay.device

driver = ctypes.CDLL("libcuda.so")
python = ctypes.pythonapi
python.PyCapsule_GetName.restype = ctypes.c_char_p
python.PyCapsule_GetName.argtypes = [ctypes.py_object]
python.PyCapsule_GetPointer.restype = ctypes.c_void_p
python.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
python.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]

class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("kind", ctypes.c_int32), ("ordinal", ctypes.c_int32),
                ("rank", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64)]

class Managed(ctypes.Structure):
    _fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p))]

class Versioned(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
                ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p)), ("flags", ctypes.c_uint64), ("tensor", Tensor)]

# Names must outlive the capsules.
USED = ctypes.c_char_p(b"used_dltensor")

class Taken:
    \"\"\"A consumer's tensor.\"\"\"
    def __init__(self, array, stream=None, **asked):
        capsule = array.__dlpack__(stream=stream, **asked)
        self.name = python.PyCapsule_GetName(capsule).decode()
        self.pointer = python.PyCapsule_GetPointer(capsule, self.name.encode())
        python.PyCapsule_SetName(capsule, USED)
        kind = Versioned if self.name.endswith("_versioned") else Managed
        self.managed = ctypes.cast(self.pointer, ctypes.POINTER(kind)).contents
        self.tensor = self.managed.tensor
        self.stream = stream
    @property
    def shape(self):
        return [self.tensor.shape[place] for place in range(self.tensor.rank)]
    def bytes(self):
        # All work of the stream first: the copy is behind it in time only if it waits for it.
        assert driver.cuStreamSynchronize(ctypes.c_void_p(1 if self.stream in (None, -1) else self.stream)) == 0
        size = self.tensor.bits // 8
        for extent in self.shape:
            size *= extent
        return list(ctypes.string_at(self.tensor.data, size))
    def free(self):
        self.managed.deleter(self.pointer)

def read(array):
    taken = Taken(array)
    content = taken.bytes()
    taken.free()
    return content

def a_stream():
    made = ctypes.c_void_p()
    driver.cuInit(0)
    driver.cuCtxSetCurrent(ctypes.c_void_p(1))
    assert driver.cuStreamCreate(ctypes.byref(made), 1) == 0
    return made.value

driver.cuInit(0)
driver.cuCtxSetCurrent(ctypes.c_void_p(1))

def loader(**arguments):
    return forebay.device.Loader(json.loads(sys.argv[1]), **arguments)
"""


@pytest.fixture
def play(run_on_device):
    """Runs a script behind the play of a consumer; gives what it prints as JSON."""
    return lambda config, script, **variables: run_on_device(PLAY + textwrap.dedent(script), config, **variables)


def on_host(config):
    with forebay.Loader(config) as loader:
        return [{name: list(array.tobytes()) for name, array in batch.items()} for batch in loader]


def test_both_kinds_of_capsules_carry_the_hosts_bytes_on_any_stream(config, play):
    config = config(last="short", size=7)
    seen = play(
        config,
        """
        mine = a_stream()
        ways = [({}, None), ({"max_version": (0, 8)}, 1)]
        ways += [({"max_version": (1, 0)}, mine), ({"max_version": (2, 1)}, mine)]
        seen, names, keys = [], [], []
        for number, batch in enumerate(loader(pin="register")):
            asked, stream = ways[number % 4]
            taken = {name: Taken(array, stream, **asked) for name, array in batch.items()}
            names.append(taken["array"].name)
            tensor = taken["array"].tensor
            keys.append([tensor.kind, tensor.ordinal, tensor.code, tensor.bits, tensor.lanes, taken["array"].shape])
            assert batch["array"].__dlpack_device__() == (2, 0)
            strides = [tensor.strides[place] for place in range(3)]
            assert strides == [9216, 3072, 1] and tensor.byte_offset == 0
            seen.append({name: tensor.bytes() for name, tensor in taken.items()})
            for tensor in taken.values():
                tensor.free()
        print(json.dumps([seen, names, keys]))
        """,
    )
    assert seen[0] == on_host(config)
    old, new = "dltensor", "dltensor_versioned"
    assert seen[1] == [old, old, new, new, old, old]
    assert seen[2][0] == [2, 0, 2, 32, 1, [7, 3, 3072]] and seen[2][-1][-1] == [5, 3, 3072]


def test_a_batch_is_held_by_what_was_made_of_it_and_by_nothing_else(config, play):
    seen = play(
        config(),
        """
        epoch = iter(loader(device_hold=1, ahead=1))
        said = []
        def step():
            try:
                batch = next(epoch)
                return batch
            except forebay.HoldLimit as error:
                said.append(str(error))
        batch = step()
        kept = Taken(batch["array"], max_version=(1, 0))
        unused = batch["array"].__dlpack__()   # a capsule that nobody takes
        del batch
        step()                                  # the tensor and the capsule hold it
        kept.free()
        step()                                  # the capsule still does
        del unused
        second = step()
        print(json.dumps([said, Taken(second["index"]).bytes()]))
        """,
    )
    assert len(seen[0]) == 2 and "1 batches are held on the device" in seen[0][0]
    assert seen[1] == on_host(config())[1]["index"]


def test_small_fields_hold_no_batch(config, play):
    seen = play(
        config(),
        """
        kept = []
        for batch in loader(device_hold=2, ahead=2):
            kept.append(batch["index"])
        print(json.dumps([read(index) for index in kept]))
        """,
    )
    expected = [batch["index"] for batch in on_host(config())]
    assert seen == expected and len(seen) > 3


def test_wrong_streams_devices_and_copies_are_refused_and_the_array_interface_names_a_stream(config, play):
    seen = play(
        config(),
        """
        array = next(iter(loader()))["array"]
        said = []
        for asked in ({"stream": 0}, {"stream": -2}, {"dl_device": (1, 0)}, {"dl_device": (2, 1)}, {"copy": True}):
            try:
                array.__dlpack__(**asked)
                said.append("given")
            except (ValueError, BufferError) as error:
                said.append(f"{type(error).__name__}: {error}")
        array.__dlpack__(stream=-1, dl_device=(2, 0), copy=False)
        interface = array.__cuda_array_interface__
        print(json.dumps([said, {**interface, "data": interface["data"][1]}, repr(array), len(array), array.nbytes]))
        """,
    )
    assert [text.split(":")[0] for text in seen[0]] == ["ValueError"] * 2 + ["BufferError"] * 3
    assert "cuda:0" in seen[0][2]
    assert seen[1] == {"shape": [8, 3, 3072], "typestr": "<f4", "data": False, "version": 3, "stream": 1}
    assert seen[2:] == ["<forebay.device.Array of float32 (8, 3, 3072) on cuda:0>", 8, 294912]


def test_states_and_epochs_are_as_on_the_host(config, play):
    seen = play(
        config(),
        """
        batches = loader(ahead=3)
        epoch = iter(batches)
        first = [read(next(epoch)["index"]) for _ in range(2)]
        state = batches.state_dict()
        batches.load_state_dict(state)
        rest = [read(batch["index"]) for batch in batches]
        again = [read(batch["index"]) for batch in batches]
        figures = batches.stats()
        print(json.dumps([first + rest, again, list(epoch), figures["upload"]["path"]]))
        """,
    )
    host = [batch["index"] for batch in on_host(config())]
    assert seen[0] == host and seen[1] == host
    assert seen[2] == [] and seen[3] in ("registered", "staged")


def test_fields_to_pad_are_refused(ragged, play):
    config = ragged()
    config["batch"]["pad"] = "batch"
    seen = play(
        config,
        """
        try:
            loader()
        except forebay.ConfigError as error:
            print(json.dumps(str(error)))
        """,
    )
    assert seen.startswith("`batch.pad` needs arrays that can be padded")


def test_without_a_driver_the_error_says_what_to_do(config):
    import forebay.device

    try:
        loader = forebay.device.Loader(config())
    except forebay.ConfigError as error:
        assert "no NVIDIA driver was found" in str(error) and "omit the device" in str(error)
    else:
        loader.close()
        pytest.skip("there is a GPU")
