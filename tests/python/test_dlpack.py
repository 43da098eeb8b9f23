"""Batches in the CPU's memory through DLPack, to NumPy, PyTorch and JAX: who may ask how, and who holds the slot.

NumPy and PyTorch make the capsules; what is Forebay's is that the slot outlives every consumer, and no longer.
"""

import ctypes
import gc

import forebay
import numpy
import pytest

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")
jax.config.update("jax_platforms", "cpu")

VERSIONED = {"max_version": (1, 0)}
READ_ONLY_FLAG = 1

loaders = pytest.mark.parametrize("make_loader", [forebay.Loader, forebay.torch.Loader], ids=["NumPy", "PyTorch"])
consumers = pytest.mark.parametrize(
    "consume",
    [numpy.from_dlpack, torch.from_dlpack, jax.numpy.from_dlpack, jax.dlpack.from_dlpack],
    ids=["NumPy", "PyTorch", "jax.numpy", "jax.dlpack"],
)


def held(loader):
    gc.collect()
    return loader.stats()["client"]["held"]


def address(array):
    for pointer in ("data_ptr", "unsafe_buffer_pointer"):
        if hasattr(array, pointer):
            return getattr(array, pointer)()
    return array.ctypes.data


def name_of(capsule):
    get_name = ctypes.pythonapi.PyCapsule_GetName
    get_name.restype, get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    return get_name(capsule).decode()


def flags_of(capsule):
    """The flags of a versioned capsule: in DLPack's C struct, after the version, the context and the deleter."""
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return ctypes.c_uint64.from_address(get_pointer(capsule, b"dltensor_versioned") + 24).value


@loaders
@consumers
def test_a_slot_stays_leased_until_its_last_consumer_is_gone(endless, make_loader, consume):
    with make_loader(endless()) as loader:
        batches = iter(loader)
        source = next(batches)["array"]
        kept = consume(source)
        assert address(kept) == address(source), "it was copied, so this test says nothing"
        part = kept[2:4]
        del source
        assert held(loader) == 1
        # The other two slots go round while this one is kept.
        for _ in range(3):
            for batch in batches:
                del batch
            batches = iter(loader)
        assert (numpy.asarray(kept) == numpy.arange(8)[:, None, None]).all()
        assert (numpy.asarray(part) == numpy.arange(2, 4)[:, None, None]).all()
        del kept, part
        assert held(loader) == 0


@loaders
@consumers
def test_consumers_count_for_the_hold_limit(endless, make_loader, consume):
    with make_loader(endless()) as loader:
        batches = iter(loader)
        kept = [consume(next(batches)["array"]) for _ in range(2)]
        with pytest.raises(forebay.HoldLimit):
            next(batches)
        kept.pop(0)
        gc.collect()
        assert next(batches)["index"].tolist() == list(range(16, 24))


@loaders
def test_both_ways_of_asking_are_answered(config, make_loader):
    with make_loader(config()) as loader:
        array = next(iter(loader))["array"]
        assert tuple(map(int, array.__dlpack_device__())) == (1, 0)
        for request, name in (
            ({}, "dltensor"),
            ({"max_version": (0, 8)}, "dltensor"),
            (VERSIONED, "dltensor_versioned"),
            ({"stream": None, **VERSIONED}, "dltensor_versioned"),
        ):
            capsule = array.__dlpack__(**request)
            assert name_of(capsule) == name, request
            tensor = torch.from_dlpack(capsule)
            assert tensor.data_ptr() == address(array)
            # A capsule is taken once.
            assert name_of(capsule) == "used_" + name
            with pytest.raises(RuntimeError):
                torch.from_dlpack(capsule)


@loaders
@pytest.mark.parametrize("request_", [{}, VERSIONED], ids=["legacy", "versioned"])
def test_a_capsule_that_nobody_takes_gives_its_slot_back(config, make_loader, request_):
    with make_loader(config()) as loader:
        capsule = next(iter(loader))["array"].__dlpack__(**request_)
        assert held(loader) == 1
        del capsule
        assert held(loader) == 0


@loaders
@pytest.mark.parametrize("stream", [0, 1, 2, "legacy"])
def test_a_stream_makes_no_sense_on_the_cpu_and_is_refused(config, make_loader, stream):
    with make_loader(config()) as loader:
        array = next(iter(loader))["array"]
        for request in ({}, VERSIONED):
            with pytest.raises((RuntimeError, AssertionError, TypeError), match=r"(?i)stream"):
                array.__dlpack__(stream=stream, **request)
        del array
        assert held(loader) == 0


def test_writable_slots_are_written_through_dlpack(config):
    with forebay.Loader(config()) as loader:
        array = next(iter(loader))["array"]
        assert flags_of(array.__dlpack__(**VERSIONED)) & READ_ONLY_FLAG == 0
        torch.from_dlpack(array)[0] = 7
        numpy.from_dlpack(array)[1] = 8
        assert (array[0] == 7).all() and (array[1] == 8).all()


def test_a_read_only_view_says_so_where_the_capsule_can(config):
    with forebay.Loader(config()) as loader:
        array = next(iter(loader))["array"]
        array.flags.writeable = False
        assert flags_of(array.__dlpack__(**VERSIONED)) & READ_ONLY_FLAG
        with pytest.raises(BufferError, match="readonly"):
            array.__dlpack__()
        # NumPy heeds the flag; PyTorch has no read-only tensors and leaves it out of account; JAX, whose arrays nobody
        # writes, asks in the old way and so is refused. If that has changed, so much the better.
        view = numpy.from_dlpack(array)
        assert not view.flags.writeable and address(view) == address(array)
        assert torch.from_dlpack(array).data_ptr() == address(array)
        try:
            jax.numpy.from_dlpack(array)
        except BufferError as error:
            assert "readonly" in str(error)
        del view
        assert held(loader) == 1


def test_bfloat16_goes_through_pytorch(narrow):
    with forebay.torch.Loader(narrow) as loader:
        tensor = next(iter(loader))["array"]
        array = jax.numpy.from_dlpack(tensor)
        assert array.dtype == jax.numpy.bfloat16 and array.unsafe_buffer_pointer() == tensor.data_ptr()
        assert float(array[3, 0, 0]) == 3.0
    with forebay.Loader(narrow) as loader:
        array = next(iter(loader))["array"]
        # NumPy's DLPack knows no types of others; the bits as integers pass.
        with pytest.raises(BufferError):
            array.__dlpack__()
        bits = torch.from_dlpack(array.view(numpy.int16))
        assert float(bits.view(torch.bfloat16)[3, 0, 0]) == 3.0


def test_channels_last_keeps_its_strides(picture):
    pixels, config = picture
    with forebay.torch.Loader(config("NHWC")) as loader:
        tensor = next(iter(loader))["image"]
        array = numpy.from_dlpack(tensor)
        assert array.shape == (1, 3, 6, 4) and array.strides == (72, 1, 12, 3)
        assert (array[0].transpose(1, 2, 0) == pixels).all()
        assert (numpy.asarray(jax.numpy.from_dlpack(tensor)) == array).all()


def test_cupy_takes_a_batch(config):
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed: without a GPU it can hold no array")
    try:
        cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        pytest.skip(f"CuPy finds no GPU: {error}")
    with forebay.Loader(config()) as loader:
        array = next(iter(loader))["array"]
        assert (cupy.asnumpy(cupy.asarray(array)) == array).all()
