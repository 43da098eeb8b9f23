"""The Trainer of Hugging Face's Transformers with a Forebay loader.

    python train_transformers.py train.toml runs
    python train_transformers.py train.toml runs --resume runs/checkpoint-3000

`ForebayTrainer` overrides `get_train_dataloader`, which bypasses Accelerate's preparation (a sampler for each
process, dispatch of batches by the first one, `even_batches`): the loader divides the samples among ranks itself. The
Trainer moves batches to the device as usual. Each checkpoint contains the loader's state in addition to the
Trainer's; on resume the batches that the Trainer skips are counted but not loaded.

The Trainer keeps the batches of one optimizer step while it requests those of the next: `ring.hold` must be at least
twice `gradient_accumulation_steps`.
"""

import argparse
import itertools
import json
from pathlib import Path

import forebay.torch
import torch
import transformers
from transformers.trainer_utils import get_last_checkpoint

STATE_NAME = "forebay.json"


class Batches(torch.utils.data.IterableDataset):
    """Adapts the loader to the Trainer: a data loader that is also its dataset, with batches as items."""

    # Attributes that Accelerate's `skip_first_batches` reads from a data loader.
    batch_size = None
    drop_last = False
    prefetch_factor = None

    def __init__(self, loader, to_inputs):
        self.loader, self.to_inputs, self.dataset = loader, to_inputs, self

    def __len__(self):
        return len(self.loader)

    def set_epoch(self, epoch):
        self.loader.set_epoch(epoch)

    def __iter__(self):
        # In the epoch of a resume, the Trainer discards as many items as it has trained on, without reading them.
        taken = self.loader.state_dict()["samples"] // (self.loader.batch_size * self.loader.world_size)
        yield from itertools.repeat(None, taken)
        yield from map(self.to_inputs, self.loader)


class KeepsPlace(transformers.TrainerCallback):
    """Writes the loader's state, the same on every rank, into each checkpoint."""

    def __init__(self, loader):
        self.loader = loader

    def on_save(self, args, state, control, **_):
        if state.is_world_process_zero:
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            (folder / STATE_NAME).write_text(json.dumps(self.loader.state_dict()))


class ForebayTrainer(transformers.Trainer):
    """A Trainer over a loader that has at least the trained epochs; `to_inputs` converts a batch to the model's
    arguments."""

    def __init__(self, *arguments, loader, to_inputs, **options):
        super().__init__(*arguments, **options)
        self.batches = Batches(loader, to_inputs)
        self.add_callback(KeepsPlace(loader))

    def get_train_dataloader(self):
        return self.batches

    def num_examples(self, dataloader):
        if dataloader is not self.batches:
            return super().num_examples(dataloader)
        return len(dataloader) * dataloader.loader.batch_size

    def train(self, resume_from_checkpoint=None, **options):
        if resume_from_checkpoint is True:
            resume_from_checkpoint = get_last_checkpoint(self.args.output_dir)
        if resume_from_checkpoint:
            self.go_to(Path(resume_from_checkpoint))
        return super().train(resume_from_checkpoint=resume_from_checkpoint, **options)

    def go_to(self, checkpoint):
        """Moves the loader to a checkpoint's position, which must agree with the Trainer's."""
        loader, state = self.batches.loader, json.loads((checkpoint / STATE_NAME).read_text())
        steps = transformers.TrainerState.load_from_json(str(checkpoint / "trainer_state.json")).global_step
        batches_a_step = self.args.gradient_accumulation_steps
        epoch, steps = divmod(steps, -(-len(loader) // batches_a_step))
        samples = steps * batches_a_step * loader.batch_size * loader.world_size
        if (state["epoch"], state["samples"]) != (epoch, samples) or self.args.ignore_data_skip:
            raise ValueError(
                f"the checkpoint is at epoch {state['epoch']}, sample {state['samples']}, and the Trainer would go on "
                f"at epoch {epoch}, sample {samples}: resume with the batch size, gradient_accumulation_steps and "
                "number of processes that it was saved with, and without ignore_data_skip"
            )
        loader.load_state_dict(state)


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
        trainer = ForebayTrainer(
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
