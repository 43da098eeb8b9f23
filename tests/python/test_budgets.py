"""Batches by length from Python: their sizes, padding, number, states, and stages of one's own."""

import importlib
import json
import math
import os
import random
import signal
import wave
from pathlib import Path

import forebay
import numpy
import pytest
from support import config_of, digest, digests, indices, noise

BUDGET, MULTIPLE = 2000, 8


def config(folder, stages='[[stage]]\nname = "copy"\noperations = []', batch=""):
    """Texts of 1 to 400 bytes as JSON lines."""
    generator = random.Random(4)
    texts = ["x" * min(400, 1 + int(generator.lognormvariate(3.5, 1))) for _ in range(1500)]
    (folder / "data.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    path = folder / "budget.toml"
    path.write_text(f"""
[dataset]
format = "manifest"
path = "data.jsonl"
index = "saved.index"
[dataset.fields]
text = {{ from = "text", as = "text" }}
[order]
pool = 400
epochs = 2
[batch]
budget = {{ tokens = {BUDGET} }}
length = "text"
multiple_of = {MULTIPLE}
max_rows = 64
{batch}
{stages}
[output]
text = {{ ragged = true, compact = true, max_bytes = 400 }}
""")
    return path, texts


def cost_of(batch):
    """Rows times the longest one, rounded up."""
    lengths = batch["text"].lengths
    return len(lengths) * -(-int(max(lengths)) // MULTIPLE) * MULTIPLE


def test_batches_stay_within_their_budget_and_hold_each_sample_once(tmp_path):
    path, texts = config(tmp_path)
    with forebay.Loader(path) as loader:
        for _ in range(2):
            expected, found, shares = len(loader), [], []
            number = 0
            for batch in loader:
                number += 1
                lengths, cost = batch["text"].lengths, cost_of(batch)
                assert cost <= BUDGET and len(lengths) <= 64
                padded = batch["text"].padded(0, multiple_of=MULTIPLE)
                assert padded.size == cost
                shares.append(sum(lengths) / cost)
                found += batch["index"].tolist()
            assert number == expected
            assert sorted(found) == list(range(len(texts)))
    # Most rows of a batch are nearly as long as its longest.
    assert numpy.mean(shares) > 0.8


def test_ranks_have_equally_many_batches_of_similar_cost(tmp_path):
    path, texts = config(tmp_path)
    of_ranks = []
    for rank in range(3):
        with forebay.Loader(path, rank=rank, world_size=3, compare_ranks=False) as loader:
            of_ranks.append([(indices([batch]), cost_of(batch)) for batch in loader])
    assert len({len(batches) for batches in of_ranks}) == 1
    found = sorted(index for batches in of_ranks for of_batch, _ in batches for index in of_batch)
    assert len(set(found)) == len(found) and len(found) > len(texts) - 3 * 4
    ratios = [max(costs) / min(costs) for costs in ([cost for _, cost in step] for step in zip(*of_ranks, strict=True))]
    assert numpy.median(ratios) < 1.1, ratios


def test_states_and_kills_change_no_batch(tmp_path):
    path, _ = config(tmp_path)
    whole = digests(path)
    found = []
    with forebay.Loader(path) as loader:
        for number, batch in enumerate(loader):
            found.append(digest(batch))
            if number == 3:
                os.kill(loader.daemon_pid, signal.SIGKILL)
            if number == 11:
                state = json.loads(json.dumps(loader.state_dict()))
                break
    assert "cuts" in json.dumps(state)
    with forebay.Loader(path, state=state) as loader:
        found += [digest(batch) for _ in loader.epochs_left() for batch in loader]
    assert found == whole


def test_a_python_stage_sees_rows_of_a_budget(tmp_path):
    (tmp_path / "stages_of_test.py").write_text("def call(sample, rng):\n    return {'text': sample['text'].upper()}\n")
    stages = '[python]\npath = ["."]\n[[stage]]\nname = "upper"\npython = "stages_of_test:call"\nworkers = 1'
    path, texts = config(tmp_path, stages)
    with forebay.Loader(path) as loader:
        found = {}
        for batch in loader:
            for index, text in zip(batch["index"].tolist(), batch["text"], strict=True):
                found[index] = text if isinstance(text, str) else bytes(numpy.asarray(text)).decode()
    assert found == {index: text.upper() for index, text in enumerate(texts)}


def test_size_beside_a_budget_is_refused(tmp_path):
    path, _ = config(tmp_path, batch="size = 4")
    with pytest.raises(forebay.ConfigError, match=r"budget.toml.*budget"):
        forebay.Loader(path)


def tokens_config(folder, batch="", output=""):
    """Lists of 1 to 60 numbers as JSON lines, with a label for each number and a list of another length."""
    generator = random.Random(7)
    lengths = [1 + min(59, int(generator.lognormvariate(2, 0.8))) for _ in range(300)] + [60]
    rows = [
        {"tokens": list(range(number, number + length)), "labels": [-1] * length, "others": [0] * (length + 1)}
        for number, length in enumerate(lengths)
    ]
    (folder / "lists.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = folder / "lists.toml"
    path.write_text(f"""
[dataset]
format = "manifest"
path = "lists.jsonl"
[dataset.fields]
tokens.from = "tokens"
labels.from = "labels"
others.from = "others"
[order]
epochs = 2
{"pool = 90" if "budget" in batch else ""}
[batch]
{batch}
[[stage]]
name = "copy"
operations = []
[output]
tokens = {{ ragged = true, max_bytes = 480{output} }}
labels = {{ ragged = true, max_bytes = 480 }}
others = {{ ragged = true, max_bytes = 488 }}
""")
    return path, lengths


CUT = 'budget = { tokens = 30 }\nlength = "tokens"\nmultiple_of = 8\nmax_rows = 8\ntoo_long = "truncate"'


def test_rows_above_the_budget_are_cut_with_their_labels(tmp_path):
    path, lengths = tokens_config(tmp_path, CUT)
    assert any(length > 24 for length in lengths)
    with forebay.Loader(path) as loader:
        found = []
        for batch in loader:
            cost = len(batch["index"]) * -(-int(max(batch["tokens"].lengths)) // 8) * 8
            assert cost <= 30
            fields = (batch[name] for name in ("index", "tokens", "labels", "others"))
            for index, tokens, labels, others in zip(*fields, strict=True):
                kept = min(24, lengths[index])
                assert tokens.tolist() == list(range(index, index + kept))
                assert labels.tolist() == [-1] * kept
                # Of another length than the tokens: left as it is.
                assert len(others) == lengths[index] + 1
                found.append(index)
        state = loader.state_dict()
    assert sorted(found) == list(range(len(lengths)))
    # Another budget cuts other rows: its state is refused by name.
    with pytest.raises(forebay.Error, match="cut to 24"):
        forebay.Loader(path, state=state, overrides={"batch.budget": {"tokens": 40}})


def test_a_length_that_cannot_be_cut_is_refused(tmp_path):
    path, _ = config(tmp_path, batch='too_long = "truncate"')
    with pytest.raises(forebay.ConfigError, match=r"`text` counts bytes.*max_length"):
        forebay.Loader(path)


@pytest.mark.parametrize("kind", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("keys", ['size = 7\nlast = "short"\nmultiple_of = 8', CUT])
def test_fields_are_padded_to_the_longest_row_of_their_batch(tmp_path, kind, keys):
    path, lengths = tokens_config(tmp_path, f'{keys}\npad = "batch"', ', pad = -100, dtype = "int32"')
    if keys == CUT:
        lengths = [min(24, length) for length in lengths]
    pytest.importorskip(kind)
    module = forebay if kind == "numpy" else importlib.import_module(f"forebay.{kind}")
    with module.Loader(path) as loader:
        shapes = set()
        for batch in loader:
            indices, rows = batch["index"].tolist(), batch["tokens"]
            assert rows.shape == (len(indices), -(-max(lengths[index] for index in indices) // 8) * 8)
            assert batch["tokens_lengths"].tolist() == [lengths[index] for index in indices]
            assert str(rows.dtype).endswith("int32")
            for index, row in zip(indices, rows.tolist(), strict=True):
                row_length = lengths[index]
                assert row[:row_length] == list(range(index, index + row_length))
                assert set(row[row_length:]) <= {-100}
            assert len(batch["others"].shape) == 2 and batch["others_lengths"].shape == (len(indices),)
            shapes.add(rows.shape[1])
        assert len(shapes) > 1
        # Padded fields are copies: more batches than slots may be kept.
        kept = [batch["tokens"] for batch in loader]
    assert len(kept) == len({id(batch) for batch in kept}) > 8


def sounds_config(folder, batch):
    """Sounds of 0.1 to 2 seconds at two rates."""
    generator = random.Random(3)
    seconds = []
    for number in range(120):
        rate = 8000 if number % 2 else 4000
        frames = int(rate * min(2, 0.1 + generator.lognormvariate(-1, 0.6)))
        with wave.open(str(folder / f"{number:03}.wav"), "wb") as file:
            file.setparams((1, 1, rate, 0, "NONE", ""))
            file.writeframes(bytes([128]) * frames)
        seconds.append(frames / rate)
    settings = config_of(
        {"format": "audio-folder", "path": str(folder), "index": str(folder.parent / "sounds.index")},
        batch={"size": None, "last": None, "max_rows": 16, **batch},
        order={"pool": 60, "epochs": 2},
        output={"audio": {"ragged": True, "max_bytes": "64KiB", "compact": True}},
    )
    return settings, seconds


def take_across_a_kill_and_a_resume(settings):
    """The digests of all batches, where a daemon is killed and the training resumes once."""
    found = []
    with forebay.Loader(settings) as loader:
        for number, batch in enumerate(loader):
            found.append(digest(batch))
            if number == 2:
                os.kill(loader.daemon_pid, signal.SIGKILL)
            if number == 4:
                state = json.loads(json.dumps(loader.state_dict()))
                break
    assert "cuts" in json.dumps(state)
    with forebay.Loader(settings, state=state) as loader:
        return found + [digest(batch) for _ in loader.epochs_left() for batch in loader]


def test_seconds_of_sounds_bound_a_batch(tmp_path):
    sounds = tmp_path / "sounds"
    sounds.mkdir()
    settings, seconds = sounds_config(sounds, {"budget": {"seconds": 4.0}})
    with forebay.Loader(settings) as loader:
        found, shares = [], []
        for batch in loader:
            of_batch = [seconds[index] for index in batch["index"]]
            # Each counts as its milliseconds, rounded up.
            assert len(of_batch) * max(of_batch) <= 4.0
            shares.append(sum(of_batch) / (len(of_batch) * max(of_batch)))
            found += batch["index"].tolist()
    assert sorted(found) == list(range(len(seconds)))
    assert numpy.mean(shares) > 0.8
    assert len(list(tmp_path.glob("sounds.index.lengths-*"))) == 1, "lengths are learned once"
    assert take_across_a_kill_and_a_resume(settings) == digests(settings)
    settings["batch"]["budget"] = {"seconds": 1.5}
    longest = math.ceil(max(seconds) * 1000)
    with pytest.raises(forebay.ConfigError, match=rf"longer than `batch.budget` \(1.5 seconds\).* has {longest} ms"):
        forebay.Loader(settings)


def test_pixels_of_pictures_bound_a_batch_and_mixup_works_with_it(tmp_path):
    image = pytest.importorskip("PIL.Image")
    generator = random.Random(5)
    sides = [(generator.randrange(8, 64), generator.randrange(8, 64)) for _ in range(90)]
    for number, (height, width) in enumerate(sides):
        path = tmp_path / f"pictures/class{number % 3}/p{number:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.fromarray(noise(number, (height, width, 3))).save(path)
    mixed = [{"op": "mixup", "alpha": 0.8}]

    def settings(operations):
        return config_of(
            {"format": "image-folder", "path": str(tmp_path / "pictures")},
            [{"op": "decode-image"}, {"op": "resize", "size": [16, 16]}],
            batch={
                "size": None,
                "last": None,
                "budget": {"pixels": 12_000},
                "max_rows": 12,
                "operations": operations,
            },
            order={"pool": 45, "epochs": 2},
            output={"image": {"dtype": "float32"}},
        )

    with forebay.Loader(settings(mixed)) as loader:
        paths = [loader.paths([index])[0] for index in range(len(sides))]
        areas = [numpy.prod(sides[int(path.stem[1:])]) for path in map(Path, paths)]
        batches = [{name: value.copy() for name, value in batch.items()} for batch in loader]
    for batch in batches:
        of_batch = [areas[index] for index in batch["index"]]
        assert len(of_batch) <= 12 and len(of_batch) * max(of_batch) <= 12_000
    assert sorted(indices(batches)) == list(range(len(sides)))
    assert len({len(batch["index"]) for batch in batches}) > 2
    with forebay.Loader(settings([])) as loader:
        for plain, batch in zip(loader, batches, strict=True):
            assert plain["index"].tolist() == batch["index"].tolist()
            assert plain["label"][::-1].tolist() == batch["label_b"].tolist()
            share = batch["mix"][0]
            summed = plain["image"] * share + plain["image"][::-1] * (1 - share)
            numpy.testing.assert_allclose(batch["image"], summed, atol=1e-6)
    assert take_across_a_kill_and_a_resume(settings(mixed)) == digests(settings(mixed))
