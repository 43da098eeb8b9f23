"""The notebooks of docs/notebooks: their cells run in order and print what is kept in the file."""

import contextlib
import io
import json
import tempfile
from pathlib import Path

import forebay
import pytest
from support import ROOT

pytest.importorskip("PIL.Image")

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
PROGRAM = Path(forebay.__file__).parent / "bin" / "forebay"

pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="the package was not installed from a wheel")


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_prints_what_is_kept_of_it_and_leaves_nothing(file, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    cells = [cell for cell in json.loads(file.read_text())["cells"] if cell["cell_type"] == "code"]
    names = {"__name__": "__main__"}
    for number, cell in enumerate(cells):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("".join(cell["source"]), f"{file.name}, cell {number}", "exec"), names)
        kept = "".join(line for output in cell["outputs"] for line in output.get("text", []))
        assert printed.getvalue() == kept, f"cell {number}: run the notebook anew and keep what it prints"
    assert list(tmp_path.iterdir()) == []


def test_there_are_notebooks():
    assert NOTEBOOKS
