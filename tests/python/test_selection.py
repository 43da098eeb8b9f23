"""Selections end to end: which rows come, with their ids, in every order, at any world size, and from Python."""

import itertools
import json
import tempfile
from collections import Counter

import forebay
import numpy
import pytest
from support import FIXTURES, config_of, epochs_of, indices, run_program, write_pictures, write_toml

ROWS = 60
FRACTIONS = {"train": 0.6, "val": 0.4}
# The first has the row's number; the second is read from compressed pages.
FIELDS = {"count": {"from": "count"}, "text": {"from": "text", "as": "text"}}


@pytest.fixture(autouse=True)
def _own_sockets(monkeypatch):
    # A socket's path is at most 107 bytes long.
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield


def table(tmp_path, **keys):
    """Rows of `fixtures/columns.py`; the other columns are not fields."""
    path = FIXTURES / "columns" / "select-packed.parquet"
    index = str(tmp_path / "index")
    return {"path": str(path), "index": index, "fields": FIELDS, **keys}


def config(tmp_path, tables=None, **keys):
    return config_of(table(tmp_path, **keys), **(tables or {}))


def delivered(settings, **keywords):
    with forebay.Loader(settings, **keywords) as loader:
        batches = [{name: numpy.array(batch[name]) for name in ("count", "index")} for batch in loader]
    for batch in batches:
        assert batch["count"].tolist() == batch["index"].tolist()
    return indices(batches)


def is_good(row):
    return row % 7 != 3 and row / ROWS > 0.25 and row % 3 == 0


WHERE = "score > 0.25 and split == 'train'"
GOOD = [row for row in range(ROWS) if is_good(row)]


def test_kept_rows_come_once_in_every_order_and_keep_their_ids(tmp_path):
    for order in ({"shuffle": False}, {"shuffle": True}):
        found = delivered(config(tmp_path, {"order": order}, where=WHERE))
        assert sorted(found) == GOOD, order
        assert (found == GOOD) == (order["shuffle"] is False)
    weights = numpy.zeros(ROWS)
    weights[GOOD[:2]] = 1
    weights[1] = 9  # not kept
    numpy.save(tmp_path / "weights.npy", weights)
    order = {"weights": str(tmp_path / "weights.npy"), "samples_per_epoch": 40}
    assert set(delivered(config(tmp_path, {"order": order}, where=WHERE))) == set(GOOD[:2])
    batch = {"budget": {"tokens": 120}, "length": "count", "max_rows": 4, "too_long": "drop"}
    settings = config(tmp_path, where=WHERE)
    settings["batch"] = {**batch, "last": "pad"}
    assert set(delivered(settings)) == set(GOOD)


def test_an_epoch_continues_at_another_world_size_and_a_state_is_of_its_selection(tmp_path):
    settings = config(tmp_path, where=WHERE)
    seen = []
    for rank in range(2):
        with forebay.Loader(settings, rank=rank, world_size=2, compare_ranks=False) as loader:
            seen += indices(itertools.islice(loader, 1))
            state = json.loads(json.dumps(loader.state_dict()))
    for rank in range(3):
        with forebay.Loader(settings, rank=rank, world_size=3, compare_ranks=False, state=state) as loader:
            seen += indices(loader)
    assert sorted(seen) == GOOD
    other = config(tmp_path, where="score > 0.3 and split == 'train'")
    with pytest.raises(forebay.StateMismatch):
        forebay.Loader(other, state=state)


