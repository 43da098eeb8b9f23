"""Each example of docs/guide/python-examples.md with its library: the results, and the same bytes however it is run."""

import io
import json
import os
import re
from pathlib import Path

import forebay
import numpy
import pytest
from PIL import Image
from support import ROOT, config_of, digest, noise, rows_of, wait_until, workers

SAMPLES, SIZE = 18, 6
CAPTIONS = ["A  <b>grey</b> cat", "two\tdogs ﬁght", "", "a cat and\ntwo dogs"]
CLEAN = ["A grey cat", "two dogs fight", "", "a cat and two dogs"]


def examples():
    """The blocks of the page's chapter, by their first line without `# `."""
    page = (ROOT / "docs" / "guide" / "python-examples.md").read_text()
    chapter = page.partition("\n## Examples\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"```python\n(.*?)```", chapter, re.DOTALL)
    return {re.split("[:,(]", block.splitlines()[0].removeprefix("# "))[0].strip(): block for block in blocks}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A manifest of pictures, masks, TIFF and DICOM files, captions and labels; a tokenizer's file."""
    tifffile, tokenizers = pytest.importorskip("tifffile"), pytest.importorskip("tokenizers")
    folder, lines = tmp_path_factory.mktemp("examples"), []
    for sample in range(SAMPLES):
        pixels = noise(sample)
        Image.fromarray(pixels).save(folder / f"{sample}.png")
        # The mask marks what is bright in the picture's first channel.
        Image.fromarray((pixels[..., 0] > 127).astype(numpy.uint8)).save(folder / f"{sample}-mask.png")
        tifffile.imwrite(folder / f"{sample}.tif", pixels.astype(numpy.uint16) * 257, compression=None)
        (folder / f"{sample}.dcm").write_bytes(dicom(pixels[..., 0].astype(numpy.uint16) * 16))
        files = {"png": f"{sample}.png", "mask": f"{sample}-mask.png", "tif": f"{sample}.tif", "dcm": f"{sample}.dcm"}
        lines.append(json.dumps({**files, "caption": CAPTIONS[sample % 4], "label": sample}))
    (folder / "data.jsonl").write_text("\n".join(lines))
    words = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "a", "cat", "two", "dogs", "and"])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def dicom(pixels):
    pydicom = pytest.importorskip("pydicom")
    meta = pydicom.dataset.FileMetaDataset()
    meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    meta.MediaStorageSOPClassUID = pydicom.uid.SecondaryCaptureImageStorage
    meta.MediaStorageSOPInstanceUID = pydicom.uid.generate_uid(entropy_srcs=["forebay"])
    made = pydicom.dataset.FileDataset(None, {}, file_meta=meta, preamble=b"\0" * 128)
    made.Rows, made.Columns = pixels.shape
    made.SamplesPerPixel, made.PhotometricInterpretation, made.PixelRepresentation = 1, "MONOCHROME2", 0
    made.BitsAllocated = made.BitsStored = 16
    made.HighBit = 15
    made.PixelData = pixels.tobytes()
    written = io.BytesIO()
    made.save_as(written, enforce_file_format=True)
    return written.getvalue()


