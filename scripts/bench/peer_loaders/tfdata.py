"""tf.data: the decoder that crops, an antialiased resize, a flip, on TensorFlow's threads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .work import CROP, Work, files_of


def crop_of(content: Any, fast: bool) -> Any:
    """The standard work on the bytes of a JPEG; `fast`: the decoder's less exact DCT."""
    import tensorflow as tf

    begin, size, _ = tf.image.sample_distorted_bounding_box(
        tf.image.extract_jpeg_shape(content),
        tf.constant([[[0.0, 0.0, 1.0, 1.0]]]),
        min_object_covered=0.0,
        aspect_ratio_range=(3 / 4, 4 / 3),
        area_range=(0.08, 1.0),
        max_attempts=10,
        use_image_if_no_bounding_boxes=True,
    )
    window = tf.concat([begin[:2], size[:2]], axis=0)
    method = "INTEGER_FAST" if fast else "INTEGER_ACCURATE"
    image = tf.image.decode_and_crop_jpeg(content, window, channels=3, dct_method=method)
    image = tf.image.resize(image, (CROP, CROP), antialias=True)
    image = tf.image.random_flip_left_right(image)
    return tf.cast(tf.clip_by_value(tf.round(image), 0, 255), tf.uint8)


def batches(work: Work) -> Iterator[Any]:
    import tensorflow as tf

    files = files_of(work)
    options = tf.data.Options()
    options.deterministic = False
    options.threading.private_threadpool_size = work.settings["threads"]
    options.threading.max_intra_op_parallelism = 1
    data = tf.data.Dataset.from_tensor_slices(files).shuffle(len(files)).repeat()
    data = data.map(
        lambda path: crop_of(tf.io.read_file(path), work.settings["fast_dct"]),
        num_parallel_calls=work.settings["calls"] or tf.data.AUTOTUNE,
    )
    data = data.batch(work.batch_size, drop_remainder=True).prefetch(work.settings["prefetch"]).with_options(options)
    for images in data.take(work.batches):
        yield images.numpy()
