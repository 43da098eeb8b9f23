"""timm's parts with a Forebay loader.

    python train_timm.py train.toml runs
    python train_timm.py train.toml runs --resume runs/step-3000.pth

timm makes model, optimizer, schedule and the average of the weights; the loader stands where `create_dataset` and
`create_loader` stood. The schedule goes by steps (`step_on_epochs=False`), counted from the loader's position, and the
checkpoint holds the loader's state: a run resumes inside its epoch at the next batch.
"""

import argparse
from pathlib import Path

import forebay.torch
import timm
import torch
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import ModelEmaV3


def train(asked, device):
    with forebay.torch.Loader(asked.config) as loader:
        model = timm.create_model(asked.model, num_classes=asked.classes).to(device)
        optimizer = create_optimizer_v2(model, opt="adamw", lr=asked.lr)
        scheduler, _ = create_scheduler_v2(
            optimizer,
            sched="cosine",
            num_epochs=asked.epochs,
            warmup_epochs=0,
            updates_per_epoch=len(loader),
            step_on_epochs=False,
        )
        average = ModelEmaV3(model, decay=0.999)
        kept = {"model": model, "average": average, "optimizer": optimizer, "scheduler": scheduler, "loader": loader}
        if asked.resume:
            checkpoint = torch.load(asked.resume, map_location=device)
            for name, part in kept.items():
                part.load_state_dict(checkpoint[name])
        place = loader.state_dict()
        step = place["epoch"] * len(loader) + place["samples"] // (loader.batch_size * loader.world_size)
        scheduler.step_update(step)
        model.train()
        # Of a resumed run these are the epochs that are left, and the first one is the rest of its epoch.
        for _ in loader.epochs_left(asked.epochs):
            for batch in loader:
                images = batch["image"].to(device).float().div_(255)
                loss = torch.nn.functional.cross_entropy(model(images), batch["label"].to(device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                average.update(model)
                step += 1
                scheduler.step_update(step)
                if step % asked.save_every == 0:
                    checkpoint = {name: part.state_dict() for name, part in kept.items()}
                    torch.save(checkpoint, Path(asked.folder) / f"step-{step}.pth")
        return model


def main(arguments=None):
    parser = argparse.ArgumentParser(description="trains a model of timm's")
    parser.add_argument("config", help="a Forebay configuration with the fields image and label")
    parser.add_argument("folder", help="where checkpoints go")
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--save-every", type=int, default=1000, help="steps from checkpoint to checkpoint")
    parser.add_argument("--resume", help="a checkpoint to go on from")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return train(parser.parse_args(arguments), device)


if __name__ == "__main__":
    main()
