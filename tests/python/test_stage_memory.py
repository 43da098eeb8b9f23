"""The memory of a daemon with a Python stage and large pictures, against what `forebay check` has planned."""

import json

import forebay
import pytest
from PIL import Image
from support import run_program

SIDE, SAMPLES = 2500, 32
SOURCE = """
import numpy as np

def same(sample, rng):
    return sample

def grow(sample, rng):
    return {"image": np.ones((SIDE, SIDE - int(rng.integers(2)), 3), np.uint8), "label": sample["label"]}
""".replace("SIDE", str(SIDE))
CONFIG = """
[dataset]
format = "image-folder"
path = "pictures"
[order]
epochs = 1
[batch]
size = 8
[ring]
memory = "400MiB"
[[stage]]
name = "before"
operations = [BEFORE]
[[stage]]
name = "function"
python = "large_pictures:FUNCTION"
workers = 2
memory = "3GiB"
[[stage]]
name = "crop"
concurrency = 1
operations = [{ op = "delay", milliseconds = 200 }, { op = "center-crop", size = 64 }]
"""


def peak_bytes(daemon):
    """The most that a daemon has had in memory, its program's file left out."""
    with open(f"/proc/{daemon}/status") as file:
        status = dict(line.split(":", 1) for line in file)
    return 1024 * (int(status["VmHWM"].split()[0]) - int(status["RssFile"].split()[0]))


@pytest.mark.parametrize(("before", "function"), [('{ op = "decode-image" }', "same"), ("", "grow")])
def test_large_pictures_of_a_function_stay_within_the_daemons_plan(tmp_path, monkeypatch, before, function):
    """19 MB each: up to eight are under call by each worker, and the others wait for the slow stage behind it."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "large_pictures.py").write_text(SOURCE)
    folder = tmp_path / "pictures" / "class"
    folder.mkdir(parents=True)
    for number in range(SAMPLES):
        # Sizes differ, so that none is known at the start.
        Image.new("RGB", (SIDE, SIDE - number % 2)).save(folder / f"{number:02}.png")
    path = tmp_path / "train.toml"
    path.write_text(CONFIG.replace("BEFORE", before).replace("FUNCTION", function))
    checked = run_program("check", "--json", path)
    assert checked.returncode == 0, checked.stderr
    plan = json.loads(checked.stdout)["streams"][0]
    planned = plan["memory_bytes"] + plan["memory_for_large_samples_bytes"]
    assert plan["memory_of_workers_bytes"] == 2 * 3 << 30 and planned <= 400 << 20
    with forebay.Loader(path, timeout=120) as loader:
        assert sum(len(batch["label"]) for batch in loader) == SAMPLES
        peak = peak_bytes(loader.daemon_pid)
    print(f"{function}: {peak >> 20} of {planned >> 20} MiB planned")
    assert peak <= planned * 1.1, f"{peak >> 20} of {planned >> 20} MiB"
