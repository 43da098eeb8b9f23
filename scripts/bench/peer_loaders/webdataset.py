"""WebDataset: the same files in tar shards, Pillow's work on a sample, PyTorch's worker processes."""

from __future__ import annotations

import io
import random
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .pillow_crop import crop_of_file
from .work import Work, files_of

SHARDS = 8


def crop(content: bytes) -> Any:
    """One sample. PyTorch seeds `random` anew in each worker."""
    return crop_of_file(content, random.Random(random.getrandbits(62)))


def stack(samples: list[Any]) -> Any:
    """A batch, as a tensor, so that it goes to the consumer through shared memory."""
    import numpy
    import torch

    return torch.from_numpy(numpy.stack([sample for (sample,) in samples]))


def prepare(work: Work) -> None:
    """Writes the shards, the files in random order over them: WebDataset shuffles within a buffer only."""
    files = files_of(work)
    random.Random(17).shuffle(files)
    for shard in range(SHARDS):
        target = Path(work.prepared) / f"{shard:03}.tar"
        if target.exists():
            continue
        unfinished = target.with_suffix(".unfinished")
        with tarfile.open(unfinished, "w") as archive:
            for file in files[shard::SHARDS]:
                content = Path(file).read_bytes()
                entry = tarfile.TarInfo(Path(file).name)
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
        unfinished.rename(target)


def batches(work: Work) -> Iterator[Any]:
    import webdataset

    shards = sorted(str(path) for path in Path(work.prepared).glob("*.tar"))
    data = webdataset.WebDataset(shards, resampled=True, shardshuffle=False, nodesplitter=webdataset.split_by_node)
    data = data.shuffle(256, initial=64).to_tuple("jpg").map_tuple(crop)
    data = data.batched(work.batch_size, collation_fn=stack, partial=False)
    loader = webdataset.WebLoader(
        data, batch_size=None, num_workers=work.settings["workers"], prefetch_factor=work.settings["prefetch"]
    )
    for images in loader:
        yield images.numpy()
