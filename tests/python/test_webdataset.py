"""Archives of webdataset's own writer and of Python's tarfile: the samples that webdataset reads, in any order."""

import io
import tarfile
from pathlib import Path

import forebay
import numpy
import pytest
from PIL import Image
from support import config_of, printed_by, programs_of, write_tar

webdataset = pytest.importorskip("webdataset")


def picture(number):
    buffer = io.BytesIO()
    Image.new("RGB", (48, 40), (number, 255 - number, 7)).save(buffer, "JPEG")
    return buffer.getvalue()


@pytest.fixture
def shards(tmp_path):
    """Three shards of 20 samples with a caption in their JSON."""
    folder = tmp_path / "shards"
    folder.mkdir()
    with webdataset.ShardWriter(f"{folder}/train-%03d.tar", maxcount=20, verbose=0) as writer:
        for number in range(60):
            info = {"caption": "ü" * (number % 7), "number": number}
            writer.write({"__key__": f"n/{number:04}", "jpg": picture(number), "cls": number % 10, "json": info})
    return f"{folder}/train-{{000..002}}.tar"


def config(shards, fields, **order):
    return config_of({"format": "webdataset", "path": str(shards), "fields": fields}, batch={"size": 8}, order=order)


def test_the_samples_are_those_that_webdataset_reads_and_shuffled_exactly(shards):
    fields = {
        "number": {"from": "json:number", "as": "integer"},
        "caption": {"from": "json:caption", "as": "text"},
        "label": {"from": "cls"},
    }
    expected = {
        int(sample["json"]["number"]): (sample["json"]["caption"], sample["cls"])
        for sample in webdataset.WebDataset(shards, shardshuffle=False).decode()
    }
    with forebay.Loader(config(shards, fields)) as loader:
        numbers, read = [], {}
        for batch in loader:
            numbers += batch["number"].tolist()
            rows = zip(batch["caption"].strings(), batch["label"].tolist())
            read.update(zip(batch["number"].tolist(), rows))
        names = loader.paths([0, 59])
    assert read == expected and sorted(numbers) == list(range(60)) and numbers != sorted(numbers)
    assert [Path(name).parts[-3:] for name in names] == [("train-000.tar", "n", "0000"), ("train-002.tar", "n", "0059")]


def test_text_of_the_torch_loader_is_strings_too_and_rows_of_numbers_are_not(shards):
    torch = pytest.importorskip("torch")
    import forebay.torch

    fields = {"caption": {"from": "json:caption"}, "file": {"from": "jpg", "as": "bytes"}}
    with forebay.torch.Loader(config(shards, fields, shuffle=False)) as loader:
        batch = next(iter(loader))
        assert batch["caption"].strings() == ["ü" * (number % 7) for number in range(8)]
        assert batch["file"][0].numpy().tobytes() == picture(0)
        assert isinstance(batch["file"].values, torch.Tensor)
        with pytest.raises(UnicodeDecodeError):
            batch["file"].strings()
    numbers = forebay.Ragged(numpy.arange(4), numpy.array([0]), numpy.array([4]))
    with pytest.raises(TypeError, match="only rows of bytes"):
        numbers.strings()


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_every_form_that_python_writes_is_read(tmp_path, form):
    folder = "long/" * 24 if form == tarfile.USTAR_FORMAT else "länger/" * 40
    fields = [("txt", "text "), ("cls", "")]
    members = [(f"{folder}{n}.{field}", f"{text}{n}".encode()) for n in range(9) for field, text in fields]
    write_tar(tmp_path / "a.tar", members, format=form, encoding="utf-8")
    fields = {"txt": {"from": "txt"}, "cls": {"from": "cls"}}
    with forebay.Loader(config(tmp_path, fields, shuffle=False)) as loader:
        batches = list(loader)
        assert [text for batch in batches for text in batch["txt"].strings()] == [f"text {n}" for n in range(9)]
        assert numpy.concatenate([batch["cls"] for batch in batches]).tolist() == list(range(9))


def test_the_programs_of_the_migration_page_give_the_same_samples(shards):
    # Of the `webdataset` package's `WebLoader`.
    pytest.importorskip("torch")
    programs = programs_of("from-webdataset.md")
    assert len(programs) == 2
    printed = [sorted(printed_by(program, shards=shards)) for program in programs]
    assert len(printed[0]) == 60 and printed[0][:40] != []
    # preset imagenet-train drops the samples that fill no batch: 56 of 60 come.
    missing = list(printed[0])
    for line in printed[1]:
        missing.remove(line)
    assert len(printed[1]) == 56 and len(missing) == 4
