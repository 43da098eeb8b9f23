"""The user's own Python on complete batches: what goes in and comes out, the same bytes whatever happens, errors."""

import json
import os
import random
import re
import sys
import textwrap
import time

import forebay
import numpy
import pytest
from support import arrays_of, config_of, digest, digests, run_program, wait_until, workers, write_toml

SAMPLES, SIZE = 26, 4


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """Writes a module and a configuration whose batches of 4 it is called with: arrays, numbers, texts, boxes."""
    monkeypatch.syspath_prepend(tmp_path)
    lines = []
    for sample in range(SAMPLES):
        numpy.save(tmp_path / f"{sample}.npy", numpy.full((2, 3), sample, numpy.float32))
        numpy.save(tmp_path / f"b{sample}.npy", numpy.full((sample % 3, 4), sample, numpy.int32))
        line = {"array": f"{sample}.npy", "boxes": f"b{sample}.npy", "caption": "ä" * (sample % 5), "label": sample}
        lines.append(json.dumps(line))
    (tmp_path / "data.jsonl").write_text("\n".join(lines))
    counter = iter(range(100))

    def make(source, function="collate", before=(), after=(), output=None, **keys):
        module = f"batches{next(counter)}_{os.getpid()}"
        (tmp_path / f"{module}.py").write_text(textwrap.dedent(source))
        called = {"op": "python", "call": f"{module}:{function}", **keys}
        operations = [*before, called, *after]
        ragged = {"ragged": True, "max_bytes": 64}
        return config_of(
            {"format": "manifest", "path": str(tmp_path / "data.jsonl")},
            order={"seed": 5, "epochs": 2},
            batch={"size": SIZE, "operations": operations},
            output={"boxes": ragged, "caption": ragged, **(output or {})},
        )

    return make


def batches(config):
    with forebay.Loader(config, timeout=120) as loader:
        return [arrays_of(batch) for _ in loader.epochs_left() for batch in loader]


def until_failure(config, reason):
    """The labels that come before the error with this reason; there is no shuffle."""
    config["order"]["shuffle"] = False
    taken = []
    with forebay.Loader(config, timeout=120) as loader, pytest.raises(forebay.StageError, match=reason):
        for batch in loader:
            taken.extend(batch["label"].tolist())
    return taken


EVERY_KIND = """
    import numpy as np

    def collate(batch, rng, scale):
        assert batch["array"].dtype == np.float32 and batch["array"].shape[1:] == (2, 3)
        assert all(type(text) is str for text in batch["caption"])
        assert all(boxes.shape[1:] == (4,) and boxes.dtype == np.int32 for boxes in batch["boxes"])
        batch["array"][0] *= -1                                # writable, and its own
        ids = [int(array.flat[0]) for array in np.abs(batch["array"])]
        assert [len(text) for text in batch["caption"]] == [id % 5 for id in ids]
        assert [len(boxes) for boxes in batch["boxes"]] == [id % 3 for id in ids]
        return {
            "array": batch["array"],                           # as it was
            "label": batch["label"].astype(np.int16) * scale,  # smaller than it was
            "caption": [text + "!" for text in batch["caption"]],
            "boxes": [boxes[:1] for boxes in batch["boxes"]],
            "count": [len(boxes) for boxes in batch["boxes"]], # new
            "parts": [np.arange(id % 4, dtype=np.uint8) for id in ids],
            "drawn": rng.random(len(ids)),
        }
    """


