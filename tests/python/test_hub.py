"""Hugging Face's hub as a storage, over a stand-in on loopback: the same batches as from the local folder, the token
only where it belongs, expired links, moved branches, limits of requests."""

import io
import json
import os
import shutil
import time
from pathlib import Path

import forebay
import numpy as np
import pytest
from hub import TOKEN, Repository, serving_hub
from PIL import Image
from support import FIXTURES, config_of, digest, digests, epochs_of, run_program, write_tar, write_toml

SAMPLES = 48


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Tars of pictures, tables, and small arrays in folders, which are git's own files at the hub."""
    folder = tmp_path_factory.mktemp("hub") / "data"
    for name in ("tars", "tables", "arrays/a b", "arrays/é+%", "lists"):
        (folder / name).mkdir(parents=True)
    generator = np.random.default_rng(5)
    for shard in range(3):
        members = []
        for sample in range(SAMPLES // 3):
            picture = io.BytesIO()
            Image.fromarray(generator.integers(0, 255, (24, 24, 3), dtype=np.uint8)).save(picture, "JPEG")
            members += [(f"{sample:03}.jpg", picture.getvalue()), (f"{sample:03}.cls", str(sample).encode())]
        write_tar(folder / "tars" / f"{shard:02}.tar", members)
    for shard, rows in enumerate([120, 37, 38]):
        shutil.copy(FIXTURES / f"tables/pages-{rows}.parquet", folder / "tables" / f"train-{shard:02}.parquet")
    for sample in range(8):
        np.save(folder / "arrays" / ("a b" if sample % 2 else "é+%") / f"{sample}.npy", np.full(5, sample, np.float32))
    for part, names in [("train-0", "abcdefg"), ("train-1", "hijkl")]:
        rows = [json.dumps({"x": ord(name), "text": name * 90}) for name in names]
        (folder / "lists" / f"{part}.jsonl").write_text("\n".join(rows) + "\n")
    (folder / "README.md").write_text("# Data of tests\n")
    return folder


@pytest.fixture
def hub(data, monkeypatch, tmp_path):
    """The hub with the data in the dataset `lab/cats`; the environment names it and its token."""
    for name in [name for name in os.environ if name.startswith("HF_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    with serving_hub() as found:
        found.repositories["lab/cats"] = Repository()
        found.repositories["lab/cats"].commit(data)
        monkeypatch.setenv("HF_ENDPOINT", found.url)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield found


def config(path, format="parquet", epochs=2, **tables):
    operations = [{"op": "decode-image"}, {"op": "random-resized-crop", "size": 16}] if format == "webdataset" else []
    dataset = {"path": str(path), "format": format}
    if format == "parquet":
        dataset["fields"] = {"image": {"from": "image", "as": "bytes", "missing": "empty"}, "label": {"from": "label"}}
    if format == "manifest":
        dataset["fields"] = {"x": {"from": "x", "as": "integer"}, "text": {"from": "text", "as": "text"}}
    return config_of(dataset, operations, order={"epochs": epochs, "seed": 7}, **tables)


def check(path, **tables):
    """What `forebay check` says, which must fail."""
    file = write_toml(Path(os.environ["HOME"]) / "check.toml", config(path, **tables))
    done = run_program("check", file)
    assert done.returncode != 0, done
    return done.stdout + done.stderr


def requests_in(stats):
    """The figures of the storage's requests, wherever they are."""
    if isinstance(stats, dict):
        if "num_hedges" in stats:
            return stats
        stats = list(stats.values())
    parts = map(requests_in, stats) if isinstance(stats, list) else []
    return next((found for found in parts if found), None)


@pytest.mark.parametrize(
    "path, format",
    [
        ("tars", "webdataset"),
        ("tars/01.tar", "webdataset"),
        ("tables", "parquet"),
        ("tables/*.parquet", "parquet"),
        ("arrays", "npy"),
        ("lists/*.jsonl", "manifest"),
    ],
)
def test_a_dataset_gives_the_batches_of_the_folder(hub, data, path, format):
    expected = digests(config(data / path, format))
    assert len(set(expected)) == len(expected)
    assert digests(config(f"hf://datasets/lab/cats/{path}", format)) == expected
    assert hub.storage.requests or path == "arrays"


def test_a_bucket_gives_the_batches_of_the_folder(hub, data):
    hub.repositories["lab/box"] = Repository("buckets")
    hub.repositories["lab/box"].commit(data)
    for path, format in [("tars", "webdataset"), ("tables", "parquet")]:
        assert digests(config(f"hf://buckets/lab/box/{path}", format)) == digests(config(data / path, format))
    assert not hub.requests("/revision/")


def test_the_token_goes_to_the_endpoint_alone(hub, tmp_path):
    digests(config("hf://datasets/lab/cats/tars", "webdataset"))
    assert all(token == f"Bearer {TOKEN}" for *_, token in hub.endpoint.requests)
    assert hub.storage.requests and all(token is None for *_, token in hub.storage.requests)


def test_a_token_in_the_file_of_hf_auth_login_is_used(hub, data, tmp_path, monkeypatch):
    hub.repositories["lab/cats"].private = True
    monkeypatch.delenv("HF_TOKEN")
    said = check("hf://datasets/lab/cats/tables")
    assert "the dataset lab/cats is private or does not exist, and there is no token" in said, said
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    (tmp_path / "token").write_text(TOKEN + "\n")
    assert digests(config("hf://datasets/lab/cats/tables")) == digests(config(data / "tables"))
    said = check("hf://datasets/lab/cats/tars", storage={"anonymous": True})
    assert "there is no token" in said, said


ECHO = """
import os

def stage(row, generator):
    assert not [value for value in os.environ.values() if "TheToken" in value], "the token is in the environment"
    return row
"""


def test_the_token_is_in_no_log_state_index_or_worker(hub, tmp_path, capfd, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "echo.py").write_text(ECHO)
    made = config("hf://datasets/lab/cats/arrays", "npy")
    made["stage"] = [{"name": "echo", "python": "echo:stage"}]
    with forebay.Loader(made) as loader:
        batches = [None for _ in loader]
        kept = [loader.state_dict(), loader.stats()]
    assert len(batches) == 2
    file = write_toml(tmp_path / "train.toml", config("hf://datasets/lab/cats/tables"))
    runs = [run_program(command, file) for command in ("check", "index", "bench")]
    said = [run.stdout + run.stderr for run in runs] + list(capfd.readouterr()) + [repr(one) for one in kept]
    assert all("TheToken" not in text for text in said)
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.name not in ("echo.py",)]
    assert any(path.suffix == ".index" for path in files)
    assert not [path for path in files if b"TheToken" in path.read_bytes()]


def test_a_redirect_to_another_host_is_refused_by_name(hub):
    hub.redirect_to = "http://10.255.255.1:81"
    said = check("hf://datasets/lab/cats/tables")
    assert "it redirects to http://10.255.255.1, which is no storage of the hub" in said, said
    hub.redirect_to = "http://me:secret@127.0.0.1:81"
    said = check("hf://datasets/lab/cats/tables")
    assert "with a user, which is not followed" in said and "secret" not in said, said


def test_the_endpoint_is_encrypted_or_on_this_machine(hub, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://10.255.255.1")
    said = check("hf://datasets/lab/cats/tables")
    assert "HF_ENDPOINT is http://10.255.255.1/, which is not encrypted" in said, said
    assert not hub.endpoint.requests
    said = check("hf://datasets/lab/cats/tables", storage={"endpoint": hub.url})
    assert "storage.endpoint does not apply to hf://" in said, said


def test_an_expired_link_is_resolved_anew_and_the_read_repeated(hub, data):
    epochs = 12
    made = config("hf://datasets/lab/cats/tars", "webdataset", epochs)
    expected = digests(config(data / "tars", "webdataset", epochs))
    digests(config("hf://datasets/lab/cats/tars", "webdataset"))
    hub.clear()
    # More than are read at the same time.
    hub.reads_a_link = 40
    with forebay.Loader(made) as loader:
        assert [digest(batch) for _ in loader.epochs_left() for batch in loader] == expected
        requests = requests_in(loader.stats())
    # On a busy machine a link may expire again and again before one reader's turn; its read is then repeated.
    assert requests["num_requests"] >= epochs * SAMPLES and requests["num_failures"] <= 5, requests
    resolves = len(hub.requests("/resolve/"))
    assert epochs * SAMPLES // 40 <= resolves < epochs * SAMPLES // 4, resolves


def test_a_kept_link_costs_one_request_a_sample(hub):
    made = config("hf://datasets/lab/cats/tars", "webdataset", epochs=5)
    digests(made)
    hub.clear()
    with forebay.Loader(made, timeout=120) as loader:
        batches = [None for _ in loader.epochs_left() for _ in loader]
        # On a busy machine some responses are late.
        hedges = requests_in(loader.stats())["num_hedges"]
    assert batches
    requests = len(hub.endpoint.requests) + len(hub.storage.requests) - hedges
    assert len(hub.requests("/resolve/")) == 3 and not hub.requests("/tree/")
    assert requests <= 1.05 * 5 * SAMPLES, requests


def test_neighbours_of_a_block_come_by_one_request_in_the_order_of_the_folder(hub, tmp_path):
    folder, count = tmp_path / "blocks", 40
    folder.mkdir()
    # Eleven of them are a block of 1 MiB.
    members = [(f"{sample:03}.bin", b"%03d" % sample + bytes(90_000)) for sample in range(count)]
    for shard, half in enumerate([members[: count // 2], members[count // 2 :]]):
        write_tar(folder / f"{shard}.tar", half)
    hub.repositories["lab/blocks"] = Repository()
    hub.repositories["lab/blocks"].commit(folder)

    def settings(path):
        dataset = {"path": str(path), "format": "webdataset", "fields": {"x": {"from": "bin", "as": "bytes"}}}
        order = {"epochs": 2, "seed": 7, "shuffle": "blocks", "blocks": 2}
        return config_of(dataset, order=order, output={"x": {"ragged": True, "max_bytes": "96KiB"}})

    def rows(batch):
        for sample, row in zip(batch["index"].tolist(), batch["x"]):
            assert bytes(row[:3]) == b"%03d" % sample
        return batch["index"].tolist()

    whole = epochs_of(rows, settings(folder))
    assert [sorted(samples) for samples in whole] == [list(range(count))] * 2 and whole[0] != whole[1]
    groups = [
        {sample // 11 if sample < 20 else 2 + (sample - 20) // 11 for sample in part}
        for part in (whole[0][:4], whole[0][-4:])
    ]
    assert all(len(blocks) <= 2 for blocks in groups), groups
    at_hub = settings("hf://datasets/lab/blocks")
    # The index is made.
    with forebay.Loader(at_hub):
        pass
    hub.clear()
    assert epochs_of(rows, at_hub) == whole
    # Four blocks, which may be kept for the next epoch; a late response may be asked for again.
    assert 4 <= len(hub.storage.requests) <= 16, len(hub.storage.requests)
    with forebay.Loader(at_hub) as loader:
        batches = iter(loader)
        taken = [sample for _ in range(3) for sample in rows(next(batches))]
        state = loader.state_dict()
    assert [taken + epochs_of(rows, at_hub, 1, 2, state=state)[0]] == whole[:1]
    done = run_program("check", "--plan-only", write_toml(tmp_path / "check.toml", at_hub))
    assert "4 blocks, permuted; the samples of 2 of them are mixed, about 20 of 40" in done.stdout, done
    assert "neighbours" in done.stdout and "1.0 bytes read" in done.stdout, done.stdout


@pytest.mark.parametrize(
    "headers",
    [
        {"Retry_After": "2"},
        {"RateLimit": '"resolvers";r=0;t=1', "RateLimit_Policy": '"fixed window";"resolvers";q=100;w=300'},
    ],
)
def test_no_reader_sends_a_request_within_an_announced_pause(hub, data, headers):
    epochs = 30
    made = config("hf://datasets/lab/cats/arrays", "npy", epochs)
    expected = digests(config(data / "arrays", "npy", epochs))
    digests(made)
    hub.clear()
    hub.limits = [(12, headers), (120, headers)]
    assert digests(made) == expected
    assert not hub.limits and len(hub.pauses) == 2
    for begun in hub.pauses:
        # Those that were under way before the client knew of it; without the pause the rest of the epochs is read.
        within = [at - begun for at, *_ in hub.endpoint.requests if begun < at < begun + 2]
        assert len(within) < 40, within


def test_a_listing_waits_for_the_end_of_a_pause_and_goes_on_at_its_page(hub, data):
    hub.limits = [(2, {"RateLimit": '"api";r=0;t=4'})]
    assert digests(config("hf://datasets/lab/cats/arrays", "npy")) == digests(config(data / "arrays", "npy"))
    pages = hub.requests("/tree/")
    assert len(pages) == len(set(pages)) + 1, pages


@pytest.mark.parametrize(
    "path, words",
    [
        ("lab/dogs/tables", "404 RepoNotFound: there is no dataset lab/dogs that the account of HF_TOKEN may see"),
        ("lab/cats@v9/tables", 'the dataset lab/cats has no revision "v9"'),
        ("lab/cats/nowhere", "there are no objects under hf://datasets/lab/cats/nowhere"),
        ("lab/cats@/x", "hf://datasets/OWNER/NAME[@REVISION][/path]"),
    ],
)
def test_what_does_not_exist_is_named(hub, path, words):
    said = check(f"hf://datasets/{path}")
    assert words in said, said


def test_gated_data_say_what_to_do(hub, monkeypatch):
    hub.repositories["lab/cats"].gated = True
    hub.has_access = False
    page = f"accept its conditions at {hub.url}/datasets/lab/cats"
    said = check("hf://datasets/lab/cats/tables")
    assert f"is gated and the account of HF_TOKEN has no access yet: {page}" in said, said
    monkeypatch.setenv("HF_TOKEN", "hf_another")
    said = check("hf://datasets/lab/cats/tables")
    assert "the token of HF_TOKEN is not valid or has expired" in said and "hf_another" not in said, said
    monkeypatch.delenv("HF_TOKEN")
    said = check("hf://datasets/lab/cats/tables")
    assert f"is gated and there is no token: {page} and set HF_TOKEN" in said, said


@pytest.mark.parametrize(
    "path, format, source, changed",
    [
        ("tables", "parquet", "tables/train-01.parquet", "tables/train-00.parquet"),
        ("lists/*.jsonl", "manifest", "lists/train-1.jsonl", "lists/train-0.jsonl"),
    ],
)
def test_a_moved_branch_is_named_and_the_commit_of_the_index_is_read(
    hub, data, tmp_path, capfd, path, format, source, changed
):
    repository = hub.repositories["lab/cats"]
    made = config(f"hf://datasets/lab/cats/{path}", format)
    expected = digests(config(data / path, format))
    assert digests(made) == expected
    first = repository.refs["main"]
    assert f'reads commit {first}, which "main" names now' in capfd.readouterr().err

    other = shutil.copytree(data, tmp_path / "other")
    shutil.copy(other / source, other / changed)
    second = repository.commit(other)
    hub.clear()
    assert digests(made) == expected
    said = capfd.readouterr().err
    assert f"has moved from commit {first} to {second} since the index was made" in said, said
    assert all(first in path for path in hub.requests("/tree/") + hub.requests("/resolve/"))

    done = run_program("index", write_toml(tmp_path / "train.toml", made))
    said = done.stdout + done.stderr
    assert f'reads commit {second}, which "main" names now' in said, said
    assert f"commit {second} instead of {first}" in said, said
    assert digests(made) == digests(config(other / path, format))
    assert "has moved" not in capfd.readouterr().err
    # A commit in the URL is read without a question.
    hub.clear()
    assert digests(config(f"hf://datasets/lab/cats@{first}/{path}", format)) == expected
    assert not hub.requests("/revision/")


def test_requests_are_spread_over_time(hub, data):
    epochs = 6
    made = config("hf://datasets/lab/cats/arrays", "npy", epochs, storage={"requests_per_second": 20})
    expected = digests(config(data / "arrays", "npy", epochs))
    # A request may arrive late, but none before its turn.
    started = time.monotonic()
    assert digests(made) == expected
    times = [at for at, *_ in hub.endpoint.requests]
    assert len(times) > 8 * epochs and max(times) - started > (len(times) - 1) / 20 - 0.1


def test_init_writes_a_configuration_and_asks_for_a_split(hub, data, tmp_path):
    output = tmp_path / "train.toml"
    done = run_program("init", "hf://datasets/lab/cats/tables", "--output", output)
    assert done.returncode == 0, done
    assert 'path = "hf://datasets/lab/cats/tables/train-*.parquet"' in output.read_text()
    checked = run_program("check", output)
    assert checked.returncode == 0, checked
    done = run_program("init", "hf://datasets/lab/cats", "--output", output, "--force")
    assert done.returncode != 0
    for words in [
        "3 configurations or splits",
        "cats/tables/train-*.parquet'    # 3 files, ",
        "cats/tars/*.tar'    # 3 files",
    ]:
        assert words in done.stderr, done.stderr
