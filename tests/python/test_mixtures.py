"""Several datasets in one epoch, and draws by weight, over the real daemon: exact counts, on any number of ranks and
through kills and resumptions."""

import functools
import itertools
import json
import shutil
from collections import Counter

import forebay
import numpy
import pytest
from support import config_of, epochs_of, indices, inline, kill_in_each_epoch, run_program, write_tar

# The samples of the two folders, and the value of the second's first.
FIRST, OTHER, OTHER_BEGINS = 40, 7, 1000
# Each sample of the other folder twice, and 4 of the 7 a third time: 17.5, rounded.
REPEAT, DRAWN = 2.5, 18


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two folders of arrays: the first's hold 0 to 39, the other's 1000 to 1006."""
    root = tmp_path_factory.mktemp("mixture")
    for name, count, begins in [("first", FIRST, 0), ("other", OTHER, OTHER_BEGINS)]:
        (root / name).mkdir()
        for sample in range(count):
            numpy.save(root / name / f"{sample:03}.npy", numpy.full(4, begins + sample, numpy.float32))
    return root


def copied(dataset, size=6, **order):
    """A configuration of four epochs that copies its samples."""
    order = {"seed": 3, "epochs": 4, **order}
    return config_of(dataset, order=order, batch={"size": size}, ring={"slots": 3, "hold": 1})


@pytest.fixture
def mixed(folders):
    """Makes a configuration over both folders; a number for each is its repeat, a dict more keys of it."""

    def make(first=1.0, other=REPEAT, size=6, **order):
        def keys(name, given):
            given = given if isinstance(given, dict) else {"repeat": given}
            return {"name": name, "format": "npy", "path": str(folders / name), **given}

        return copied([keys("first", first), keys("other", other)], size, **order)

    return make


def rows(batch):
    """The samples of a batch and their datasets, after a look at their values."""
    index, dataset = batch["index"].tolist(), batch["dataset"].tolist()
    assert batch["dataset"].dtype == numpy.int64
    for sample, of, values in zip(index, dataset, batch["array"]):
        assert of == (sample >= FIRST)
        assert (values == (sample if of == 0 else sample - FIRST + OTHER_BEGINS)).all()
    return index


epochs = functools.partial(epochs_of, rows)


def of_other(samples):
    return [sample for sample in samples if sample >= FIRST]


def test_counts_are_exact_on_any_number_of_ranks(mixed):
    whole = epochs(mixed())
    for samples in whole:
        assert len(samples) == FIRST + DRAWN
        counts = Counter(samples)
        assert all(counts[sample] == 1 for sample in range(FIRST))
        assert sorted(counts[sample] for sample in range(FIRST, FIRST + OTHER)) == [2, 2, 2, 3, 3, 3, 3]
    # Two epochs draw five passes and one sample more.
    assert sorted(Counter(of_other(whole[0] + whole[1])).values()) == [5] * 6 + [6]
    assert whole[0] != whole[1]
    for world_size, size in [(2, 3), (3, 2), (2, 5), (3, 4)]:
        assert epochs(mixed(size=size), world_size=world_size) == whole


def test_what_an_epoch_drops_shifts_nothing(mixed):
    whole = epochs(mixed(), 3)[2]
    for world_size, size, left in [(1, 8, 56), (2, 5, 50), (3, 6, 54)]:
        config = {**mixed(), "batch": {"size": size, "last": "drop"}}
        assert epochs(config, 3, world_size)[2] == whole[:left]


def test_weights_divide_an_epoch_exactly(mixed):
    config = mixed({"weight": 0.7}, {"weight": 0.3}, samples_per_epoch=100)
    whole = epochs(config, 4)
    for samples in whole:
        assert Counter(sample >= FIRST for sample in samples) == {False: 70, True: 30}
    # 280 draws are seven passes; 120 are seventeen, and one sample more.
    counts = Counter(itertools.chain.from_iterable(whole))
    assert all(counts[sample] == 7 for sample in range(FIRST))
    assert sorted(counts[sample] for sample in range(FIRST, FIRST + OTHER)) == [17] * 6 + [18]
    config["batch"]["size"] = 7
    assert epochs(config, 4, 2) == whole


# Within the first epoch of 58, at the second's end, and within the fourth.
CHANGES = {
    "first": [3, {"from": 20, "weight": 1}, {"from": 116, "weight": 0}, {"from": 200, "weight": 5}],
    "other": [1, {"from": 116, "weight": 0.5}],
}
# Places in the run, and how many samples of each dataset are between one and the next.
PIECES = [(0, 15, 5), (20, 19, 19), (58, 29, 29), (116, 0, 58), (174, 0, 26), (200, 29, 3), (232, None, None)]


def changing(mixed, **keys):
    first, other = ({"weight": CHANGES[name]} for name in ["first", "other"])
    return mixed(first, other, samples_per_epoch=58, **keys)


@pytest.mark.parametrize("world_size, size", [(1, 6), (2, 3), (3, 2), (3, 4)])
def test_weights_change_at_positions_with_exact_counts(mixed, world_size, size):
    whole = list(itertools.chain.from_iterable(epochs(changing(mixed, size=size), 4, world_size)))
    for (begin, first, other), (end, *_) in zip(PIECES, PIECES[1:]):
        assert Counter(sample >= FIRST for sample in whole[begin:end]) == Counter({False: first, True: other})
    # Each dataset goes on where it was: 92 draws are two passes and 12 samples more, 140 are twenty passes.
    counts = Counter(whole)
    assert sorted(counts[sample] for sample in range(FIRST)) == [2] * 28 + [3] * 12
    assert all(counts[sample] == 20 for sample in range(FIRST, FIRST + OTHER))
    if world_size > 1:
        assert whole == list(itertools.chain.from_iterable(epochs(changing(mixed), 4)))


@pytest.mark.parametrize("after", [(0, 0), (0, 3), (0, 4), (2, 9), (3, 4), (3, 5)])
def test_a_run_resumes_across_changes_of_weights(mixed, after):
    whole = epochs(changing(mixed), 4)
    with forebay.Loader(changing(mixed)) as loader:
        for _ in range(after[0]):
            indices(loader)
        batches = iter(loader)
        for _ in range(after[1]):
            next(batches)
        state = loader.state_dict()
    assert "\n" not in json.dumps(state) and len(json.dumps(state)) < 1000
    rest = epochs(changing(mixed, size=5), 4 - after[0], 2, state=state)
    assert rest == [whole[after[0]][6 * after[1] :], *whole[after[0] + 1 :]]


def test_a_change_that_is_added_leaves_earlier_epochs_as_they_were(mixed):
    plain = mixed({"weight": 3}, {"weight": 2}, samples_per_epoch=58)
    later = mixed({"weight": [3, {"from": 116, "weight": 1}]}, {"weight": 2}, samples_per_epoch=58)
    whole = epochs(plain, 2)
    with forebay.Loader(plain) as loader:
        batches = iter(loader)
        taken = indices([next(batches) for _ in range(4)])
        state = loader.state_dict()
    with pytest.raises(forebay.StateMismatch, match="by weight first 3 then 1 from 116 / other 2"):
        forebay.Loader(later, state=state)
    rest = epochs(later, 3, state=state, force=True)
    assert [taken + rest[0], rest[1]] == whole
    # 35 of 58, twice; then 19.
    counts = Counter(itertools.chain(taken, *rest))
    assert sum(counts[sample] for sample in range(FIRST)) == 35 + 35 + 19
    assert {counts[sample] for sample in range(FIRST)} == {2, 3}


def test_changes_of_weights_are_said_and_checked(mixed, tmp_path):
    config = changing(mixed)
    with forebay.Loader(config) as loader:
        next(iter(loader))
        (stream,) = loader.stats()["streams"]
    first, other = stream["datasets"]
    assert (first["draws_per_epoch"], first["changes"]) == (44, [[20, 29], [116, 0], [200, 53]])
    assert (other["draws_per_epoch"], other["changes"]) == (14, [[20, 29], [116, 58], [200, 5]])
    for at in [20, 0]:
        for keys, weight in zip(config["dataset"], [[3, {"from": at, "weight": 1}], 1]):
            keys["weight"] = weight
        done = run_program("check", write_mixture(tmp_path / "mix.toml", config), "--plan-only")
        assert (done.returncode == 0) == (at == 20), done.stderr
        if at == 20:
            assert "first: 40 samples, 44 drawn an epoch, 75.86 %; from position 20 on 29, 50.00 %" in done.stdout
    # The line of its table.
    assert ":9: `dataset.first.weight` changes at position 0 after 0: each `from` has to be above" in done.stderr


@pytest.mark.parametrize("after", [0, 1, 5])
def test_a_run_resumes_anywhere_with_another_world(mixed, after):
    whole = epochs(mixed())
    with forebay.Loader(mixed()) as loader:
        batches = iter(loader)
        taken = [sample for _ in range(after) for sample in rows(next(batches))]
        state = loader.state_dict()
    assert taken == whole[0][: 6 * after]
    assert "\n" not in json.dumps(state)
    rest = epochs(mixed(size=5), 2, 2, state=state)
    assert rest == [whole[0][6 * after :], whole[1]]


def weighted(folders, weights, **keys):
    numpy.save(folders / "weights.npy", weights)
    order = {"samples_per_epoch": 60, "weights": str(folders / "weights.npy"), **keys}
    return copied({"format": "npy", "path": str(folders / "first")}, **order)


@pytest.mark.parametrize("kind", ["repeats", "weights", "weights of samples"])
def test_a_killed_daemon_changes_nothing(mixed, folders, tmp_path, kind):
    config = {
        "repeats": mixed,
        "weights": lambda: mixed({"weight": 3}, {"weight": 2}, samples_per_epoch=58),
        "weights of samples": lambda: weighted(folders, numpy.arange(FIRST, dtype=numpy.float32)),
    }[kind]()
    with forebay.Loader(config) as loader:
        whole = [indices(loader), indices(loader)]
    kill_in_each_epoch(config, whole, 4)


CROPPED = [{"op": "decode-image"}, {"op": "center-crop", "size": 8}]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Two folders of classes with pictures whose pixels say where they lie."""
    image = pytest.importorskip("PIL.Image")
    root = tmp_path_factory.mktemp("pictures")
    y, x = numpy.mgrid[0:60, 0:60].astype(numpy.uint8)
    for name, count in [("first", 5), ("other", 3)]:
        for sample in range(count):
            path = root / name / "only" / f"{sample}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            image.fromarray(numpy.dstack([4 * y, 4 * x, numpy.full_like(x, sample)])).save(path)
    return root


