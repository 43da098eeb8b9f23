"""What Megatron-LM's `get_batch` takes from its data iterator, from Megatron's own files.

    python train_gpt_megatron.py tokens.toml

    [dataset]
    format = "tokens"
    path = "my-gpt_text_document.bin"     # its .idx beside it
    [dataset.tokens]
    cut = "concatenate"
    boundaries = ["cu_seqlens", "position_ids"]

`forebay.megatron.Batches` gives `tokens`, `labels`, `loss_mask` and `position_ids`, and for attention over packed
documents `cu_seqlens` with `max_seqlen`. Each data-parallel rank makes its own loader.
"""

import argparse

import forebay.megatron
import forebay.torch
import torch


class Model(torch.nn.Module):
    """A placeholder for Megatron's GPTModel: gives a loss for each token."""

    def __init__(self, vocabulary, length, width=32):
        super().__init__()
        self.tokens = torch.nn.Embedding(vocabulary, width)
        self.positions = torch.nn.Embedding(length, width)
        self.head = torch.nn.Linear(width, vocabulary)

    def forward(self, tokens, position_ids, labels):
        logits = self.head(self.tokens(tokens) + self.positions(position_ids))
        return torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none")


def train(asked):
    losses = []
    with forebay.torch.Loader(asked.config) as loader:
        batches = forebay.megatron.Batches(loader)
        model = optimizer = None
        for _ in range(asked.steps):
            batch = next(batches)
            if model is None:
                model = Model(asked.vocabulary, batch["tokens"].shape[1])
                optimizer = torch.optim.AdamW(model.parameters(), lr=asked.lr)
            of_tokens = model(batch["tokens"], batch["position_ids"], batch["labels"])
            loss = (of_tokens * batch["loss_mask"]).sum() / batch["loss_mask"].sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


def main(arguments=None):
    parser = argparse.ArgumentParser(description="trains on what Megatron's get_batch takes")
    parser.add_argument("config", help="a Forebay configuration of tokens with cu_seqlens and position_ids")
    parser.add_argument("--vocabulary", type=int, default=50304)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--lr", type=float, default=1e-3)
    return train(parser.parse_args(arguments))


if __name__ == "__main__":
    main()
