"""`[dataset.windows]` over Parquet and Arrow: the windows of their columns are slices of the tables."""

import os
import shutil
import signal
import subprocess
import time

import forebay
import numpy
import pytest
from support import PROGRAM, digest, digests, rows_of, run_program
from test_windows import KEYS, LENGTH, ROWS, STRIDE, config

pyarrow = pytest.importorskip("pyarrow")
from pyarrow import ipc, parquet  # noqa: E402

TABLES = 3


def columns(table):
    generator = numpy.random.default_rng(table)
    rows = sum(ROWS)
    return {
        "observation.state": generator.normal(size=(rows, 4)).astype(numpy.float32),
        "reward": generator.normal(size=rows),
        "step": generator.integers(-99, 99, rows).astype(numpy.int32),
        "done": generator.integers(0, 2, rows).astype(bool),
        "episode": numpy.repeat([4, 9, 4], ROWS),
    }


def age(path):
    """Files that have just changed may change again within the clock's tick, so nothing made of them is kept."""
    long_ago = path.stat().st_mtime - 100
    os.utime(path, (long_ago, long_ago))


def write(path, values, **options):
    made = {name: list(column) if column.ndim > 1 else column for name, column in values.items()}
    table = pyarrow.table({**made, "note": ["a text"] * len(values["step"])})
    if path.suffix == ".parquet":
        parquet.write_table(table, path, row_group_size=50, **options)
    else:
        with ipc.new_stream(path, table.schema) as stream:
            stream.write_table(table, max_chunksize=50)
    age(path)


@pytest.fixture(params=["parquet", "arrow"])
def kind(request, tmp_path):
    (tmp_path / "data").mkdir()
    for table in range(TABLES):
        write(tmp_path / "data" / f"{table}.{request.param}", columns(table))
    return request.param


def toml_of(folder, kind, keys=KEYS, more="", **options):
    toml = config(folder, keys, kind=kind, **options)
    toml.write_text(toml.read_text() + f'\n[cache]\npath = "{folder}/cache"\n' + more)
    return toml


FIELDS = """
[dataset.windows.fields]
state = { from = "observation.state" }
reward = {}
step = { start = -1, length = 2 }
done = {}
"""
KEYS_OF_FIELDS = KEYS + FIELDS


def windows(by=True):
    """The table and the first row of each window."""
    found = []
    for table in range(TABLES):
        first = 0
        for rows in ROWS if by else [sum(ROWS)]:
            # `step` begins a row earlier.
            found += [(table, start) for start in range(first + 1, first + rows - LENGTH + 1, STRIDE)]
            first += rows
    return found


@pytest.mark.parametrize("by", [True, False])
def test_windows_are_slices_of_the_tables(tmp_path, kind, by):
    keys = KEYS_OF_FIELDS if by else KEYS_OF_FIELDS.replace('by = "episode"', "")
    with forebay.Loader(toml_of(tmp_path, kind, keys)) as loader:
        found = rows_of(loader)
    expected = windows(by)
    assert sorted(found) == list(range(len(expected)))
    for index, (table, start) in enumerate(expected):
        values = columns(table)
        parts = {
            "state": values["observation.state"][start : start + LENGTH],
            "reward": values["reward"][start : start + LENGTH],
            "step": values["step"][start - 1 : start + 1],
            "done": values["done"][start : start + LENGTH],
        }
        assert set(found[index]) == set(parts)
        for name, part in parts.items():
            assert found[index][name].dtype == part.dtype
            numpy.testing.assert_array_equal(found[index][name], part)


