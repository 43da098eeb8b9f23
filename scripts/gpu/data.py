"""The data that the measurements read, made on the spot and always the same, and the configurations over it.

Each set is made once for a run of gpu-check and found again by the processes that come later.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
from rows import say, toml

Config = dict[str, Any]
IMAGE_SHAPE = (3, 224, 224)
BATCH_ROWS = 256
BATCH_BYTES = BATCH_ROWS * 3 * 224 * 224
SMALL_ROWS = 64
SMALL_SAMPLES = 4096
SMALL_SHAPE = (3, 32, 32)

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def _once(folder: Path, what: str, make: Callable[[Path], None]) -> Path:
    done = folder.with_name(folder.name + ".done")
    if not done.exists():
        say(f"making data: {what}")
        folder.mkdir(parents=True, exist_ok=True)
        make(folder)
        done.touch()
    return folder


STAGE: Config = {"name": "copy", "operations": []}


def big_images(root: Path, samples: int) -> Path:
    """Files of one uint8 image each: 512 of random bytes, and further names of the same files."""

    def make(folder: Path) -> None:
        random = numpy.random.default_rng(11)
        distinct = min(samples, 512)
        for number in range(samples):
            path = folder / f"{number:06}.npy"
            if number < distinct:
                numpy.save(path, random.integers(0, 256, IMAGE_SHAPE, dtype=numpy.uint8))
            else:
                # More links to one file than a file system allows are not reached: 65,000 on ext4.
                os.link(folder / f"{number % distinct:06}.npy", path)

    return _once(root / f"big-{samples}", f"{samples} names of 512 images of 3×224×224", make)


def big_config(root: Path, samples: int, **batch: Any) -> Config:
    """Batches of 38.5 MB of uint8."""
    return {
        "dataset": {"format": "npy", "path": str(big_images(root, samples))},
        "order": {"seed": 5},
        "batch": {"size": BATCH_ROWS, **batch},
        "stage": [{"name": "fetch", "concurrency": 32}, STAGE],
    }


def small_stack(root: Path) -> Path:
    """One file of random uint8 images."""

    def make(folder: Path) -> None:
        random = numpy.random.default_rng(12)
        numpy.save(folder / "stack.npy", random.integers(0, 256, (SMALL_SAMPLES, *SMALL_SHAPE), dtype=numpy.uint8))

    return _once(root / "small", f"{SMALL_SAMPLES} images of 3×32×32", make) / "stack.npy"


def small_config(root: Path) -> Config:
    """Batches of 197 kB, 64 an epoch, endless; few slots, so that each is filled again soon."""
    return {
        "dataset": {"format": "npy", "path": str(small_stack(root))},
        "order": {"seed": 7},
        "batch": {"size": SMALL_ROWS},
        "stage": [STAGE],
        "ring": {"slots": 4, "hold": 2},
    }


DTYPES = (
    *("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
    *("float16", "float32", "float64", "bool"),
)


def typed_config(root: Path) -> Config:
    """A field of every type, bfloat16 by conversion, with a short batch at the end."""

    def make(folder: Path) -> None:
        random = numpy.random.default_rng(13)
        for number in range(150):
            members: dict[str, Any] = {"for_bfloat16": random.standard_normal((5, 7)).astype(numpy.float32)}
            for name in DTYPES:
                # Every bit pattern of a type's size, but for floats, where one of a NaN may change when it is read.
                if name.startswith("float"):
                    members[f"as_{name}"] = (random.standard_normal((3, 11)) * 50).astype(name)
                elif name == "bool":
                    members["as_bool"] = random.random((3, 11)) < 0.5
                else:
                    limits = numpy.iinfo(name)
                    members[f"as_{name}"] = random.integers(
                        limits.min, limits.max, (3, 11), dtype=numpy.dtype(name).type, endpoint=True
                    )
            numpy.savez(folder / f"{number:04}.npz", **members)

    return {
        "dataset": {"format": "npz", "path": str(_once(root / "typed", "records of every type", make))},
        "order": {"seed": 8, "epochs": 2},
        "batch": {"size": 16, "last": "short"},
        "stage": [STAGE],
        "output": {"for_bfloat16": {"dtype": "bfloat16"}},
        "ring": {"slots": 3, "hold": 1},
    }


def ragged_config(root: Path, compact: bool) -> Config:
    """Rows of different lengths, also of none."""

    def make(folder: Path) -> None:
        random = numpy.random.default_rng(14)
        for number in range(200):
            tokens = random.integers(0, 50_000, int(random.integers(0, 900)), dtype=numpy.int32)
            numpy.savez(folder / f"{number:04}.npz", tokens=tokens, weight=numpy.float32(number))

    return {
        "dataset": {"format": "npz", "path": str(_once(root / "ragged", "rows of different lengths", make))},
        "order": {"seed": 9, "epochs": 2},
        "batch": {"size": 24, "last": "short"},
        "stage": [STAGE],
        "output": {"tokens": {"ragged": True, "max_bytes": "4KiB", "compact": compact}},
        "ring": {"slots": 3, "hold": 1},
    }


def photo_config(root: Path, output: Config, size: int = 64, rows: int = 32, **batch: Any) -> Config:
    """Cropped photographs, by the program's own generator."""

    def make(folder: Path) -> None:
        command = [str(program()), "demo", "--generate", str(folder), "--images", "300", "--classes", "6"]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode:
            raise RuntimeError(f"`forebay demo --generate` failed: {made.stderr.strip()[-500:]}")

    crop = {"op": "random-resized-crop", "size": size}
    operations = [{"op": "decode-image"}, crop, {"op": "random-horizontal-flip"}]
    return {
        "dataset": {"format": "image-folder", "path": str(_once(root / "photos", "300 photographs", make))},
        "order": {"seed": 10, "epochs": 2},
        "batch": {"size": rows, "last": "short", **batch},
        "stage": [{"name": "preprocess", "operations": operations}],
        "output": {"image": output},
        "ring": {"slots": 3, "hold": 1},
    }


def program() -> Path:
    """The `forebay` program that is in use: FOREBAY_PROGRAM, or the installed package's."""
    named = os.environ.get("FOREBAY_PROGRAM")
    if named:
        return Path(named)
    import forebay

    return Path(str(forebay.__file__)).with_name("bin") / "forebay"


def write_toml(root: Path, name: str, config: Config) -> Path:
    """A configuration as a file, for programs that are not Python."""
    path = root / f"{name}.toml"
    path.write_text("".join(f"{key} = {toml(value)}\n" for key, value in config.items()), encoding="utf-8")
    return path


if sys.byteorder != "little":
    raise SystemExit("gpu-check: the checks are written for little-endian machines")
