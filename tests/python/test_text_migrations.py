"""The configurations and programs of the pages for those who come from other loaders of texts."""

import itertools
import json
import re
import struct
import sys
import types

import forebay
import numpy
import pytest
from support import ROOT, indices, load_example, programs_of, replace_once

MEGATRON, TORCHTITAN, MAP = "from-megatron.md", "from-torchtitan-and-grain.md", "from-map-and-group-texts.md"
TOKENIZER = ROOT / "daemon/crates/text/fixtures/byte-level.json"
LENGTH, END = 32, 502
SMALLER = ("length = 2048", f"length = {LENGTH}")


def documents(seed, count=80):
    """Documents of 4 to 60 tokens with their end."""
    generator = numpy.random.default_rng(seed)
    lengths = generator.integers(3, 60, count)
    return [numpy.append(generator.integers(0, 500, length), END).astype(numpy.uint16) for length in lengths]


def write_of_megatron(folder, name, of_file):
    """As `IndexedDatasetBuilder` writes it: code 8 is uint16."""
    numpy.concatenate(of_file).tofile(folder / f"{name}.bin")
    lengths = numpy.array([len(document) for document in of_file], numpy.int32)
    pointers = numpy.concatenate([[0], lengths.cumsum(dtype=numpy.int64)[:-1] * 2]).astype(numpy.int64)
    columns = [lengths, pointers, numpy.arange(len(lengths) + 1, dtype=numpy.int64)]
    header = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(lengths), len(lengths) + 1)
    (folder / f"{name}.idx").write_bytes(header + b"".join(column.tobytes() for column in columns))


def write_tokens(folder, boundaries="", more=""):
    """A file of tokens, and a configuration over it."""
    numpy.concatenate(documents(1)).tofile(folder / "train.bin")
    (folder / "train.toml").write_text(
        f'[dataset]\nformat = "tokens"\npath = "train.bin"\n[dataset.tokens]\nlength = {LENGTH}\n'
        f'cut = "concatenate"\nend = {END}\n{boundaries}\n{more}\n[batch]\nsize = 8\n[order]\nepochs = 3\n'
        '[[stage]]\nname = "copy"\noperations = []\n'
    )
    return folder / "train.toml"


def defined_by(page, what):
    """The names that the program with this part defines."""
    (program,) = (program for program in programs_of(page) if what in program)
    names = {"__name__": "page"}
    exec(compile(program, page, "exec"), names)
    return names


