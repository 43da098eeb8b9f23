"""Tables of Hugging Face's and Arrow's own writers (daemon/crates/formats/fixtures), through the program."""

import importlib.util
from pathlib import Path

import forebay
import pytest
from support import FIXTURES, config_of, printed_by, programs_of, run_program, write_toml


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
