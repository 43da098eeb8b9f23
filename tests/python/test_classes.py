"""Classes drawn alike and batches of several samples of a group, over the real daemon: exact counts, on any number of
ranks, through kills and resumptions, by the labels of folders and by columns."""

import json
import os
import shutil
from collections import Counter

import forebay
import numpy
import pytest
from support import FIXTURES, config_of, epochs_of, indices, inline, kill_in_each_epoch, run_program, write_pictures

# Pictures of each class folder, in their order.
SIZES = [2, 3, 9, 14]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    classes = iter([of for of, size in enumerate(SIZES) for _ in range(size)])
    return write_pictures(tmp_path_factory.mktemp("classes"), sum(SIZES), lambda _: next(classes), (8, 8, 3))


def of_pictures(pictures, size=4, **order):
    order = {"seed": 3, "epochs": 4, **order}
    return config_of(
        {"format": "image-folder", "path": str(pictures)},
        [{"op": "decode-image"}, {"op": "resize", "size": [8, 8]}],
        order=order,
        batch={"size": size, "last": "pad" if "group" in order else "short"},
        ring={"slots": 3, "hold": 1},
    )


def samples_and_labels(batch):
    valid = batch.get("valid", numpy.ones(len(batch["index"]), bool))
    return [tuple(row) for row in zip(batch["index"][valid].tolist(), batch["label"][valid].tolist())]


def is_even(counts):
    return max(counts) - min(counts) <= 1


def test_each_class_is_drawn_equally_often_on_any_number_of_ranks(pictures):
    whole = epochs_of(samples_and_labels, of_pictures(pictures, balance="label"), 4)
    for rows in whole:
        # 28 samples are a multiple of four classes.
        assert Counter(label for _, label in rows) == dict.fromkeys(range(4), 7)
        counts = Counter(sample for sample, _ in rows)
        for label, size in enumerate(SIZES):
            first = sum(SIZES[:label])
            assert is_even([counts[first + sample] for sample in range(size)])
        assert all(len({label for _, label in rows[place : place + 4]}) == 4 for place in range(0, 28, 4))
    # Of the largest class an epoch has half, and two epochs have all.
    assert len({sample for rows in whole[:2] for sample, label in rows if label == 3}) == 14
    for world_size, size in [(2, 7), (3, 2)]:
        assert epochs_of(samples_and_labels, of_pictures(pictures, size, balance="label"), 4, world_size) == whole
    drawn = epochs_of(samples_and_labels, of_pictures(pictures, balance="label", samples_per_epoch=10), 2)
    for rows in [*drawn, drawn[0] + drawn[1]]:
        assert is_even(Counter(label for _, label in rows).values())


def test_batches_have_several_samples_of_each_of_their_groups(pictures):
    config = of_pictures(pictures, 4, group={"by": "label", "size": 2})
    whole = epochs_of(samples_and_labels, config, 3)
    for rows in whole:
        # One sample of three and one of nine fill no pair.
        assert len({sample for sample, _ in rows}) == len(rows) == 26
        labels = numpy.array([label for _, label in rows]).reshape(13, 2)
        assert (labels[:, 0] == labels[:, 1]).all()
    assert epochs_of(samples_and_labels, config, 2, world_size=3) == whole[:2]
    of_one = of_pictures(pictures, 2, group="label")
    with forebay.Loader(of_one) as loader:
        assert all(len(set(batch["label"].tolist())) == 1 for batch in loader)


def test_states_and_kills_change_no_row(pictures):
    config = of_pictures(pictures, 4, group={"by": "label", "size": 2})
    whole = epochs_of(samples_and_labels, config, 2)
    with forebay.Loader(config) as loader:
        batches = iter(loader)
        taken = [row for _ in range(2) for row in samples_and_labels(next(batches))]
        state = loader.state_dict()
    rest = [[], []]
    loaders = [forebay.Loader(config, rank=rank, world_size=2, state=state, compare_ranks=False) for rank in range(2)]
    for of_rank, loader in zip(rest, loaders):
        with loader:
            of_rank.extend(samples_and_labels(batch) for batch in loader)
    places = range(max(map(len, rest)))
    assert taken + [row for place in places for of_rank in rest for row in of_rank[place]] == whole[0]
    with pytest.raises(forebay.StateMismatch, match=r"2 of each label .* in batches of 4"):
        forebay.Loader(of_pictures(pictures, 2, group="label"), state=state)
    config = of_pictures(pictures, balance="label")
    kill_in_each_epoch(config, epochs_of(lambda batch: batch["index"].tolist(), config, 1), 3)


