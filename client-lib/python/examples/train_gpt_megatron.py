"""What Megatron-LM's `get_batch` returns, from Megatron's own files.

    python train_gpt_megatron.py tokens.toml

    [dataset]
    format = "tokens"
    path = "my-gpt_text_document.bin"     # its .idx beside it
    [dataset.tokens]
    cut = "concatenate"
    boundaries = ["cu_seqlens", "position_ids"]

`get_batch` stands in for the one of `pretrain_gpt.py`: `tokens`, `labels`, `loss_mask`, `attention_mask`,
`position_ids`, and for attention over packed documents `cu_seqlens` with `max_seqlen`. Each data-parallel rank makes
its own loader.
"""

import argparse

import forebay.torch
import torch


def get_batch(batches):
    """The next batch, as Megatron's training loop takes it."""
    batch = next(batches)
    labels = batch["labels"]
    counts = labels != -100
    cu_seqlens = batch["cu_seqlens"]
    return {
        "tokens": batch["tokens"],
        # Megatron multiplies the loss by the mask; its labels are all tokens.
        "labels": labels.masked_fill(~counts, 0),
        "loss_mask": counts.float(),
        # None: the causal mask of the attention itself.
        "attention_mask": None,
        "position_ids": batch["position_ids"].long(),
        "cu_seqlens": cu_seqlens,
        "max_seqlen": cu_seqlens.diff(dim=1).max(),
    }


class Model(torch.nn.Module):
    """A placeholder for Megatron's GPTModel: gives a loss for each token."""

    def __init__(self, vocabulary, length, width=32):
        super().__init__()
        self.tokens = torch.nn.Embedding(vocabulary, width)
        self.positions = torch.nn.Embedding(length, width)
        self.head = torch.nn.Linear(width, vocabulary)

    def forward(self, tokens, position_ids, attention_mask, labels):
        logits = self.head(self.tokens(tokens) + self.positions(position_ids))
        return torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none")


def train(asked):
    losses = []
    with forebay.torch.Loader(asked.config) as loader:
        batches = iter(loader)
        model = optimizer = None
        for _ in range(min(asked.steps, len(loader))):
            batch = get_batch(batches)
            if model is None:
                model = Model(asked.vocabulary, batch["tokens"].shape[1])
                optimizer = torch.optim.AdamW(model.parameters(), lr=asked.lr)
            of_tokens = model(batch["tokens"], batch["position_ids"], batch["attention_mask"], batch["labels"])
            loss = (of_tokens * batch["loss_mask"]).sum() / batch["loss_mask"].sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


def main(arguments=None):
    parser = argparse.ArgumentParser(description="trains on what Megatron's get_batch returns")
    parser.add_argument("config", help="a Forebay configuration of tokens with cu_seqlens and position_ids")
    parser.add_argument("--vocabulary", type=int, default=50304)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--lr", type=float, default=1e-3)
    return train(parser.parse_args(arguments))


if __name__ == "__main__":
    main()