def test_megatrons_files_are_mixed_and_given_as_its_training_loop_takes_them(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    import forebay.megatron

    tokens = {name: documents(seed) for seed, name in enumerate(("web", "code"))}
    for name, of_file in tokens.items():
        write_of_megatron(tmp_path, f"{name}_text_document", of_file)
    text = programs_of(MEGATRON, "toml")[0].replace(*SMALLER)
    config = tmp_path / "train.toml"
    config.write_text(replace_once(text, ("samples_per_epoch = 1_000_000", "samples_per_epoch = 80")))
    with forebay.Loader(config) as loader:
        places = numpy.concatenate([batch["dataset"] for batch in loader])
    assert numpy.bincount(places).tolist() == [56, 24]

    # Of a group of one rank.
    ranks = {"get_data_parallel_rank": lambda: 0, "get_data_parallel_world_size": lambda: 1}
    for name in ("megatron", "megatron.core", "megatron.core.parallel_state"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules["megatron.core"].parallel_state = types.SimpleNamespace(**ranks)
    monkeypatch.chdir(tmp_path)
    provide = defined_by(MEGATRON, "parallel_state")["train_valid_test_datasets_provider"]
    batches, *others = provide([0, 0, 0])
    assert others == [None, None]
    with forebay.torch.Loader(config) as loader:
        for batch in itertools.islice(loader, 5):
            given, expected = next(batches), forebay.megatron.fields_of(batch)
            assert sorted(given) == ["labels", "loss_mask", "position_ids", "tokens"]
            assert all(torch.equal(value, expected[name]) for name, value in given.items())
    saved = json.loads(json.dumps(batches.save_state()))
    expected = next(batches)
    batches.loader.close()
    resumed, *_ = provide([0, 0, 0], state=saved)
    assert all(torch.equal(value, expected[name]) for name, value in next(resumed).items())
    resumed.loader.close()


def test_a_split_of_json_lines_is_named_by_the_lines(tmp_path):
    (tmp_path / "web.jsonl").write_text("".join(json.dumps({"text": f"text {line}"}) + "\n" for line in range(100)))
    (page,) = re.findall(r"```\n(seq .*?)```", (ROOT / "docs/how-to" / MEGATRON).read_text(), re.DOTALL)
    parts = re.findall(r"seq -f '(.*)%\.0f' (\d+) (\d+) > (\w+)\.ids", page)
    assert [name for *_, name in parts] == ["train", "val"]
    found = []
    for prefix, first, last, name in parts:
        # The page's are of a million lines.
        lines = range((int(first) - 1) // 10_000 + 1, int(last) // 10_000 + 1)
        (tmp_path / f"{name}.ids").write_text("".join(f"{prefix}{line}\n" for line in lines))
        config = {
            "dataset": {
                "format": "manifest",
                "path": str(tmp_path / "web.jsonl"),
                "ids": str(tmp_path / f"{name}.ids"),
            },
            "order": {"epochs": 1},
            "batch": {"size": 1},
            "stage": [{"name": "copy", "operations": []}],
            "output": {"text": {"ragged": True, "max_bytes": 20}},
        }
        config["dataset"]["fields"] = {"text": {"from": "text", "as": "text"}}
        with forebay.Loader(config) as loader:
            found.append({text for batch in loader for text in batch["text"].strings()})
    assert [len(texts) for texts in found] == [99, 1]
    assert found[0] | found[1] == {f"text {line}" for line in range(100)}


def test_the_loop_of_jax_takes_rows_with_segments(tmp_path):
    pytest.importorskip("jax")
    (program,) = (program for program in programs_of(TORCHTITAN) if "forebay.jax" in program)
    config, shapes = write_tokens(tmp_path, 'boundaries = ["position_ids", "segment_ids"]'), []
    program = replace_once(program, ('"train.toml"', repr(str(config))))
    exec(program, {"step": lambda *arrays: shapes.append({array.shape for array in arrays})})
    assert len(shapes) > 5 and all(of_step == {(8, LENGTH)} for of_step in shapes)


def test_transformers_trainer_takes_the_rows(tmp_path, monkeypatch):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    monkeypatch.chdir(tmp_path)
    write_tokens(tmp_path, more='labels = "same"')
    (program,) = (program for program in programs_of(MAP) if "forebay.transformers" in program)
    quiet = "num_train_epochs=3, use_cpu=True, report_to=[], disable_tqdm=True, save_strategy='no'"
    names = {"model": load_example("sft/train").make_model(END + 1)}
    exec(replace_once(program, ("num_train_epochs=3", quiet)), names)
    names["loader"].close()
    steps = names["trainer"].state.global_step
    assert steps == 3 * len(names["loader"]) > 20 and isinstance(names["trainer"], transformers.Trainer)


@pytest.mark.parametrize("page", [MEGATRON, TORCHTITAN, MAP])
def test_configurations_of_texts_give_rows_of_tokens(tmp_path, page):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    (tmp_path / "web").mkdir()
    texts = [f"the {number} text " * (1 + number % 9) for number in range(200)]
    (tmp_path / "web.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    for name in ("web/a.parquet", "texts-0.parquet"):
        parquet.write_table(pyarrow.table({"text": texts}), tmp_path / name)
    (tmp_path / "tokenizer.json").write_bytes(TOKENIZER.read_bytes())
    (text,) = (text for text in programs_of(page, "toml") if "tokenizer" in text)
    text = re.sub(r"length = \d+", f"length = {LENGTH}", text)
    (tmp_path / "train.toml").write_text(re.sub(r'end = "[^"]*"', 'end = "</s>"', text))
    with forebay.Loader(tmp_path / "train.toml") as loader:
        batches = list(loader)
        assert len(indices(batches)) > 30 and all(batch["tokens"].shape[1] == LENGTH for batch in batches)
        assert all((batch["tokens"] == END).any() for batch in batches)
