"""`[dataset.windows]`: windows of rows are slices of the arrays, in a shuffled epoch, after a resume, over ranks."""

import forebay
import numpy
import pytest
from support import arrays_of, check_that_an_example_learns, digests, rows_of, run_program

ROWS, LENGTH, STRIDE = [90, 7, 41], 8, 3


def config(folder, keys, kind="npy", path="data", order="seed = 3\nepochs = 1", size=5):
    toml = folder / "windows.toml"
    toml.write_text(f"""
[dataset]
format = "{kind}"
path = "{path}"
index = "{folder}/saved.index"
[dataset.windows]
{keys}
[batch]
size = {size}
last = "short"
[order]
{order}
[[stage]]
name = "copy"
operations = []
""")
    return toml


@pytest.fixture
def episodes(tmp_path):
    """Arrays in step, whose rows `episode` cuts; and the windows that they have, by the rows of their starts."""
    generator = numpy.random.default_rng(5)
    total = sum(ROWS)
    arrays = {
        "states": generator.normal(size=(total, 4)).astype(numpy.float32),
        "actions": generator.normal(size=(total, 2)),
        "rewards": generator.integers(-99, 99, total).astype(numpy.int16),
        "episode": numpy.repeat([4, 9, 4], ROWS),
    }
    (tmp_path / "data").mkdir()
    for name, array in arrays.items():
        numpy.save(tmp_path / "data" / f"{name}.npy", array)
    starts, first = [], 0
    for rows in ROWS:
        starts += range(first, first + rows - LENGTH + 1, STRIDE)
        first += rows
    return arrays, starts


KEYS = f'length = {LENGTH}\nstride = {STRIDE}\nby = "episode"'


def test_windows_are_slices_of_the_arrays(tmp_path, episodes):
    arrays, starts = episodes
    with forebay.Loader(config(tmp_path, KEYS)) as loader:
        found = rows_of(loader)
    assert sorted(found) == list(range(len(starts)))
    for index, values in found.items():
        assert set(values) == {"states", "actions", "rewards"}
        for name, value in values.items():
            expected = arrays[name][starts[index] : starts[index] + LENGTH]
            assert value.dtype == expected.dtype
            numpy.testing.assert_array_equal(value, expected)


def test_run_that_is_resumed_goes_on_at_the_next_window(tmp_path, episodes):
    toml = config(tmp_path, KEYS)
    whole = digests(toml)
    with forebay.Loader(toml) as loader:
        batches = iter(loader)
        for _ in range(3):
            next(batches)
        state = loader.state_dict()
    assert digests(toml, state=state) == whole[3:]
    # At another world size, each window that is left comes once.
    left = []
    for rank in range(2):
        with forebay.Loader(toml, state=state, rank=rank, world_size=2, compare_ranks=False) as loader:
            left += [index for batch in loader for index in arrays_of(batch)["index"].tolist()]
    assert sorted(left) == sorted(set(left)) and len(left) == len(episodes[1]) - 15
    # Other windows are another dataset.
    with pytest.raises(forebay.Error, match="dataset"):
        forebay.Loader(config(tmp_path, KEYS.replace("stride = 3", "stride = 2")), state=state)


def test_zarr_arrays_of_its_own_writer(tmp_path):
    zarr = pytest.importorskip("zarr")
    values = numpy.random.default_rng(1).normal(size=(100, 9, 5)).astype("<f4")
    for version in (2, 3):
        folder = tmp_path / str(version)
        store = folder / "of.zarr"
        array = zarr.create_array(store, shape=values.shape, chunks=(16, 4, 5), dtype="<f4", zarr_format=version)
        array[:] = values
        toml = config(folder, "length = 20\nstride = 7", kind="auto", path=store.name)
        with forebay.Loader(toml) as loader:
            found = rows_of(loader)
        assert len(found) == 12
        for index, row in found.items():
            numpy.testing.assert_array_equal(row["array"], values[7 * index : 7 * index + 20])


def test_forecasting_learns(tmp_path):
    steps = numpy.arange(600)[:, None] / numpy.array([5.0, 9.0])
    (tmp_path / "data").mkdir()
    numpy.save(tmp_path / "data" / "series.npy", numpy.sin(steps).astype(numpy.float32))
    keys = (
        'length = 96\nstride = 2\nfields.x = { from = "array" }\nfields.y = { from = "array", start = 96, length = 24 }'
    )
    toml = config(tmp_path, keys, order="seed = 1\nepochs = 1", size=16)
    check_that_an_example_learns("train_forecast", [str(toml)], drop=0.3, losses=14, last=3)


def test_offline_reinforcement_learning_learns(tmp_path):
    generator = numpy.random.default_rng(7)
    for episode in range(12):
        folder = tmp_path / "data" / f"{episode:02}"
        folder.mkdir(parents=True)
        states = generator.normal(size=(generator.integers(3, 40), 3)).astype(numpy.float32)
        numpy.save(folder / "states.npy", states)
        numpy.save(folder / "actions.npy", states[:, :2] * 2)
    keys = "length = 10\nstride = 1\npad = 0\nfields.states = { start = -9 }\nfields.actions = { start = -9 }"
    toml = config(tmp_path, keys, order="seed = 1\nepochs = 1", size=8)
    check_that_an_example_learns("train_offline_rl", [str(toml), "3", "2"], drop=0.5, losses=20, last=4)


def test_doctor_measures_the_files_that_windows_are_in(tmp_path, episodes):
    said = run_program("doctor", str(config(tmp_path, KEYS))).stdout
    assert "storage" in said and "cannot read any sample" not in said, said
