"""What the user's function returns is what a batch holds: whatever its memory, its byte order and its type."""

import json
import os
import textwrap

import forebay
import numpy
import pytest

ROWS = 64


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """Writes a module; the configuration of one function over 64 rows of numbers, 16 a batch."""
    lines = []
    for row in range(ROWS):
        numpy.save(tmp_path / f"{row}.npy", numpy.arange(row * 8, row * 8 + 8, dtype=numpy.float32))
        lines.append(json.dumps({"x": f"{row}.npy"}))
    (tmp_path / "data.jsonl").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    counter = iter(range(100))

    def make(source, is_batch=False, more="", **keys):
        module = f"results{next(counter)}_{os.getpid()}"
        (tmp_path / f"{module}.py").write_text(textwrap.dedent(source))
        text = f'[dataset]\nformat = "manifest"\npath = "{tmp_path}/data.jsonl"\n'
        text += "[order]\nshuffle = false\nseed = 3\nepochs = 1\n[batch]\nsize = 16\n"
        if is_batch:
            text += f'[[batch.operations]]\nop = "python"\ncall = "{module}:function"\n'
            more += '[[stage]]\nname = "copy"\noperations = []\n'
        else:
            text += f'[[stage]]\nname = "function"\npython = "{module}:function"\n'
        text += "".join(f"{key} = {value}\n" for key, value in keys.items()) + more
        path = tmp_path / f"{module}.toml"
        path.write_text(text)
        return path

    return make


def batches(config, **keywords):
    """Copies of all batches."""
    with forebay.Loader(config, timeout=120, **keywords) as loader:
        return [
            {name: value.copy() for name, value in batch.items() if name not in ("index", "valid")}
            for _ in loader.epochs_left()
            for batch in loader
        ]


def column(config, name):
    return numpy.concatenate([batch[name] for batch in batches(config)])


EXPECTED = numpy.arange(ROWS * 8, dtype=numpy.float32).reshape(ROWS, 8) * 2

REUSED = {
    "an array": "np.multiply(x, 2, out=self.buffer); return {'y': self.buffer}",
    "a view": "self.wide[::2] = x * 2; return {'y': self.wide[::2]}",
    "a base of a new array": "np.multiply(x, 2, out=self.buffer); return {'y': self.buffer.reshape(-1)}",
    "a dict": "np.multiply(x, 2, out=self.kept['y']); return self.kept",
    "a tensor": "self.tensor.copy_(torch.from_numpy(x)).mul_(2); return {'y': self.tensor}",
    "a tensor's array": "np.multiply(x, 2, out=self.buffer); return {'y': torch.from_numpy(self.buffer)}",
    "foreign memory": "self.raw[:] = (x * 2).tobytes(); return {'y': np.frombuffer(self.raw, np.float32)}",
    "a byte array": "self.raw[:] = (x * 2).tobytes(); return {'y': self.raw}",
}


@pytest.mark.parametrize("what", REUSED)
def test_a_buffer_that_a_function_uses_again_holds_each_row(recipe, what):
    torch = pytest.importorskip("torch") if "tensor" in what else None
    source = f"""
        import numpy as np
        {"import torch" if torch else ""}

        class function:
            def __init__(self):
                self.buffer = np.zeros(8, np.float32)
                self.wide = np.zeros(16, np.float32)
                self.kept = {{"y": np.zeros(8, np.float32)}}
                self.raw = bytearray(32)
                {"self.tensor = torch.zeros(8)" if torch else ""}

            def __call__(self, sample, rng):
                x = sample["x"]
                {REUSED[what]}
        """
    more = '[output]\ny = { ragged = true, max_bytes = "1KiB" }\n' if what == "a byte array" else ""
    for workers in (1, 3):
        found = batches(recipe(source, workers=workers, more=more))
        rows = [row for batch in found for row in batch["y"]]
        assert numpy.array_equal(numpy.stack([numpy.ravel(row).view(numpy.float32) for row in rows]), EXPECTED)


