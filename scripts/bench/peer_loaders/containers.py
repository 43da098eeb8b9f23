"""The same pictures in containers, read by Forebay and by the loader that each container comes from.

`work.settings["form"]` is the container, `["loader"]` who reads it, `["url"]` where it lies if not in `work.prepared`.
`prepare` writes the container with its own writer, the files in an order that has nothing to do with their classes.
All deliver the standard crops; peers decode with torchvision's `decode_jpeg`, the fastest that each documents.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from . import forebay
from .work import CROP, Work, files_of

SHARD_BYTES = 64 << 20
# What lies where below `work.prepared`, and what Forebay calls it.
FORMATS = {
    "files": "image-folder",
    "tar": "webdataset",
    "mds": "mds",
    "litdata": "litdata",
    "parquet": "parquet",
    "lance": "lance",
    "tfrecord": "tfrecord",
    "arrayrecord": "arrayrecord",
}


def place_of(work: Work) -> str:
    """The container's folder or URL."""
    if work.settings["form"] == "files":
        return work.data
    url = work.settings.get("url")
    return f"{url}/{work.settings['form']}" if url else f"{work.prepared}/{work.settings['form']}"


# The writers.


def pictures(work: Work) -> list[tuple[str, bytes, int]]:
    """Name, bytes and class of all files, in the order in which they are written."""
    files = [Path(file) for file in files_of(work)]
    classes = {name: number for number, name in enumerate(sorted({file.parent.name for file in files}))}
    random.Random(17).shuffle(files)
    return [(file.stem, file.read_bytes(), classes[file.parent.name]) for file in files]


def write_tar(work: Work, folder: Path) -> None:
    import webdataset

    folder.mkdir()
    with webdataset.ShardWriter(f"{folder}/%05d.tar", maxsize=SHARD_BYTES, verbose=0) as writer:
        for name, content, label in pictures(work):
            writer.write({"__key__": name, "jpg": content, "cls": label})


def write_mds(work: Work, folder: Path) -> None:
    from streaming import MDSWriter

    with MDSWriter(out=str(folder), columns={"image": "bytes", "label": "int"}) as writer:
        for _, content, label in pictures(work):
            writer.write({"image": content, "label": label})


def write_litdata(work: Work, folder: Path) -> None:
    from litdata.streaming.writer import BinaryWriter

    folder.mkdir()
    writer = BinaryWriter(cache_dir=str(folder), chunk_bytes=SHARD_BYTES)
    for number, (_, content, label) in enumerate(pictures(work)):
        writer[number] = {"image": content, "label": label}
    writer.done()
    writer.merge(1)


def write_parquet(work: Work, folder: Path) -> None:
    import datasets

    folder.mkdir()
    found = pictures(work)
    columns = {
        "image": [{"bytes": content, "path": f"{name}.jpg"} for name, content, _ in found],
        "label": [label for _, _, label in found],
    }
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    data = datasets.Dataset.from_dict(columns, features=features)
    for number in range(8):
        data.shard(8, number, contiguous=True).to_parquet(f"{folder}/train-{number:05}-of-00008.parquet")


def write_lance(work: Work, folder: Path) -> None:
    import lance
    import pyarrow

    found = pictures(work)
    images = pyarrow.array([content for _, content, _ in found], pyarrow.binary())
    table = pyarrow.table({"image": images, "label": [label for _, _, label in found]})
    lance.write_dataset(table, str(folder), max_rows_per_file=2000)


def write_tfrecord(work: Work, folder: Path) -> None:
    import tensorflow as tf

    folder.mkdir()
    found = pictures(work)
    for shard in range(16):
        with tf.io.TFRecordWriter(f"{folder}/train-{shard:05}-of-00016.tfrecord") as writer:
            for _, content, label in found[shard::16]:
                image = tf.train.Feature(bytes_list=tf.train.BytesList(value=[content]))
                number = tf.train.Feature(int64_list=tf.train.Int64List(value=[label]))
                features = tf.train.Features(feature={"image": image, "label": number})
                writer.write(tf.train.Example(features=features).SerializeToString())


def write_arrayrecord(work: Work, folder: Path) -> None:
    """A picture a record, each a chunk, as Grain asks for."""
    from array_record.python.array_record_module import ArrayRecordWriter

    folder.mkdir()
    found = pictures(work)
    for shard in range(16):
        writer = ArrayRecordWriter(f"{folder}/train.array_record-{shard:05}-of-00016", "group_size:1")
        for _, content, _ in found[shard::16]:
            writer.write(content)
        writer.close()


