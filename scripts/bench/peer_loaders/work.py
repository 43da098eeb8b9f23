"""The standard work, as every loader gets it, and the draws that loaders without a random crop of their own use."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CROP = 224
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Work:
    """What one run delivers: `batches` batches of `batch_size` crops, shuffled, from the JPEGs below `data`."""

    data: str
    # Files that a peer wants in a form of its own (shards) lie here, made before the first run.
    prepared: str
    batch_size: int
    batches: int
    cores: int
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def samples(self) -> int:
        return self.batch_size * self.batches


def files_of(work: Work) -> list[str]:
    return sorted(str(path) for path in Path(work.data).glob("*/*.jpg"))


def shuffled_files(work: Work) -> Iterator[str]:
    """As many paths as the run delivers: every file once in each pass, each pass in another order."""
    files, left = files_of(work), work.samples
    generator = random.Random(17)
    while left > 0:
        generator.shuffle(files)
        yield from files[:left]
        left -= len(files)


def random_crop(width: int, height: int, generator: random.Random) -> tuple[int, int, int, int]:
    """(left, top, width, height) as torchvision's RandomResizedCrop draws them with its defaults."""
    area = width * height
    least, greatest = math.log(3 / 4), math.log(4 / 3)
    for _ in range(10):
        target = area * generator.uniform(0.08, 1.0)
        ratio = math.exp(generator.uniform(least, greatest))
        crop_width, crop_height = round(math.sqrt(target * ratio)), round(math.sqrt(target / ratio))
        if 0 < crop_width <= width and 0 < crop_height <= height:
            left, top = generator.randint(0, width - crop_width), generator.randint(0, height - crop_height)
            return left, top, crop_width, crop_height
    # Nothing fitted: the middle, as wide as the ratio's limits allow.
    if width / height < 3 / 4:
        crop_width, crop_height = width, round(width / (3 / 4))
    elif width / height > 4 / 3:
        crop_width, crop_height = round(height * (4 / 3)), height
    else:
        crop_width, crop_height = width, height
    return (width - crop_width) // 2, (height - crop_height) // 2, crop_width, crop_height
