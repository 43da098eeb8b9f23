"""PyTorch in nanoGPT's way: fixed windows of files of tokens.

    python train_gpt.py tokens.toml runs/state.pt
    python train_gpt.py tokens.toml runs/state.pt --resume

The configuration has `format = "tokens"`, and its defaults are what this takes: `tokens` and, one token ahead,
`labels`, both int64. Unlike nanoGPT's `get_batch`, which draws windows with replacement, an epoch has each window
once, and a run goes on at the next batch.
"""

import argparse
from pathlib import Path

import forebay.torch
import torch


class Model(torch.nn.Module):
    """A placeholder for your model."""

    def __init__(self, vocabulary, width=32):
        super().__init__()
        self.embedding = torch.nn.Embedding(vocabulary, width)
        self.layer = torch.nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.head = torch.nn.Linear(width, vocabulary)

    def forward(self, tokens):
        mask = torch.nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        return self.head(self.layer(self.embedding(tokens), src_mask=mask, is_causal=True))


def train(asked):
    place = Path(asked.checkpoint)
    saved = torch.load(place) if asked.resume else None
    model = Model(asked.vocabulary)
    optimizer = torch.optim.AdamW(model.parameters(), lr=asked.lr)
    if saved:
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    losses = []
    with forebay.torch.Loader(asked.config, state=saved and saved["loader"]) as loader:
        for batch in loader:
            logits = model(batch["tokens"])
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if len(losses) == asked.steps:
                break
        states = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
        torch.save(states, place)
    return losses


def main(arguments=None):
    parser = argparse.ArgumentParser(description="trains a language model with PyTorch")
    parser.add_argument("config", help="a Forebay configuration of tokens")
    parser.add_argument("checkpoint", help="the file of the run's state")
    parser.add_argument("--vocabulary", type=int, default=50304)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint")
    return train(parser.parse_args(arguments))


if __name__ == "__main__":
    main()
