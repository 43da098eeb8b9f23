"""Data and configurations for the tests of the Python package, over the real daemon.

The package must be installed (`scripts/test` installs the wheel). FOREBAY_PROGRAM names another program than the one in
the package.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import forebay
import numpy
import pytest
from support import config_of

SAMPLES = 40
# Replaces NVIDIA's driver; its head comment says what that shows.
STAND_IN_DRIVER = Path(__file__).parents[1] / "gpu" / "stand_in_driver.c"


# Files whose tests compare times. `scripts/test` runs the others two at a time, and these after them.
ALONE = {
    "test_headspace.py",
    "test_interpreter_lock.py",
    "test_metrics.py",
    "test_page.py",
    "test_python_figures.py",
    "test_replay.py",
    "test_steps.py",
    "test_stragglers.py",
}


def pytest_configure(config):
    config.addinivalue_line("markers", "alone: compares times, so it does not run beside other tests")


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.name in ALONE:
            item.add_marker(pytest.mark.alone)


# A shell's background job ignores SIGINT, and so would the programs that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch, tmp_path_factory):
    """No test inherits a rank from the process that started pytest, or leaves an index in the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))
    for name in list(os.environ):
        if re.search(
            r"(^|_)(RANK|RANKID|PROCID|JOB_COMPLETION_INDEX)$|^(SM|TPU|WORLD|LOCAL_WORLD|FOREBAY_SOCKET)", name
        ):
            monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def arrays_folder(tmp_path_factory):
    """40 arrays of 3 × 3072 float32; every element of the n-th is n. Two of them are a field that is not small."""
    folder = tmp_path_factory.mktemp("arrays")
    for sample in range(SAMPLES):
        numpy.save(folder / f"{sample:03}.npy", numpy.full((3, 3072), sample, numpy.float32))
    return folder


@pytest.fixture
def config(arrays_folder):
    """Makes a configuration over the arrays: 5 batches of 8 an epoch, in order, two epochs, one thread."""

    def make(operations=(), **batch):
        return {
            "dataset": {"format": "npy", "path": str(arrays_folder)},
            "order": {"seed": 3, "shuffle": False, "epochs": 2},
            "batch": {"size": 8, **batch},
            "stage": [{"name": "preprocess", "concurrency": 1, "operations": list(operations)}],
            "ring": {"slots": 5, "hold": 3},
        }

    return make


@pytest.fixture
def endless(config):
    """Makes such a configuration without a last epoch, over the smallest ring: a free slot is filled again at once."""

    def make(operations=()):
        made = {**config(operations), "ring": {"slots": 3, "hold": 1}}
        del made["order"]["epochs"]
        return made

    return make


@pytest.fixture(params=["Loader", "torch.Loader", "jax.Loader"])
def make_loader(request):
    """The loaders of all kinds of arrays."""
    module = request.param.rpartition(".")[0]
    return (pytest.importorskip(f"forebay.{module}") if module else forebay).Loader


@pytest.fixture
def slow(config):
    """Makes a configuration whose first batch takes minutes."""
    return lambda: config([{"op": "delay", "milliseconds": 30000}])


@pytest.fixture
def narrow(config):
    """A configuration whose arrays are bfloat16."""
    return {**config(), "output": {"array": {"dtype": "bfloat16"}}}


@pytest.fixture
def ragged(tmp_path):
    """One epoch of records whose n-th has `tokens` 0 to n − 1, in batches of 6, the last one short."""

    def make(samples=6):
        for sample in range(samples):
            numpy.savez(tmp_path / f"{sample:02}.npz", tokens=numpy.arange(sample, dtype=numpy.int32))
        return config_of(
            {"format": "npz", "path": str(tmp_path)},
            order={"shuffle": False},
            batch={"size": 6},
            output={"tokens": {"ragged": True, "max_bytes": "4KiB"}},
            ring={"slots": 3, "hold": 1},
        )

    return make


@pytest.fixture
def picture(tmp_path):
    """The pixels of one image, and a function that makes the configuration of its only batch in a layout."""
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "only").mkdir()
    pixels = numpy.random.default_rng(1).integers(0, 256, (6, 4, 3), dtype=numpy.uint8)
    image.fromarray(pixels).save(tmp_path / "only" / "one.png")
    operations = [{"op": "decode-image"}, {"op": "center-crop", "size": [6, 4]}]
    dataset = {"format": "image-folder", "path": str(tmp_path)}
    return pixels, lambda layout: config_of(
        dataset, operations, batch={"size": 1}, output={"image": {"dtype": "uint8", "layout": layout}}
    )


@pytest.fixture
def one_thread():
    """Beside a daemon that decodes, more threads of PyTorch wait for each other."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("torchvision")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def driver(tmp_path_factory):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler for the stand-in driver")
    folder = tmp_path_factory.mktemp("driver")
    options = ["-std=gnu11", "-O1", "-ffp-contract=off", "-fPIC", "-shared", "-pthread"]
    subprocess.run([compiler, *options, "-o", folder / "libcuda.so", STAND_IN_DRIVER], check=True)
    return folder


@pytest.fixture
def run_on_device(driver):
    """Runs a script in a separate process, with the stand-in as the driver; returns what it prints as JSON."""

    def run(script, config, **variables):
        environment = {**os.environ, "LD_LIBRARY_PATH": str(driver), "FOREBAY_STAND_IN_DELAY_MS": "2", **variables}
        finished = subprocess.run(
            [sys.executable, "-c", script, json.dumps(config)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert finished.returncode == 0, finished.stderr
        return json.loads(finished.stdout)

    return run
