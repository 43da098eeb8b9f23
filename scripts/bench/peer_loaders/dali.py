"""NVIDIA DALI's CPU pipeline: the decoder that crops, a resize, a flip, all on DALI's own threads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .work import CROP, Work


def batches(work: Work) -> Iterator[Any]:
    """Arrays over DALI's output, valid until the next one is asked for."""
    import numpy
    from nvidia.dali import Pipeline, fn

    pipeline = Pipeline(
        batch_size=work.batch_size,
        num_threads=work.settings["threads"],
        device_id=None,
        seed=17,
        prefetch_queue_depth=work.settings["prefetch"],
    )
    with pipeline:
        files, _ = fn.readers.file(file_root=work.data, random_shuffle=True, initial_fill=4096, name="files")
        images = fn.decoders.image_random_crop(
            files,
            device="cpu",
            use_fast_idct=work.settings["fast_dct"],
            random_area=[0.08, 1.0],
            random_aspect_ratio=[3 / 4, 4 / 3],
        )
        images = fn.resize(images, size=[CROP, CROP])
        pipeline.set_outputs(fn.flip(images, horizontal=fn.random.coin_flip(probability=0.5)))
    pipeline.build()
    for _ in range(work.batches):
        (output,) = pipeline.run()
        yield numpy.asarray(output.as_tensor())
