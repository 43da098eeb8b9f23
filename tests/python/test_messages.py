"""What a user reads: each error once, repeated warnings a few times, and images of one value before the training."""

import os
import re
import subprocess
import sys

import forebay
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
    assert re.search(r"  image +uint8, 0 to 25\d, mean 1[0-4]\d\.", good.stdout), good.stdout
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


def test_a_run_says_which_configured_cores_it_may_not_use(images):
    _, write = images
    script = "import forebay, sys\nprint(len(list(forebay.Loader(sys.argv[1]))))"
    ended = run(sys.executable, "-c", script, write('[cpu]\ncores = "0,4000-4002"\n'))
    assert (ended.returncode, ended.stdout) == (0, "5\n"), ended.stderr
    [line] = [line for line in ended.stderr.splitlines() if "may not use" in line]
    assert "WARN" in line and re.search(r"train\.toml:\d+: .* may not use 4000-4002; change cpu\.cores", line), line


def test_a_loader_logs_the_address_of_its_page_and_a_wrong_filter_is_named(images):
    _, write = images
    script = "import forebay, sys\nprint(forebay.Loader(sys.argv[1]).stats()['metrics'])"
    config = write('[listen]\nmetrics = "127.0.0.1:0"\n')
    ended = run(sys.executable, "-c", script, config)
    assert f"metrics at http://{ended.stdout.strip()}/ " in ended.stderr, ended
    environment = {**os.environ, "FOREBAY_LOG": "loud,forebay=noisy"}
    wrong = subprocess.run(
        [PROGRAM, "check", "--plan-only", config], capture_output=True, text=True, timeout=120, env=environment
    )
    assert wrong.returncode == 0 and wrong.stderr.startswith("forebay: FOREBAY_LOG = "), wrong
    assert '"loud,forebay=noisy"' in wrong.stderr and "a level such as debug" in wrong.stderr


def test_a_dicts_mistake_is_placed_once_and_not_in_overrides_that_nobody_gave(images):
    paths, _ = images
    operations = [{"op": "decode-image"}, {"op": "resize", "size": [8, 8]}]
    good = {"dataset": {"path": str(paths[0].parents[1])}, "stage": [{"name": "decode", "operations": operations}]}
    for mistake in (
        {**good, "batch": {"size": 0}},
        {**good, "batch.size": 0},
        {**good, "batch.size": 8, "dataset.clases": "list.txt"},
        {**good, "batch.size": 8, "dataset": {**good["dataset"], "clases": "list.txt"}},
        {"stage": good["stage"], "batch.size": 8, "dataset.path": "/none/such"},
    ):
        with pytest.raises(forebay.ConfigError) as caught:
            forebay.Loader(mistake)
        message = str(caught.value)
        place = re.match("(the dict|the loader's arguments): ", message)
        assert place and message.count(place[1]) == 1, message


def test_what_paths_gives_is_what_dataset_ids_takes(images, tmp_path):
    _, write = images
    with forebay.Loader(write(), shuffle=False) as loader:
        wanted = loader.paths([3, 17, 30])
    (tmp_path / "some.txt").write_text("".join(f"{path}\n" for path in wanted))
    overrides = {"dataset.ids": str(tmp_path / "some.txt"), "batch.last": "short"}
    with forebay.Loader(write(), shuffle=False, overrides=overrides) as loader:
        assert [batch["index"].tolist() for batch in loader] == [[0, 1, 2]]
        assert loader.paths([0, 1, 2]) == wanted
