"""Trains a small diffusion model on pictures of several aspect ratios with captions, each batch of one shape.

    python train.py train.toml run.pt --steps 1000
    python train.py train.toml run.pt --steps 1000 --resume

`train.toml` beside this file says where pictures, captions and tokenizer are, and which shapes there are. The
checkpoint holds the model, the optimizer and the loader's state: a run that was killed goes on behind the last
checkpoint with the batches, and the noise, that it would have had. `--steps` counts the steps of the whole training.
"""

import argparse
import itertools
import math
import os

import forebay.torch
import torch
from torch.nn import functional


class Denoiser(torch.nn.Module):
    """Convolutions that see noise level and caption, in place of your model. It takes pictures of any shape."""

    def __init__(self, vocabulary, width=32):
        super().__init__()
        self.words = torch.nn.Embedding(vocabulary, width)
        self.level = torch.nn.Linear(2, width)
        self.first = torch.nn.Conv2d(3, width, 3, padding=1)
        self.down = torch.nn.Conv2d(width, width, 3, stride=2, padding=1)
        self.up = torch.nn.Conv2d(width, width, 3, padding=1)
        self.last = torch.nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, pictures, levels, captions, lengths):
        # The mean of a caption's words; its padding has none.
        is_word = torch.arange(captions.shape[1]) < lengths[:, None]
        words = (self.words(captions) * is_word[..., None]).sum(1) / lengths.clamp(min=1)[:, None]
        given = (words + self.level(levels))[:, :, None, None]
        fine = functional.silu(self.first(pictures) + given)
        coarse = functional.silu(self.down(fine))
        fine = fine + functional.interpolate(functional.silu(self.up(coarse)), size=fine.shape[2:])
        return self.last(fine)


def loss_of(model, batch, generator):
    """How far the model is from the noise that was added, on the average of all pixels."""
    pictures = batch["image"]
    angles = torch.rand(len(pictures), generator=generator) * (math.pi / 2)
    levels = torch.stack([angles.cos(), angles.sin()], 1)
    noise = torch.randn(pictures.shape, generator=generator)
    kept, added = levels[:, :, None, None, None].unbind(1)
    found = model(kept * pictures + added * noise, levels, batch["caption"], batch["caption_lengths"])
    return functional.mse_loss(found, noise)


def main(arguments=None):
    parser = argparse.ArgumentParser(description="trains a small diffusion model")
    parser.add_argument("config", help="a Forebay configuration of pictures in buckets, and captions")
    parser.add_argument("checkpoint", help="the file of the run's state")
    parser.add_argument("--vocabulary", type=int, default=32_000, help="the tokenizer's tokens")
    parser.add_argument("--steps", type=int, default=1000, help="of the whole training")
    parser.add_argument("--save-every", type=int, default=100, help="steps")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint")
    asked = parser.parse_args(arguments)
    torch.manual_seed(1)
    model, step, losses = Denoiser(asked.vocabulary), 0, []
    optimizer = torch.optim.AdamW(model.parameters(), lr=asked.lr)
    with forebay.torch.Loader(asked.config) as loader:
        parts = {"model": model, "optimizer": optimizer, "loader": loader}
        if asked.resume:
            saved = torch.load(asked.checkpoint)
            step = saved["step"]
            for name, part in parts.items():
                part.load_state_dict(saved[name])
        # Without `order.epochs`, one epoch follows another without an end.
        batches = (batch for _ in loader.epochs_left() for batch in loader)
        for batch in itertools.islice(batches, asked.steps - step):
            optimizer.zero_grad()
            # The noise of a step is a function of its number, so that a resumed run has the same.
            loss = loss_of(model, batch, torch.Generator().manual_seed(step))
            loss.backward()
            optimizer.step()
            step += 1
            losses.append(loss.item())
            rows, _, height, width = batch["image"].shape
            print(f"step {step}: {rows} pictures of {width} × {height}, loss {losses[-1]:.4f}")
            if step % asked.save_every == 0 or step == asked.steps:
                # Under another name first: a kill meanwhile leaves the checkpoint before.
                kept = f"{asked.checkpoint}.new"
                torch.save({"step": step, **{name: part.state_dict() for name, part in parts.items()}}, kept)
                os.replace(kept, asked.checkpoint)
    return losses


if __name__ == "__main__":
    main()