WRITERS: dict[str, Callable[[Work, Path], None]] = {
    "tar": write_tar,
    "mds": write_mds,
    "litdata": write_litdata,
    "parquet": write_parquet,
    "lance": write_lance,
    "tfrecord": write_tfrecord,
    "arrayrecord": write_arrayrecord,
}


def prepare(work: Work) -> None:
    """Writes the container, whole or not at all."""
    form = work.settings["form"]
    target, unfinished = Path(work.prepared) / form, Path(work.prepared) / f"{form}.unfinished"
    if form == "files" or target.exists():
        return
    shutil.rmtree(unfinished, ignore_errors=True)
    WRITERS[form](work, unfinished)
    unfinished.rename(target)


# The loaders.


class Crop:
    """Bytes to the standard work's tensor, by torchvision."""

    def __init__(self) -> None:
        from torchvision.transforms import v2

        self.steps = v2.Compose([v2.RandomResizedCrop(CROP, antialias=True), v2.RandomHorizontalFlip()])

    def __call__(self, content: bytes) -> Any:
        import numpy
        import torch
        from torchvision.io import ImageReadMode, decode_jpeg

        encoded = torch.from_numpy(numpy.frombuffer(content, numpy.uint8).copy())
        return self.steps(decode_jpeg(encoded, mode=ImageReadMode.RGB))


def of_forebay(work: Work) -> Iterator[Any]:
    config = forebay.configuration(work)
    form = work.settings["form"]
    config["dataset"] = {"format": FORMATS[form], "path": place_of(work)}
    # Found again by later runs, with what decoding has learned; without it each run is a first one.
    index = work.settings.get("index")
    config["dataset"]["index"] = index or tempfile.mkdtemp(prefix="forebay-bench-") + "/index"
    if form not in ("files", "tar"):
        column = "record" if form == "arrayrecord" else "image"
        config["dataset"]["fields"] = {"image": {"from": column, "as": "image"}}
    return forebay.endless(config, "image")


def of_webdataset(work: Work) -> Iterator[Any]:
    """Shards in random order and a buffer of 1,000 samples, as its documentation has it."""
    import torch
    import webdataset

    crop, folder = Crop(), place_of(work)
    if "url" in work.settings:
        names = sorted(path.name for path in Path(work.prepared, "tar").glob("*.tar"))
        shards = [f"pipe:curl -s -L {folder}/{name}" for name in names]
    else:
        shards = sorted(str(path) for path in Path(folder).glob("*.tar"))
    data = webdataset.WebDataset(shards, resampled=True, shardshuffle=False, nodesplitter=webdataset.split_by_node)
    data = data.shuffle(1000).to_tuple("jpg").map_tuple(crop)
    data = data.batched(work.batch_size, collation_fn=lambda rows: torch.stack([row for (row,) in rows]), partial=False)
    for images in webdataset.WebLoader(data, batch_size=None, num_workers=work.settings["workers"], prefetch_factor=2):
        yield images.numpy()


def of_streaming(work: Work) -> Iterator[Any]:
    import torch
    from streaming import StreamingDataset

    crop = Crop()

    class Pictures(StreamingDataset):
        def __getitem__(self, at: int) -> Any:
            return crop(super().__getitem__(at)["image"])

    where: dict[str, Any] = {"local": place_of(work)}
    if "url" in work.settings:
        os.environ.update(S3_ENDPOINT_URL=work.settings["url"].rsplit("/", 1)[0], **SECRETS)
        where = {"local": tempfile.mkdtemp(prefix="forebay-bench-mds-"), "remote": f"s3://{BUCKET}/mds"}
    data = Pictures(shuffle=True, batch_size=work.batch_size, epoch_size=work.samples, **where)
    loader: Any = torch.utils.data.DataLoader(
        data, batch_size=work.batch_size, num_workers=work.settings["workers"], prefetch_factor=2
    )
    for images in loader:
        yield images.numpy()


def of_litdata(work: Work) -> Iterator[Any]:
    from litdata import StreamingDataLoader, StreamingDataset

    crop = Crop()

    class Pictures(StreamingDataset):
        def __getitem__(self, at: Any) -> Any:
            return crop(super().__getitem__(at)["image"])

    where = place_of(work)
    options: dict[str, Any] = {}
    if "url" in work.settings:
        where = f"s3://{BUCKET}/litdata"
        endpoint = work.settings["url"].rsplit("/", 1)[0]
        keys = {name.lower(): value for name, value in SECRETS.items()}
        options = {"storage_options": {"endpoint_url": endpoint, **keys}}
        # Its client refuses a server without TLS, and has no option for it.
        from litdata.streaming import downloader

        downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True
        options["cache_dir"] = tempfile.mkdtemp(prefix="forebay-bench-litdata-")
    data = Pictures(where, shuffle=True, drop_last=True, **options)
    loader = StreamingDataLoader(
        data, batch_size=work.batch_size, num_workers=work.settings["workers"], prefetch_factor=2, drop_last=True
    )
    while True:
        for images in loader:
            yield images.numpy()


