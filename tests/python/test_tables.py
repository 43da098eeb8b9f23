"""Tables of Hugging Face's and Arrow's own writers (daemon/crates/formats/fixtures), through the program."""

import contextlib
import importlib.util
import io
import re
import subprocess
from pathlib import Path

import forebay
import numpy
import pytest
from support import PROGRAM

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "daemon/crates/formats/fixtures"
DOCUMENT = ROOT / "docs/from-huggingface.md"


def config(path, tmp_path, fields, operations=(), **keys):
    dataset = {"path": str(FIXTURES / path), "index": str(tmp_path / "index"), "fields": fields}
    stage = [{"name": "work", "operations": list(operations)}]
    return {"dataset": dataset, "batch": {"size": 3, "last": "short"}, "stage": stage, "order": {"epochs": 1}, **keys}


def test_numbers_of_columns_keep_their_types(tmp_path):
    fields = {name: {"from": name} for name in ("label", "score", "half", "is_good")}
    with forebay.Loader(config("hugging-face", tmp_path, fields)) as loader:
        batch = next(iter(loader))
        assert [str(batch[name].dtype) for name in fields] == ["int64", "float32", "float16", "bool"]
        assert loader.state_dict()["stream_version"] == 2
    with forebay.Loader(config("hugging-face", tmp_path, {"label": {"from": "label"}})) as loader:
        assert loader.state_dict()["stream_version"] == 1, "what did not change resumes"


def test_columns_arrive_and_a_run_resumes(tmp_path):
    names = {"label": "label", "name": "info.author.name", "score": "score", "fixed": "fixed", "boxes": "boxes"}
    fields = {field: {"from": column} for field, column in names.items()}
    output = {"boxes": {"ragged": True, "max_bytes": "1KiB"}}
    state, seen = None, []
    for _ in range(2):
        settings = config("hugging-face", tmp_path, fields, output=output)
        with forebay.Loader(settings, state=state) as loader:
            assert list(loader.classes) == ["cat", "dog", "eel"]
            for batch in loader:
                boxes = [numpy.asarray(batch["boxes"][row]) for row in range(len(batch["label"]))]
                rows = zip(
                    batch["label"].tolist(), batch["name"].strings(), batch["score"].tolist(), batch["fixed"], boxes
                )
                for label, name, score, fixed, box in rows:
                    number = int(name.removeprefix("author "))
                    assert (label, score) == (number % 3, number / 4)
                    assert numpy.asarray(fixed).tolist() == [number, -number, 7]
                    assert box.tolist() == [[number, number, number + 1, number + k] for k in range(number % 3)]
                    seen.append(number)
                if state is None:
                    break
            state = loader.state_dict()
    assert sorted(seen) == list(range(7))


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
    def pictures(path, **keys):
        fields, operations = {"image": {"from": "image"}}, [{"op": "decode-image"}, {"op": "resize", "size": [16, 24]}]
        with forebay.Loader(config(path, tmp_path / Path(path).name, fields, operations, **keys)) as loader:
            return sorted(row.tobytes() for batch in loader for row in batch["image"])

    expected = pictures("hugging-face-pictures")
    assert len(set(expected)) == 12 and pictures("tables/pictures.parquet") == expected
    cache = {"path": str(tmp_path / "cache"), "keep_free": 0}
    settings = tmp_path / "pictures.toml"
    settings.write_text(
        f"""
[dataset]
path = "{FIXTURES}/tables/pictures.parquet"
index = "{tmp_path}/pictures.parquet/index"
fields = {{ image = {{ from = "image" }} }}
[cache]
path = "{cache["path"]}"
keep_free = 0
[batch]
size = 3
[[stage]]
name = "decode"
operations = [{{ op = "decode-image" }}, {{ op = "resize", size = [16, 24] }}]
"""
    )
    for command in ("fill", "verify"):
        done = subprocess.run([PROGRAM, "cache", str(settings), command], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0 and "12" in done.stdout, done
    assert pictures("tables/pictures.parquet", cache=cache) == expected


def test_rows_of_parquet_arrive_in_another_order_and_a_run_resumes(tmp_path):
    fields = {"label": {"from": "label"}, "name": {"from": "info.author.name"}}
    taken = []
    state = None
    for most in (1, None):
        with forebay.Loader(config("tables/hub.parquet", tmp_path, fields), state=state) as loader:
            for batch in loader:
                taken += zip(batch["label"].tolist(), batch["name"].strings())
                if most:
                    break
            state = loader.state_dict()
    assert sorted(taken, key=lambda row: row[1]) == [(number % 3, f"author {number}") for number in range(7)]


def test_the_programs_of_the_migration_page_give_the_same_samples():
    programs = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert len(programs) == 2
    expected = sorted(f"{number % 3} picture {number}" for number in range(12))
    for program in programs:
        if "import datasets" in program and not all(map(importlib.util.find_spec, ("datasets", "torchvision"))):
            print("skipped: the program over datasets, which is not installed")
            continue
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile(program, str(DOCUMENT), "exec"), {"folder": str(FIXTURES / "hugging-face-pictures")})
        assert sorted(output.getvalue().splitlines()) == expected
