"""Rows of tokens: what arrives is what the files hold, once each, at any world size and after any resume."""

import forebay
import numpy
import pytest

LENGTH = 16
END = 50256


def write_config(folder, path, tokens="", keys=""):
    file = folder / "train.toml"
    file.write_text(
        f'[dataset]\nformat = "tokens"\npath = "{path}"\nindex = "tokens.index"\n'
        f"[dataset.tokens]\nlength = {LENGTH}\n{tokens}\n"
        '[batch]\nsize = 4\nlast = "short"\n[order]\nseed = 5\nepochs = 2\n'
        '[[stage]]\nname = "copy"\nconcurrency = 2\noperations = []\n'
        f"{keys}\n"
    )
    return file


def take(loader, batches=None):
    """The batches of what is left of an epoch, or the first so many, as arrays of their own."""
    taken = []
    for batch in loader:
        taken.append({name: numpy.array(array) for name, array in batch.items()})
        if batches is not None and len(taken) == batches:
            break
    return taken


def joined(batches, field):
    return numpy.concatenate([batch[field] for batch in batches])


@pytest.fixture
def windows(tmp_path):
    """Two files, of 20 rows and of 11 and the token after them, and all rows in the order of ids."""
    generator = numpy.random.default_rng(3)
    (tmp_path / "data").mkdir()
    rows, labels = [], []
    for name, tokens in (("a.bin", 20 * LENGTH + 7), ("b.bin", 11 * LENGTH + 1)):
        data = generator.integers(0, END, tokens, dtype=numpy.uint16)
        data.tofile(tmp_path / "data" / name)
        whole = (tokens - 1) // LENGTH * LENGTH
        rows.append(data[:whole].reshape(-1, LENGTH))
        labels.append(data[1 : whole + 1].reshape(-1, LENGTH))
    return tmp_path, numpy.concatenate(rows).astype(numpy.int64), numpy.concatenate(labels).astype(numpy.int64)


def test_windows_are_the_files_tokens_once_an_epoch_in_another_order(windows):
    folder, rows, labels = windows
    orders = []
    with forebay.Loader(write_config(folder, "data")) as loader:
        for _ in range(2):
            batches = take(loader)
            ids = joined(batches, "index")
            assert sorted(ids) == list(range(31))
            orders.append(ids.tolist())
            assert batches[0]["tokens"].dtype == numpy.int64 and batches[0]["labels"].dtype == numpy.int64
            numpy.testing.assert_array_equal(joined(batches, "tokens"), rows[ids])
            numpy.testing.assert_array_equal(joined(batches, "labels"), labels[ids])
    assert orders[0] != orders[1]


def test_the_output_may_say_another_type(windows):
    folder, rows, _ = windows
    keys = '[output]\ntokens = { dtype = "int32" }\nlabels = { dtype = "uint16" }\n'
    with forebay.Loader(write_config(folder, "data/a.bin", keys=keys)) as loader:
        batch = next(iter(loader))
        assert batch["tokens"].dtype == numpy.int32 and batch["labels"].dtype == numpy.uint16
        numpy.testing.assert_array_equal(batch["tokens"], rows[batch["index"]])


def test_a_run_that_goes_on_at_another_world_size_gives_each_row_once(windows):
    folder, rows, _ = windows
    check_resume(write_config(folder, "data"), range(len(rows)))


def check_resume(config, ids):
    """Three ranks take two batches, then two ranks take the rest."""
    loaders = [forebay.Loader(config, rank=rank, world_size=3) for rank in range(3)]
    before = [take(loader, batches=2) for loader in loaders]
    state = loaders[0].state_dict()
    for loader in loaders:
        loader.close()
    after = []
    for rank in range(2):
        with forebay.Loader(config, rank=rank, world_size=2, state=state) as loader:
            after.append(take(loader))
    seen = [int(index) for batches in before + after for batch in batches for index in batch["index"]]
    assert sorted(seen) == list(ids)