def test_arrays_texts_and_lists_go_in_and_come_out(recipe):
    config = recipe(EVERY_KIND, arguments={"scale": 2}, output={"parts": {"ragged": True, "max_bytes": 16}})
    found = batches(config)
    assert len(found) == 14 and {len(batch["label"]) for batch in found} == {2, 4}
    for batch in found:
        ids = batch["index"]
        assert set(batch) == {"array", "label", "caption", "boxes", "count", "parts", "drawn", "index"}
        sign = numpy.where(numpy.arange(len(ids)) == 0, -1, 1)
        assert (batch["array"] == (sign * ids)[:, None, None]).all() and batch["array"].shape[1:] == (2, 3)
        assert batch["label"].dtype == numpy.int16 and (batch["label"] == 2 * ids).all()
        assert [bytes(text).decode() for text in batch["caption"]] == ["ä" * (id % 5) + "!" for id in ids]
        assert [box.tolist() for box in batch["boxes"]] == [[[id] * 4] * min(id % 3, 1) for id in ids]
        assert batch["count"].tolist() == [id % 3 for id in ids]
        assert [part.tolist() for part in batch["parts"]] == [list(range(id % 4)) for id in ids]
    assert len({batch["drawn"].tobytes() for batch in found}) == 14


def test_what_is_left_out_is_dropped_and_other_operations_stand_before_and_after(recipe):
    source = """
        def collate(batch, rng):
            assert set(batch) == {"array", "boxes", "caption", "label"} or set(batch) == {"image", "label"}, set(batch)
            image = batch["array"] if "array" in batch else batch["image"]
            image = image.reshape(len(image), 2, 3, 1)
            return {"image": image + 1, "label": batch["label"]}
        """
    # Mixed with itself in the other order: the sum of a pair stays, and labels of pairs are exchanged.
    config = recipe(source, after=[{"op": "mixup", "alpha": 0.5}])
    called = config["batch"]["operations"][0]
    config["batch"]["operations"] = [called, {**called}, {"op": "mixup", "alpha": 0.5}]
    for batch in batches(config):
        assert set(batch) == {"image", "label", "label_b", "mix", "index"}
        assert batch["image"].shape[1:] == (2, 3, 1)
        assert (batch["label"] == batch["index"]).all() and (batch["label_b"] == batch["label"][::-1]).all()
        own = batch["index"] + 2.0
        mixed = batch["mix"] * own + (1 - batch["mix"]) * own[::-1]
        assert numpy.allclose(batch["image"][:, 0, 0, 0], mixed, atol=1e-4)


DRAWING = """
    import os, pathlib, random, time
    import numpy as np
    NOTE = pathlib.Path(__file__).with_suffix(".pids")

    def collate(batch, rng):
        with NOTE.open("a") as file:
            file.write(f"{os.getpid()}\\n")
        time.sleep(0.02)
        noise = [[rng.random(), random.random(), np.random.random()] for _ in batch["label"]]
        order = rng.permutation(len(noise))
        return {"array": batch["array"][order], "label": batch["label"][order], "noise": np.array(noise)}
    """


def test_batches_are_the_same_for_every_number_of_workers_and_after_a_resume(recipe, tmp_path):
    config = recipe(DRAWING)
    called = config["batch"]["operations"][0]
    found = []
    note = tmp_path / f"{called['call'].partition(':')[0]}.pids"
    for count in (1, 2, 7):
        called["workers"] = count
        note.unlink(missing_ok=True)
        found.append(digests(config))
        used = set(note.read_text().split())
        assert (len(used) > 1) == (count > 1), f"{count} workers, and {len(used)} were called"
    assert len(set(found[0])) == 14 and found[0] == found[1] == found[2]
    with forebay.Loader(config, timeout=120) as loader:
        taken = [digest(batch) for _, batch in zip(range(3), loader)]
        state = loader.state_dict()
    assert state["python"][called["call"]], "the digest of the function's file"
    assert taken + digests(config, state=state) == found[0]


