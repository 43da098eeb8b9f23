"""Trains a small model with CTC to recognise speech, in batches of as many seconds of sound as fit a budget.

    python train.py train.toml run.pt --steps 1000
    python train.py train.toml run.pt --steps 1000 --resume

`train.toml` beside this file says where sounds, transcripts and tokenizer are. A batch has few long sounds or many
short ones, padded to the longest, with the lengths of sounds and transcripts. The checkpoint holds the model, the
optimizer and the loader's state: a run that was killed goes on behind the last checkpoint with the batches that it
would have had. `--steps` counts the steps of the whole training.
"""

import argparse
import itertools
import os

import forebay.torch
import torch
from torch.nn import functional

WINDOW, HOP = 400, 160  # samples of a spectrum, and between two: 25 and 10 ms of 16 kHz
KERNEL, STRIDE = 5, 2  # of the layer that joins neighbouring spectra


class Speech(torch.nn.Module):
    """Spectra and two convolutions, in place of your model. It gives frames, and their number of each sound.

    Nothing is padded on the way, so a frame within a sound's number sees no sample behind the sound's end.
    """

    def __init__(self, vocabulary, width=64):
        super().__init__()
        self.register_buffer("window", torch.hann_window(WINDOW), persistent=False)
        self.spectra = torch.nn.Conv1d(WINDOW // 2 + 1, width, 1)
        self.neighbours = torch.nn.Conv1d(width, width, KERNEL, STRIDE)
        self.head = torch.nn.Linear(width, vocabulary)

    def forward(self, sounds, lengths):
        # A batch has at least one frame; a sound that is too short for one has none that counts.
        sounds = functional.pad(sounds, (0, max(0, WINDOW + (KERNEL - 1) * HOP - sounds.shape[1])))
        spectra = torch.stft(sounds, WINDOW, HOP, window=self.window, center=False, return_complex=True)
        x = functional.gelu(self.spectra(torch.log1p(spectra.abs())))
        frames = self.head(functional.gelu(self.neighbours(x)).mT)
        numbers = ((lengths - WINDOW) // HOP + 1 - KERNEL) // STRIDE + 1
        return frames, numbers.clamp(min=0)


def loss_of(model, batch, blank):
    """The mean over rows of the loss for each token; a row with fewer frames than its text needs counts as 0."""
    frames, numbers = model(batch["audio"], batch["audio_lengths"])
    return functional.ctc_loss(
        frames.log_softmax(2).transpose(0, 1),
        batch["labels"],
        numbers,
        batch["labels_lengths"],
        blank=blank,
        zero_infinity=True,
    )


def main(arguments=None):
    parser = argparse.ArgumentParser(description="trains a small model of speech")
    parser.add_argument("config", help="a Forebay configuration of sounds and transcripts that become tokens")
    parser.add_argument("checkpoint", help="the file of the run's state")
    parser.add_argument("--vocabulary", type=int, default=32, help="the tokenizer's tokens, with the blank")
    parser.add_argument("--blank", type=int, default=0, help="the token of CTC's blank, which no transcript has")
    parser.add_argument("--steps", type=int, default=1000, help="of the whole training")
    parser.add_argument("--save-every", type=int, default=100, help="steps")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint")
    asked = parser.parse_args(arguments)
    torch.manual_seed(1)
    model, step, losses = Speech(asked.vocabulary), 0, []
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
            loss = loss_of(model, batch, asked.blank)
            loss.backward()
            optimizer.step()
            step += 1
            losses.append(loss.item())
            rows, samples = batch["audio"].shape
            print(f"step {step}: {rows} sounds of up to {samples / 16_000:.2f} s, loss {losses[-1]:.4f}")
            if step % asked.save_every == 0 or step == asked.steps:
                # Under another name first: a kill meanwhile leaves the checkpoint before.
                kept = f"{asked.checkpoint}.new"
                torch.save({"step": step, **{name: part.state_dict() for name, part in parts.items()}}, kept)
                os.replace(kept, asked.checkpoint)
    return losses


if __name__ == "__main__":
    main()
