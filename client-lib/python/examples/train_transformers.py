"""The Trainer of Hugging Face's Transformers with a Forebay loader.

    python train_transformers.py train.toml runs
    python train_transformers.py train.toml runs --resume runs/checkpoint-3000

`forebay.transformers.Trainer` trains on the loader's batches and keeps the loader's state in each checkpoint. The
Trainer keeps the batches of one optimizer step while it requests those of the next: `ring.hold` must be at least twice
`gradient_accumulation_steps`.
"""

import argparse

import forebay.torch
import forebay.transformers
import torch
import transformers


class Classifier(torch.nn.Module):
    """A placeholder for your model: a linear classifier over pixels, with its loss."""

    def __init__(self, pixels, classes=1000):
        super().__init__()
        self.layer = torch.nn.Linear(pixels, classes)

    def forward(self, pixel_values, labels):
        logits = self.layer(pixel_values.flatten(1).float() / 255)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


def main(arguments=None, **options):
    parser = argparse.ArgumentParser(description="trains under Transformers' Trainer")
    parser.add_argument("config", help="a Forebay configuration with the fields image and label")
    parser.add_argument("folder", help="where checkpoints go")
    parser.add_argument("--pixels", type=int, default=3 * 224 * 224, help="values of an image")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--accumulate", type=int, default=1, help="batches of an optimizer step")
    parser.add_argument("--save-every", type=int, default=1000, help="steps from checkpoint to checkpoint")
    parser.add_argument("--resume", help="a checkpoint to go on from")
    asked = parser.parse_args(arguments)
    with forebay.torch.Loader(asked.config) as loader:
        trainer = forebay.transformers.Trainer(
            model=Classifier(asked.pixels),
            args=transformers.TrainingArguments(
                output_dir=asked.folder,
                num_train_epochs=asked.epochs,
                per_device_train_batch_size=loader.batch_size,
                gradient_accumulation_steps=asked.accumulate,
                save_steps=asked.save_every,
                **options,
            ),
            loader=loader,
            to_inputs=lambda batch: {"pixel_values": batch["image"], "labels": batch["label"]},
        )
        trainer.train(resume_from_checkpoint=asked.resume)


if __name__ == "__main__":
    main()
