"""Tables of Hugging Face's and Arrow's own writers (daemon/crates/formats/fixtures), through the program."""

import importlib.util
import json
import random
from pathlib import Path

import forebay
import numpy
import pytest
from support import FIXTURES, config_of, printed_by, programs_of, rows_of, run_program, write_toml


def config(path, tmp_path, fields, operations=(), **keys):
    dataset = {"path": str(FIXTURES / path), "index": str(tmp_path / "index"), "fields": fields}
    return config_of(dataset, operations, batch={"size": 3}, **keys)


def test_numbers_of_columns_keep_their_types(tmp_path):
    fields = {name: {"from": name} for name in ("label", "score", "half", "is_good")}
    with forebay.Loader(config("hugging-face", tmp_path, fields)) as loader:
        batch = next(iter(loader))
        assert [str(batch[name].dtype) for name in fields] == ["int64", "float32", "float16", "bool"]
        assert loader.state_dict()["stream_version"] == 2
        assert list(loader.classes) == ["cat", "dog", "eel"]
    with forebay.Loader(config("hugging-face", tmp_path, {"label": {"from": "label"}})) as loader:
        assert loader.state_dict()["stream_version"] == 1, "what did not change resumes"


def test_pictures_are_decoded_and_a_row_without_a_value_is_named(tmp_path):
    operations = [{"op": "decode-image"}, {"op": "resize", "size": [16, 24]}]
    with forebay.Loader(config("hugging-face-pictures", tmp_path, {"image": {"from": "image"}}, operations)) as loader:
        shapes = [tuple(batch["image"].shape[1:]) for batch in loader]
    assert set(shapes) == {(3, 16, 24)}
    settings = config("hugging-face", tmp_path / "other", {"caption": {"from": "caption"}})
    with (
        pytest.raises(forebay.BadSample, match=r"00001-of-00002\.arrow:0: it has no caption"),
        forebay.Loader(settings) as loader,
    ):
        list(loader)


def test_pictures_in_compressed_pages_are_those_of_other_files_and_a_cache_keeps_them(tmp_path):
    fields, operations = {"image": {"from": "image"}}, [{"op": "decode-image"}, {"op": "resize", "size": [16, 24]}]

    def settings(path, **keys):
        return config(path, tmp_path / Path(path).name, fields, operations, **keys)

    def pictures(path, **keys):
        with forebay.Loader(settings(path, **keys)) as loader:
            return sorted(row.tobytes() for batch in loader for row in batch["image"])

    expected = pictures("hugging-face-pictures")
    assert len(set(expected)) == 12 and pictures("tables/pictures.parquet") == expected
    cache = {"path": str(tmp_path / "cache"), "keep_free": 0}
    path = write_toml(tmp_path / "pictures.toml", settings("tables/pictures.parquet", cache=cache))
    for command in ("fill", "verify"):
        done = run_program("cache", path, command)
        assert done.returncode == 0 and "12" in done.stdout, done
    assert pictures("tables/pictures.parquet", cache=cache) == expected


def test_the_programs_of_the_migration_page_give_the_same_samples():
    programs = programs_of("from-huggingface.md")
    assert len(programs) == 2
    for program in programs:
        if "import datasets" in program and not all(map(importlib.util.find_spec, ("datasets", "torchvision"))):
            print("skipped: the program over datasets, which is not installed")
            continue
        printed = printed_by(program, folder=str(FIXTURES / "hugging-face-pictures"))
        assert sorted(printed) == sorted(f"{number % 3} picture {number}" for number in range(12))


