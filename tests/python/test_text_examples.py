"""The examples that train on texts and conversations: a run that goes on from a checkpoint has the losses of one that
was not interrupted, to the bit."""

import contextlib
import itertools
import json
import random
import shutil
import signal
from pathlib import Path

import forebay
import numpy
import pytest
from support import EXAMPLES, ROOT, load_example, replace_once, rows_of, run_script

torch = pytest.importorskip("torch")

TOKENIZER = ROOT / "daemon/crates/text/fixtures/byte-level.json"
VOCABULARY, END, LENGTH = 506, 504, 32
OF_TOKENIZER = f"--vocabulary={VOCABULARY}"
TEXTS = 60
WORDS = ["the", "a", "loader", "reads", "samples", "rows", "of", "and", "daemon", "in", "again", "once", "an", "epoch"]


@pytest.fixture(autouse=True)
def single_thread():
    """The same sums in the same order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def sentence(generator, least=3, most=40):
    return " ".join(generator.choices(WORDS, k=generator.randrange(least, most)))


def copy_configuration(name, folder, *replaced):
    """The example's configuration with smaller numbers, and what lies beside it, next to a tokenizer."""
    for file in (EXAMPLES / name).iterdir():
        if file.suffix in (".toml", ".jinja"):
            shutil.copy(file, folder)
    shutil.copy(TOKENIZER, folder / "tokenizer.json")
    file = folder / "train.toml"
    file.write_text(replace_once(file.read_text(), *replaced))
    return file


class Killed(Exception):
    """Stands for a kill of the trainer."""


@contextlib.contextmanager
def killed_at(module, call):
    """Ends the training when the model is called this often."""
    calls = itertools.count(1)

    def kill(part, _):
        if type(part) is module and next(calls) == call:
            raise Killed

    hook = torch.nn.modules.module.register_module_forward_pre_hook(kill)
    try:
        with pytest.raises(Killed):
            yield
    finally:
        hook.remove()


