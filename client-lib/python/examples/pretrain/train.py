"""Pre-trains a small GPT from texts in Parquet or JSON lines, with the batches of nanoGPT, torchtitan or Megatron-LM.

    python train.py train.toml run.pt --layout torchtitan --steps 1000
    python train.py train.toml run.pt --layout torchtitan --steps 1000 --resume

`train.toml` beside this file says where texts and tokenizer are, and serves all layouts. The checkpoint holds the
model, the optimizer and the loader's state: a run that was killed goes on behind the last checkpoint with the batches
that it would have had. `--steps` counts the steps of the whole training.
"""

import argparse
import itertools
import os

import forebay.megatron
import forebay.torch
import torch
from torch.nn import functional


def nanogpt(batch):
    """What `get_batch` returns, x and y: y is x one token later."""
    x, y = batch["tokens"], batch["labels"]
    assert (y[:, :-1] == x[:, 1:])[y[:, :-1] != -100].all()
    return x, y


def torchtitan(batch):
    """What a dataloader gives, inputs and labels: the labels to ignore are -100, as its loss expects."""
    labels, positions = batch["labels"], batch["position_ids"].long()
    assert (labels[:, :-1][positions[:, 1:] == 0] == -100).all()  # the first token of a document is no label
    return {"input": batch["tokens"], "positions": positions}, labels


class GPT(torch.nn.Module):
    """One layer, in place of your model. `mask` is true where a position sees another; left out, it is causal."""

    def __init__(self, vocabulary, length, width=32):
        super().__init__()
        self.tokens, self.positions = torch.nn.Embedding(vocabulary, width), torch.nn.Embedding(length, width)
        self.norm, self.last_norm = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.attention, self.head = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, vocabulary)

    def forward(self, tokens, positions=None, mask=None):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]) if positions is None else positions)
        query, key, value = self.attention(self.norm(x)).chunk(3, dim=2)
        x = x + functional.scaled_dot_product_attention(query, key, value, mask, is_causal=mask is None)
        return self.head(self.last_norm(x))


def loss_of(model, batch, layout):
    if layout == "megatron":
        made = forebay.megatron.fields_of(batch, attention_mask=True)
        logits = model(made["tokens"], made["position_ids"], ~made["attention_mask"][:, 0])
        of_tokens = functional.cross_entropy(logits.mT, made["labels"], reduction="none")
        return (of_tokens * made["loss_mask"]).sum() / made["loss_mask"].sum()
    if layout == "torchtitan":
        inputs, labels = torchtitan(batch)
        return functional.cross_entropy(model(inputs["input"], inputs["positions"]).mT, labels)
    x, y = nanogpt(batch)
    return functional.cross_entropy(model(x).mT, y)


def main(arguments=None):
    parser = argparse.ArgumentParser(description="pre-trains a small GPT")
    parser.add_argument("config", help="a Forebay configuration of texts that become tokens")
    parser.add_argument("checkpoint", help="the file of the run's state")
    parser.add_argument("--layout", choices=["nanogpt", "torchtitan", "megatron"], default="nanogpt")
    parser.add_argument("--vocabulary", type=int, default=50304)
    parser.add_argument("--length", type=int, default=256, help="of a row, as in the configuration")
    parser.add_argument("--steps", type=int, default=1000, help="of the whole training")
    parser.add_argument("--save-every", type=int, default=100, help="steps")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint")
    asked = parser.parse_args(arguments)
    torch.manual_seed(1)
    model, step, losses = GPT(asked.vocabulary, asked.length), 0, []
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
            loss = loss_of(model, batch, asked.layout)
            loss.backward()
            optimizer.step()
            step += 1
            losses.append(loss.item())
            print(f"step {step}: loss {losses[-1]:.4f}")
            if step % asked.save_every == 0 or step == asked.steps:
                # Under another name first: a kill meanwhile leaves the checkpoint before.
                kept = f"{asked.checkpoint}.new"
                torch.save({"step": step, **{name: part.state_dict() for name, part in parts.items()}}, kept)
                os.replace(kept, asked.checkpoint)
    return losses


if __name__ == "__main__":
    main()