def test_seeks_while_batches_are_made_give_those_of_the_new_place(recipe):
    config = recipe(DRAWING, workers=3)
    each = len(range(0, SAMPLES, SIZE))
    states, expected, dice = [], [], random.Random(3)
    with forebay.Loader(config, timeout=120) as loader:
        for _ in loader.epochs_left():
            iterator = iter(loader)
            for _ in range(each):
                states.append(loader.state_dict())
                expected.append(digest(next(iterator)))
            assert next(iterator, None) is None
    with forebay.Loader(config, timeout=120) as loader:
        for _ in range(30):
            place = dice.randrange(2) * each + dice.randrange(each - 2)
            loader.load_state_dict(states[place])
            # Batches behind these are at workers, or finished, when the next seek comes.
            taken = [digest(batch) for _, batch in zip(range(2), loader)]
            assert taken == expected[place : place + 2], place
            time.sleep(dice.uniform(0, 0.03))


def test_workers_that_are_killed_in_the_first_call_are_replaced(recipe, tmp_path):
    deaths = tmp_path / "deaths"
    source = f"""
        import os, pathlib

        deaths = pathlib.Path({str(deaths)!r})

        def collate(batch, rng):
            count = len(deaths.read_text()) if deaths.exists() else 0
            if count < 5:
                deaths.write_text("x" * (count + 1))
                os.kill(os.getpid(), 9)
            return {{"label": batch["label"]}}
        """
    with forebay.Loader(recipe(source), timeout=500) as loader:
        assert len(list(loader)) == len(range(0, SAMPLES, SIZE))
    assert len(deaths.read_text()) == 5


def test_an_exception_ends_the_stream_with_the_functions_traceback(recipe):
    source = """
        def collate(batch, rng):
            print("batch of", len(batch["label"]))
            if 17 in batch["label"]:
                raise ValueError("seventeen is not wanted")
            return {"label": batch["label"]}
        """
    config = recipe(source)
    with forebay.Loader(config, timeout=120) as loader, pytest.raises(forebay.StageError) as raised:
        list(loader)
    message = str(raised.value)
    call = config["batch"]["operations"][0]["call"]
    assert re.search(rf"`batch.operations\[0\]: {call}` failed on batch \d of this session in epoch 0, seed 5", message)
    assert message.rstrip().endswith("ValueError: seventeen is not wanted"), message
    assert "in collate" in message and "forebay/_" not in message


@pytest.mark.parametrize(
    ("returned", "reason"),
    [
        ("[1]", "the function returned list; return a dict"),
        ("{}", "it returns no field"),
        ('{"label": 3}', "`label` is a int; return an array with a row for each sample"),
        ('{"label": batch["label"][:1]}', "`label` has 1 rows, and the batch 4"),
        ('{"parts": batch["boxes"]}', "say how long it may be with `[output] parts = { ragged = true"),
        ('{"index": batch["label"]}', "`index` and `valid` are made by Forebay"),
        ('{"label": batch["label"].astype("c8")}', "`label` has the type complex64, which a batch cannot hold"),
    ],
)
def test_what_no_batch_can_hold_is_refused_at_the_start(recipe, returned, reason):
    config = recipe(f"def collate(batch, rng):\n    return {returned}")
    with pytest.raises(forebay.ConfigError) as raised:
        forebay.Loader(config, timeout=120)
    assert "`batch.operations[0]`" in str(raised.value) and reason in str(raised.value), raised.value


def test_a_result_of_another_shape_than_the_first_is_an_error(recipe):
    source = """
        def collate(batch, rng):
            wide = 9 in batch["label"]
            return {"label": batch["label"], "array": batch["array"][:, :, : 2 if wide else 3]}
        """
    config = recipe(source)
    config["order"]["shuffle"] = False
    with forebay.Loader(config, timeout=120) as loader, pytest.raises(forebay.StageError) as raised:
        list(loader)
    assert "`array` is float32 [4, 2, 2], and float32 [2, 3] a row for the first batch" in str(raised.value)
    assert "`[output] array = { ragged = true" in str(raised.value) and ".padded(0)`" in str(raised.value)


