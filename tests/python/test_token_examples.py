"""The examples that train language models: each learns what follows what on tokens that count up."""

import math
import struct

import numpy
import pytest
from support import load_example

pytest.importorskip("torch")

VOCABULARY, END, LENGTH = 64, 63, 32


def documents():
    """Documents of 4 to 60 tokens that count up to their end."""
    generator = numpy.random.default_rng(1)
    lengths = generator.integers(4, 60, 300)
    return [numpy.append(numpy.arange(length - 1) % END, END).astype(numpy.uint16) for length in lengths]


def write(folder, keys, output=""):
    numpy.concatenate(documents()).tofile(folder / "train.bin")
    file = folder / "tokens.toml"
    file.write_text(
        '[dataset]\nformat = "tokens"\npath = "train.bin"\nindex = "saved.index"\n'
        f"[dataset.tokens]\nlength = {LENGTH}\n{keys}\n[batch]\nsize = 8\n"
        f'[[stage]]\nname = "copy"\nconcurrency = 1\noperations = []\n{output}'
    )
    return file


def check(losses, steps):
    assert len(losses) == steps and all(math.isfinite(loss) for loss in losses)
    assert sum(losses[-5:]) / 5 < 0.8 * losses[0], losses


def asked(config, *more, steps=30):
    options = [f"--vocabulary={VOCABULARY}", f"--steps={steps}", "--lr=0.03"]
    return [str(config), *more, *options]


def test_pytorch_trains_on_windows_and_goes_on(tmp_path):
    example = load_example("train_gpt")
    config = write(tmp_path, "")
    checkpoint = str(tmp_path / "state.pt")
    check(example.main(asked(config, checkpoint, steps=20)), 20)
    rest = example.main([*asked(config, checkpoint, steps=10), "--resume"])
    assert len(rest) == 10 and rest[0] < 0.8 * math.log(VOCABULARY)


def test_transformers_trains_on_packed_documents(tmp_path):
    pytest.importorskip("transformers")
    config = write(tmp_path, f'cut = "pack"\nend = {END}\nlabels = "same"\nboundaries = ["position_ids"]')
    check(load_example("train_gpt_transformers").main(asked(config)), 30)


def test_megatron_trains_on_its_own_files(tmp_path):
    config = write(tmp_path, 'cut = "concatenate"\nboundaries = ["cu_seqlens", "position_ids"]')
    # As `IndexedDatasetBuilder` writes it: code 8 is uint16.
    lengths = numpy.array([len(document) for document in documents()], numpy.int32)
    pointers = numpy.concatenate([[0], lengths.cumsum(dtype=numpy.int64)[:-1] * 2]).astype(numpy.int64)
    header = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(lengths), len(lengths) + 1)
    columns = [lengths, pointers, numpy.arange(len(lengths) + 1, dtype=numpy.int64)]
    (tmp_path / "train.idx").write_bytes(header + b"".join(column.tobytes() for column in columns))
    check(load_example("train_gpt_megatron").main(asked(config)), 30)


def test_jax_trains_on_packed_documents(tmp_path):
    pytest.importorskip("jax")
    pytest.importorskip("optax")
    output = '[output]\ntokens = { dtype = "int32" }\nlabels = { dtype = "int32" }\n'
    config = write(tmp_path, f'cut = "pack"\nend = {END}\nboundaries = ["segment_ids", "position_ids"]', output)
    check(load_example("train_gpt_jax").main(asked(config)), 30)
