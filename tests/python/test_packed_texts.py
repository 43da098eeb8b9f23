"""`[dataset.tokens]` with a tokenizer: texts of any format become rows of tokens, once, in the cache."""

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import forebay
import numpy
import pytest
from support import PROGRAM, arrays_of, digest, digests
from web_folder import served

tokenizers = pytest.importorskip("tokenizers")

FIXTURES = Path(__file__).resolve().parents[2] / "daemon/crates/text/fixtures"
TEXTS = json.loads((FIXTURES / "texts.json").read_text())
LENGTH = 32


def documents(count=300):
    generator = random.Random(6)
    return ["".join(generator.choices(TEXTS, k=generator.randrange(4))) for _ in range(count)]


def config(folder, keys="", path="data.jsonl", kind="manifest", order="shuffle = false", field="text"):
    """`field` is a text, or `ids`: lists of numbers."""
    (folder / "tokenizer.json").write_bytes((FIXTURES / "byte-level.json").read_bytes())
    made = 'tokenizer = "tokenizer.json"\nend = "</s>"' if field == "text" else f'field = "{field}"\nend = 502'
    rule = 'text = { from = "text", as = "text" }' if field == "text" else f'{field} = {{ from = "{field}" }}'
    toml = folder / "texts.toml"
    toml.write_text(f"""
[dataset]
format = "{kind}"
path = "{path}"
index = "{folder}/saved.index"
{"" if kind == "tokens" else f"fields = {{ {rule} }}"}
[dataset.tokens]
{made}
length = {LENGTH}
{keys}
[cache]
path = "{folder}/cache"
[batch]
size = 5
last = "short"
[order]
epochs = 1
{order}
[[stage]]
name = "copy"
operations = []
""")
    return toml


def lines(folder, texts):
    (folder / "data.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def reference(texts):
    """The ids of each text with the end after them, by the package."""
    tokenizer = tokenizers.Tokenizer.from_file(str(FIXTURES / "byte-level.json"))
    end = tokenizer.token_to_id("</s>")
    return [[*encoding.ids, end] for encoding in tokenizer.encode_batch(texts)]


def rows(toml, **options):
    with forebay.Loader(toml, **options) as loader:
        return [arrays_of(batch) for batch in loader]


def windows(ids):
    stream = [token for text in ids for token in text]
    count = (len(stream) - 1) // LENGTH
    return numpy.array(stream[: count * LENGTH]).reshape(count, LENGTH)


def tokens(batches):
    return numpy.concatenate([batch["tokens"] for batch in batches])


def test_windows_of_texts_are_those_of_the_package(tmp_path):
    texts = documents()
    lines(tmp_path, texts)
    batches = rows(config(tmp_path))
    assert (tokens(batches) == windows(reference(texts))).all()
    labels = numpy.concatenate([batch["labels"] for batch in batches])
    assert (labels[:, :-1] == tokens(batches)[:, 1:]).all()


def test_packed_rows_have_each_document_whole(tmp_path):
    texts = [text[:6] for text in documents()]
    lines(tmp_path, texts)
    batches = rows(config(tmp_path, 'cut = "pack"\nboundaries = ["segment_ids"]', order=""))
    found = []
    for batch in batches:
        for row, segments in zip(batch["tokens"], batch["segment_ids"], strict=True):
            found += [row[segments == number].tolist() for number in range(1, segments.max() + 1)]
    ids = reference(texts)
    assert max(map(len, ids)) <= LENGTH
    assert sorted(found) == sorted(ids)


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_texts_and_lists_of_tables(tmp_path, kind):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    texts = documents()
    ids = reference(texts)
    lists = pyarrow.array([text[:-1] for text in ids], pyarrow.list_(pyarrow.int32()))
    table = pyarrow.table({"text": texts, "ids": lists})
    path = tmp_path / f"data.{kind}"
    if kind == "parquet":
        parquet.write_table(table, path, row_group_size=70, data_page_size=2000, compression="zstd")
    else:
        with pyarrow.OSFile(str(path), "wb") as file, pyarrow.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=70)
    for field in ("text", "ids"):
        assert (tokens(rows(config(tmp_path, path=path, kind=kind, field=field))) == windows(ids)).all(), field


