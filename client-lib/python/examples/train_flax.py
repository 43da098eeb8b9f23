"""JAX and Flax with a Forebay loader.

    python train_flax.py train.toml runs
    python train_flax.py train.toml runs --resume runs/step-3000

A checkpoint is a folder with Flax's train state and the loader's, one line of JSON: a run resumes inside its epoch at
the next batch. In a job of several processes each makes its loader; rank and world size are JAX's.
"""

import argparse
import json
from pathlib import Path

import flax.linen
import flax.serialization
import forebay.jax
import jax
import optax
from flax.training.train_state import TrainState


class Classifier(flax.linen.Module):
    """A placeholder for your model: a linear classifier over pixels."""

    classes: int = 1000

    @flax.linen.compact
    def __call__(self, images):
        flat = images.reshape(images.shape[0], -1).astype("float32") / 255
        return flax.linen.Dense(self.classes)(flat)


@jax.jit
def train_step(state, images, labels):
    def loss_of(parameters):
        logits = state.apply_fn({"params": parameters}, images)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    loss, gradients = jax.value_and_grad(loss_of)(state.params)
    return state.apply_gradients(grads=gradients), loss


def save(folder, state, loader):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "state.msgpack").write_bytes(flax.serialization.to_bytes(state))
    (folder / "forebay.json").write_text(json.dumps(loader.state_dict()))


def train(asked):
    place = json.loads((Path(asked.resume) / "forebay.json").read_text()) if asked.resume else None
    with forebay.jax.Loader(asked.config, state=place) as loader:
        model = Classifier()
        # A schedule by steps of the whole training; the step is part of the train state.
        schedule = optax.cosine_decay_schedule(asked.lr, asked.epochs * len(loader))
        parameters = model.init(jax.random.key(0), jax.numpy.zeros((1, *asked.shape)))["params"]
        state = TrainState.create(apply_fn=model.apply, params=parameters, tx=optax.adam(schedule))
        if asked.resume:
            state = flax.serialization.from_bytes(state, (Path(asked.resume) / "state.msgpack").read_bytes())
        # Of a resumed run these are the epochs that are left, and the first one is the rest of its epoch.
        for _ in loader.epochs_left(asked.epochs):
            for batch in loader:
                state, _ = train_step(state, batch["image"], batch["label"])
                if state.step % asked.save_every == 0:
                    save(Path(asked.folder) / f"step-{state.step}", state, loader)
        return state


def main(arguments=None):
    parser = argparse.ArgumentParser(description="trains with JAX and Flax")
    parser.add_argument("config", help="a Forebay configuration with the fields image and label")
    parser.add_argument("folder", help="where checkpoints go")
    parser.add_argument("--shape", type=int, nargs=3, default=[3, 224, 224], help="of an image")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--save-every", type=int, default=1000, help="steps from checkpoint to checkpoint")
    parser.add_argument("--resume", help="a checkpoint to go on from")
    return train(parser.parse_args(arguments))


if __name__ == "__main__":
    main()