def test_parts_from_python_are_disjoint_and_keep_groups_together(tmp_path):
    split = {"part": "train", "fractions": FRACTIONS, "by": "speaker"}
    path = write_toml(tmp_path / "train.toml", config(tmp_path, split=split))
    train, val = delivered(path), delivered(path, part="val")
    assert sorted(train + val) == list(range(ROWS)) and train and val
    assert not {row // 4 for row in train} & {row // 4 for row in val}
    with forebay.Loader(path, part="val") as loader:
        assert loader.num_samples == len(val)
        rows = loader.samples([val[0], train[0]])
        assert rows["count"].tolist() == [val[0], train[0]], "by id, kept or not"
    dataset = forebay.Dataset(path, part="val", shared=False)
    assert len(dataset) == len(val)
    assert [int(dataset[number]["index"]) for number in (0, 1, -1)] == [sorted(val)[place] for place in (0, 1, -1)]
    assert dataset[:]["count"].tolist() == sorted(val)
    assert dataset.by_ids([train[0]])["index"].tolist() == [train[0]]
    dataset.close()
    with pytest.raises(forebay.ConfigError, match=r'part is "vall".*did you mean "val"'):
        forebay.Loader(path, part="vall")


def test_each_dataset_of_a_mixture_has_its_selection(tmp_path):
    def of(name, **keys):
        return {"name": name, **table(tmp_path, **keys), "index": str(tmp_path / f"{name}.index")}

    split = {"part": "train", "fractions": FRACTIONS, "by": "speaker"}
    settings = config_of([of("some", where=WHERE, repeat=2.0), of("part", split=split)])
    with forebay.Loader(settings, overrides={"dataset.split.part": "val"}) as loader:
        rows = [(int(of), int(row)) for batch in loader for of, row in zip(batch["dataset"], batch["index"])]
    first = sorted(row for of, row in rows if of == 0)
    second = {row - ROWS for of, row in rows if of == 1}
    assert first == sorted(2 * GOOD)
    alone = delivered(config(tmp_path, split={**split, "part": "val"}))
    assert second == set(alone)


def test_samples_that_a_mixture_leaves_out_are_given_by_id(tmp_path):
    def of(name, condition):
        return {"name": name, **table(tmp_path, where=condition), "index": str(tmp_path / f"{name}.index")}

    settings = config_of([of("some", WHERE), of("first", "count < 50")])
    with forebay.Loader(settings) as loader:
        # The last of the first dataset, the first of the other one, and the last of all.
        ids = [ROWS - 1, ROWS, 2 * ROWS - 1]
        rows = loader.samples(ids)
        assert rows["index"].tolist() == ids
        assert rows["dataset"].tolist() == [0, 1, 1]
        assert rows["count"].tolist() == [ROWS - 1, 0, ROWS - 1]
        # The daemon goes on.
        kept = GOOD + [ROWS + row for row in range(50)]
        assert sorted(indices(loader)) == kept


def test_classes_are_alike_among_kept_samples(tmp_path):
    # Eight pictures of each class, of which eight, six and four are kept.
    pictures = write_pictures(tmp_path / "pictures", 24, lambda sample: sample // 8, (8, 8, 3))
    kept = {*range(8), *range(10, 16), *range(16, 20)}
    settings = config_of(
        {"format": "image-folder", "path": str(pictures), "where": "label == 0 or name like '%/1_.png'"},
        [{"op": "decode-image"}, {"op": "resize", "size": [8, 8]}],
        order={"seed": 3, "epochs": 2, "balance": "label"},
    )
    for rows in epochs_of(lambda batch: list(zip(batch["index"].tolist(), batch["label"].tolist())), settings, 2):
        assert Counter(label for _, label in rows) == {0: 6, 1: 6, 2: 6}
        assert all(label == sample // 8 for sample, label in rows)
        found = {sample for sample, _ in rows}
        # The first class has more samples than draws.
        assert found <= kept and found >= kept - set(range(8))


def test_commands_count_what_is_kept_and_mistakes_point_into_the_condition(tmp_path):
    path = write_toml(tmp_path / "train.toml", config(tmp_path, where=WHERE))
    counted = f"kept {len(GOOD)} of {ROWS} samples by dataset.where"
    for command in (["index"], ["check", "--plan-only"]):
        done = run_program(*command, path)
        assert done.returncode == 0 and counted in done.stdout, done
    assert len(list(tmp_path.glob("index.selected-*"))) == 1
    done = run_program("check", "--plan-only", path, "--set", 'dataset.where="scroe > 1 and count < 3"')
    assert done.returncode != 0 and "did you mean `score`?" in done.stderr, done
    assert "scroe > 1 and count < 3\n    ^^^^^" in done.stderr
    settings = config(tmp_path, where="count > 1 and (score > 2")
    line = write_toml(tmp_path / "bad.toml", settings)
    done = run_program("check", line)
    assert done.returncode != 0 and "bad.toml:" in done.stderr and "`)` is expected" in done.stderr, done
    done = run_program("check", path, "--set", 'dataset.where="count > 99"')
    assert done.returncode != 0 and f"keeps none of {ROWS} samples" in done.stderr