def test_a_killed_pass_is_continued(tmp_path):
    generator = random.Random(7)
    # Parts of 1 Mi and 2 Mi tokens, and the rest.
    lines(tmp_path, ["".join(generator.choices(TEXTS, k=200)) for _ in range(1500)])
    toml = config(tmp_path)
    folder = tmp_path / "cache" / f"tokens-{os.getuid()}"
    kills = 0
    while not list(folder.glob("*/texts.json")):
        before = len(list(folder.glob("*/*-*.json")))
        index = subprocess.Popen([PROGRAM, "index", toml], stdout=subprocess.DEVNULL)
        while index.poll() is None and len(list(folder.glob("*/*-*.json"))) == before:
            time.sleep(0.002)
        if index.poll() is None:
            index.kill()
            kills += 1
        index.wait()
    assert kills >= 2
    killed = digests(toml)
    for file in folder.glob("*/*"):
        file.unlink()
    assert digests(toml) == killed


def test_no_batch_differs_after_kills_and_at_another_world_size(tmp_path):
    lines(tmp_path, documents(600))
    toml = config(tmp_path, 'cut = "pack"\nboundaries = ["position_ids"]', order="")
    whole = digests(toml)
    found, seen = [], []
    with forebay.Loader(toml) as loader:
        for number, batch in enumerate(loader):
            found.append(digest(batch))
            if number <= 6:
                seen += batch["tokens"].tolist()
                state = loader.state_dict()
            if number in (5, 80):
                os.kill(loader.daemon_pid, signal.SIGKILL)
        assert loader.restarts == 2
    assert found == whole
    for rank in range(2):
        seen += tokens(rows(toml, state=state, rank=rank, world_size=2)).tolist()
    assert sorted(seen) == sorted(tokens(rows(toml)).tolist())


def test_another_tokenizer_is_refused_at_a_resume(tmp_path):
    lines(tmp_path, documents())
    toml = config(tmp_path)
    with forebay.Loader(toml) as loader:
        next(iter(loader))
        state = loader.state_dict()
    (tmp_path / "tokenizer.json").write_bytes((FIXTURES / "word-piece.json").read_bytes())
    toml.write_text(toml.read_text().replace('"</s>"', "1"))
    with pytest.raises(forebay.Error, match="dataset"), forebay.Loader(toml, state=state) as loader:
        next(iter(loader))


def test_texts_behind_a_url(tmp_path):
    texts = documents()
    (tmp_path / "data").mkdir()
    with served(tmp_path / "data") as server:
        # Nobody reads the file again for its tokens; its replacement is noticed all the same.
        for seconds, found in enumerate((texts, texts[::-1])):
            lines(tmp_path / "data", found)
            # The server knows whole seconds.
            os.utime(tmp_path / "data/data.jsonl", (seconds, seconds))
            toml = config(tmp_path, path=f"{server.url}/data.jsonl")
            assert (tokens(rows(toml)) == windows(reference(found))).all()


def test_a_replaced_table_behind_a_url_is_noticed(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    texts = documents()
    (tmp_path / "data").mkdir()
    with served(tmp_path / "data") as server:
        for seconds, found in enumerate((texts, texts[::-1])):
            path = tmp_path / "data/data.parquet"
            parquet.write_table(pyarrow.table({"text": found}), path, compression="none")
            os.utime(path, (seconds, seconds))
            toml = config(tmp_path, path=f"{server.url}/data.parquet", kind="parquet")
            assert (tokens(rows(toml)) == windows(reference(found))).all()


def test_files_of_tokens_refuse_a_tokenizer(tmp_path):
    numpy.arange(999, dtype=numpy.uint16).tofile(tmp_path / "data.bin")
    with pytest.raises(forebay.Error, match="are tokens already"):
        rows(config(tmp_path, path="data.bin", kind="tokens"))
