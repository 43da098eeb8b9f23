"""What a new user does with a wheel alone: `forebay demo`, `forebay init`, and the lines of Python that it prints."""

import os
import subprocess
from pathlib import Path

import forebay
import numpy
import pytest

PROGRAM = Path(forebay.__file__).parent / "bin" / "forebay"

pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="the package was not installed from a wheel")


def run(folder, *arguments):
    """What the program prints in a folder, with nothing of this process's environment."""
    environment = {"XDG_CACHE_HOME": str(folder / "cache"), "XDG_RUNTIME_DIR": str(folder)}
    done = subprocess.run(
        [PROGRAM, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done
    return done.stdout


def lines_of_python(told):
    """The lines that a command prints to be tried."""
    lines = [line.strip() for line in told.splitlines()]
    start = lines.index("import forebay")
    return "\n".join(lines[start : lines.index("", start)])


def test_the_demo_ends_in_a_report_and_in_lines_of_python_that_run(tmp_path, monkeypatch):
    told = run(tmp_path, "demo", "--images", "130", "--classes", "4", "--width", "64", "--height", "48")
    assert "samples/s" in told and "digest" in told, told
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    names = {}
    exec(lines_of_python(told), names)
    assert names["batch"]["image"].shape == (64, 3, 224, 224)
    names["loader"].close()


@pytest.mark.parametrize("kind", ["photos", "arrays", "records"])
def test_the_lines_that_init_prints_run(tmp_path, monkeypatch, kind):
    data = tmp_path / "data"
    if kind == "photos":
        run(tmp_path, "demo", "--generate", data, "--images", "40", "--classes", "2", "--width", "64", "--height", "48")
        fields = {"image": (8, 3, 224, 224), "label": (8,)}
    else:
        data.mkdir()
        for sample in range(40):
            if kind == "arrays":
                numpy.save(data / f"{sample:02}.npy", numpy.full((3, 2), sample, numpy.float32))
            else:
                numpy.savez(data / f"{sample:02}.npz", x=numpy.full((3, 2), sample), tokens=numpy.arange(sample % 5))
        fields = {"array": (8, 3, 2)} if kind == "arrays" else {"x": (8, 3, 2)}
    told = run(tmp_path, "init", data)
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(lines_of_python(told), names)
    shapes = {name: names["batch"][name].shape for name in fields}
    assert shapes == fields, told
    if kind == "records":
        sizes = {len(row) for row in names["batch"]["tokens"]}
        assert sizes <= set(range(5)), sizes
    names["loader"].close()
    assert os.listdir(tmp_path / "cache" / "forebay" / "index") != []
