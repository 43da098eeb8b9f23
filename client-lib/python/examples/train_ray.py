"""Ray Train with Forebay loaders, and feeders on the cluster's CPU nodes.

    python train_ray.py /shared/train.toml /shared/runs --workers 2 8
    python train_ray.py /shared/train.toml /shared/runs --workers 2 8 --feeders 1 16 --cpus 16

A checkpoint holds the loader's state, which is the same on every rank. When a worker dies, or nodes come or go, Ray
starts `train` again with as many workers as there are now, and the run goes on at the next batch: no sample is lost or
comes twice at any number of workers. Configuration and checkpoints are in folders that all nodes have.
"""

import argparse
import contextlib
import tempfile
from pathlib import Path

import forebay.torch
import ray
import ray.train
import ray.train.torch
import torch


class Classifier(torch.nn.Module):
    """A placeholder for your model: a linear classifier over pixels."""

    def __init__(self, pixels, classes=1000):
        super().__init__()
        self.layer = torch.nn.Linear(pixels, classes)

    def forward(self, images):
        return self.layer(images.flatten(1).float() / 255)


def save(model, optimizer, loader, step):
    """Reports a checkpoint. All workers report; the first one's has the files."""
    if ray.train.get_context().get_world_rank() != 0:
        ray.train.report({"step": step})
        return
    with tempfile.TemporaryDirectory() as folder:
        # The model inside DistributedDataParallel, whose names do not depend on the number of workers.
        kept = {"model": getattr(model, "module", model), "optimizer": optimizer, "loader": loader}
        torch.save({name: part.state_dict() for name, part in kept.items()}, Path(folder) / "state.pt")
        ray.train.report({"step": step}, checkpoint=ray.train.Checkpoint.from_directory(folder))


def train(config):
    """What each worker does: from the last checkpoint, if there is one."""
    # Rank and world size are those of Ray Train.
    with forebay.torch.Loader(config["config"], overrides=config["overrides"]) as loader:
        model = ray.train.torch.prepare_model(Classifier(config["pixels"]))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        checkpoint = ray.train.get_checkpoint()
        if checkpoint is not None:
            with checkpoint.as_directory() as folder:
                kept = torch.load(Path(folder) / "state.pt", map_location="cpu")
            getattr(model, "module", model).load_state_dict(kept["model"])
            optimizer.load_state_dict(kept["optimizer"])
            loader.load_state_dict(kept["loader"])
        device = ray.train.torch.get_device()
        step = 0
        for _ in loader.epochs_left(config["epochs"]):
            for batch in loader:
                loss = torch.nn.functional.cross_entropy(model(batch["image"].to(device)), batch["label"].to(device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                step += 1
                if step % config["save_every"] == 0:
                    save(model, optimizer, loader, step)


def main(arguments=None, train=train):
    parser = argparse.ArgumentParser(description="trains under Ray Train")
    parser.add_argument("config", help="a Forebay configuration with the fields image and label")
    parser.add_argument("folder", help="where checkpoints go")
    parser.add_argument("--workers", type=int, nargs=2, default=(1, 1), metavar=("LEAST", "MOST"))
    parser.add_argument("--gpu", action="store_true", help="a GPU for each worker")
    parser.add_argument("--feeders", type=int, nargs=2, default=(0, 0), metavar=("LEAST", "MOST"))
    parser.add_argument("--cpus", type=float, default=1, help="CPUs of a feeder")
    parser.add_argument("--metrics", nargs="*", default=(), help="the daemons' metrics, as HOST:PORT")
    parser.add_argument("--pixels", type=int, default=3 * 224 * 224, help="values of an image")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--save-every", type=int, default=1000, help="steps from checkpoint to checkpoint")
    parser.add_argument("--failures", type=int, default=100, help="restarts, after which a run fails")
    asked = parser.parse_args(arguments)
    least, most = asked.workers
    with contextlib.ExitStack() as stack:
        overrides = {}
        if asked.feeders[1]:
            from forebay.ray import FeederGroup

            group = FeederGroup(asked.config, *asked.feeders, cpus=asked.cpus, metrics=asked.metrics)
            overrides = stack.enter_context(group).overrides
            group.wait()
        loop = {"config": asked.config, "overrides": overrides, "pixels": asked.pixels}
        trainer = ray.train.torch.TorchTrainer(
            train,
            train_loop_config={**loop, "epochs": asked.epochs, "save_every": asked.save_every},
            scaling_config=ray.train.ScalingConfig(
                num_workers=most if least == most else (least, most), use_gpu=asked.gpu
            ),
            run_config=ray.train.RunConfig(
                storage_path=asked.folder, failure_config=ray.train.FailureConfig(max_failures=asked.failures)
            ),
        )
        return trainer.fit()


if __name__ == "__main__":
    main()