def test_rows_that_differ_in_length_are_returned_as_a_list_and_padded_by_the_loop(recipe):
    source = """
        import numpy as np

        def collate(batch, rng):
            tokens = [np.arange(label % 5, dtype=np.int32) for label in batch["label"]]
            return {"label": batch["label"], "tokens": tokens}
        """
    config = recipe(source)
    config["order"]["shuffle"] = False
    config["output"]["tokens"] = {"ragged": True, "max_bytes": 16}
    with forebay.Loader(config, timeout=120) as loader:
        for batch in loader:
            lengths = [label % 5 for label in batch["label"].tolist()]
            tokens = batch["tokens"].padded(-1, multiple_of=4)
            assert tokens.shape == (len(lengths), 4 if any(lengths) else 0)
            assert batch["tokens"].mask(multiple_of=4).sum(1).tolist() == lengths


def test_a_function_that_ends_or_hangs_each_worker_ends_the_stream_and_nothing_is_left(recipe):
    for fault, reason in [
        ("os.kill(os.getpid(), signal.SIGSEGV)", r"the batch crashes the worker \(signal 11\)"),
        ("time.sleep(1000)", r"ran for more than 500ms, the `timeout` of `batch\.operations\[0\]`, in each of 2"),
    ]:
        source = f"""
            import os, signal, time

            def collate(batch, rng):
                if 9 in batch["label"]:
                    {fault}
                return {{"label": batch["label"]}}
            """
        taken = until_failure(recipe(source, timeout="500ms", workers=2), reason)
        assert taken == list(range(8)), "what comes before is delivered"
        wait_until(lambda: not workers(), "workers are left behind")


def test_check_counts_the_workers_and_a_choice_refuses_a_function(recipe, tmp_path):
    config = recipe("def collate(batch, rng):\n    return batch", workers=20, memory="100MiB")
    config |= {"ring": {"slots": 3}, "python": {"interpreter": sys.executable}}
    path = tmp_path / "train.toml"
    checked = run_program("check", "--json", write_toml(path, config))
    assert checked.returncode == 0, checked.stderr
    # No more than there are slots.
    assert json.loads(checked.stdout)["streams"][0]["memory_of_workers_bytes"] == 3 * 100 << 20
    config["batch"]["operations"] = [{"op": "choice", "operations": config["batch"]["operations"]}]
    refused = run_program("check", "--json", write_toml(path, config))
    assert "`batch.operations[0].operations[0]`: a function cannot be one of a choice" in refused.stderr, refused


@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        ('parts["caption\\x1flengths"] = np.full(4, 1 << 61)', "the worker's answer is none"),
        ('parts["caption\\x1flengths"] = np.full(4, -1)', "the worker's answer is none"),
        ('parts["caption\\x1flengths"] = np.zeros(3, np.int64)', r"`caption` is int64 \[3\]"),
        ('parts["caption\\x1ftext"] = np.zeros((9, 9), np.uint8)', r"`caption` is uint8 \[9, 9\]"),
        ('parts["caption\\x1ftext"] = b"no array"', "`caption` is no array"),
        ('parts["label"] = parts["label"][:3]', r"`label` is int64 \[3\]"),
        (
            'parts["caption\\x1ftext"] = np.zeros(400, np.uint8); parts["caption\\x1flengths"] = np.full(4, 100)',
            "`caption` has 100 bytes, more than its `max_bytes`; raise output.caption.max_bytes to 100 or more",
        ),
    ],
)
def test_a_worker_that_lies_harms_its_own_batch_alone(recipe, lie, reason):
    source = f"""
        import numpy as np
        import forebay._batch as sent
        parts_of, is_lying = sent._parts, False

        def parts_or_lie(result, rows):
            parts = parts_of(result, rows)
            if is_lying:
                {lie}
            return parts
        sent._parts = parts_or_lie

        def collate(batch, rng):
            global is_lying
            is_lying = 9 in batch["label"]
            return {{"label": batch["label"], "caption": batch["caption"]}}
        """
    assert until_failure(recipe(source), reason) == list(range(8))
