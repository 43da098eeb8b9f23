"""FFCV: the files' own JPEG bytes in one `.beton` file, decoded and cropped by its compiled pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .work import CROP, Work, files_of


def encode_as_it_is(_field: Any, destination: Any, image: tuple[Any, int, int], malloc: Any) -> None:
    """Stores a file's bytes untouched where FFCV would compress the pixels anew: all loaders get the same JPEGs."""
    content, width, height = image
    destination["mode"], destination["width"], destination["height"] = 0, width, height
    destination["data_ptr"], storage = malloc(content.nbytes)
    storage[:] = content


class JpegBytes:
    """The files as FFCV's writer asks for them."""

    def __init__(self, files: list[str]) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[tuple[Any, int, int], int]:
        """((bytes, width, height), label)."""
        import numpy
        from PIL import Image

        with Image.open(self.files[index]) as image:
            width, height = image.size
        return (numpy.fromfile(self.files[index], numpy.uint8), width, height), 0


def prepare(work: Work) -> None:
    from ffcv.fields import IntField, RGBImageField
    from ffcv.fields.rgb_image import IMAGE_MODES
    from ffcv.writer import DatasetWriter

    assert IMAGE_MODES["jpg"] == 0, IMAGE_MODES
    target = Path(work.prepared) / "data.beton"
    if target.exists():
        return
    RGBImageField.encode = encode_as_it_is
    unfinished = target.with_suffix(".unfinished")
    writer = DatasetWriter(str(unfinished), {"image": RGBImageField(), "label": IntField()}, num_workers=1)
    writer.from_indexed_dataset(JpegBytes(files_of(work)))
    unfinished.rename(target)


def batches(work: Work) -> Iterator[Any]:
    """Arrays that FFCV fills again some batches later."""
    import numpy
    from ffcv.fields.rgb_image import RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import RandomHorizontalFlip

    count = len(files_of(work))
    loader = Loader(
        str(Path(work.prepared) / "data.beton"),
        batch_size=work.batch_size,
        num_workers=work.settings["threads"],
        batches_ahead=work.settings["prefetch"],
        order=OrderOption.RANDOM,
        os_cache=True,
        drop_last=True,
        # Every file as often as the run asks for, in one pass: FFCV would start anew at each epoch.
        indices=numpy.resize(numpy.arange(count), work.samples),
        pipelines={
            "image": [RandomResizedCropRGBImageDecoder((CROP, CROP)), RandomHorizontalFlip()],
            "label": None,
        },
    )
    for (images,) in loader:
        yield images
