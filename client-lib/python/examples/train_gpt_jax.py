"""JAX on packed documents, as MaxText and others take them: int32, with segment ids.

    python train_gpt_jax.py tokens.toml

    [dataset.tokens]
    cut = "pack"
    end = 1
    boundaries = ["segment_ids", "position_ids"]
    [output]
    tokens = { dtype = "int32" }
    labels = { dtype = "int32" }

Attention is between positions of the same segment. Padding is segment 0 and has the label -100.
"""

import argparse

import forebay.jax
import jax
import jax.numpy as jnp
import optax


def initial(key, vocabulary, length, width=32):
    """A placeholder for your model: one layer of attention."""
    keys = jax.random.split(key, 4)
    shapes = [(vocabulary, width), (length, width), (width, 3 * width), (width, vocabulary)]
    names = ["tokens", "positions", "attention", "head"]
    return {name: 0.1 * jax.random.normal(key, shape) for name, key, shape in zip(names, keys, shapes, strict=True)}


def loss_of(parameters, batch):
    x = parameters["tokens"][batch["tokens"]] + parameters["positions"][batch["position_ids"]]
    query, key, value = jnp.split(x @ parameters["attention"], 3, axis=-1)
    segments = batch["segment_ids"]
    length = segments.shape[1]
    mask = (segments[:, :, None] == segments[:, None, :]) & jnp.tril(jnp.ones((length, length), bool))
    scores = jnp.where(mask, query @ key.swapaxes(1, 2) / query.shape[-1] ** 0.5, -1e9)
    logits = (x + jax.nn.softmax(scores) @ value) @ parameters["head"]
    counts = batch["labels"] != -100
    labels = jnp.where(counts, batch["labels"], 0)
    of_tokens = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return (of_tokens * counts).sum() / counts.sum()


def train(asked):
    optimizer = optax.adamw(asked.lr)

    @jax.jit
    def step(parameters, state, batch):
        loss, gradients = jax.value_and_grad(loss_of)(parameters, batch)
        updates, state = optimizer.update(gradients, state, parameters)
        return optax.apply_updates(parameters, updates), state, loss

    fields = ["tokens", "labels", "segment_ids", "position_ids"]
    losses, parameters, state = [], None, None
    with forebay.jax.Loader(asked.config) as loader:
        for batch in loader:
            if parameters is None:
                parameters = initial(jax.random.key(0), asked.vocabulary, batch["tokens"].shape[1])
                state = optimizer.init(parameters)
            parameters, state, loss = step(parameters, state, {name: batch[name] for name in fields})
            losses.append(float(loss))
            if len(losses) == asked.steps:
                break
    return losses


def main(arguments=None):
    parser = argparse.ArgumentParser(description="trains a language model with JAX")
    parser.add_argument("config", help="a Forebay configuration of tokens, packed")
    parser.add_argument("--vocabulary", type=int, default=50304)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--lr", type=float, default=1e-3)
    return train(parser.parse_args(arguments))


if __name__ == "__main__":
    main()
