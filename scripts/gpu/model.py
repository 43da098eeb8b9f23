"""ResNet-50 in plain PyTorch (He et al., "Deep Residual Learning for Image Recognition", 2015, with the stride in the
3×3 convolution), so that no torchvision is needed. For its step time alone: it is not trained to anything."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Block(nn.Module):
    """1×1, 3×3 and 1×1 convolutions beside a short cut."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        out = channels * 4
        self.way = nn.Sequential(
            nn.Conv2d(channels_in, channels, 1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 3, stride, 1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, out, 1, bias=False),
            nn.BatchNorm2d(out),
        )
        self.short: nn.Module = nn.Identity()
        if stride != 1 or channels_in != out:
            self.short = nn.Sequential(nn.Conv2d(channels_in, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.way(x) + self.short(x))


def resnet50() -> nn.Module:
    """3, 4, 6 and 3 blocks."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    channels_in = 64
    for channels, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for number in range(blocks):
            layers.append(Block(channels_in, channels, stride if number == 0 else 1))
            channels_in = channels * 4
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels_in, 1000)]
    return nn.Sequential(*layers)


class Trainer:
    """One step of training in bfloat16, channels last, from bytes."""

    def __init__(self, device: str) -> None:
        model: Any = resnet50()
        self.model = model.to(device=device, memory_format=torch.channels_last)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4, momentum=0.9)

    def step(self, images: Any, labels: Any) -> None:
        """Queues the step; waits for nothing."""
        images = images.to(dtype=torch.bfloat16, memory_format=torch.channels_last).div_(255)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(self.model(images), labels)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