def crops(dataset, count, **order):
    """The random part that each row of so many epochs is, as bytes, by sample; and all fields of the first batch."""
    operations = [{"op": "decode-image"}, {"op": "random-resized-crop", "size": 24}]
    config = config_of(dataset, operations, order={"seed": 1, "epochs": 10, **order})
    seen, fields = {}, None
    with forebay.Loader(config) as loader:
        for _ in range(count):
            for batch in loader:
                fields = fields or {name: (values.dtype, values.shape) for name, values in batch.items()}
                for sample, pixels in zip(batch["index"].tolist(), batch["image"]):
                    seen.setdefault(sample, []).append(pixels.tobytes())
    return seen, fields


def test_a_repeat_is_augmented_anew_and_the_same_in_every_run(pictures):
    first = {"path": str(pictures / "first"), "repeat": 3}
    other = {"path": str(pictures / "other")}
    seen, fields = crops([first, other], 2)
    assert sorted(fields) == ["dataset", "image", "index", "label"]
    for sample, found in seen.items():
        assert len(found) == (6 if sample < 5 else 2)
        assert len(set(found)) == len(found), f"sample {sample} is the same twice"
    assert crops([first, other], 2)[0] == seen
    # The third pass of the dataset alone has the parts of its third time here.
    alone = crops({"path": str(pictures / "first")}, 6)[0]
    assert all(sorted(alone[sample]) == sorted(seen[sample]) for sample in range(5))


