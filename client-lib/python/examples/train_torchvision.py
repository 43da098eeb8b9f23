"""torchvision's reference script for classification (references/classification/train.py) with a Forebay loader.

    python train_torchvision.py train.toml runs
    python train_torchvision.py train.toml runs --resume runs/step-3000.pth

The functions have the reference's names and order. What changes: the loader stands where dataset, sampler, transforms
and `DataLoader` stood; a checkpoint holds its state, so that a run resumes inside its epoch at the next batch; the
learning rate goes by steps, so that it does not depend on where a run was resumed.
"""

import argparse
from pathlib import Path

import forebay.torch
import torch
import torchvision


def train_one_epoch(model, criterion, optimizer, lr_scheduler, data_loader, device, on_step):
    model.train()
    for batch in data_loader:
        image = batch["image"].to(device, non_blocking=True).float().div_(255)
        target = batch["label"].to(device, non_blocking=True)
        loss = criterion(model(image), target)
        optimizer.zero_grad()
        loss.backward()
        # A batch that `forebay headspace --replay` repeats is no step of the training.
        if not data_loader.replaying:
            optimizer.step()
            lr_scheduler.step()
            on_step()


def train(asked, device):
    with forebay.torch.Loader(asked.config) as data_loader:
        model = torchvision.models.get_model(asked.model, weights=None, num_classes=asked.classes).to(device)
        criterion = torch.nn.CrossEntropyLoss(label_smoothing=asked.label_smoothing)
        optimizer = torch.optim.SGD(model.parameters(), lr=asked.lr, momentum=0.9, weight_decay=1e-4)
        # Of the whole training: `len(data_loader)` is a full epoch's batches, also where the first epoch is a rest.
        steps = asked.epochs * len(data_loader)
        lr_scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
        kept = {"model": model, "optimizer": optimizer, "lr_scheduler": lr_scheduler, "data_loader": data_loader}
        if asked.resume:
            checkpoint = torch.load(asked.resume, map_location="cpu")
            for name, part in kept.items():
                part.load_state_dict(checkpoint[name])

        def on_step():
            step = lr_scheduler.last_epoch
            if step % asked.save_every == 0:
                checkpoint = {name: part.state_dict() for name, part in kept.items()}
                torch.save(checkpoint, Path(asked.output_dir) / f"step-{step}.pth")

        # Of a resumed run these are the epochs that are left, and the first one is the rest of its epoch.
        for _ in data_loader.epochs_left(asked.epochs):
            train_one_epoch(model, criterion, optimizer, lr_scheduler, data_loader, device, on_step)
        return model


def main(arguments=None):
    parser = argparse.ArgumentParser(description="trains as torchvision's reference script does")
    parser.add_argument("config", help="a Forebay configuration with the fields image and label")
    parser.add_argument("output_dir", help="where checkpoints go")
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--label-smoothing", type=float, default=0.0)
    parser.add_argument("--save-every", type=int, default=1000, help="steps from checkpoint to checkpoint")
    parser.add_argument("--resume", help="a checkpoint to go on from")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return train(parser.parse_args(arguments), device)


if __name__ == "__main__":
    main()
