"""Fine-tunes a model of Transformers on conversations, with TRL's batches: padded, or without padding.

    python train.py train.toml run.pt --steps 1000
    python train.py train.toml run.pt --steps 1000 --resume
    python train.py train.toml run.pt --steps 1000 --padding-free

`train.toml` beside this file says where conversations, chat template and tokenizer are. Labels are -100 outside of what
the model says. A batch has as many conversations as fit a budget, all of similar length. The checkpoint holds the
model, the optimizer and the loader's state: a run that was killed goes on behind the last checkpoint with the batches
that it would have had. `--steps` counts the steps of the whole training.
"""

import argparse
import itertools
import os

import forebay.torch
import torch
import transformers


def padded(batch, pad):
    """What TRL's DataCollatorForLanguageModeling gives: rows as long as the longest, rounded up to 8."""
    made = {
        "input_ids": batch["input_ids"].padded(pad, multiple_of=8).long(),
        "attention_mask": batch["input_ids"].mask(multiple_of=8).long(),
        "labels": batch["labels"].padded(-100, multiple_of=8).long(),
    }
    assert made["input_ids"].shape == made["attention_mask"].shape == made["labels"].shape
    assert (made["labels"][made["attention_mask"] == 0] == -100).all()
    said = made["labels"] != -100
    assert (made["labels"] == made["input_ids"])[said].all()
    return made


def padding_free(batch):
    """The same with padding_free=True: one row of all conversations, whose positions count from 0 in each.

    Where `position_ids` restart and there is no `attention_mask`, the models keep conversations apart.
    """
    rows = list(batch["input_ids"])
    made = {
        "input_ids": torch.cat(rows)[None].long(),
        "position_ids": torch.cat([torch.arange(len(row)) for row in rows])[None],
        "labels": torch.cat(list(batch["labels"]))[None].long(),
    }
    # The first token of a conversation would be foretold from the conversation before.
    made["labels"][made["position_ids"] == 0] = -100
    assert made["input_ids"].shape == made["position_ids"].shape == made["labels"].shape
    return made


def make_model(vocabulary):
    """A placeholder for your model."""
    config = transformers.LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=2048,
    )
    return transformers.LlamaForCausalLM(config)


def main(arguments=None):
    parser = argparse.ArgumentParser(description="fine-tunes a model on conversations")
    parser.add_argument("config", help="a Forebay configuration of conversations that become tokens")
    parser.add_argument("checkpoint", help="the file of the run's state")
    parser.add_argument("--padding-free", action="store_true", help="one row of all conversations of a batch")
    parser.add_argument("--pad", type=int, default=0, help="the tokenizer's pad_token_id")
    parser.add_argument("--vocabulary", type=int, default=32000)
    parser.add_argument("--steps", type=int, default=1000, help="of the whole training")
    parser.add_argument("--save-every", type=int, default=100, help="steps")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint")
    asked = parser.parse_args(arguments)
    torch.manual_seed(1)
    model = make_model(asked.vocabulary)
    optimizer = torch.optim.AdamW(model.parameters(), lr=asked.lr)
    step, losses = 0, []
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
            made = padding_free(batch) if asked.padding_free else padded(batch, asked.pad)
            loss = model(**made, use_cache=False).loss
            optimizer.zero_grad()
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
