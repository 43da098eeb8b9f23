"""What the writers of MosaicML Streaming, LitData and TFRecords wrote (daemon/crates/formats/fixtures), read back."""

import contextlib
import importlib.util
import io
import re
from pathlib import Path

import forebay
import numpy
import pytest

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "daemon/crates/formats/fixtures"
DOCUMENT = ROOT / "docs/from-mosaicml.md"


def config(name, tmp_path, fields, **keys):
    dataset = {"format": name, "path": str(FIXTURES / name), "index": str(tmp_path / "index"), "fields": fields}
    stage = [{"name": "copy", "operations": []}]
    return {"dataset": dataset, "batch": {"size": 3, "last": "short"}, "stage": stage, "order": {"epochs": 1, **keys}}


@pytest.mark.parametrize(
    "name, label, array, sign",
    [("mds", "label", "fixed", -1), ("litdata", "label", "line", 1), ("tfrecord", "image/class/label", "line", -1)],
)
def test_columns_arrive_and_a_run_resumes(name, label, array, sign, tmp_path):
    fields = {column: {"from": column} for column in ("text", "score", array)}
    fields["label"] = {"from": label}
    state, seen = None, []
    for _ in range(2):
        with forebay.Loader(config(name, tmp_path, fields), state=state) as loader:
            for batch in loader:
                rows = zip(batch["label"].tolist(), batch["text"].strings(), batch["score"].tolist(), batch[array])
                for label, text, score, values in rows:
                    number = sign * label
                    assert (text, score) == ("ü" * number, number / 4)
                    assert (numpy.asarray(values) == number).all()
                    seen.append(number)
                if state is None:
                    break
            state = loader.state_dict()
    assert sorted(seen) == list(range(7))


def test_the_programs_of_the_migration_page_give_the_same_samples():
    programs = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert len(programs) == 2
    expected = sorted(f"{-number} {number}" for number in range(7))
    for program in programs:
        if "from streaming" in program and importlib.util.find_spec("streaming") is None:
            continue
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile(program, str(DOCUMENT), "exec"), {"shards": str(FIXTURES / "mds")})
        assert sorted(output.getvalue().splitlines()) == expected
