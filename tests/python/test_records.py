"""What writers of MosaicML Streaming, LitData, TFRecords, Hugging Face and Arrow wrote, and rows of text, read back."""

import gzip
import importlib.util
import json

import pytest
from support import FIXTURES, config_of, printed_by, programs_of, rows_across_a_resume


def text(row, field="text"):
    return bytes(row[field]).decode()


def record(label, array, sign):
    """A format whose columns are the record's number in several forms; the label has this sign."""

    def number_of(row):
        number = sign * row["label"]
        assert (text(row), row["score"]) == ("ü" * number, number / 4) and (row["array"] == number).all()
        return number

    return number_of, {"text": "text", "score": "score", "label": label, "array": array}


def number_of_arrow(row):
    number = int(text(row, "name").removeprefix("author "))
    assert (row["label"], row["score"]) == (number % 3, number / 4)
    assert row["fixed"].tolist() == [number, -number, 7]
    assert row["boxes"].tolist() == [[number, number, number + 1, number + k] for k in range(number % 3)]
    return number


def number_of_parquet(row):
    number = int(text(row, "name").removeprefix("author "))
    assert row["label"] == number % 3
    return number


def number_of_line(row):
    number = int(row["score"] * 4)
    assert (text(row, "source"), text(row, "target")) == (f"s{number}", f"t{number}" * number)
    return number


NAME = {"label": "label", "name": "info.author.name"}
# The path below the fixtures, the number that a row's fields agree on, and the fields with their columns.
FORMATS = {
    "mds": ("mds", *record("label", "fixed", -1)),
    "litdata": ("litdata", *record("label", "line", 1)),
    "tfrecord": ("tfrecord", *record("image/class/label", "line", -1)),
    "arrayrecord": ("arrayrecord", *record("image/class/label", "line", -1)),
    "arrow": ("hugging-face", number_of_arrow, {**NAME, "score": "score", "fixed": "fixed", "boxes": "boxes"}),
    "parquet": ("tables/hub.parquet", number_of_parquet, NAME),
    "manifest": (None, number_of_line, {name: name for name in ("source", "target", "score")}),
}


@pytest.mark.parametrize("format", FORMATS)
def test_each_row_comes_once_from_a_run_that_resumes(format, tmp_path):
    path, number_of, columns = FORMATS[format]
    if path is None:
        lines = [{"source": f"s{n}", "target": f"t{n}" * n, "score": n / 4} for n in range(7)]
        (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    place = FIXTURES / path if path else tmp_path / "pairs.jsonl"
    if format == "arrayrecord":
        # Most of a file is padding: the fixtures are packed.
        place = tmp_path / "data" / "together.arrayrecord"
        place.parent.mkdir()
        place.write_bytes(gzip.decompress((FIXTURES / path / f"{place.name}.gz").read_bytes()))
    dataset = {
        "format": format,
        "path": str(place),
        "index": str(tmp_path / "index"),
        "fields": {field: {"from": column} for field, column in columns.items()},
    }
    output = {"boxes": {"ragged": True, "max_bytes": "1KiB"}} if "boxes" in columns else {}
    rows = rows_across_a_resume(config_of(dataset, batch={"size": 3}, output=output))
    assert sorted(map(number_of, rows.values())) == list(range(7))


def test_the_programs_of_the_migration_page_give_the_same_samples():
    programs = programs_of("from-mosaicml.md")
    assert len(programs) == 2
    for program in programs:
        if "from streaming" not in program or importlib.util.find_spec("streaming"):
            printed = printed_by(program, shards=str(FIXTURES / "mds"))
            assert sorted(printed) == sorted(f"{-number} {number}" for number in range(7))
