"""PyTorch's DataLoader over torchvision's ImageFolder, with worker processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .work import CROP, Work


def decode_to_tensor(path: str) -> Any:
    """torchvision's own decoder (libjpeg-turbo), to a tensor of uint8."""
    from torchvision.io import ImageReadMode, decode_jpeg, read_file

    return decode_jpeg(read_file(path), mode=ImageReadMode.RGB)


def data_loader(work: Work) -> Any:
    """One pass over all samples of the run, so that the workers start once and never pause between epochs."""
    import torch
    from torchvision import datasets
    from torchvision.transforms import v2

    if work.settings["decoder"] == "pillow":
        steps = [v2.RandomResizedCrop(CROP), v2.RandomHorizontalFlip(), v2.PILToTensor()]
        data = datasets.ImageFolder(work.data, v2.Compose(steps))
    else:
        # The crop is resized as uint8, antialiased, by PyTorch's vector code.
        steps = [v2.RandomResizedCrop(CROP, antialias=True), v2.RandomHorizontalFlip()]
        data = datasets.ImageFolder(work.data, v2.Compose(steps), loader=decode_to_tensor)
    return torch.utils.data.DataLoader(
        data,
        batch_size=work.batch_size,
        sampler=torch.utils.data.RandomSampler(data, num_samples=work.samples),
        num_workers=work.settings["workers"],
        prefetch_factor=work.settings["prefetch"],
        worker_init_fn=work.settings.get("on_start"),
    )


def batches(work: Work) -> Iterator[Any]:
    """Arrays over the tensors' memory, which the workers filled in shared memory."""
    for images, _ in data_loader(work):
        yield images.numpy()
