"""Keras 3 with a Forebay loader, on the PyTorch backend.

    KERAS_BACKEND=torch python train_keras.py train.toml runs
    KERAS_BACKEND=torch python train_keras.py train.toml runs --validate val.toml

`forebay.keras.KeepsPlace` saves the weights of model and optimizer together with the loader's state. The same command
goes on from there after a kill, inside the epoch at the next batch; in an empty folder it begins.
"""

import argparse

import forebay.keras
import forebay.torch
import keras


def inputs_and_targets(batch):
    return batch["image"].flatten(1).float() / 255, batch["label"]


def main(arguments=None):
    parser = argparse.ArgumentParser(description="trains under Keras")
    parser.add_argument("config", help="a Forebay configuration with the fields image and label")
    parser.add_argument("folder", help="where checkpoints go")
    parser.add_argument("--validate", help="a configuration of validation data, for the end of each epoch")
    parser.add_argument("--pixels", type=int, default=3 * 224 * 224, help="values of an image")
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--save-every", type=int, default=1000, help="steps from checkpoint to checkpoint")
    asked = parser.parse_args(arguments)
    keras.utils.set_random_seed(1)
    # A placeholder for your model: a linear classifier over pixels.
    model = keras.Sequential([keras.Input((asked.pixels,)), keras.layers.Dense(asked.classes)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), loss, metrics=["accuracy"])
    validation = None
    if asked.validate:
        validation = forebay.keras.Validation(forebay.torch.Loader(asked.validate), inputs_and_targets)
    with forebay.torch.Loader(asked.config) as loader:
        batches = forebay.keras.Batches(loader, inputs_and_targets)
        place = forebay.keras.KeepsPlace(batches, asked.folder, save_every=asked.save_every)
        return model.fit(
            batches,
            epochs=asked.epochs,
            initial_epoch=place.restore(model),
            callbacks=[place],
            validation_data=validation,
            shuffle=False,
        )


if __name__ == "__main__":
    main()
