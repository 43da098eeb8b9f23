"""What a user reads: each error once, repeated warnings a few times, and images of one value before the training."""

import os
import re
import subprocess
import sys

import numpy
import pytest
from support import PROGRAM

Image = pytest.importorskip("PIL.Image")


@pytest.fixture
def images(tmp_path):
    """Forty noisy images of one class, a configuration file, and a function that spoils some."""
    (tmp_path / "data" / "only").mkdir(parents=True)
    paths = [tmp_path / "data" / "only" / f"{number:02}.png" for number in range(40)]
    noise = numpy.random.default_rng(2)
    for path in paths:
        Image.fromarray(noise.integers(0, 256, (8, 8, 3), dtype=numpy.uint8)).save(path)
    config = tmp_path / "train.toml"

    def write(keys=""):
        config.write_text(
            '[dataset]\nformat = "image-folder"\npath = "data"\n[batch]\nsize = 8\n[order]\nepochs = 1\n'
            '[[stage]]\nname = "decode"\noperations = [{ op = "decode-image" }, { op = "resize", size = [8, 8] }]\n'
            + keys
        )
        return config

    return paths, write


def run(*command):
    environment = {name: value for name, value in os.environ.items() if name != "FOREBAY_LOG"}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)


def test_an_error_that_the_script_raises_is_not_logged_as_well(images):
    paths, write = images
    paths[3].write_bytes(b"no image")
    script = "import forebay, sys\nfor batch in forebay.Loader(sys.argv[1]): pass"
    ended = run(sys.executable, "-c", script, write())
    assert ended.returncode == 1 and "forebay.BadSample" in ended.stderr
    assert ended.stderr.count("bad sample 3 in epoch 0") == 1, ended.stderr
    # Nor is a mistake that is found at the start.
    ended = run(sys.executable, "-c", script, write("[ring]\nslots = 1\n"))
    assert ended.stderr.count("ring.slots` must be") == 1, ended.stderr


def test_a_warning_that_repeats_is_written_a_few_times(images):
    paths, write = images
    for path in paths[:12]:
        path.write_bytes(b"no image")
    script = (
        "import forebay, json, sys\n"
        "loader = forebay.Loader(sys.argv[1])\n"
        "for batch in loader: pass\n"
        "print(loader.stats()['sessions'][0]['samples_substituted'])"
    )
    ended = run(sys.executable, "-c", script, write('[errors]\non_bad_sample = "substitute"\nbudget = 30\n'))
    assert (ended.returncode, ended.stdout) == (0, "12\n"), ended.stderr
    assert ended.stderr.count("bad sample substituted") == 3, ended.stderr
    # Some of the substitutes drawn are bad, too: each is a line.
    assert re.search(r"\d+ more warnings of the kinds above were left out", ended.stderr), ended.stderr


def test_check_takes_samples_through_all_stages_and_refuses_flat_images(images):
    paths, write = images

    def check(*options):
        return run(PROGRAM, "check", "--plan-only", *options, write())

    good = check("--sample")
    assert good.returncode == 0 and "# 8 samples of stream train" in good.stdout, good
    assert re.search(r"  image +0\.0000 to 25\d\.0000, mean 1[0-4]\d\.", good.stdout), good.stdout
    Image.new("RGB", (8, 8), (7, 9, 11)).save(paths[0])
    for path in paths:
        Image.new("RGB", (8, 8), (7, 9, 11)).save(path)
    flat = check("--sample=4")
    assert flat.returncode == 1 and "`image` is all of one value in 4 of 4 samples" in flat.stderr, flat
    assert "only/" in flat.stderr and "output.image" in flat.stderr
    Image.fromarray(numpy.arange(192, dtype=numpy.uint8).reshape(8, 8, 3)).save(paths[5])
    some = check("--sample=40")
    assert some.returncode == 0 and "warning: `image` is all of one value in 39 of 40 samples" in some.stdout, some
    assert check("--sample=0").returncode == 2
