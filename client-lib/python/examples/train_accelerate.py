"""Accelerate with a Forebay loader.

    accelerate launch train_accelerate.py train.toml runs
    accelerate launch train_accelerate.py train.toml runs --resume runs/step-3000

`forebay.accelerate.prepare` adds the loader's state to `save_state` and `load_state`, and gives its batches on the
device: a run resumes inside its epoch at the next batch, also with another number of processes.
"""

import argparse
from pathlib import Path

import accelerate
import forebay.accelerate
import forebay.torch
import torch


class Classifier(torch.nn.Module):
    """A placeholder for your model: a linear classifier over pixels."""

    def __init__(self, pixels, classes=1000):
        super().__init__()
        self.layer = torch.nn.Linear(pixels, classes)

    def forward(self, images):
        return self.layer(images.flatten(1).float() / 255)


def train(accelerator, loader, model, folder, epochs, save_every, resume=None):
    """Trains, with a checkpoint at a fixed interval of steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer = accelerator.prepare(model, optimizer)
    batches = forebay.accelerate.prepare(accelerator, loader)
    if resume is not None:
        accelerator.load_state(resume)
    # Of a resumed run these are the epochs that are left, and the first one is the rest of its epoch.
    step = batches.steps_taken
    for _ in batches.epochs_left(epochs):
        for batch in batches:
            loss = torch.nn.functional.cross_entropy(model(batch["image"]), batch["label"])
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step % save_every == 0:
                accelerator.save_state(Path(folder) / f"step-{step}")


def main(arguments=None):
    parser = argparse.ArgumentParser(description="trains under Accelerate")
    parser.add_argument("config", help="a Forebay configuration with the fields image and label")
    parser.add_argument("folder", help="where checkpoints go")
    parser.add_argument("--pixels", type=int, default=3 * 224 * 224, help="values of an image")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--save-every", type=int, default=1000, help="steps from checkpoint to checkpoint")
    parser.add_argument("--resume", help="a checkpoint to go on from")
    asked = parser.parse_args(arguments)
    accelerator = accelerate.Accelerator()
    with forebay.torch.Loader(asked.config) as loader:
        train(accelerator, loader, Classifier(asked.pixels), asked.folder, asked.epochs, asked.save_every, asked.resume)


if __name__ == "__main__":
    main()