def test_a_list_of_one_dataset_is_that_dataset(pictures):
    plain = {"path": str(pictures / "first")}
    seen, fields = crops(plain, 2)
    assert crops([plain], 2) == (seen, fields)
    assert crops([{**plain, "name": "x", "repeat": 1}], 2) == (seen, fields)
    assert "dataset" not in fields


def test_a_bad_sample_is_substituted_by_one_of_its_own_dataset(pictures, tmp_path):
    shutil.copytree(pictures, tmp_path / "data")
    (tmp_path / "data" / "other" / "only" / "1.png").write_bytes(b"no picture")
    dataset = [{"path": str(tmp_path / "data" / "first")}, {"path": str(tmp_path / "data" / "other"), "repeat": 20}]
    errors = {"on_bad_sample": "substitute", "budget": 100}
    with forebay.Loader(config_of(dataset, CROPPED, batch={"size": 5}, errors=errors)) as loader:
        counts = Counter(indices(loader))
        (session,) = loader.stats()["sessions"]
    # Each of its twenty times is a row of its own, and has a substitute of its own.
    assert counts.pop(5) + counts.pop(7) == 60 and counts == dict.fromkeys(range(5), 1)
    assert session["samples_substituted"] == 20
    assert {(one["sample"], one["substitute"]) for one in session["substituted"]} == {(6, 5), (6, 7)}


