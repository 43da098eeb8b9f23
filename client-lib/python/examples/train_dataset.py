"""Trains on a PyTorch Dataset of this script, which runs in Forebay's worker processes as it is.

    python train_dataset.py pictures run.pth                  # pictures/CLASS/FILE.png
    python train_dataset.py pictures run.pth --resume         # goes on inside the epoch, at the next batch

What changes from a `DataLoader`: the loader's name, and its state in the checkpoint. The flips in `__getitem__` are
drawn from generators that are seeded for each item, so that a resumed run trains on what an uninterrupted one does.
"""

import argparse
import random
from pathlib import Path

import forebay.torch
import numpy
import torch
from PIL import Image


class Pictures(torch.utils.data.Dataset):
    """Pictures in class folders, each as float32 [3, 32, 32], and the number of its class."""

    def __init__(self, folder):
        self.files = sorted(Path(folder).glob("*/*.png"))
        self.classes = sorted({file.parent.name for file in self.files})

    def __len__(self):
        return len(self.files)

    def __getitem__(self, place):
        file = self.files[place]
        pixels = numpy.asarray(Image.open(file).convert("RGB").resize((32, 32)), numpy.float32) / 255
        if random.random() < 0.5:
            pixels = pixels[:, ::-1]
        return numpy.ascontiguousarray(pixels.transpose(2, 0, 1)), self.classes.index(file.parent.name)


def main(arguments=None):
    parser = argparse.ArgumentParser(description="trains on a PyTorch Dataset")
    parser.add_argument("folder", help="pictures in class folders")
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=None, help="default: one for each core")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--save-every", type=int, default=100, help="steps")
    parser.add_argument("--stop-after", type=int, default=None, help="steps")
    asked, losses = parser.parse_args(arguments), []
    dataset = Pictures(asked.folder)
    options = {"batch_size": asked.batch_size, "num_workers": asked.workers, "epochs": asked.epochs, "seed": 1}
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, len(dataset.classes)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with forebay.torch.Loader(dataset, shuffle=True, **options) as loader:
        kept = {"model": model, "optimizer": optimizer, "loader": loader}
        if asked.resume:
            checkpoint = torch.load(asked.checkpoint, map_location="cpu")
            for name, part in kept.items():
                part.load_state_dict(checkpoint[name])
        # After a resume the first of these is the rest of the state's epoch.
        for _ in loader.epochs_left():
            for images, labels in loader:
                loss = torch.nn.functional.cross_entropy(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
                if len(losses) % asked.save_every == 0:
                    torch.save({name: part.state_dict() for name, part in kept.items()}, asked.checkpoint)
                if len(losses) == asked.stop_after:
                    return losses
    return losses


if __name__ == "__main__":
    for loss in main():
        print(loss)