def of_datasets(work: Work) -> Iterator[Any]:
    """The Parquet files as `load_dataset` keeps them, rows at random."""
    import datasets
    import torch

    crop = Crop()
    files = sorted(str(path) for path in Path(place_of(work)).glob("*.parquet"))
    kept = f"{work.prepared}/huggingface"
    data = datasets.load_dataset("parquet", data_files=files, split="train", cache_dir=kept)
    data = data.cast_column("image", datasets.Image(decode=False))
    data = data.with_transform(lambda rows: {"image": [crop(image["bytes"]) for image in rows["image"]]}, ["image"])
    loader = torch.utils.data.DataLoader(
        data,
        batch_size=work.batch_size,
        sampler=torch.utils.data.RandomSampler(data, num_samples=work.samples),
        num_workers=work.settings["workers"],
        prefetch_factor=2,
    )
    for batch in loader:
        yield batch["image"].numpy()


def of_lance(work: Work) -> Iterator[Any]:
    """Its own Dataset for PyTorch, whose workers it asks to be spawned; rows at random."""
    import torch
    from lance.torch.data import SafeLanceDataset, get_safe_loader

    data = SafeLanceDataset(place_of(work))
    sampler = torch.utils.data.RandomSampler(data, num_samples=work.samples)
    loader = get_safe_loader(
        data,
        batch_size=work.batch_size,
        num_workers=work.settings["workers"],
        sampler=sampler,
        collate_fn=CroppedRows(Crop()),
        prefetch_factor=2,
    )
    for images in loader:
        yield images.numpy()


class CroppedRows:
    """A batch of rows."""

    def __init__(self, crop: Crop) -> None:
        self.crop = crop

    def __call__(self, rows: list[dict[str, Any]]) -> Any:
        import torch

        return torch.stack([self.crop(row["image"]) for row in rows])


def of_tfdata(work: Work) -> Iterator[Any]:
    """Records of all files interleaved, a buffer of 1,000, its decoder that crops."""
    import tensorflow as tf

    from .tfdata import crop_of

    names = sorted(str(path) for path in Path(place_of(work)).glob("*.tfrecord"))
    options = tf.data.Options()
    options.deterministic = False
    options.threading.private_threadpool_size = work.settings["threads"]
    options.threading.max_intra_op_parallelism = 1
    feature = {"image": tf.io.FixedLenFeature([], tf.string)}

    def crop(record: Any) -> Any:
        return crop_of(tf.io.parse_single_example(record, feature)["image"], fast=True)

    data = tf.data.Dataset.from_tensor_slices(names).shuffle(len(names)).repeat()
    data = data.interleave(tf.data.TFRecordDataset, cycle_length=4, num_parallel_calls=1).shuffle(1000)
    data = data.map(crop, num_parallel_calls=work.settings["threads"])
    data = data.batch(work.batch_size, drop_remainder=True).prefetch(2).with_options(options)
    for images in data.take(work.batches):
        yield images.numpy()


def of_grain(work: Work) -> Iterator[Any]:
    """An exact shuffle, its worker processes."""
    import grain
    import torch
    from absl import flags

    # Its worker processes take the flags over.
    flags.FLAGS.mark_as_parsed()
    crop = Crop()
    names = sorted(str(path) for path in Path(place_of(work)).iterdir())
    data = grain.MapDataset.source(grain.sources.ArrayRecordDataSource(names)).seed(17).shuffle().repeat()

    def cropped(record: bytes) -> Any:
        # As PyTorch's own worker processes are: more threads each slow all of them down.
        torch.set_num_threads(1)
        return crop(record).numpy()

    data = data.map(cropped)
    data = data.to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=16)).batch(work.batch_size)
    options = grain.MultiprocessingOptions(num_workers=work.settings["workers"], per_worker_buffer_size=2)
    for _, images in zip(range(work.batches), data.mp_prefetch(options)):
        yield images


# The server of the bucket checks no signatures.
BUCKET = "data"
SECRETS = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y"}
LOADERS: dict[str, Callable[[Work], Iterator[Any]]] = {
    "forebay": of_forebay,
    "webdataset": of_webdataset,
    "streaming": of_streaming,
    "litdata": of_litdata,
    "datasets": of_datasets,
    "lance": of_lance,
    "tfdata": of_tfdata,
    "grain": of_grain,
}


def batches(work: Work) -> Iterator[Any]:
    return LOADERS[work.settings["loader"]](work)
