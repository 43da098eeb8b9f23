"""Texts become tokens in the daemon: the ids are those of the package `tokenizers`."""

import json
import os
import random
import signal
from pathlib import Path

import forebay
import numpy
import pytest
from support import digest, digests

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


def config(folder, kind, arguments="", output='input_ids = { ragged = true, max_bytes = "64KiB" }', batch=7):
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
        next(iter(loader))
        state = loader.state_dict()
    with forebay.Loader(path, state=state) as loader:
        assert len(rows(loader)) == 60 - 7
    (tmp_path / "tokenizer.json").write_bytes((FIXTURES / "word-piece.json").read_bytes())
    with pytest.raises(forebay.Error, match="operations"), forebay.Loader(path, state=state) as loader:
        next(iter(loader))


def test_no_batch_differs_after_kills(tmp_path):
    lines(tmp_path, documents(200))
    # Bytes between rows are anything.
    output = 'input_ids = { ragged = true, compact = true, max_bytes = "64KiB" }'
    path = config(tmp_path, "unigram", output=output)
    whole = digests(path)
    with forebay.Loader(path) as loader:
        found = []
        for number, batch in enumerate(loader):
            found.append(digest(batch))
            if number in (2, 9):
                os.kill(loader.daemon_pid, signal.SIGKILL)
        assert loader.restarts == 2
    assert found == whole


def test_texts_of_tables_are_tokenized(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    texts = documents(90)
    table = pyarrow.table({"text": texts, "number": list(range(len(texts)))})
    parquet.write_table(table, tmp_path / "data.parquet", row_group_size=20)
    path = config(tmp_path, "unigram")
    path.write_text(path.read_text().replace('"manifest"', '"parquet"').replace("data.jsonl", "data.parquet"))
    reference = tokenizers.Tokenizer.from_file(str(FIXTURES / "unigram.json"))
    with forebay.Loader(path) as loader:
        found = rows(loader)
    assert [found[number] for number in range(len(texts))] == [
        encoding.ids for encoding in reference.encode_batch(texts)
    ]


def test_a_missing_tokenizer_is_named_with_its_line(tmp_path):
    lines(tmp_path, documents(20))
    path = config(tmp_path, "byte-level")
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(forebay.Error, match=r"text.toml.*tokenizer.json: No such file"):
        next(iter(forebay.Loader(path)))


TEMPLATES = FIXTURES / "templates"


def conversations():
    """The conversations of the tests, each as an object with its messages."""
    chats = [json.loads(chat) for chat in json.loads((TEMPLATES / "results.json").read_text())["chats"]]
    return [chat if isinstance(chat, dict) else {"messages": chat} for chat in chats]


def chat_config(folder, dataset, template):
    stored = json.loads((TEMPLATES / f"{template}.json").read_text())
    config = {"chat_template": stored["chat_template"], **stored["tokens"]}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_bytes((FIXTURES / "byte-level.json").read_bytes())
    path = folder / "chat.toml"
    path.write_text(f"""
[dataset]
{dataset}
index = "saved.index"
[dataset.fields]
chat = {{ from = "messages", as = "text" }}
number = {{ from = "number", as = "integer" }}
[batch]
size = 5
last = "short"
[order]
epochs = 1
[[stage]]
name = "chat"
[[stage.operations]]
op = "chat"
template = "tokenizer_config.json"
tokenizer = "tokenizer.json"
to = "input_ids"
labels = "labels"
[output]
input_ids = {{ ragged = true, max_bytes = "64KiB" }}
labels = {{ ragged = true, max_bytes = "64KiB" }}
""")
    return path


@pytest.mark.parametrize("form", ["lines", "parquet"])
def test_chats_have_the_tokens_and_labels_of_transformers(tmp_path, form):
    transformers = pytest.importorskip("transformers")
    chats = conversations()
    for chat in chats:
        chat["messages"] = [{"role": turn["role"], "content": turn["content"]} for turn in chat["messages"]]
    if form == "lines":
        rows = [{"messages": chat["messages"], "number": number} for number, chat in enumerate(chats)]
        (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        dataset = 'format = "manifest"\npath = "data.jsonl"'
    else:
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        columns = {"messages": [chat["messages"] for chat in chats], "number": list(range(len(chats)))}
        parquet.write_table(pyarrow.table(columns), tmp_path / "data.parquet", row_group_size=6)
        dataset = 'format = "parquet"\npath = "data.parquet"'
    template = json.loads((TEMPLATES / "marked-chatml.json").read_text())
    reader = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(FIXTURES / "byte-level.json"), **template["tokens"]
    )
    count = 0
    path = chat_config(tmp_path, dataset, "marked-chatml")
    with forebay.Loader(path) as loader:
        for batch in loader:
            for ids, labels, number in zip(batch["input_ids"], batch["labels"], batch["number"], strict=True):
                expected = reader.apply_chat_template(
                    chats[number]["messages"],
                    chat_template=template["chat_template"],
                    return_dict=True,
                    return_assistant_tokens_mask=True,
                )
                assert ids.tolist() == expected["input_ids"]
                said = zip(expected["input_ids"], expected["assistant_masks"], strict=True)
                assert labels.tolist() == [token if is_said else -100 for token, is_said in said]
                count += 1
    assert count == len(chats)


def test_a_template_without_marks_is_refused_with_the_remedy(tmp_path):
    (tmp_path / "data.jsonl").write_text('{"messages": [{"role": "user", "content": "a"}], "number": 1}\n')
    path = chat_config(tmp_path, 'format = "manifest"\npath = "data.jsonl"', "qwen3")
    with pytest.raises(forebay.Error, match=r"chat.toml.*generation.*or leave `labels` out"):
        next(iter(forebay.Loader(path)))
