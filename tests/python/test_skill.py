"""skills/forebay/SKILL.md: its commands, its configuration and its first Python run, over pictures in class folders."""

import os
import re
import subprocess
import sys
from pathlib import Path

import forebay
import numpy
import pytest
from support import ROOT

image = pytest.importorskip("PIL.Image")

SKILL = (ROOT / "skills" / "forebay" / "SKILL.md").read_text()
PROGRAM = Path(forebay.__file__).parent / "bin" / "forebay"

pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="the package was not installed from a wheel")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", SKILL, re.DOTALL)


@pytest.fixture
def data(tmp_path):
    """130 pictures of two classes."""
    for number in range(130):
        folder = tmp_path / "data" / "train" / ("cat" if number % 2 else "dog")
        folder.mkdir(parents=True, exist_ok=True)
        pixels = numpy.random.default_rng(number).integers(0, 255, (48, 64, 3), numpy.uint8)
        image.fromarray(pixels).save(folder / f"{number:03}.jpg")
    return tmp_path


def here(text, folder):
    return text.replace("/data/train", str(folder / "data" / "train"))


def shell(text, folder):
    path = f"{PROGRAM.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "XDG_RUNTIME_DIR": str(folder)}
    command = ["bash", "-euo", "pipefail", "-c", here(text, folder)]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, (text, done.stdout, done.stderr)
    return done.stdout


def test_its_commands_run_one_after_another(data):
    first, plan, verify = blocks("sh")
    assert "tensor image" in shell(first, data)
    assert shell(plan, data).startswith("130 samples, ")
    # The doctor's status is that of this machine.
    output = shell(verify.replace("forebay doctor train.toml", "forebay doctor train.toml || true"), data)
    assert re.search(r"digest", output), output
    assert (data / "samples.html").stat().st_size > 1000


def test_its_configuration_is_read_and_its_python_trains(data, monkeypatch):
    torch = pytest.importorskip("torch")
    [configuration] = blocks("toml")
    (data / "train.toml").write_text(here(configuration, data))
    replaced, of_the_users_own = blocks("python")
    monkeypatch.chdir(data)
    names = {}
    exec(replaced.replace('"train.toml"', '"train.toml", epochs=2'), names)
    assert names["images"].shape == (64, 3, 224, 224) and names["images"].dtype == torch.float32
    assert (names["epoch"], names["state"]["epoch"]) == (1, 2)
    # Its `dataset` is the user's.
    compile(of_the_users_own, "SKILL.md", "exec")


def test_its_configuration_is_valid_without_pytorch(data):
    [configuration] = blocks("toml")
    (data / "train.toml").write_text(here(configuration, data))
    output = shell("forebay check --plan-only train.toml", data)
    assert re.search(r"tensor image +float32 \[64, 3, 224, 224\]", output), output


def test_the_formats_that_it_names_are_those_of_the_program():
    table = re.findall(r"^\|[^|]+\| ((?:`[\w-]+`(?:, )?)+) \|", SKILL, re.MULTILINE)
    named = {name for cell in table for name in re.findall(r"`([\w-]+)`", cell)}
    schema = subprocess.run(
        [PROGRAM, "check", "--schema"], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    assert len(named) > 10
    assert [name for name in sorted(named) if f'"{name}"' not in schema] == []
