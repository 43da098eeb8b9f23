"""An order in blocks over Parquet with compressed pages, over the real daemon: every sample once, on any number of
ranks, through kills and resumptions, each page read once."""

import functools
import os
import re
import shutil

import forebay
import pytest
from support import FIXTURES, config_of, epochs_of, kill_in_each_epoch, run_program, write_toml
from web_folder import served

FILES, ROWS = 3, 120
SAMPLES = FILES * ROWS


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Three files of 120 rows, of which about seven lie in a page that Snappy has compressed."""
    root = tmp_path_factory.mktemp("table")
    for number in range(FILES):
        shutil.copy(FIXTURES / "tables/pages-120.parquet", root / f"train-{number}.parquet")
        os.utime(root / f"train-{number}.parquet", (1_600_000_000, 1_600_000_000))
    return root


@pytest.fixture
def config(table, tmp_path):
    fields = {"image": {"from": "image", "as": "bytes", "missing": "empty"}, "label": {"from": "label"}}

    def make(shuffle="blocks", path=table, **tables):
        blocks = {"blocks": 5} if shuffle == "blocks" else {}
        dataset = {"path": str(path), "format": "parquet", "index": str(tmp_path / "index"), "fields": fields}
        order = {"seed": 3, "epochs": 2, "shuffle": shuffle, **blocks}
        made = config_of(dataset, order=order, batch={"size": 6}, ring={"slots": 3, "hold": 1})
        for name, keys in tables.items():
            made[name] = {**made.get(name, {}), **keys}
        return made

    return make


def rows(batch):
    """The samples of a batch, after a look at their values."""
    found = []
    for place, (sample, label) in enumerate(zip(batch["index"].tolist(), batch["label"].tolist())):
        value = bytes(batch["image"][place])
        number = sample % ROWS
        assert label == number
        assert value.startswith(b"row %03d " % number) if number % 17 != 11 else value == b""
        found.append(sample)
    return found


epochs = functools.partial(epochs_of, rows)


def test_every_sample_comes_once_on_any_number_of_ranks(config):
    whole = epochs(config())
    for samples in whole:
        assert sorted(samples) == list(range(SAMPLES))
    assert whole[0] != whole[1]
    # Five blocks of about seven rows are mixed: few rows come after their neighbour, and few are far from all others.
    neighbours = sum(after == before + 1 for before, after in zip(whole[0], whole[0][1:]))
    assert neighbours < SAMPLES / 8
    assert whole != epochs(config(True))
    for world_size, size in [(2, 3), (3, 2), (3, 7)]:
        assert epochs(config(batch={"size": size}), world_size=world_size) == whole


@pytest.mark.parametrize("after", [1, 7, 33])
def test_a_run_resumes_anywhere_with_another_world(config, after):
    whole = epochs(config())
    with forebay.Loader(config()) as loader:
        batches = iter(loader)
        taken = [sample for _ in range(after) for sample in rows(next(batches))]
        state = loader.state_dict()
    assert taken == whole[0][: 6 * after]
    rest = epochs(config(batch={"size": 5}), 2, 2, state=state)
    assert rest == [whole[0][6 * after :], whole[1]]
    other = config()
    other["order"]["blocks"] = 6
    with pytest.raises(forebay.StateMismatch, match=r"order\.shuffle"):
        forebay.Loader(other, state=state)


def test_a_killed_daemon_changes_nothing(config):
    kill_in_each_epoch(config(), epochs(config()), 9)


def test_a_damaged_page_is_named_and_its_rows_alone_are_bad(config, table, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(table, data)
    settings = config(path=data)
    (order,) = epochs(settings, 1)
    path = data / "train-1.parquet"
    whole = path.read_bytes()
    # Words are there once in a page, where they come first; three times in a page's header, which is not compressed.
    written = re.finditer(rb"(?<!row \d\d\d )row (\d{3}) (?!row)", whole)
    # The page that is read last: the file decays while a daemon has it open, which has not read that page yet.
    first_of_page = max(written, key=lambda found: order.index(ROWS + int(found[1])))

    def decay():
        with path.open("r+b") as file:
            file.seek(first_of_page.start() + 20)
            file.write(b"\xff" * 300)

    with (
        pytest.raises(forebay.BadSample, match=r"train-1\.parquet.* cannot be unpacked at byte \d+"),
        forebay.Loader(settings) as loader,
    ):
        decay()
        list(loader)
    path.write_bytes(whole)
    with forebay.Loader({**settings, "errors": {"on_bad_sample": "substitute", "budget": SAMPLES}}) as loader:
        decay()
        seen = [sample for batch in loader for sample in rows(batch)]
        (session,) = loader.stats()["sessions"]
    bad = {one["sample"] for one in session["substituted"]}
    assert len(seen) == SAMPLES and set(seen) == set(range(SAMPLES)) - bad
    assert 3 <= session["samples_substituted"] == len(bad) < 40
    assert ROWS + int(first_of_page[1]) in bad and all(ROWS <= sample < 2 * ROWS for sample in bad)


def test_each_page_is_read_once_an_epoch_behind_a_url(config, table):
    with served(table) as server:
        found, asked = {}, server.parts
        for shuffle in ["blocks", True]:
            settings = config(shuffle, f"{server.url}/train-{{0..2}}.parquet")
            settings["order"]["epochs"] = 1
            # The index is made.
            with forebay.Loader(settings):
                pass
            begun = len(asked)
            with forebay.Loader(settings) as loader:
                samples = [sample for batch in loader for sample in rows(batch)]
            assert sorted(samples) == list(range(SAMPLES))
            found[shuffle] = asked[begun:]
    in_blocks, alone = found["blocks"], found[True]
    # A read that is late is asked for a second time.
    assert len(in_blocks) <= 1.2 * len(set(in_blocks))
    assert set(in_blocks) == set(alone)
    assert 5 * len(in_blocks) < len(alone)
    assert sum(length for *_, length in in_blocks) * 5 < sum(length for *_, length in alone)


def test_ranks_of_a_host_read_each_page_once_through_the_cache(config, table, tmp_path):
    with served(table) as server:
        found, asked = {}, server.parts
        for tables in [{}, {"cache": {"path": str(tmp_path / "cache"), "keep_free": 0}}]:
            settings = config(path=f"{server.url}/train-{{0..2}}.parquet", **tables)
            settings["order"]["epochs"] = 1
            with forebay.Loader(settings):
                pass
            begun, seen = len(asked), []
            for rank in range(2):
                with forebay.Loader(settings, rank=rank, world_size=2, compare_ranks=False) as loader:
                    seen += [sample for batch in loader for sample in rows(batch)]
            assert sorted(seen) == list(range(SAMPLES))
            found[bool(tables)] = asked[begun:]
    # A group has about 35 rows, so batches of rank 0 and of rank 1 read the same group.
    assert len(found[False]) > 1.5 * len(set(found[False]))
    assert len(found[True]) <= 1.2 * len(set(found[False]))


def check(settings, tmp_path, *arguments):
    return run_program("check", "--plan-only", *arguments, write_toml(tmp_path / "settings.toml", settings))


def line(done, name):
    assert done.returncode == 0, done.stderr
    (found,) = (text for text in done.stdout.splitlines() if text.strip().startswith(name))
    return found


def test_check_says_which_order_applies_and_what_it_reads(config, tmp_path):
    factors = re.compile(r"(\d+\.\d) bytes read and (\d+\.\d) unpacked for each one used")
    exact = check(config(True), tmp_path)
    assert "an exact shuffle of all samples" in line(exact, "order")
    text = line(exact, "compressed pages")
    (_, alone), (_, together) = factors.findall(text)
    assert float(alone) > 5 and float(together) < 1.5
    assert 'order.shuffle = "blocks" makes that' in text
    blocks = check(config(), tmp_path)
    assert re.search(
        r"\d+ blocks, permuted; the samples of 5 of them are mixed, about \d+ of 360", line(blocks, "order")
    )
    text = line(blocks, "compressed pages")
    assert factors.findall(text)[0][1] == together and factors.findall(text)[1][1] == alone
    assert "open blocks take up to" in text and "ranks" not in text
    text = line(check(config(), tmp_path, "--world-size", "4"), "compressed pages")
    assert "up to 4 of 4 ranks need a block, and each of their daemons reads it" in text
    assert float(factors.findall(text)[2][1]) == pytest.approx(4 * float(together), abs=0.21)
    cached = check({**config(True), "cache": {"path": str(tmp_path / "cache"), "keep_free": 0}}, tmp_path)
    text = line(cached, "compressed pages")
    assert "the cache keeps the values alone" in text and "blocks" not in text
    mistaken = config(True)
    mistaken["order"]["blocks"] = 4
    done = check(mistaken, tmp_path)
    assert done.returncode != 0 and "`order.blocks` has no effect with `order.shuffle = true`" in done.stderr
