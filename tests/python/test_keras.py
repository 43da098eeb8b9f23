"""`forebay.keras` under `Model.fit`: a run that was killed goes on to the same weights.

Keras 3.15.1 is not in CI's environment: there these tests are skipped.
"""

import json
import os
import signal

import forebay
import numpy
import pytest
from support import EXAMPLES, load_example, run_script
from test_examples import BATCH_SIZE, EPOCHS, STEPS_AN_EPOCH, config_file, order  # noqa: F401
from test_text_examples import single_thread  # noqa: F401

os.environ.setdefault("KERAS_BACKEND", "torch")
keras = pytest.importorskip("keras")
torch = pytest.importorskip("torch")

import forebay.keras  # noqa: E402
import forebay.torch  # noqa: E402


@pytest.fixture
def seen(monkeypatch):
    """The ids of each batch that a model trains on, as they come."""
    found = []
    train_step = keras.Model.train_step

    def watched(self, data):
        found.append((data[0][:, 0] * 255).round().int().tolist())
        return train_step(self, data)

    monkeypatch.setattr(keras.Model, "train_step", watched)
    return found


def arguments(config_file, folder, *more):  # noqa: F811
    return [str(config_file), str(folder), "--pixels=48", "--classes=5", f"--epochs={EPOCHS}", *more]


def weights(folder):
    """The weights of model and optimizer of the only checkpoint, by name."""
    (checkpoint,) = folder.glob("[0-9]*")
    h5py, found = pytest.importorskip("h5py"), {}

    def add(name, item):
        if isinstance(item, h5py.Dataset):
            found[name] = numpy.array(item)

    with h5py.File(checkpoint / forebay.keras.WEIGHTS_NAME) as file:
        file.visititems(add)
    return found, json.loads((checkpoint / forebay.keras.STATE_NAME).read_text())


KILLED = """
import os, runpy, signal, sys

program, steps, *arguments = sys.argv[1:]
import keras, torch

torch.set_num_threads(1)
calls, train_step = iter(range(int(steps))), keras.Model.train_step

def killed(self, data):
    if next(calls, None) is None:
        os.kill(os.getpid(), signal.SIGKILL)
    return train_step(self, data)

keras.Model.train_step = killed
sys.argv = [program, *arguments]
runpy.run_path(program, run_name="__main__")
"""


# A kill inside the first epoch, behind its end, and inside the second one; checkpoints are at every third step.
@pytest.mark.parametrize(("killed", "saved"), [(4, 3), (STEPS_AN_EPOCH, 9), (STEPS_AN_EPOCH + 4, 12)])
def test_a_killed_run_goes_on_to_the_same_weights(config_file, order, seen, tmp_path, killed, saved):  # noqa: F811
    example, more = load_example("train_keras"), ["--save-every=3"]
    example.main(arguments(config_file, tmp_path / "whole", *more))
    assert seen == order
    program = str(EXAMPLES / "train_keras.py")
    done = run_script(KILLED, program, str(killed), *arguments(config_file, tmp_path / "killed", *more))
    assert done.returncode == -signal.SIGKILL, done.stderr
    seen.clear()
    # What a kill while it saved would leave.
    (tmp_path / "killed" / "unfinished").mkdir()
    history = example.main(arguments(config_file, tmp_path / "killed", *more))
    assert seen == order[saved:]
    assert history.epoch == list(range(saved // STEPS_AN_EPOCH, EPOCHS))
    (expected, state), (found, resumed_state) = weights(tmp_path / "whole"), weights(tmp_path / "killed")
    assert state == resumed_state and expected.keys() == found.keys() and len(expected) > 4
    assert all(numpy.array_equal(value, found[name]) for name, value in expected.items())


def model_of(**options):
    """A model whose weights Keras builds of the first batch."""
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse", **options)
    return model


def pairs(batch):
    return batch["image"].flatten(1).float() / 255, batch["label"].float()


def test_a_batch_that_builds_the_model_is_trained_on_too(config_file, order, seen):  # noqa: F811
    with forebay.torch.Loader(config_file) as loader:
        batches = forebay.keras.Batches(loader, pairs)
        place = forebay.keras.KeepsPlace(batches)
        assert len(batches) == STEPS_AN_EPOCH
        model_of().fit(batches, epochs=1, callbacks=[place], shuffle=False, verbose=0)
        assert seen == order[:STEPS_AN_EPOCH]
        # Another model, and an epoch that was left early.
        model = model_of()

        def stop_at_the_fourth(batch, logs):
            model.stop_training = batch == 3

        stop = keras.callbacks.LambdaCallback(on_train_batch_end=stop_at_the_fourth)
        model.fit(batches, epochs=1, callbacks=[place, stop], shuffle=False, verbose=0)
        assert seen == order[: STEPS_AN_EPOCH + 4]
        assert place.restore(model) == 1
        model.fit(batches, initial_epoch=1, epochs=EPOCHS, callbacks=[place], shuffle=False, verbose=0)
    assert seen == order


def test_validation_is_the_first_epoch_each_time(config_file, order, monkeypatch):  # noqa: F811
    found = []
    test_step = keras.Model.test_step

    def watched(self, data):
        found.append((data[0][:, 0] * 255).round().int().tolist())
        return test_step(self, data)

    monkeypatch.setattr(keras.Model, "test_step", watched)
    with forebay.torch.Loader(config_file) as loader, forebay.torch.Loader(config_file, epochs=1) as validation:
        batches, other = forebay.keras.Batches(loader, pairs), forebay.keras.Validation(validation, pairs)
        model, place = model_of(), forebay.keras.KeepsPlace(batches)
        model.fit(batches, epochs=2, validation_data=other, callbacks=[place], shuffle=False, verbose=0)
        model.evaluate(other, verbose=0)
        assert model.predict(other, verbose=0).shape == (STEPS_AN_EPOCH * BATCH_SIZE, 1)
    assert found == order[:STEPS_AN_EPOCH] * 3


def test_without_the_callback_it_is_asked_for(config_file):  # noqa: F811
    with forebay.torch.Loader(config_file) as loader:
        batches = forebay.keras.Batches(loader, pairs)
        with pytest.raises(forebay.ConfigError, match=r"callbacks=\[forebay.keras.KeepsPlace\(batches\)\]"):
            model_of().fit(batches, epochs=1, shuffle=False, verbose=0)
        with pytest.raises(forebay.ConfigError, match="from 1"):
            forebay.keras.KeepsPlace(batches, save_every=0)