def test_large_results_of_a_reused_buffer_and_of_any_layout_are_each_rows(recipe):
    # From the size on at which results are copied into mapped memory, and around it.
    source = """
        import numpy as np

        class function:
            def __init__(self):
                self.large = np.zeros((300, 301), np.float32)
                self.edge = np.zeros(262144, np.uint8)
                self.under = np.zeros(262143, np.uint8)

            def __call__(self, sample, rng):
                first = sample["x"][0]
                self.large[:] = np.arange(300 * 301).reshape(300, 301) + first
                self.edge[:] = self.under[:] = int(first) // 8
                return {"large": self.large.T, "edge": self.edge, "under": self.under, "empty": np.zeros((0, 3))}
        """
    rows = 0
    for batch in batches(recipe(source, workers=2)):
        for row in range(16):
            expected = numpy.arange(300 * 301).reshape(300, 301).T + rows * 8
            assert numpy.array_equal(batch["large"][row], expected)
            assert (batch["edge"][row] == rows).all() and (batch["under"][row] == rows).all()
            rows += 1
        assert batch["empty"].shape == (16, 0, 3)
    assert rows == ROWS


def test_a_buffer_that_a_function_on_batches_uses_again_holds_each_batch(recipe):
    source = """
        import numpy as np

        class function:
            def __init__(self):
                self.buffer = np.zeros((16, 8), np.float32)
                self.rows = [np.zeros(8, np.float32) for _ in range(16)]

            def __call__(self, batch, rng):
                np.multiply(batch["x"], 2, out=self.buffer[: len(batch["x"])])
                for row, x in zip(self.rows, batch["x"]):
                    row[:] = x * 2
                return {"y": self.buffer[:len(batch["x"])], "rows": self.rows[:len(batch["x"])]}
        """
    path = recipe(source, is_batch=True, more='[output]\nrows = { ragged = true, max_bytes = "1KiB" }\n', workers=2)
    found = batches(path)
    assert numpy.array_equal(numpy.concatenate([batch["y"] for batch in found]), EXPECTED)
    assert numpy.array_equal(numpy.stack([row for batch in found for row in batch["rows"]]), EXPECTED)


@pytest.mark.parametrize("is_batch", [False, True], ids=["rows", "batches"])
def test_results_of_another_byte_order_keep_their_values(recipe, is_batch):
    source = """
        import numpy as np

        def function(sample, rng):
            x = sample["x"]
            kinds = ("f2", "f4", "f8", "i2", "i4", "i8", "u2", "u4", "u8")
            found = {kind: (x % 100).astype(">" + kind) for kind in kinds}
            found["view"] = (x % 100).astype(">f4")[..., ::2]
            found["large"] = np.broadcast_to(x[..., :1], (*x.shape[:-1], 70000)).astype(">i4")
            """ + (
        """
            found["list"] = list(x.astype(">f4"))
            return found
        """
        if is_batch
        else """
            found["number"] = np.array(x[1], ">f4")
            return found
        """
    )
    more = '[output]\nlist = { ragged = true, max_bytes = "1KiB" }\n' if is_batch else ""
    found = batches(recipe(source, is_batch=is_batch, more=more, workers=2))
    joined = {name: numpy.concatenate([batch[name] for batch in found]) for name in found[0] if name != "list"}
    expected = EXPECTED / 2
    for kind in ("f2", "f4", "f8", "i2", "i4", "i8", "u2", "u4", "u8"):
        assert joined[kind].dtype == numpy.dtype(kind)
        assert numpy.array_equal(joined[kind], (expected % 100).astype(kind)), kind
    assert numpy.array_equal(joined["view"], (expected % 100)[:, ::2])
    assert numpy.array_equal(joined["large"][:, -1], expected[:, 0]) and joined["large"].dtype == numpy.int32
    if is_batch:
        assert numpy.array_equal(numpy.stack([row for batch in found for row in batch["list"]]), expected)
    else:
        assert numpy.array_equal(joined["number"], expected[:, 1]) and joined["number"].dtype == numpy.float32


