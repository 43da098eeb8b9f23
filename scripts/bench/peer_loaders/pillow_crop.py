"""Decode, crop, resize and flip with Pillow, for loaders that leave the work on a sample to their user."""

from __future__ import annotations

import io
import random
from typing import Any

from .work import CROP, random_crop


def crop_of_file(content: bytes, generator: random.Random) -> Any:
    """One crop as an NHWC array. Pillow resizes the box without copying it first, and releases the lock meanwhile."""
    import numpy
    from PIL import Image

    image = Image.open(io.BytesIO(content)).convert("RGB")
    left, top, width, height = random_crop(*image.size, generator)
    box = (left, top, left + width, top + height)
    image = image.resize((CROP, CROP), Image.Resampling.BILINEAR, box=box)
    if generator.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return numpy.asarray(image)