def test_datasets_of_other_formats_mix(pictures, tmp_path):
    """Pictures in folders beside pictures in an archive: fields in another order, files that hold several samples."""
    members = []
    for sample in range(4):
        png = (pictures / "other" / "only" / f"{sample % 3}.png").read_bytes()
        members += [(f"{sample}.cls", str(70 + sample).encode()), (f"{sample}.png", png)]
    write_tar(tmp_path / "0.tar", members)
    dataset = [{"path": str(pictures / "first")}, {"name": "tar", "path": str(tmp_path), "repeat": 2}]
    with forebay.Loader(config_of(dataset, CROPPED, batch={"size": 13}, order={"epochs": 2})) as loader:
        for _ in range(2):
            (batch,) = loader
            assert sorted(batch["index"].tolist()) == [0, 1, 2, 3, 4, 5, 5, 6, 6, 7, 7, 8, 8]
            for sample, of, label, pixels in zip(batch["index"], batch["dataset"], batch["label"], batch["image"]):
                assert (of, label) == ((0, 0) if sample < 5 else (1, 65 + sample))
                blue = numpy.moveaxis(pixels, int(numpy.argmin(pixels.shape)), 0)[2]
                assert (blue == (sample if of == 0 else (sample - 5) % 3)).all()
        assert "0.tar" in loader.path(6)


def test_draws_by_weight_follow_the_weights(folders):
    weights = numpy.arange(FIRST, dtype=numpy.float64) % 5
    config = weighted(folders, weights, samples_per_epoch=8000, epochs=1)
    config["batch"]["size"] = 500
    with forebay.Loader(config) as loader:
        counts = Counter(indices(loader))
    expected = 8000 * weights / weights.sum()
    assert all(counts[sample] == 0 for sample in numpy.flatnonzero(weights == 0))
    drawn = numpy.flatnonzero(weights)
    statistic = sum((counts[sample] - expected[sample]) ** 2 / expected[sample] for sample in drawn)
    freedom = len(drawn) - 1
    assert abs(statistic - freedom) < 5 * (2 * freedom) ** 0.5