def test_lists_of_numbers_are_arrays_and_messages_are_json(tmp_path):
    fields = {name: {"from": name, "missing": "skip"} for name in ("ids", "boxes")}
    output = {name: {"ragged": True} for name in fields}
    for name in ("lists-1.0.parquet", "lists-2.0.parquet", "lists.arrow"):
        with forebay.Loader(config(f"tables/{name}", tmp_path / name, fields, output=output)) as loader:
            rows = rows_of(loader)
        ids = {i: [i * 1000 + k for k in range(i * 3 % 11)] for i in range(20) if i not in (4, 5)}
        assert sorted(row["ids"].tolist() for row in rows.values()) == sorted(ids.values()), name
        boxes = [[[i, i + 0.5, k, -k] for k in range(i % 3)] for i in range(20) if i not in (4, 5)]
        assert sorted(row["boxes"].tolist() for row in rows.values()) == sorted(boxes), name
        assert {(str(row["ids"].dtype), str(row["boxes"].dtype)) for row in rows.values()} == {("int32", "float32")}
    fields = {"chat": {"from": "messages", "as": "text", "missing": "empty"}}
    for name in ("told-1.0.parquet", "told-2.0.parquet", "told.arrow"):
        with forebay.Loader(config(f"tables/{name}", tmp_path / name, fields)) as loader:
            chats = [text for batch in loader for text in batch["chat"].strings()]
        assert sorted(chats)[0] == "" and len(chats) == 20, "a null list is an empty text"
        chats = [json.loads(text) for text in chats if text]
        assert [len(chat) for chat in sorted(chats, key=len)] == [0] * 4 + [1] * 3 + [2] * 4 + [3] * 4 + [4] * 4
        told = [message for chat in chats for message in chat if message]
        assert {tuple(message) for message in told} == {("role", "content", "calls")}
        assert {message["role"] for message in told} == {"user", "assistant"}
        assert any(message["content"] is None for message in told) and any(None in chat for chat in chats)


