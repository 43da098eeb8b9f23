"""Texts become tokens in the daemon: the ids are those of the package `tokenizers`."""

import json
import random
from pathlib import Path

import forebay
import numpy
import pytest

tokenizers = pytest.importorskip("tokenizers")

FIXTURES = Path(__file__).resolve().parents[2] / "daemon/crates/text/fixtures"
TEXTS = json.loads((FIXTURES / "texts.json").read_text())


def documents(count=300):
    generator = random.Random(5)
    return ["".join(generator.choices(TEXTS, k=generator.randrange(1, 6))) for _ in range(count)]


def lines(folder, texts):
    """The texts as JSON lines."""
    rows = "".join(json.dumps({"text": text, "number": number}) + "\n" for number, text in enumerate(texts))
    (folder / "data.jsonl").write_text(rows)


def config(folder, kind, arguments="", output="input_ids = { ragged = true, max_bytes = \"64KiB\" }", batch=7):
    """Of JSON lines in the folder, with the path of the tokenizer relative to the configuration."""
    (folder / "tokenizer.json").write_bytes((FIXTURES / f"{kind}.json").read_bytes())
    path = folder / "text.toml"
    path.write_text(f"""
[dataset]
format = "manifest"
path = "data.jsonl"
index = "saved.index"
[dataset.fields]
text = {{ from = "text", as = "text" }}
number = {{ from = "number", as = "integer" }}
[batch]
size = {batch}
last = "short"
[order]
epochs = 1
[[stage]]
name = "text"
operations = [{{ op = "tokenize", tokenizer = "tokenizer.json", to = "input_ids"{arguments} }}]
[output]
{output}
""")
    return path


def rows(batches):
    """Each row's ids by number."""
    return {
        int(number): numpy.asarray(ids).tolist()
        for batch in batches
        for ids, number in zip(batch["input_ids"], batch["number"], strict=True)
    }


@pytest.mark.parametrize("kind", ["byte-level", "sentencepiece", "word-piece", "unigram"])
def test_ids_are_those_of_the_package(tmp_path, kind):
    texts = documents()
    lines(tmp_path, texts)
    reference = tokenizers.Tokenizer.from_file(str(FIXTURES / f"{kind}.json"))
    with forebay.Loader(config(tmp_path, kind)) as loader:
        found = rows(loader)
    assert len(found) == len(texts)
    for number, encoding in enumerate(reference.encode_batch(texts)):
        assert found[number] == encoding.ids, texts[number]


def test_rows_are_cut_and_padded_as_the_package_does(tmp_path):
    texts = documents()
    lines(tmp_path, texts)
    reference = tokenizers.Tokenizer.from_file(str(FIXTURES / "byte-level.json"))
    reference.enable_truncation(64)
    reference.enable_padding(length=64, pad_id=reference.token_to_id("<pad>"), pad_token="<pad>")
    arguments = ', max_length = 64, pad = "<pad>", length = "length"'
    path = config(tmp_path, "byte-level", arguments, 'input_ids = { dtype = "int64" }', batch=50)
    with forebay.Loader(path) as loader:
        for batch in loader:
            assert batch["input_ids"].dtype == numpy.int64 and batch["input_ids"].shape[1] == 64
            for ids, length, number in zip(batch["input_ids"], batch["length"], batch["number"], strict=True):
                encoding = reference.encode(texts[number])
                assert ids.tolist() == encoding.ids
                assert length == sum(encoding.attention_mask)


def test_another_tokenizer_is_named_when_a_state_is_resumed(tmp_path):
    lines(tmp_path, documents(60))
    path = config(tmp_path, "byte-level")
    with forebay.Loader(path) as loader:
        next(loader)
        state = loader.state_dict()
    with forebay.Loader(path) as loader:
        loader.load_state_dict(state)
        next(loader)
    (tmp_path / "tokenizer.json").write_bytes((FIXTURES / "word-piece.json").read_bytes())
    with pytest.raises(forebay.Error, match="operations"), forebay.Loader(path) as loader:
        loader.load_state_dict(state)
        next(loader)


def test_texts_of_tables_and_tars_are_tokenized(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    texts = documents(90)
    table = pyarrow.table({"text": texts, "number": list(range(len(texts)))})
    pyarrow.parquet.write_table(table, tmp_path / "data.parquet", row_group_size=20)
    path = config(tmp_path, "unigram")
    path.write_text(
        path.read_text()
        .replace('"manifest"', '"parquet"')
        .replace("data.jsonl", "data.parquet")
        .replace("[order]", '[order]\nshuffle = "blocks"')
    )
    reference = tokenizers.Tokenizer.from_file(str(FIXTURES / "unigram.json"))
    with forebay.Loader(path) as loader:
        found = rows(loader)
    assert [found[number] for number in range(len(texts))] == [encoding.ids for encoding in reference.encode_batch(texts)]


def test_a_missing_tokenizer_is_named_with_its_line(tmp_path):
    lines(tmp_path, documents(20))
    path = config(tmp_path, "byte-level")
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(forebay.Error, match=r"text.toml.*tokenizer.json: No such file"):
        next(forebay.Loader(path))
