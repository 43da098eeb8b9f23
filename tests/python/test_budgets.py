"""Batches by length from Python: their sizes, padding, number, states, and stages of one's own."""

import json
import os
import random
import signal

import forebay
import numpy
import pytest
from support import digest, digests, indices

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