def test_each_draw_by_weight_is_augmented_by_itself(pictures, tmp_path):
    numpy.save(tmp_path / "weights.npy", numpy.array([1, 0, 1, 0, 0], numpy.float32))
    order = {"weights": str(tmp_path / "weights.npy"), "samples_per_epoch": 20}
    seen, _ = crops({"path": str(pictures / "first")}, 2, **order)
    assert sorted(seen) == [0, 2] and sum(map(len, seen.values())) == 40
    assert all(len(set(found)) == len(found) for found in seen.values())


def test_without_a_shuffle_one_dataset_follows_the_other(mixed):
    first, second = epochs(mixed(0, REPEAT, shuffle=False))
    other = list(range(FIRST, FIRST + OTHER))
    assert first == (other * 3)[:DRAWN] and second == (other * 6)[DRAWN : 2 * DRAWN]
    (both,) = epochs(mixed(1, 1, shuffle=False), 1)
    assert both == list(range(FIRST + OTHER))


def test_a_state_of_other_draws_is_refused_with_both(mixed, folders):
    with forebay.Loader(mixed()) as loader:
        next(iter(loader))
        state = loader.state_dict()
    assert state["draws"] == "repeat first 1 / other 2.5"
    renamed = mixed()
    renamed["dataset"][1]["name"] = "others"
    for config, present in [
        (mixed(other=3), "repeat first 1 / other 3"),
        (renamed, "repeat first 1 / others 2.5"),
        (mixed({"weight": 1}, {"weight": 2}, samples_per_epoch=58), "58 an epoch by weight first 1 / other 2"),
        ({**mixed(), "dataset": mixed()["dataset"][0]}, "each sample of one dataset once"),
    ]:
        with pytest.raises(forebay.StateMismatch, match="what an epoch draws differs") as caught:
            forebay.Loader(config, state=state)
        assert "saved `repeat first 1 / other 2.5`" in str(caught.value) and present in str(caught.value)
    weights = numpy.ones(FIRST)
    with forebay.Loader(weighted(folders, weights)) as loader:
        state = loader.state_dict()
    weights[3] = 2
    with pytest.raises(forebay.StateMismatch, match="60 an epoch by the weights"):
        forebay.Loader(weighted(folders, weights), state=state)
    # Float32 of the same values is the same.
    forebay.Loader(weighted(folders, numpy.ones(FIRST, numpy.float32)), state=state).close()


def test_arrays_of_other_shapes_are_refused_with_both_names(mixed, tmp_path):
    numpy.save(tmp_path / "0.npy", numpy.zeros(5, numpy.float32))
    config = mixed()
    config["dataset"][1]["path"] = str(tmp_path)
    refused = r"field `array` has arrays of \[4\] in dataset `first` and of \[5\] in dataset `other`.*ragged = true"
    with pytest.raises(forebay.ConfigError, match=refused):
        forebay.Loader(config)
    config["output"] = {"array": {"ragged": True, "max_bytes": "64B"}}
    with forebay.Loader(config) as loader:
        lengths = {len(values) for batch in loader for values, of in zip(batch["array"], batch["dataset"]) if of == 1}
    assert lengths == {5}
    del config["output"]
    numpy.save(tmp_path / "0.npy", numpy.zeros(4, numpy.float32))
    forebay.Loader(config).close()


def test_datasets_that_disagree_are_named(mixed, folders, tmp_path):
    numpy.save(tmp_path / "0.npy", numpy.zeros(4, numpy.int16))
    config = mixed()
    config["dataset"][1]["path"] = str(tmp_path)
    with pytest.raises(forebay.ConfigError, match=r"field `array`.*float32.*`first`.*int16.*`other`"):
        forebay.Loader(config)
    config["dataset"][1].update(path=str(folders / "other"), name="first")
    with pytest.raises(forebay.ConfigError, match="two datasets are called `first`"):
        forebay.Loader(config)
    with pytest.raises(forebay.ConfigError, match=r"weights\.npy: row 2 is -1"):
        forebay.Loader(weighted(folders, numpy.where(numpy.arange(FIRST) == 2, -1.0, 1.0)))