class RandomTable:
    """A table of lists and structs with nulls and empty lists, of types that chance chooses."""

    NUMBERS = (
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "float16",
        "float32",
        "float64",
    )

    def __init__(self, pyarrow, seed):
        self.arrow, self.seed, self.chance = pyarrow, seed, random.Random(seed)
        self.few = self.chance.random() < 0.5
        count = self.chance.choice([40, 300])
        types = [self.list_of_numbers() for _ in range(3)]
        types += [pyarrow.struct([("x", self.nested(3))]), pyarrow.list_(pyarrow.struct([("y", self.nested(2))]))]
        columns = {"row": list(range(count))}
        kinds = {f"c{place}": kind for place, kind in enumerate(types)}
        for name, kind in kinds.items():
            columns[name] = [None if self.chance.random() < 0.1 else self.value(kind, False) for _ in range(count)]
        self.table = pyarrow.table(columns, pyarrow.schema({"row": pyarrow.int64(), **kinds}))
        self.rows = self.table.to_pylist()

    def number(self):
        return self.arrow.from_numpy_dtype(numpy.dtype(self.chance.choice(self.NUMBERS)))

    def list_of_numbers(self):
        arrow, number = self.arrow, self.arrow.field("item", self.number(), nullable=self.chance.random() < 0.5)
        outer = self.chance.choice([arrow.list_, arrow.large_list])
        return self.chance.choice([outer(number), outer(arrow.list_(number, 4))])

    def nested(self, depth):
        choice = self.chance.random()
        if depth == 0 or choice < 0.3:
            plain = (
                self.arrow.string(),
                self.arrow.large_string(),
                self.arrow.bool_(),
                self.arrow.null(),
                self.number(),
            )
            return self.chance.choice(plain)
        inner = [self.nested(depth - 1) for _ in range(self.chance.randint(1, 3))]
        has_nulls = [self.arrow.types.is_null(kind) or self.chance.random() < 0.7 for kind in inner]
        parts = [self.arrow.field(f"f{i}", kind, nullable=null) for i, (kind, null) in enumerate(zip(inner, has_nulls))]
        if choice < 0.6:
            return self.arrow.struct(parts)
        return self.arrow.list_(parts[0]) if choice < 0.85 else self.arrow.list_(parts[0], 2)

    def value(self, kind, may_be_null=True):
        types, chance = self.arrow.types, self.chance
        if types.is_null(kind) or (may_be_null and chance.random() < 0.15):
            return None
        if types.is_struct(kind):
            return {field.name: self.value(field.type, field.nullable) for field in kind}
        if types.is_fixed_size_list(kind) or types.is_list(kind) or types.is_large_list(kind):
            length = kind.list_size if types.is_fixed_size_list(kind) else chance.choice([0, 1, 2, 9])
            nulls = kind.value_field.nullable and not self.is_of_numbers(kind)
            return [self.value(kind.value_type, nulls) for _ in range(length)]
        if types.is_boolean(kind):
            return chance.random() < 0.5
        if types.is_string(kind) or types.is_large_string(kind):
            return "".join(chance.choice('ab"\\\n\x01é😀') for _ in range(chance.randint(0, 6)))
        dtype = numpy.dtype(kind.to_pandas_dtype())
        if dtype.kind == "f":
            return float(dtype.type(chance.choice([0.1, -2.5, 0]) if self.few else chance.uniform(-1e4, 1e4)))
        limits = numpy.iinfo(dtype)
        return chance.choice([int(limits.min), 0, 7]) if self.few else chance.randint(limits.min, limits.max)

    def is_of_numbers(self, kind):
        types = self.arrow.types
        while types.is_fixed_size_list(kind) or types.is_list(kind) or types.is_large_list(kind):
            kind = kind.value_type
        return types.is_integer(kind) or types.is_floating(kind)

    def write(self, parquet, path):
        chance, terms = self.chance, {}
        # Twelve seeds have each codec and each kind of encoding, in pages of both versions.
        terms["compression"] = ("none", "snappy", "gzip", "zstd", "lz4", "brotli")[self.seed % 6]
        terms["data_page_version"] = ("1.0", "2.0")[self.seed // 6 % 2]
        terms["data_page_size"] = chance.choice([16, 300, 1 << 20])
        terms["write_batch_size"] = chance.choice([1, 3, 1024])
        terms["row_group_size"] = chance.choice([7, 100, 1000])
        kind = ("plain", "dictionary", "differences", "streams")[self.seed % 4]
        terms["use_compliant_nested_type"] = kind in ("differences", "streams") or chance.random() < 0.5
        encodings = {
            "differences": {"INT32": "DELTA_BINARY_PACKED", "INT64": "DELTA_BINARY_PACKED"}
            | {"BYTE_ARRAY": chance.choice(["DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"])},
            "streams": dict.fromkeys(("INT32", "INT64", "FLOAT", "DOUBLE"), "BYTE_STREAM_SPLIT"),
        }.get(kind, {})
        # Encodings are chosen by the type of a stored column.
        parquet.write_table(self.table.slice(0, 1), path)
        leaves = list(parquet.ParquetFile(path).schema)
        chosen = {leaf.path: encodings[leaf.physical_type] for leaf in leaves if leaf.physical_type in encodings}
        if chosen:
            terms["column_encoding"] = chosen
        parquet.write_table(self.table, path, use_dictionary=kind == "dictionary", **terms)
        return terms | {"kind": kind}


def is_same(written, read):
    """Whether JSON has a written value. Floats have the fewest digits of their width."""
    if isinstance(written, dict):
        return list(written) == list(read) and all(is_same(written[name], read[name]) for name in written)
    if isinstance(written, list):
        return len(written) == len(read) and all(map(is_same, written, read))
    if isinstance(written, float):
        widths = (numpy.float16, numpy.float32, numpy.float64)
        return any(float(width(read)) == written for width in widths if abs(read) < 6e4 or width is not numpy.float16)
    return type(written) is type(read) and written == read


@pytest.mark.parametrize("seed", range(12))
def test_random_nested_tables_are_what_pyarrow_reads(seed, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    made = RandomTable(pyarrow, seed)
    path = tmp_path / "made.parquet"
    terms = made.write(parquet, path)
    assert parquet.read_table(path).to_pylist() == made.rows
    with pyarrow.ipc.new_stream(tmp_path / "made.arrow", made.table.schema) as writer:
        writer.write_table(made.table, max_chunksize=50)
    arrays = [name for name in made.table.column_names[1:] if made.is_of_numbers(made.table.schema.field(name).type)]
    fields = {name: {"from": name, "missing": "skip"} for name in made.table.column_names}
    output = {name: {"ragged": True} for name in arrays}
    expected = {row["row"]: row for row in made.rows if None not in row.values()}
    assert len(expected) > 10
    for file in (path, tmp_path / "made.arrow"):
        with forebay.Loader(config(file, tmp_path / file.suffix, fields, output=output)) as loader:
            rows = list(rows_of(loader).values())
        assert sorted(int(row["row"]) for row in rows) == sorted(expected), terms
        for row in rows:
            written = expected[int(row["row"])]
            for name in fields:
                if name in arrays:
                    assert row[name].tolist() == written[name], (terms, name)
                elif name != "row":
                    text = bytes(row[name]).decode()
                    assert is_same(written[name], json.loads(text)), (terms, name, text, written[name])
