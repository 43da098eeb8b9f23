"""A small vision-language model on conversations about pictures, each batch as one packed sequence.

    python train_vlm.py pictures.toml runs/state.pt --image-token 151655
    python train_vlm.py pictures.toml runs/state.pt --image-token 151655 --resume

The configuration has `image-patches` and `chat` with `image_token`, as docs/how-to/pictures-in-texts.md shows. Rows are
ragged: they are concatenated, and attention ends with each row. Patches that become one token follow each other.
"""

import argparse
from pathlib import Path

import forebay.torch
import torch


def packed(batch):
    """A batch as one sequence: tokens, labels, the number of each token's row, and the patches of all pictures."""
    rows = [row.long() for row in batch["input_ids"]]
    labels = [row.long() for row in batch["labels"]]
    of_row = torch.cat([torch.full((len(row),), number) for number, row in enumerate(rows)])
    return torch.cat(rows), torch.cat(labels), of_row, torch.cat([row.float() for row in batch["pixel_values"]])


class Model(torch.nn.Module):
    """A placeholder for your model."""

    def __init__(self, vocabulary, image_token, patch_values, merged=4, width=64):
        super().__init__()
        self.image_token, self.merged_values = image_token, merged * patch_values
        self.embedding = torch.nn.Embedding(vocabulary, width)
        self.patches = torch.nn.Linear(self.merged_values, width)
        self.layer = torch.nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.head = torch.nn.Linear(width, vocabulary)

    def forward(self, tokens, of_row, patches):
        pictures = self.patches(patches.view(-1, self.merged_values))
        place = (tokens == self.image_token)[:, None]
        embedded = self.embedding(tokens).masked_scatter(place, pictures)
        # A token sees those before it in its row.
        order = torch.arange(len(tokens))
        hidden = (of_row[:, None] != of_row[None]) | (order[:, None] < order[None])
        return self.head(self.layer(embedded[None], src_mask=hidden)[0])


def train(asked):
    place = Path(asked.checkpoint)
    saved = torch.load(place) if asked.resume else None
    model = Model(asked.vocabulary, asked.image_token, asked.patch_values)
    optimizer = torch.optim.AdamW(model.parameters(), lr=asked.lr)
    if saved:
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    losses = []
    with forebay.torch.Loader(asked.config, state=saved and saved["loader"]) as loader:
        for batch in loader:
            tokens, labels, of_row, patches = packed(batch)
            logits = model(tokens, of_row, patches)
            # Each label is predicted by the token before it, if that is of the same row.
            labels[1:][of_row[1:] != of_row[:-1]] = -100
            loss = torch.nn.functional.cross_entropy(logits[:-1], labels[1:], ignore_index=-100)
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
    parser = argparse.ArgumentParser(description="trains a small vision-language model with PyTorch")
    parser.add_argument("config", help="a Forebay configuration of conversations with pictures")
    parser.add_argument("checkpoint", help="the file of the run's state")
    parser.add_argument("--image-token", type=int, required=True, help="the number of the token of pictures")
    parser.add_argument("--patch-values", type=int, default=1176, help="the values of a patch")
    parser.add_argument("--vocabulary", type=int, default=151936)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint")
    return train(parser.parse_args(arguments))


if __name__ == "__main__":
    main()