def test_counts_of_each_dataset_are_told(mixed, tmp_path, monkeypatch):
    with forebay.Loader(mixed()) as loader:
        taken = Counter(sample >= FIRST for batch in loader for sample in rows(batch))
        assert taken == {False: FIRST, True: DRAWN}
        assert loader.path(FIRST + 3).endswith("other/003.npy")
        assert loader.paths([0, FIRST + OTHER - 1])[1].endswith("other/006.npy")
        with pytest.raises(IndexError, match="samples 0 to 46"):
            loader.path(FIRST + OTHER)
        first, other = loader.stats()["streams"][0]["datasets"]
    assert (first["name"], first["samples"], first["draws_per_epoch"]) == ("first", FIRST, FIRST)
    assert (other["name"], other["samples"], other["draws_per_epoch"]) == ("other", OTHER, DRAWN)
    # What was published of the next epoch counts too.
    assert FIRST <= first["rows_published"] <= 2 * FIRST and DRAWN <= other["rows_published"] <= 2 * DRAWN
    check = run_program("check", write_mixture(tmp_path / "train.toml", mixed()))
    assert check.returncode == 0, check.stderr
    assert "47, 58 drawn an epoch" in check.stdout, check.stdout
    # A launcher may expect what it prints.
    (expected,) = [line.split(None, 1)[1] for line in check.stdout.splitlines() if "FOREBAY_EXPECT" in line]
    monkeypatch.setenv("FOREBAY_EXPECT", expected.replace("train:", "dict:").replace("world_size=1", "world_size=2"))
    forebay.Loader(mixed(), rank=0, world_size=2, compare_ranks=False).close()
    with pytest.raises(
        forebay.ConfigError, match=r"draws is repeat first 1 / other 3 and repeat first 1 / other 2.5 is"
    ):
        forebay.Loader(mixed(other=3), rank=0, world_size=2, compare_ranks=False)
    for name, line in [
        ("first", "40 samples, 40 drawn an epoch, 68.97 %"),
        ("other", "7 samples, 18 drawn an epoch, 31.03 %"),
    ]:
        assert any(words.split() == f"dataset {name}: {line}".split() for words in check.stdout.splitlines())


def write_mixture(path, config):
    """Writes the configuration with `[[dataset]]` as users write it."""
    lines = [f"{key} = {inline(value)}" for key, value in config.items() if key != "dataset"]
    for table in config["dataset"]:
        lines += ["[[dataset]]", *(f"{key} = {inline(value)}" for key, value in table.items())]
    path.write_text("\n".join(lines))
    return path


def test_run_sample_gives_the_part_of_a_pass(pictures, tmp_path):
    """A message names the pass where it names an epoch for this command: the third time of a repeat is its pass 2."""
    operations = [{"op": "decode-image"}, {"op": "random-resized-crop", "size": 2}]
    dataset = [{"path": str(pictures / "first"), "repeat": 3}, {"path": str(pictures / "other")}]
    path = write_mixture(tmp_path / "train.toml", config_of(dataset, operations, order={"seed": 1}))
    printed = set()
    with forebay.Loader(path) as loader:
        parts = {pixels.tobytes() for batch in loader for s, pixels in zip(batch["index"], batch["image"]) if s == 4}
    for number in range(3):
        done = run_program("run-sample", path, 4, "--epoch", number)
        assert done.returncode == 0, done.stderr
        (line,) = [line for line in done.stdout.splitlines() if line.strip().startswith("image")]
        printed.add(bytes(int(word) for word in line.split(":")[-1].split(";")[0].replace(",", " ").split()))
    assert printed == parts and len(parts) == 3