NUMBERS = """
    import numpy as np

    def function(sample, rng):
        x = sample["x"][1]
        return {
            "f2": np.float16(1.5), "f4": np.float32(x), "f8": np.float64(x), "python_float": float(x),
            "i1": np.int8(-3), "u2": np.uint16(60000), "i4": np.int32(x), "i8": np.int64(x), "python_int": int(x),
            "u8": np.uint64(1 << 63), "bool": x > 100, "python_bool": bool(x > 100), "array": np.array(x),
        }
    """
TYPES = {
    "f2": "f2", "f4": "f4", "f8": "f8", "python_float": "f8", "i1": "i1", "u2": "u2", "i4": "i4", "i8": "i8",
    "python_int": "i8", "u8": "u8", "bool": "?", "python_bool": "?", "array": "f4",
}  # fmt: skip


def test_numbers_that_a_function_returns_keep_their_type(recipe):
    found = batches(recipe(NUMBERS))
    joined = {name: numpy.concatenate([batch[name] for batch in found]) for name in found[0]}
    assert {name: value.dtype for name, value in joined.items()} == {
        name: numpy.dtype(kind) for name, kind in TYPES.items()
    }
    expected = EXPECTED[:, 1] / 2
    for name in ("f4", "f8", "python_float", "i4", "i8", "python_int", "array"):
        assert numpy.array_equal(joined[name], expected), name
    assert numpy.array_equal(joined["bool"], expected > 100)
    assert numpy.array_equal(joined["python_bool"], expected > 100)
    assert set(joined["u8"]) == {1 << 63} and set(joined["u2"]) == {60000} and set(joined["i1"]) == {-3}


def test_numbers_keep_their_type_through_a_second_function(recipe):
    source = NUMBERS + "\n    def passes(sample, rng):\n        return sample\n"
    path = recipe(source)
    module = path.stem
    path.write_text(path.read_text() + f'[[stage]]\nname = "passes"\npython = "{module}:passes"\n')
    assert {name: value.dtype for name, value in batches(path)[0].items()} == {
        name: numpy.dtype(kind) for name, kind in TYPES.items()
    }


def test_numbers_of_several_types_for_one_field_are_taken_as_the_first_ones(recipe):
    source = """
        import numpy as np

        def function(sample, rng):
            row = int(sample["x"][0]) // 8
            is_late = row > 30
            return {
                "f4": 0.5 if is_late else np.float32(row), "i2": row if is_late else np.int16(row),
                "int": np.uint8(row) if is_late else row, "float": np.float32(row) if is_late else float(row),
                "mixed": float(row) if row == 1 else row if is_late else np.float32(row),
            }
        """
    found = batches(recipe(source))
    joined = {name: numpy.concatenate([batch[name] for batch in found]) for name in found[0]}
    kinds = {name: value.dtype.str[1:] for name, value in joined.items()}
    assert kinds == {"f4": "f4", "i2": "i2", "int": "i8", "float": "f8", "mixed": "f8"}
    rows = numpy.arange(ROWS)
    assert numpy.array_equal(joined["f4"], numpy.where(rows > 30, 0.5, rows))
    for name in ("i2", "int", "float", "mixed"):
        assert numpy.array_equal(joined[name], rows), name


def test_a_number_that_a_fields_type_cannot_hold_names_the_field(recipe):
    source = """
        import numpy as np

        def function(sample, rng):
            row = int(sample["x"][0]) // 8
            return {"small": 300 if row > 30 else np.uint8(row)}
        """
    with pytest.raises(
        forebay.StageError, match=r"`small` is the whole number 300, and uint8 \[\] for the first samples"
    ):
        batches(recipe(source))


def test_a_state_of_before_numbers_kept_their_types_is_refused_with_the_reason(recipe):
    config = recipe("def function(sample, rng):\n    return {'y': sample['x'].sum()}\n")
    with forebay.Loader(config, timeout=120) as loader:
        next(iter(loader))
        state = loader.state_dict()
        assert state["stream_version"] == 2
        with pytest.raises(forebay.StateMismatch, match=r"saved 1, present 2.*keep their types"):
            loader.load_state_dict({**state, "stream_version": 1})
        loader.load_state_dict(state)