@pytest.fixture
def table(tmp_path):
    """A folder with a Parquet file of a hundred rows, whose `text` is one of five and whose `i64` differ."""
    shutil.copy(FIXTURES / "tables/usual.parquet", tmp_path)
    # An index of what has just changed is made anew.
    for path in [tmp_path / "usual.parquet", tmp_path]:
        os.utime(path, (1_700_000_000, 1_700_000_000))
    return {"format": "parquet", "path": str(tmp_path), "fields": {"text": {"from": "text"}, "i64": {"from": "i64"}}}


def test_columns_are_classes_and_are_read_once(table, tmp_path):
    tables = {"output": {"text": {"ragged": True, "max_bytes": 16}}, "order": {"epochs": 1, "balance": "text"}}
    index = tmp_path.parent / f"{tmp_path.name}.index"
    config = config_of({**table, "index": str(index)}, batch={"size": 8}, **tables)
    with forebay.Loader(config) as loader:
        first = indices(loader)
    # Row n has the text n mod 5.
    assert sorted(Counter(sample % 5 for sample in first).values()) == [20] * 5
    assert sorted(first) == list(range(100))
    [saved] = tmp_path.parent.glob(f"{tmp_path.name}.index.classes-*")
    before = saved.stat().st_mtime_ns
    with forebay.Loader(config) as loader:
        assert indices(loader) == first
    assert saved.stat().st_mtime_ns == before
    saved.write_bytes(saved.read_bytes()[:-1] + b"x")
    with forebay.Loader(config) as loader:
        assert indices(loader) == first


def test_a_manifest_is_grouped_by_a_column_of_text(tmp_path):
    rows = [f"row {row},{'abc'[row % 3] if row < 9 else 'd'}\n" for row in range(11)]
    (tmp_path / "rows.csv").write_text("words,who\n" + "".join(rows))
    fields = {"words": {"from": "words", "as": "text"}, "who": {"from": "who", "as": "text"}}
    config = config_of(
        {"format": "manifest", "path": str(tmp_path / "rows.csv"), "fields": fields},
        order={"epochs": 1, "group": {"by": "who", "size": 3}},
        output={"words": {"ragged": True, "max_bytes": 16}, "who": {"ragged": True, "max_bytes": 16}},
        batch={"size": 6, "last": "pad"},
    )
    with forebay.Loader(config) as loader:
        batches = [batch["index"][batch["valid"]].tolist() for batch in loader]
    assert sorted(sample for batch in batches for sample in batch) == list(range(9))
    assert all(len({sample % 3 for sample in batch[:3]}) == 1 for batch in batches)


def checked(config, tmp_path, *options):
    path = tmp_path / "train.toml"
    path.write_text("\n".join(f"{name} = {inline(keys)}" for name, keys in config.items()))
    return run_program("check", str(path), *options)


def test_check_says_the_counts(pictures, table, tmp_path):
    shown = checked(of_pictures(pictures, balance="label", samples_per_epoch=10), tmp_path)
    assert "28, 10 drawn an epoch" in shown.stdout, shown.stderr
    assert "each of 4 classes by label 2 or 3 times an epoch" in shown.stdout
    assert "2 to 14 samples each: class0 2, class1 3, class2 9, class3 14" in shown.stdout
    config = of_pictures(pictures, 8, group={"by": "label", "size": 4})
    shown = checked(config, tmp_path)
    assert "batches of 4 samples of each of 2 groups, which may be the same by label" in shown.stdout, shown.stderr
    assert "3 samples an epoch, others in each" in shown.stdout
    assert "5 samples of 2 groups with fewer than 4" in shown.stdout
    found = json.loads(checked(config, tmp_path, "--json").stdout)["streams"][0]["drawn_classes"]
    assert (found["count"], found["size"], found["too_small"], found["samples_left_out_per_epoch"]) == (4, 4, 2, 3)
    assert found["first"][3] == {"name": "class3", "samples": 14}


@pytest.mark.parametrize(
    "order, message",
    [
        ({"balance": "lable"}, "`order.balance`: the samples have no field `lable`; did you mean `label`"),
        ({"balance": "image"}, "`image` is no class: .* this dataset has label"),
        ({"group": {"by": "label", "size": 20}}, "no group has 20 samples"),
        ({"balance": "label", "group": "label"}, "`order.group` cannot be combined with `order.balance`"),
        ({"balance": "label", "shuffle": False}, "`order.balance` draws at random"),
    ],
)
def test_what_cannot_be_is_refused(pictures, order, message):
    with pytest.raises(forebay.ConfigError, match=message):
        forebay.Loader(of_pictures(pictures, 40, **order))
