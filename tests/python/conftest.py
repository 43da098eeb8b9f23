"""Data and configurations for the tests of the Python package, over the real daemon.

The tests want the package installed (`scripts/test` installs the wheel). FOREBAY_PROGRAM names another program than the
one that the package carries.
"""

import numpy
import pytest

SAMPLES = 40


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch, tmp_path_factory):
    """No test inherits a rank from whatever started pytest, or leaves an index in the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "FOREBAY_SOCKET"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def arrays_folder(tmp_path_factory):
    """40 arrays of 3 × 5 float32; every element of the n-th is n."""
    folder = tmp_path_factory.mktemp("arrays")
    for sample in range(SAMPLES):
        numpy.save(folder / f"{sample:03}.npy", numpy.full((3, 5), sample, numpy.float32))
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
def slow(config):
    """Makes a configuration whose first batch takes minutes."""
    return lambda: config([{"op": "delay", "milliseconds": 30000}])
