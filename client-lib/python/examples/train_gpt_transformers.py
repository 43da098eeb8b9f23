"""A model of Hugging Face's Transformers on packed documents.

    python train_gpt_transformers.py tokens.toml

    [dataset.tokens]
    cut = "pack"
    end = 2                          # the tokenizer's eos_token_id
    labels = "same"                  # the models shift them
    boundaries = ["position_ids"]    # restart at each document

Where `position_ids` restart and no `attention_mask` is given, the models keep documents apart: no token attends to
another document's. With `labels = "same"` the first label of each document is -100, since it would be predicted from
the document before.
"""

import argparse

import forebay.torch
import torch
import transformers


def train(asked):
    # A placeholder for your model.
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=asked.vocabulary,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=1,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=4096,
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=asked.lr)
    losses = []
    with forebay.torch.Loader(asked.config) as loader:
        for batch in loader:
            output = model(
                input_ids=batch["tokens"],
                labels=batch["labels"],
                position_ids=batch["position_ids"].long(),
                use_cache=False,
            )
            optimizer.zero_grad()
            output.loss.backward()
            optimizer.step()
            losses.append(output.loss.item())
            if len(losses) == asked.steps:
                break
    return losses


def main(arguments=None):
    parser = argparse.ArgumentParser(description="trains a language model of Transformers")
    parser.add_argument("config", help="a Forebay configuration of tokens, packed")
    parser.add_argument("--vocabulary", type=int, default=32000)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--lr", type=float, default=1e-3)
    return train(parser.parse_args(arguments))


if __name__ == "__main__":
    main()
