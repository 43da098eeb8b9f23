"""Trains a segmentation model of torchvision on masks, which Forebay cuts out and mirrors with their pictures.

python train_segmentation.py train.toml --classes 21      # preset = "segmentation", fields `image` and `mask`
"""

import argparse

import forebay.torch
import torch
import torchvision


def main(arguments=None):
    parser = argparse.ArgumentParser(description="trains a segmentation model of torchvision")
    parser.add_argument("config", help="a Forebay configuration of images and masks")
    parser.add_argument("--model", default="deeplabv3_resnet50")
    parser.add_argument("--classes", type=int, default=21)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--lr", type=float, default=1e-3)
    asked, losses = parser.parse_args(arguments), []
    with forebay.torch.Loader(asked.config) as loader:
        sizes = {"weights": None, "weights_backbone": None, "num_classes": asked.classes}
        model = torchvision.models.get_model(asked.model, **sizes).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=asked.lr)
        while len(losses) < asked.steps:
            for batch in loader:
                scores = model(batch["image"] / 255)["out"]
                # 255 is no class: it lies around objects in Pascal VOC's masks.
                loss = torch.nn.functional.cross_entropy(scores, batch["mask"][:, 0].long(), ignore_index=255)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
    return losses


if __name__ == "__main__":
    main()
