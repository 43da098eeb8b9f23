"""The examples for other libraries: what a run trained on after a checkpoint, the run that goes on from that checkpoint
trains on, batch for batch."""

import functools
import os
import subprocess
import sys
from pathlib import Path

import forebay
import numpy
import pytest
from support import load_example, run_ranks

torch = pytest.importorskip("torch")

SAMPLES, BATCH_SIZE, EPOCHS = 36, 4, 3
STEPS_AN_EPOCH = SAMPLES // BATCH_SIZE
# Inside the first epoch, its last step, and inside the second one.
SAVED_STEPS = [3, 9, 12]
QUIET_LIGHTNING = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}


@pytest.fixture(scope="module")
def config_file(tmp_path_factory):
    """Shuffled images whose every pixel is the sample's id, so that a model sees which ones it trains on."""
    folder = tmp_path_factory.mktemp("labelled")
    (folder / "data").mkdir()
    for sample in range(SAMPLES):
        image = numpy.full((3, 4, 4), sample, numpy.uint8)
        numpy.savez(folder / "data" / f"{sample:02}.npz", image=image, label=numpy.int64(sample % 5))
    file = folder / "train.toml"
    file.write_text(
        '[dataset]\nformat = "npz"\npath = "data"\n'
        f"[order]\nseed = 11\nepochs = {EPOCHS}\n[batch]\nsize = {BATCH_SIZE}\n"
        '[[stage]]\nname = "unpack"\nconcurrency = 1\noperations = []\n'
        "[ring]\nslots = 6\nhold = 4\n"
    )
    return file


@pytest.fixture(scope="module")
def order(config_file):
    """The ids of every step's batch, from the loader alone."""
    with forebay.Loader(config_file) as loader:
        steps = [batch["index"].tolist() for _ in range(EPOCHS) for batch in loader]
    assert (
        len(steps) == EPOCHS * STEPS_AN_EPOCH and steps[:STEPS_AN_EPOCH] != steps[STEPS_AN_EPOCH : 2 * STEPS_AN_EPOCH]
    )
    return steps


def watch(example, monkeypatch):
    """The ids of each batch that the example's model is given, as they come."""
    seen = []
    forward = example.Classifier.forward

    @functools.wraps(forward)
    def watched(self, images=None, **arguments):
        images = arguments.get("pixel_values") if images is None else images
        seen.append(images[:, 0, 0, 0].tolist())
        return forward(self, images, **{name: value for name, value in arguments.items() if name != "pixel_values"})

    monkeypatch.setattr(example.Classifier, "forward", watched)
    return seen


def check(run, saved, seen, order):
    """Runs to the end, then from each checkpoint."""
    run(None)
    assert seen == order
    for step, checkpoint in saved.items():
        seen.clear()
        run(checkpoint)
        assert seen == order[step:], f"from step {step}"


def test_lightning_goes_on_inside_an_epoch(config_file, order, tmp_path, monkeypatch):
    pytest.importorskip("pytorch_lightning")
    example = load_example("train_lightning")
    seen = watch(example, monkeypatch)

    def run(resume):
        arguments = [str(config_file), str(tmp_path), "--epochs", str(EPOCHS), "--save-every", "3", "--pixels", "48"]
        example.main(
            arguments + (["--resume", resume] if resume else []), accelerator="cpu", devices=1, **QUIET_LIGHTNING
        )

    check(run, {step: str(tmp_path / f"step={step}.ckpt") for step in SAVED_STEPS}, seen, order)


def test_accelerate_goes_on_inside_an_epoch(config_file, order, tmp_path, monkeypatch):
    pytest.importorskip("accelerate")
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    example = load_example("train_accelerate")
    seen = watch(example, monkeypatch)

    def run(resume):
        arguments = [str(config_file), str(tmp_path), "--epochs", str(EPOCHS), "--save-every", "3", "--pixels", "48"]
        example.main(arguments + (["--resume", resume] if resume else []))

    check(run, {step: str(tmp_path / f"step-{step}") for step in SAVED_STEPS}, seen, order)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_transformers_goes_on_inside_an_epoch(config_file, order, tmp_path, monkeypatch, accumulate):
    pytest.importorskip("transformers")
    example = load_example("train_transformers")
    seen = watch(example, monkeypatch)

    def run(resume):
        arguments = [str(config_file), str(tmp_path), "--epochs", str(EPOCHS), "--pixels", "48"]
        arguments += ["--accumulate", str(accumulate), "--save-every", "3" if accumulate == 1 else "1"]
        quiet = {"use_cpu": True, "report_to": [], "disable_tqdm": True}
        example.main(arguments + (["--resume", resume] if resume else []), **quiet)

    # Two batches a step: the ninth of an epoch is a step of its own.
    steps = {3: 3, 9: 9, 12: 12} if accumulate == 1 else {4: 2, 9: 5, 13: 7}
    saved = {batches: str(tmp_path / f"checkpoint-{step}") for batches, step in steps.items()}
    check(run, saved, seen, order)

    with pytest.raises(ValueError, match=r"epoch 0, sample \d+, and the Trainer would go on at epoch 0, sample \d+"):
        accumulate = 3 - accumulate
        run(saved[min(saved)])


@pytest.fixture
def given_to_models():
    """The ids of each batch that a small model of torchvision's or timm's is given, as they come."""
    seen = []

    def watch(module, inputs):
        if type(module).__name__ in ("ShuffleNetV2", "ResNet"):
            seen.append((inputs[0][:, 0, 0, 0] * 255).round().int().tolist())

    threads = torch.get_num_threads()
    # The same sums in the same order, also beside other tests.
    torch.set_num_threads(1)
    hook = torch.nn.modules.module.register_module_forward_pre_hook(watch)
    yield seen
    hook.remove()
    torch.set_num_threads(threads)


