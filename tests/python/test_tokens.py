"""Rows of tokens: what arrives is what the files hold, once each, at any world size and after any resume."""

import contextlib
import itertools
import os
import signal

import forebay
import numpy
import pytest
from support import arrays_of, digest, digests

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
    return [arrays_of(batch) for batch in itertools.islice(loader, batches)]


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


@pytest.fixture
def documents(tmp_path):
    """A file of documents that count up from numbers of their own, each with its end."""
    generator = numpy.random.default_rng(4)
    lengths = generator.integers(1, 3 * LENGTH, 100)
    starts = lengths.cumsum() - lengths
    whole = [numpy.arange(start, start + length) for start, length in zip(starts, lengths, strict=True)]
    tokens = numpy.concatenate([numpy.append(document, END) for document in whole]).astype(numpy.uint16)
    tokens.tofile(tmp_path / "train.bin")
    return tmp_path, tokens


@pytest.mark.parametrize("cut", ["concatenate", "pack"])
def test_documents_are_there_once_and_labels_follow_them(documents, cut):
    folder, tokens = documents
    keys = f'cut = "{cut}"\nend = {END}\nboundaries = ["cu_seqlens", "position_ids", "segment_ids"]'
    config = write_config(folder, "train.bin", keys)
    with forebay.Loader(config) as loader:
        epochs = [take(loader) for _ in range(2)]
    assert (joined(epochs[0], "index") != joined(epochs[1], "index")).any()
    rows, labels = (joined(epochs[0], name) for name in ("tokens", "labels"))
    segments = joined(epochs[0], "segment_ids")
    seen = numpy.sort(rows[segments > 0])
    # Of concatenated documents less than a row is left over.
    assert len(tokens) - LENGTH <= len(seen) <= len(tokens)
    counting = seen[seen != END]
    assert len(numpy.unique(counting)) == len(counting)
    if cut == "pack":
        numpy.testing.assert_array_equal(seen, numpy.sort(tokens))
    followed = labels != -100
    following = (rows + 1 == labels) | (labels == END)
    assert following[followed].all() and not followed[(rows == END) | (segments == 0)].any()
    # Every token but the end of a document has a label, the last one of a row too.
    assert followed[(rows != END) & (segments > 0)].all()
    for row, position_ids, cu_seqlens in zip(
        segments, joined(epochs[0], "position_ids"), joined(epochs[0], "cu_seqlens"), strict=True
    ):
        starts = numpy.flatnonzero(numpy.diff(row, prepend=-1))
        assert (position_ids[starts] == 0).all() and (numpy.diff(position_ids)[numpy.diff(row) == 0] == 1).all()
        assert cu_seqlens.dtype == numpy.int32 and len(cu_seqlens) == LENGTH + 1
        assert cu_seqlens[: len(starts)].tolist() == starts.tolist() and (cu_seqlens[len(starts) :] == LENGTH).all()
    check_resume(config, range(len(rows)))


def test_a_daemon_that_is_killed_loses_and_repeats_nothing(documents):
    folder, _ = documents
    config = write_config(folder, "train.bin", f'cut = "pack"\nend = {END}\nboundaries = ["cu_seqlens"]')
    disturbed, kills = [], 0
    with forebay.Loader(config) as loader:
        for _ in range(2):
            for place, batch in enumerate(loader):
                disturbed.append(digest(batch))
                # The one before may be dead still: its batches are taken before the next one starts.
                with contextlib.suppress(ProcessLookupError):
                    if place % 5 == 1:
                        os.kill(loader.daemon_pid, signal.SIGKILL)
                        kills += 1
    assert kills >= 3
    assert disturbed == digests(config)