def check(example, config, checkpoint, module, *options):
    """Trains without an interruption, then with kills behind a checkpoint inside an epoch and one at its end."""
    with forebay.Loader(config) as loader:
        epoch = len(loader)
    assert 4 <= epoch <= 12
    steps = 2 * epoch - 1

    def run(save_every, *more):
        arguments = [f"--steps={steps}", f"--save-every={save_every}", "--lr=0.01"]
        return example.main([str(config), str(checkpoint), *arguments, *options, *more])

    whole = run(steps)
    assert len(whole) == steps and numpy.isfinite(whole).all()
    assert numpy.mean(whole[-3:]) < 0.9 * whole[0], whole
    for saved in (epoch // 2, epoch):
        checkpoint.unlink()
        with killed_at(module, saved + 2):
            run(saved)
        assert run(saved, "--resume") == whole[saved:]
    # There is no step left.
    assert run(steps, "--resume") == []


KILLED = """
import os, runpy, signal, sys
import torch

torch.set_num_threads(1)
program, module, steps, *arguments = sys.argv[1:]
calls = iter(range(int(steps)))

def kill(part, _):
    if type(part).__name__ == module and next(calls, None) is None:
        os.kill(os.getpid(), signal.SIGKILL)

torch.nn.modules.module.register_module_forward_pre_hook(kill)
sys.argv = [program, *arguments]
runpy.run_path(program, run_name="__main__")
"""


def check_a_kill(name, module, arguments):
    """Kills an example's program in step 6; a resume goes on from the checkpoint of step 3."""
    checkpoint, arguments = Path(arguments[1]), [*arguments, "--steps=9"]
    whole = load_example(name).main(arguments)
    checkpoint.unlink()
    killed = run_script(KILLED, str(EXAMPLES / f"{name}.py"), module, "5", *arguments, "--save-every=3")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert torch.load(checkpoint)["step"] == 3
    assert load_example(name).main([*arguments, "--resume"]) == whole[3:]


def texts():
    generator = random.Random(3)
    return [sentence(generator) for _ in range(TEXTS)]


def pretraining(folder, form="parquet"):
    """The example's configuration over the texts, as Parquet or JSON lines."""
    replaced = [
        ('end = "<|endoftext|>"', 'end = "<|im_end|>"'),
        ("length = 256", f"length = {LENGTH}"),
        ("size = 16", "size = 8"),
    ]
    if form == "lines":
        lines = [json.dumps({"text": text, "url": "https://a"}) + "\n" for text in texts()]
        (folder / "texts.jsonl").write_text("".join(lines))
        replaced += [('format = "parquet"', 'format = "manifest"'), ('path = "texts.parquet"', 'path = "texts.jsonl"')]
    else:
        pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        table = pyarrow.table({"text": texts(), "url": ["https://a"] * TEXTS})
        parquet.write_table(table, folder / "texts.parquet", row_group_size=50)
    return copy_configuration("pretrain", folder, *replaced)


@pytest.mark.parametrize("form", ["parquet", "lines"])
def test_rows_of_pretraining_are_the_texts_tokens(tmp_path, form):
    tokenizers = pytest.importorskip("tokenizers")
    encodings = tokenizers.Tokenizer.from_file(str(TOKENIZER)).encode_batch(texts())
    written = ["".join(f" {token}" for token in [*encoding.ids, END]) for encoding in encodings]
    with forebay.Loader(pretraining(tmp_path, form)) as loader:
        rows = rows_of(loader)
    # The last batch may be a part of one.
    assert len(rows) > sum(text.count(" ") for text in written) // LENGTH - 8
    for row in rows.values():
        begins = numpy.flatnonzero(row["position_ids"] == 0)[1:]
        for part in numpy.split(row["tokens"], begins):
            assert any("".join(f" {token}" for token in part) in text for text in written)


@pytest.mark.parametrize(("layout", "form"), [("nanogpt", "parquet"), ("torchtitan", "lines"), ("megatron", "lines")])
def test_pretraining_goes_on_to_the_same_losses(tmp_path, layout, form):
    example = load_example("pretrain/train")
    arguments = [OF_TOKENIZER, f"--layout={layout}", f"--length={LENGTH}"]
    check(example, pretraining(tmp_path, form), tmp_path / "run.pt", example.GPT, *arguments)


def test_layouts_are_what_their_trainers_make_of_the_same_tokens(tmp_path):
    example = load_example("pretrain/train")
    with forebay.torch.Loader(pretraining(tmp_path, "lines")) as loader:
        batch = next(iter(loader))
        x, y = example.nanogpt(batch)
        inputs, labels = example.torchtitan(batch)
        made = forebay.megatron.fields_of(batch, attention_mask=True)
    assert sorted(inputs) == ["input", "positions"] and (inputs["input"] == x).all() and (labels == y).all()
    assert sorted(made) == ["attention_mask", "labels", "loss_mask", "position_ids", "tokens"]
    for row, tokens in enumerate(x):
        # As Megatron's `_get_ltor_masks_and_position_ids` with all its three options.
        mask, positions = torch.ones(LENGTH, LENGTH).tril(), torch.arange(LENGTH)
        before = 0
        for end in torch.nonzero(tokens == END).flatten().tolist():
            mask[end + 1 :, : end + 1] = 0
            positions[end + 1 :] -= end + 1 - before
            before = end + 1
        assert (made["attention_mask"][row, 0] == (mask < 0.5)).all()
        assert (made["position_ids"][row] == positions).all() and (inputs["positions"][row] == positions).all()
        assert (made["loss_mask"][row] == (tokens != END)).all()
        assert (made["labels"][row][:-1] == tokens[1:])[tokens[:-1] != END].all()
    assert (x == END).any()
    assert [made[name].dtype for name in ("tokens", "labels", "position_ids")] == 3 * [torch.int64]
    assert made["loss_mask"].dtype == torch.float32 and made["attention_mask"].dtype == torch.bool


@pytest.mark.parametrize("options", [[], ["--padding-free"]], ids=["padded", "padding-free"])
def test_fine_tuning_goes_on_to_the_same_losses(tmp_path, options):
    transformers = pytest.importorskip("transformers")
    example = load_example("sft/train")
    config = chats(tmp_path)
    check(example, config, tmp_path / "run.pt", transformers.LlamaForCausalLM, OF_TOKENIZER, *options)


def chats(folder):
    generator = random.Random(4)
    lines = []
    for _ in range(TEXTS):
        turns = generator.randrange(1, 4)
        messages = [
            {"role": role, "content": sentence(generator, most=20)}
            for _ in range(turns)
            for role in ("user", "assistant")
        ]
        lines.append(json.dumps({"messages": messages}) + "\n")
    (folder / "chats.jsonl").write_text("".join(lines))
    return copy_configuration("sft", folder, ("tokens = 65_536", "tokens = 4000"))


def test_both_forms_of_a_batch_of_conversations_have_the_same_loss(tmp_path):
    pytest.importorskip("transformers")
    example = load_example("sft/train")
    torch.manual_seed(2)
    model = example.make_model(VOCABULARY).double()
    with forebay.torch.Loader(chats(tmp_path)) as loader:
        batch = next(iter(loader))
        assert len(batch["input_ids"]) > 1 and len(set(batch["input_ids"].lengths.tolist())) > 1
        made = [example.padded(batch, 500), example.padding_free(batch)]
    losses = [model(**arguments, use_cache=False).loss for arguments in made]
    assert torch.allclose(*losses, rtol=1e-6), losses
