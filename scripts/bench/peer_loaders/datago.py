"""datago: its own threads decode, crop to the middle and resize. It has no random crop and no flip, and gives single
samples, which are stacked here: less work than the others do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from .work import CROP, Work, files_of


def batches(work: Work) -> Iterator[Any]:
    import datago
    import numpy

    image = {
        "crop_and_resize": True,
        "default_image_size": CROP,
        "downsampling_ratio": 32,
        "min_aspect_ratio": 1.0,
        "max_aspect_ratio": 1.0,
        "pre_encode_images": False,
    }
    client = datago.DatagoClient(
        json.dumps(
            {
                "source_type": "file",
                "source_config": {"root_path": work.data, "random_sampling": True, "rank": 0, "world_size": 1},
                "image_config": image,
                "limit": len(files_of(work)),
                "samples_buffer_size": work.settings["prefetch"],
            }
        )
    )
    client.start()
    try:
        while True:
            batch = numpy.empty((work.batch_size, CROP, CROP, 3), numpy.uint8)
            for row in range(work.batch_size):
                sample = client.get_sample()
                if sample is None:
                    client.start()
                    sample = client.get_sample()
                batch[row] = sample.image.to_numpy_array()
            yield batch
    finally:
        client.stop()
