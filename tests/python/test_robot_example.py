"""The example that trains a policy on recordings of a robot: what counts, and a killed run that goes on to the same
losses."""

import ctypes.util
import shutil

import forebay
import pytest
from support import FIXTURES, load_example
from test_text_examples import check, check_a_kill, copy_configuration, single_thread  # noqa: F401

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.skipif(ctypes.util.find_library("avcodec") is None, reason="the host has no libavcodec")

FRAMES, INSTANTS = 21, 8


@pytest.fixture
def config(tmp_path):
    """The example's configuration with small batches, beside the recordings that it names."""
    shutil.copytree(FIXTURES / "lerobot/v3", tmp_path / "recordings")
    return copy_configuration("robot-policy", tmp_path, ("size = 64", "size = 4"))


@pytest.fixture
def stats(config):
    return f"--stats={config.parent / 'recordings/meta/stats.json'}"


def test_training_goes_on_to_the_same_losses(config, stats, tmp_path):
    example = load_example("robot-policy/train")
    check(example, config, tmp_path / "run.pt", example.Policy, stats)


def test_a_program_that_was_killed_goes_on_behind_its_checkpoint(config, stats, tmp_path):
    check_a_kill("robot-policy/train", "Policy", [str(config), str(tmp_path / "run.pt"), stats])


def test_actions_behind_an_end_do_not_count(config, stats):
    example = load_example("robot-policy/train")
    with forebay.torch.Loader(config) as loader:
        batch = {name: torch.from_numpy(rows) for name, rows in loader.samples(range(FRAMES)).items()}
    assert batch["action"].shape == (FRAMES, INSTANTS, 2) and batch["action_is_pad"].any(1).sum() > FRAMES // 2
    with open(stats.partition("=")[2]) as file:
        model = example.Policy(example.json.load(file), 2, INSTANTS)
    loss = example.loss_of(model, batch)
    batch["action"][batch["action_is_pad"]] = 1e6
    assert example.loss_of(model, batch) == loss
    batch["action"][0, 0] += 1
    assert example.loss_of(model, batch) != loss


def test_actions_are_those_of_the_robot(config, stats):
    example = load_example("robot-policy/train")
    with open(stats.partition("=")[2]) as file:
        model = example.Policy(example.json.load(file), 2, INSTANTS)
    with forebay.torch.Loader(config) as loader:
        batch = {name: torch.from_numpy(rows) for name, rows in loader.samples([3]).items()}
    pictures = [batch[name] for name in sorted(batch) if name.startswith(example.CAMERAS)]
    actions = model.act(pictures, batch["observation.state"])
    made = (actions - model.action_mean) / model.action_std
    assert torch.allclose(made, model(pictures, batch["observation.state"]), atol=1e-5)
    assert actions.shape == (1, INSTANTS, 2)