@pytest.mark.parametrize(("name", "model"), [("torchvision", "shufflenet_v2_x0_5"), ("timm", "test_resnet")])
def test_a_reference_script_goes_on_inside_an_epoch_to_the_same_weights(
    config_file, order, tmp_path, given_to_models, name, model
):
    pytest.importorskip(name)
    example = load_example(f"train_{name}")
    ends = []

    def run(resume):
        torch.manual_seed(5)
        arguments = [str(config_file), str(tmp_path), "--epochs", str(EPOCHS), "--save-every", "3"]
        arguments += ["--model", model, "--classes", "5"]
        trained = example.main(arguments + (["--resume", resume] if resume else []))
        ends.append(torch.nn.utils.parameters_to_vector(trained.parameters()).detach())

    check(run, {step: str(tmp_path / f"step-{step}.pth") for step in SAVED_STEPS}, given_to_models, order)
    # So the learning rate of each step was the same, too.
    assert all(torch.allclose(end, ends[0], rtol=1e-4, atol=1e-6) for end in ends[1:])


def test_a_script_that_skips_updates_while_replaying_ends_with_the_weights_of_an_unmeasured_run(
    config_file, tmp_path, given_to_models, monkeypatch
):
    pytest.importorskip("torchvision")
    example, epochs = load_example("train_torchvision"), 12
    longer = config_file.with_name("longer.toml")
    longer.write_text(config_file.read_text().replace(f"epochs = {EPOCHS}", f"epochs = {epochs}"))
    arguments = [str(longer), str(tmp_path), "--epochs", str(epochs), "--model", "shufflenet_v2_x0_5", "--classes", "5"]

    def run():
        torch.manual_seed(5)
        given_to_models.clear()
        parameters = example.main(arguments).parameters()
        return torch.nn.utils.parameters_to_vector(parameters).detach(), len(given_to_models)

    unmeasured, steps = run()
    assert steps == epochs * STEPS_AN_EPOCH
    measuring = []
    make = forebay.torch.Loader

    def make_measured(*given):
        loader = make(*given)
        socket = f"@forebay-{os.geteuid()}/{loader.daemon_pid}-{loader.stream}"
        command = [sys.executable, "-m", "forebay", "headspace", "--replay", "--yes", "--after", "14", "--steps", "14"]
        measuring.append(subprocess.Popen([*command, socket], stderr=subprocess.PIPE, text=True))
        # It has found the trainer, which begins only then.
        assert any("checking" in line for line in measuring[0].stderr)
        return loader

    monkeypatch.setattr(forebay.torch, "Loader", make_measured)
    weights, steps = run()
    assert measuring[0].wait(timeout=100) == 0, measuring[0].stderr.read()
    measuring[0].stderr.close()
    assert steps == epochs * STEPS_AN_EPOCH + 14 and torch.allclose(weights, unmeasured, rtol=1e-4, atol=1e-6)


def test_flax_goes_on_inside_an_epoch(config_file, order, tmp_path, monkeypatch):
    pytest.importorskip("flax")
    example = load_example("train_flax")
    seen, train_step, ends = [], example.train_step, []

    def watched(state, images, labels):
        seen.append(images[:, 0, 0, 0].tolist())
        return train_step(state, images, labels)

    monkeypatch.setattr(example, "train_step", watched)

    def run(resume):
        arguments = [str(config_file), str(tmp_path), "--epochs", str(EPOCHS), "--save-every", "3"]
        state = example.main([*arguments, "--shape", "3", "4", "4"] + (["--resume", resume] if resume else []))
        ends.append(numpy.asarray(state.params["Dense_0"]["kernel"]))

    check(run, {step: str(tmp_path / f"step-{step}") for step in SAVED_STEPS}, seen, order)
    assert all(numpy.allclose(end, ends[0]) for end in ends[1:])


WATCHED = """
    import json, os, sys
    import test_examples
    from support import load_example

    folder, name, *arguments = sys.argv[1:]
    example = load_example(name)
    seen = []
    forward = example.Classifier.forward
    example.Classifier.forward = lambda self, images: seen.append(images[:, 0, 0, 0].tolist()) or forward(self, images)
    options = {"accelerator": "cpu", "devices": 2, "strategy": "ddp", **test_examples.QUIET_LIGHTNING}
    example.main(arguments, **(options if name == "train_lightning" else {}))
    with open(os.path.join(folder, os.environ["RANK"] + ".json"), "w") as file:
        json.dump(seen, file)
"""


@pytest.mark.parametrize("name", ["train_lightning", "train_accelerate"])
def test_two_processes_go_on_from_where_one_stood(config_file, order, tmp_path, monkeypatch, name):
    pytest.importorskip("pytorch_lightning" if name == "train_lightning" else "accelerate")
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    example = load_example(name)
    # Four of nine batches: what is left of the epoch is two and a half global batches of two processes.
    options = ["--epochs", "1", "--save-every", "4", "--pixels", "48"]
    quiet = {"accelerator": "cpu", "devices": 1, **QUIET_LIGHTNING} if name == "train_lightning" else {}
    example.main([str(config_file), str(tmp_path), *options], **quiet)
    saved = tmp_path / ("step=4.ckpt" if name == "train_lightning" else "step-4")
    arguments = [name, config_file, tmp_path / "on", *options, "--resume", saved]
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    ranks = run_ranks(tmp_path, 2, WATCHED, *arguments, PYTHONPATH=path)
    left = order[4:STEPS_AN_EPOCH]
    # The rest under `last = "drop"`: the last batch is half of a global one.
    assert [ranks[number % 2][number // 2] for number in range(4)] == left[:4]
    assert len(ranks[0]) == len(ranks[1]) == 2
