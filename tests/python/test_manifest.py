"""Manifests as Python's csv, its json and pandas' habits write them, read through the whole program."""

import csv
import json
import random
from pathlib import Path

import forebay
import numpy
import pytest
from PIL import Image
from support import config_of, printed_by, programs_of, rows_of, write_tar

SPECIES = ["owl", "bee", "ant"]


@pytest.fixture
def table(tmp_path):
    """A CSV of 42 pictures with masks, labels by name and captions with quotes and line ends."""
    (tmp_path / "images").mkdir()
    with open(tmp_path / "train.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "mask", "species", "caption"])
        for number in range(42):
            name = f"images/{number:02}.png"
            Image.new("RGB", (30, 20), (number, 5, 250)).save(tmp_path / name)
            Image.new("L", (30, 20), number).save(tmp_path / f"images/mask{number:02}.png")
            caption = f'ü, "{number}"' + "\nnext" * (number % 3)
            writer.writerow([name, f"images/mask{number:02}.png", SPECIES[number % 3], caption])
    return str(tmp_path / "train.csv")


def config(path, fields, operations=(), **order):
    return config_of({"format": "manifest", "path": str(path), "fields": fields}, operations, order=order)


def test_pictures_masks_labels_and_captions_of_a_csv_arrive(table):
    fields = {
        "image": {"from": "path"},
        "mask": {"from": "mask"},
        "label": {"from": "species", "classes": "sorted"},
        "caption": {"from": "caption"},
    }
    operations = [{"op": "decode-image", "field": "image"}, {"op": "decode-image", "field": "mask"}]
    operations += [{"op": "resize", "size": [20, 30], "field": field} for field in ("image", "mask")]
    with open(table, newline="") as file:
        rows = list(csv.DictReader(file))
    with forebay.Loader(config(table, fields, operations)) as loader:
        seen = []
        for batch in loader:
            captions = batch["caption"].strings()
            for place, index in enumerate(batch["index"].tolist()):
                row = rows[index]
                assert captions[place] == row["caption"]
                assert batch["label"][place] == sorted(SPECIES).index(row["species"])
                assert batch["image"][place][:, 0, 0].tolist() == [index, 5, 250]
                assert (numpy.asarray(batch["mask"][place]).reshape(-1) == index).all()
                seen.append(index)
        name = Path(loader.paths([3])[0])
    assert sorted(seen) == list(range(42)) and seen != sorted(seen)
    assert name.name.startswith("train.csv:")


def test_a_broken_picture_is_a_bad_sample_with_its_line(table):
    (Path(table).parent / "images/07.png").write_text("no image")
    operations = [{"op": "decode-image"}, {"op": "resize", "size": [20, 30]}]
    fields = {"image": {"from": "path"}}
    settings = config(table, fields, operations, shuffle=False)
    with pytest.raises(forebay.BadSample, match=r"train\.csv:15: not a JPEG"), forebay.Loader(settings) as loader:
        list(loader)


def test_the_programs_of_the_migration_page_give_the_same_samples(table):
    pytest.importorskip("torchvision")
    programs = programs_of("from-torchvision.md")
    assert len(programs) == 2
    printed = [sorted(printed_by(program, table=table)) for program in programs]
    assert len(printed[0]) >= 42 and printed[0] == printed[1]


@pytest.mark.parametrize("form", ["lines", "archive"])
def test_floats_of_json_are_those_of_python(tmp_path, form):
    generator = random.Random(1)
    numbers = [1700662982.1469185, 5e-324, 1.7976931348623157e308, *(generator.random() for _ in range(300))]
    numbers += [generator.uniform(-180, 180) for _ in range(300)]
    if form == "lines":
        (tmp_path / "n.jsonl").write_text(
            "".join(json.dumps({"n": number, "of": [number]}) + "\n" for number in numbers)
        )
        fields = {"n": {"from": "n", "as": "float"}, "of": {"from": "of", "as": "array"}}
        dataset = {"format": "manifest", "path": str(tmp_path / "n.jsonl"), "fields": fields}
    else:
        members = [(f"{place}.json", json.dumps({"n": number}).encode()) for place, number in enumerate(numbers)]
        write_tar(tmp_path / "n.tar", members)
        fields = {"n": {"from": "json:n", "as": "float"}}
        dataset = {"format": "webdataset", "path": str(tmp_path / "n.tar"), "fields": fields}
    with forebay.Loader(config_of(dataset, [], batch={"size": 1})) as loader:
        rows = rows_of(loader)
    assert [rows[place]["n"] for place in range(len(numbers))] == numbers
    if form == "lines":
        assert [rows[place]["of"].item() for place in range(len(numbers))] == numbers