def test_arrays_are_made_once_and_again_for_changed_tables(tmp_path, kind):
    toml = toml_of(tmp_path, kind, KEYS_OF_FIELDS)
    said = run_program("index", str(toml))
    assert said.returncode == 0, said.stderr
    (folder,) = (tmp_path / "cache").glob("rows-*/*/*/")
    made = {path: path.stat().st_mtime_ns for path in folder.glob("*.npy")}
    assert len(made) == 5
    whole = digests(toml)
    assert {path: path.stat().st_mtime_ns for path in folder.glob("*.npy")} == made
    # Other windows of the same columns share the arrays.
    toml_of(tmp_path, kind, KEYS_OF_FIELDS.replace("stride = 3", "stride = 1"))
    assert digests(toml) != whole
    assert [*(tmp_path / "cache").glob("rows-*/*/*/")] == [folder]
    # An array that is lost is made again.
    toml_of(tmp_path, kind, KEYS_OF_FIELDS)
    (folder / "reward.npy").unlink()
    assert digests(toml) == whole
    # So is that of another table of the same name.
    path = tmp_path / "data" / f"0.{kind}"
    write(path, {name: column[::-1] for name, column in columns(0).items()})
    assert digests(toml) != whole


def test_missing_floats_are_nan_and_other_missing_values_are_refused(tmp_path):
    (tmp_path / "data").mkdir()
    table = pyarrow.table({"x": [1.0, None, 3.0, 4.0], "n": pyarrow.array([1, 2, None, 4], pyarrow.int32())})
    parquet.write_table(table, tmp_path / "data" / "a.parquet")
    with forebay.Loader(toml_of(tmp_path, "parquet", "length = 4\nfields.x = {}")) as loader:
        numpy.testing.assert_array_equal(rows_of(loader)[0]["x"], [1.0, numpy.nan, 3.0, 4.0])
    with pytest.raises(forebay.Error, match=r"a.parquet.*row 2: `n` has no value, and int32 has no number for that"):
        forebay.Loader(toml_of(tmp_path, "parquet", "length = 4\nfields.n = {}"))


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("length = 4\nfields.z = {}", 'dataset.windows.fields has "z", and the columns are `x`, `s`, `l`'),
        ("length = 4\nfields.s = {}", 'dataset.windows.fields has "s", whose values are texts'),
        ("length = 4\nfields.l = {}", "row 1: `l` has 1 numbers, and rows of the shape [2] have 2"),
        ('length = 4\nfields.x = {}\nby = "z"', 'dataset.windows.by has "z"'),
        ("length = 40\nfields.x = {}", "a window needs 40 rows, and the longest of 1 episodes has 3"),
    ],
)
def test_columns_that_have_no_windows_are_named(tmp_path, keys, said):
    (tmp_path / "data").mkdir()
    table = pyarrow.table({"x": [1.0, 2.0, 3.0], "s": ["a", "b", "c"], "l": [[1.0, 2.0], [3.0], [4.0]]})
    parquet.write_table(table, tmp_path / "data" / "a.parquet")
    with pytest.raises(forebay.Error) as error:
        forebay.Loader(toml_of(tmp_path, "parquet", keys))
    assert said in str(error.value)


def test_texts_tell_episodes_apart(tmp_path):
    (tmp_path / "data").mkdir()
    table = pyarrow.table({"station": ["north"] * 5 + ["south"] * 4, "x": numpy.arange(9.0)})
    parquet.write_table(table, tmp_path / "data" / "a.parquet")
    toml = toml_of(tmp_path, "parquet", 'length = 3\nby = "station"')
    with forebay.Loader(toml) as loader:
        found = rows_of(loader)
    assert [found[index]["x"][0] for index in sorted(found)] == [0.0, 5.0]


def test_a_resume_elsewhere_goes_on_at_the_next_window(tmp_path, kind):
    toml = toml_of(tmp_path, kind, KEYS_OF_FIELDS)
    whole = digests(toml)
    with forebay.Loader(toml) as loader:
        batches = iter(loader)
        for _ in range(3):
            next(batches)
        state = loader.state_dict()
    # Another host has copies of the tables, and other times of them.
    other = tmp_path / "other"
    other.mkdir()
    shutil.copytree(tmp_path / "data", other / "data", copy_function=shutil.copyfile)
    assert digests(toml_of(other, kind, KEYS_OF_FIELDS), state=state) == whole[3:]


