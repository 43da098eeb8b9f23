"""PyTorch Lightning with a Forebay loader.

    python train_lightning.py train.toml runs
    python train_lightning.py train.toml runs --resume runs/step=3000.ckpt

`forebay.lightning.DataModule` makes the loader once the strategy has started its processes; a loader may also be
passed to `fit` as it is. Lightning stores the loader's state in every checkpoint, so a run resumes inside its epoch at
the next batch. `use_distributed_sampler=False`: the loader divides the samples among ranks itself.
"""

import argparse

import forebay.lightning
import pytorch_lightning
import torch
from pytorch_lightning.callbacks import ModelCheckpoint


class Classifier(pytorch_lightning.LightningModule):
    """A placeholder for your model: a linear classifier over pixels."""

    def __init__(self, pixels, classes=1000):
        super().__init__()
        self.layer = torch.nn.Linear(pixels, classes)

    def forward(self, images):
        return self.layer(images.flatten(1).float() / 255)

    def training_step(self, batch, _):
        return torch.nn.functional.cross_entropy(self(batch["image"]), batch["label"])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def main(arguments=None, **options):
    parser = argparse.ArgumentParser(description="trains under PyTorch Lightning")
    parser.add_argument("config", help="a Forebay configuration with the fields image and label")
    parser.add_argument("folder", help="where checkpoints go")
    parser.add_argument("--pixels", type=int, default=3 * 224 * 224, help="values of an image")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--save-every", type=int, default=1000, help="steps from checkpoint to checkpoint")
    parser.add_argument("--resume", help="a checkpoint to go on from")
    asked = parser.parse_args(arguments)
    # Checkpoints are written inside the epoch, where the loader's position matters.
    checkpoints = ModelCheckpoint(
        dirpath=asked.folder, filename="{step}", every_n_train_steps=asked.save_every, save_top_k=-1
    )
    trainer = pytorch_lightning.Trainer(
        max_epochs=asked.epochs,
        callbacks=[checkpoints],
        default_root_dir=asked.folder,
        use_distributed_sampler=False,
        **options,
    )
    data = forebay.lightning.DataModule(asked.config)
    trainer.fit(Classifier(asked.pixels), datamodule=data, ckpt_path=asked.resume)


if __name__ == "__main__":
    main()