@pytest.fixture
def example(data, tmp_path, monkeypatch):
    """Writes an example as a module; the configuration that calls it, over fields of the manifest."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(example, function, fields, operations=(), output=None, **keys):
        module = f"example_{re.sub('[^a-z]', '_', example)}_{os.getpid()}"
        (tmp_path / f"{module}.py").write_text(examples()[example])
        stages = [
            {"name": "before", "operations": list(operations)},
            {"name": "example", "python": f"{module}:{function}", **keys},
        ]
        columns = {"caption": "text", "label": "integer", "mask": "image", "png": "image"}
        fields = {name: {"from": column, "as": columns.get(column, "bytes")} for name, column in fields.items()}
        dataset = {"format": "manifest", "path": str(data / "data.jsonl"), "fields": fields}
        order = {"seed": 5, "epochs": 2}
        return config_of(dataset, stage=stages, order=order, batch={"size": SIZE}, output=output or {})

    return make


def run(config, state=None, kill_after=None):
    """The digests of all batches, and the rows of the first epoch by sample."""
    found, rows = [], {}
    with forebay.Loader(config, timeout=120, state=state) as loader:
        for _ in loader.epochs_left():
            for batch in loader:
                found.append(digest(batch))
                rows = {**rows_of([batch]), **rows}
                if len(found) == kill_after:
                    saved = loader.state_dict()
                    os.kill(loader._session.daemon()[0], 9)
    return found, rows, saved if kill_after else None


def rows_that_are_the_same_however_they_are_made(config):
    """With 1 worker, with 2 across the death of the daemon, and with 7 from a saved state on."""
    config["stage"][1]["workers"] = 1
    expected, rows, _ = run(config)
    assert len(set(expected)) == 6 and sorted(rows) == list(range(SAMPLES))
    config["stage"][1]["workers"] = 2
    found, _, state = run(config, kill_after=2)
    assert found == expected
    config["stage"][1]["workers"] = 7
    assert run(config, state)[0] == expected[2:]
    wait_until(lambda: not workers(), "workers are left behind")
    return rows


DECODED = [{"op": "decode-image", "field": "image"}]


def test_torchvision(example):
    pytest.importorskip("torchvision")
    fields = {"image": "png", "label": "label"}
    config = example("torchvision v2", "Augment", fields, DECODED, arguments={"size": 24})
    for id, row in rows_that_are_the_same_however_they_are_made(config).items():
        assert row["image"].shape == (3, 24, 24) and row["image"].dtype == numpy.float32
        assert 0 <= row["image"].min() < row["image"].max() <= 1 and row["label"] == id


def test_albumentations(example):
    pytest.importorskip("albumentations")
    operations = [*DECODED, {"op": "decode-image", "field": "mask", "channels": 1}]
    fields = {"image": "png", "mask": "mask"}
    config = example("albumentations", "Augment", fields, operations, arguments={"size": 24})
    for row in rows_that_are_the_same_however_they_are_made(config).values():
        assert row["image"].shape == (24, 24, 3) and row["mask"].shape == (24, 24, 1)
        # What was bright still is, on the whole: the mask went with its image.
        bright = row["image"][..., 0] > numpy.median(row["image"][..., 0])
        assert (bright == row["mask"][..., 0]).mean() > 0.7


def test_a_tokenizer(example, data):
    arguments = {"file": str(data / "tokenizer.json"), "length": 6}
    found = run(example("a tokenizer", "Tokenize", {"caption": "caption"}, arguments=arguments))[1]
    expected = [[1, 1, 1, 1, 1, 1], [4, 5, 1, 0, 0, 0], [0] * 6, [2, 3, 6, 4, 5, 0]]
    for id, row in found.items():
        assert row["tokens"].dtype == numpy.int32 and row["tokens"].tolist() == expected[id % 4]


@pytest.mark.parametrize(
    ("block", "column"), [("files that Forebay does not decode", "tif"), ("the same for DICOM", "dcm")]
)
def test_files_that_are_not_decoded(example, block, column):
    for id, row in run(example(block, "decode", {"image": column, "label": "label"}))[1].items():
        pixels = noise(id)
        expected = pixels.astype(numpy.uint16) * 257 if column == "tif" else pixels[..., :1].astype(numpy.float32) * 16
        assert row["image"].dtype == expected.dtype and (row["image"] == expected).all()


def test_text(example):
    output = {"caption": {"ragged": True, "max_bytes": "4KiB"}}
    found = run(example("text", "clean", {"caption": "caption", "label": "label"}, output=output))[1]
    assert [bytes(found[id]["caption"]).decode() for id in range(4)] == CLEAN


def test_every_example_has_a_test():
    tested = Path(__file__).read_text()
    assert len(examples()) == 6 and all(f'"{name}"' in tested for name in examples()), list(examples())