def test_a_killed_process_leaves_nothing_that_is_wrong(tmp_path, kind):
    toml = toml_of(tmp_path, kind, KEYS_OF_FIELDS)
    whole = digests(toml)
    for after in (0.0, 0.005, 0.02):
        shutil.rmtree(tmp_path / "cache")
        making = subprocess.Popen([PROGRAM, "index", str(toml)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while making.poll() is None and not [*(tmp_path / "cache").glob("rows-*/*/*/*.npy")]:
            time.sleep(0.001)
        time.sleep(after)
        making.kill()
        making.wait()
        assert digests(toml) == whole


@pytest.mark.parametrize("change", ["touched", "added", "removed"])
def test_a_daemon_that_died_is_continued_with_the_arrays_that_it_had(tmp_path, kind, change):
    toml = toml_of(tmp_path, kind, KEYS_OF_FIELDS)
    whole = digests(toml)
    found = []
    with forebay.Loader(toml) as loader:
        for number, batch in enumerate(loader):
            found.append(digest(batch))
            if number == 3:
                table = tmp_path / "data" / f"0.{kind}"
                if change == "touched":
                    os.utime(table)
                elif change == "added":
                    shutil.copy(table, tmp_path / "data" / f"9.{kind}")
                else:
                    shutil.rmtree(tmp_path / "data")
                os.kill(loader.daemon_pid, signal.SIGKILL)
        assert loader.restarts == 1
    assert found == whole


def test_columns_that_cannot_be_fields_are_left_out(tmp_path):
    (tmp_path / "data").mkdir()
    made = {"index": numpy.arange(9), "x": numpy.arange(9.0), "": numpy.arange(9), "s": ["a"] * 9}
    parquet.write_table(pyarrow.table(made), tmp_path / "data" / "a.parquet")
    toml = toml_of(tmp_path, "parquet", "length = 3")
    with forebay.Loader(toml) as loader:
        assert set(rows_of(loader)[0]) == {"x"}
    said = run_program("index", str(toml))
    assert "columns without windows: `index` (the field `index` is made by Forebay" in said.stdout + said.stderr


def test_lists_have_the_shape_of_the_first_value_of_any_table(tmp_path):
    (tmp_path / "data").mkdir()
    kind = pyarrow.list_(pyarrow.float32())
    for name, values in {"a": [], "b": [None, [1.0, 2.0]], "c": [[3.0, 4.0]] * 3}.items():
        parquet.write_table(pyarrow.table({"x": pyarrow.array(values, kind)}), tmp_path / "data" / f"{name}.parquet")
    with forebay.Loader(toml_of(tmp_path, "parquet", "length = 2\nfields.x = {}")) as loader:
        found = rows_of(loader)
    numpy.testing.assert_array_equal(found[0]["x"], [[numpy.nan, numpy.nan], [1.0, 2.0]])


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_shapes_that_differ_between_tables_are_refused(tmp_path, kind):
    (tmp_path / "data").mkdir()
    for name, sides in {"a": (2, 3), "b": (3, 2)}.items():
        inner = pyarrow.list_(pyarrow.list_(pyarrow.float32(), sides[1]), sides[0])
        table = pyarrow.table({"x": pyarrow.array([numpy.zeros(sides).tolist()] * 5, inner)})
        path = tmp_path / "data" / f"{name}.{kind}"
        if kind == "parquet":
            parquet.write_table(table, path)
        else:
            with ipc.new_stream(path, table.schema) as stream:
                stream.write_table(table)
    with pytest.raises(forebay.Error, match=rf"b\.{kind}.*its column \"x\" is float32"):
        forebay.Loader(toml_of(tmp_path, kind, "length = 2"))


def test_keys_that_cannot_be_met_are_refused_before_arrays_are_made(tmp_path, kind):
    with pytest.raises(forebay.Error, match=r"dataset\.windows\.pad is 1\.5"):
        forebay.Loader(toml_of(tmp_path, kind, "length = 3\npad = 1.5\nfields.step = {}"))
    assert not [*tmp_path.glob("cache/rows-*/*")]
