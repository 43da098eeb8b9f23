"""SPDL: threads around FFmpeg's decoder, in the consumer's process or in a process of their own."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from .work import CROP, Work, random_crop, shuffled_files

GENERATOR = random.Random()


class Files:
    """The run's paths; a class of its own so that it reaches a subprocess."""

    def __init__(self, work: Work) -> None:
        self.work = work

    def __iter__(self) -> Iterator[str]:
        return shuffled_files(self.work)


def decode(path: str) -> Any:
    """Decodes, crops, resizes and flips one file in a filter graph of FFmpeg, without the interpreter's lock."""
    import spdl.io

    packets = spdl.io.demux_image(path)
    left, top, width, height = random_crop(packets.codec.width, packets.codec.height, GENERATOR)
    flip = ",hflip" if GENERATOR.random() < 0.5 else ""
    graph = f"crop={width}:{height}:{left}:{top},scale={CROP}:{CROP}:flags=bilinear{flip},format=rgb24"
    return spdl.io.decode_packets(packets, filter_desc=graph)


def collate(frames: list[Any]) -> Any:
    """One buffer of all frames; no array a sample."""
    import spdl.io

    return spdl.io.to_numpy(spdl.io.convert_frames(frames))


def builder(work: Work) -> Any:
    """The pipeline as SPDL's guide builds it: decode concurrently, aggregate, convert, a short queue."""
    from spdl.pipeline import PipelineBuilder

    return (
        PipelineBuilder()
        .add_source(Files(work))
        .pipe(decode, concurrency=work.settings["threads"])
        .aggregate(work.batch_size, drop_last=True)
        .pipe(collate)
        .add_sink(2)
    )


def batches(work: Work) -> Iterator[Any]:
    """Arrays of SPDL's buffers, or views of its shared-memory segments when a subprocess does the work."""
    # One thread more than decode at a time, so that collating waits for none of them.
    threads = work.settings["threads"] + 1
    if work.settings["place"] == "threads":
        pipeline = builder(work).build(num_threads=threads, use_thread_output_queue=True)
        with pipeline.auto_stop():
            yield from pipeline
        return
    from spdl.pipeline import SharedMemorySegmentPool, run_pipeline_in_subprocess

    # The pool is SPDL's fastest transport: the consumer sees the segments themselves.
    segment_bytes = work.batch_size * CROP * CROP * 3 + (1 << 20)
    options: dict[str, Any] = {"arena": SharedMemorySegmentPool(segment_bytes, 6), "buffer_size": 2}
    if "on_start" in work.settings:
        options["initializer"] = work.settings["on_start"]
    yield from run_pipeline_in_subprocess(
        builder(work).get_config(), num_threads=threads, use_thread_output_queue=True, **options
    )
