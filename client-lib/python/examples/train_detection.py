"""Trains a detector of torchvision on boxes of COCO, which Forebay cuts out and mirrors with their pictures.

python train_detection.py train.toml      # preset = "detection", dataset.path = "instances.json", batch.size = 8
"""

import argparse

import forebay.torch
import torch
import torchvision


def main(arguments=None):
    parser = argparse.ArgumentParser(description="trains a detector of torchvision")
    parser.add_argument("config", help="a Forebay configuration of images, boxes and labels")
    parser.add_argument("--model", default="fasterrcnn_resnet50_fpn_v2")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--lr", type=float, default=1e-3)
    asked, losses = parser.parse_args(arguments), []
    with forebay.torch.Loader(asked.config) as loader:
        sizes = {"weights": None, "weights_backbone": None, "num_classes": len(loader.classes) + 1}
        model = torchvision.models.get_model(asked.model, **sizes).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=asked.lr)
        while len(losses) < asked.steps:
            for batch in loader:
                # Of torchvision's classes the background is 0.
                rows = zip(batch["boxes"], batch["labels"])
                targets = [{"boxes": boxes, "labels": labels + 1} for boxes, labels in rows]
                loss = sum(model(list(batch["image"] / 255), targets).values())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
    return losses


if __name__ == "__main__":
    main()
