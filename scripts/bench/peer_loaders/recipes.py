"""Recipes in the user's own Python, in Forebay's operations and in peers: the same steps with the same arguments.

`work.settings["recipe"]` and `["loader"]` name what is loaded, and by whom.
"""

from __future__ import annotations

import importlib
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .forebay import configuration, endless
from .work import CROP, MEAN, STD, Work

JITTER = {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1}
TOKENS = 256
FLOATS = {"dtype": "float32", "layout": "NCHW", "mean": list(MEAN), "std": list(STD)}


# What the user writes: functions and classes of Python stages, which PyTorch's workers call too.


class Torchvision:
    """RandAugment, ColorJitter and flip of torchvision v2 on a crop of bytes [height, width, 3]."""

    def __init__(self) -> None:
        import torch
        from torchvision.transforms import v2

        self.torch = torch
        self.run = v2.Compose([v2.RandAugment(), v2.ColorJitter(**JITTER), v2.RandomHorizontalFlip()])

    def __call__(self, sample: dict[str, Any], rng: Any) -> dict[str, Any]:
        # Channels first, as decode_jpeg gives them: operations of torchvision take a tenth longer on others.
        return {"image": self.run(self.torch.from_numpy(sample["image"]).permute(2, 0, 1).contiguous())}


class Albumentations:
    def __init__(self) -> None:
        import albumentations as a

        self.run = a.Compose(
            [
                a.HorizontalFlip(p=0.5),
                a.ColorJitter((0.6, 1.4), (0.6, 1.4), (0.6, 1.4), (-0.1, 0.1), p=0.8),
                a.Affine(rotate=(-15, 15), scale=(0.9, 1.1), p=0.5),
                a.GaussianBlur(p=0.2),
                a.CoarseDropout(p=0.25),
            ]
        )

    def __call__(self, sample: dict[str, Any], rng: Any) -> dict[str, Any]:
        return {"image": self.run(image=sample["image"])["image"]}


class Tokenize:
    """A caption to a fixed number of tokens, by a tokenizer that was trained on the captions."""

    def __init__(self, file: str) -> None:
        from tokenizers import Tokenizer

        self.tokenizer = Tokenizer.from_file(file)
        self.tokenizer.enable_truncation(TOKENS)
        self.tokenizer.enable_padding(length=TOKENS)

    def __call__(self, sample: dict[str, Any], rng: Any) -> dict[str, Any]:
        import numpy

        pair = self.tokenizer.encode(sample["question"], sample["answer"])
        return {"tokens": numpy.array(pair.ids, numpy.int32)}


class TokenizeBatch(Tokenize):
    """The same of all pairs of a batch, one after the other."""

    def __call__(self, batch: dict[str, Any], rng: Any) -> dict[str, Any]:
        import numpy

        pairs = zip(batch["question"], batch["answer"])
        return {"tokens": numpy.array([self.tokenizer.encode(*pair).ids for pair in pairs], numpy.int32)}


def same(sample: dict[str, Any], rng: Any) -> dict[str, Any]:
    return {"image": sample["array"]}


def busy(sample: dict[str, Any], rng: Any) -> dict[str, Any]:
    """As much work for a core each time, without memory that two processes share."""
    total = 0
    for number in range(60_000):
        total += number * number
    return {"image": sample["array"][:8]}


# Forebay.

DECODE = [{"op": "decode-image"}, {"op": "random-resized-crop", "size": CROP}]
FLIP = {"op": "random-horizontal-flip", "probability": 0.5}


def python_stage(name: str, workers: Any = "auto", **arguments: Any) -> dict[str, Any]:
    stage = {"name": "recipe", "python": f"peer_loaders.recipes:{name}", "workers": workers}
    return {**stage, "arguments": arguments} if arguments else stage


def configuration_of(work: Work) -> dict[str, Any]:
    recipe, loader = work.settings["recipe"], work.settings["loader"]
    config = configuration(work)
    decode = {"name": "decode", "operations": DECODE}
    if recipe == "torchvision" and loader == "native":
        jitter = {"op": "color-jitter", **JITTER}
        config["stage"] = [{"name": "recipe", "operations": [*DECODE, {"op": "rand-augment"}, jitter, FLIP]}]
    elif recipe == "torchvision":
        config["stage"] = [decode, python_stage("Torchvision")]
    elif recipe == "albumentations":
        config["stage"] = [decode, python_stage("Albumentations")]
    elif recipe == "strong":
        config = {"preset": "imagenet-train-strong", "dataset": {"path": work.data}, "batch": {"size": work.batch_size}}
        config["output"] = {"image": FLOATS}
    elif recipe == "tokens":
        config["dataset"] = {"format": "manifest", "path": f"{work.data}/pairs.jsonl"}
        arguments = {"file": f"{work.data}/tokenizer.json"}
        if loader == "batch":
            call = {"op": "python", "call": "peer_loaders.recipes:TokenizeBatch", "arguments": arguments}
            config["batch"]["operations"] = [call]
            config["stage"] = [{"name": "copy", "operations": []}]
            del config["output"]
        else:
            config["stage"] = [python_stage("Tokenize", **arguments)]
    else:
        workers = work.settings.get("workers", 1)
        config["dataset"] = {"format": "npy", "path": f"{work.data}/pictures.npy"}
        config["stage"] = [python_stage(recipe, workers)]
    if loader == "plain":
        config["stage"] = [{"name": "copy", "operations": []}]
        del config["output"]
    if any("python" in stage for stage in config.get("stage", ())):
        del config["output"]
    return config


def batches(work: Work) -> Iterator[Any]:
    maker = {"pytorch": of_pytorch, "timm": of_timm, "loop": of_loop}.get(work.settings["loader"])
    if maker:
        return maker(work)
    field = {"tokens": "tokens"}.get(
        work.settings["recipe"], "array" if work.settings["loader"] == "plain" else "image"
    )
    return endless(configuration_of(work), field)


# Peers.


class Files:
    """Images by their paths: the user's dataset of PyTorch."""

    def __init__(self, work: Work, run: Any) -> None:
        self.paths = sorted(map(str, Path(work.data).glob("*/*.jpg")))
        self.run = run

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number: int) -> Any:
        return self.run(self.paths[number])


def torchvision_steps() -> Any:
    from torchvision.transforms import v2

    from .pytorch import decode_to_tensor

    steps = v2.Compose(
        [
            v2.RandomResizedCrop(CROP, antialias=True),
            v2.RandAugment(),
            v2.ColorJitter(**JITTER),
            v2.RandomHorizontalFlip(),
        ]
    )
    return lambda path: steps(decode_to_tensor(path))


def albumentations_steps() -> Any:
    import albumentations as a
    import cv2

    steps = a.Compose([a.RandomResizedCrop((CROP, CROP)), *Albumentations().run.transforms])
    cv2.setNumThreads(0)
    return lambda path: steps(image=cv2.imread(path, cv2.IMREAD_COLOR_RGB))["image"]


class Pairs:
    def __init__(self, work: Work) -> None:
        self.lines = Path(work.data, "pairs.jsonl").read_text().splitlines()
        self.tokenize = Tokenize(f"{work.data}/tokenizer.json")

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, number: int) -> Any:
        return self.tokenize(json.loads(self.lines[number]), None)["tokens"]


def of_pytorch(work: Work) -> Iterator[Any]:
    import torch

    recipe = work.settings["recipe"]
    if recipe == "tokens":
        data: Any = Pairs(work)
    else:
        data = Files(work, torchvision_steps() if recipe == "torchvision" else albumentations_steps())
    loader = torch.utils.data.DataLoader(
        data,
        batch_size=work.batch_size,
        sampler=torch.utils.data.RandomSampler(data, num_samples=work.samples),
        num_workers=2,
    )
    for batch in loader:
        yield batch.numpy()


def of_timm(work: Work) -> Iterator[Any]:
    """timm's own loader with its training recipe; MixUp and CutMix in the workers, erasing in its prefetcher."""
    import torch

    data: Any = importlib.import_module("timm.data")
    loader = data.create_loader(
        data.create_dataset("", root=work.data),
        input_size=(3, CROP, CROP),
        batch_size=work.batch_size,
        is_training=True,
        re_prob=0.25,
        re_mode="pixel",
        auto_augment="rand-m9-inc1",
        color_jitter=None,
        interpolation="bicubic",
        num_workers=2,
        collate_fn=data.FastCollateMixup(mixup_alpha=0.8, cutmix_alpha=1.0, label_smoothing=0.0, num_classes=16),
        device=torch.device("cpu"),
        use_multi_epochs_loader=True,
    )
    while True:
        for images, _ in loader:
            yield images.numpy()


def of_loop(work: Work) -> Iterator[Any]:
    """The function alone, in a loop of this process, on pictures that are in memory."""
    import numpy

    pictures = numpy.load(f"{work.data}/pictures.npy")
    function = {"same": same, "busy": busy}[work.settings["recipe"]]
    while True:
        batch = [function({"array": pictures[number % len(pictures)]}, None) for number in range(work.batch_size)]
        yield numpy.broadcast_to(batch[0]["image"], (work.batch_size, *batch[0]["image"].shape)).copy()


# Data.

WORDS = 4000


def write_pairs(folder: Path, pairs: int) -> None:
    """Questions and answers of invented words, by their frequency in Zipf's way, and a tokenizer of them."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    draws = random.Random(7)
    letters = "etaoinshrdlu"
    words = ["".join(draws.choices(letters, k=draws.randint(2, 9))) for _ in range(WORDS)]
    weights = [1 / (1 + place) for place in range(WORDS)]

    def text(least: int, most: int) -> str:
        return " ".join(draws.choices(words, weights, k=draws.randint(least, most)))

    lines = [{"question": text(8, 24), "answer": text(40, 160)} for _ in range(pairs)]
    tokenizer = Tokenizer(models.BPE(unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.BpeTrainer(vocab_size=2000, special_tokens=["?"], show_progress=False)
    tokenizer.train_from_iterator((line["answer"] for line in lines[:2000]), trainer)
    tokenizer.save(f"{folder}/tokenizer.json")
    Path(folder, "pairs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def seeding_microseconds() -> float:
    """What it takes to seed all four generators for a sample; the least of seven rounds."""
    import torch
    from forebay._stage import Stage

    spec: dict[str, Any] = {
        "path": [],
        "folder": "",
        "main": None,
        "python": "peer_loaders.recipes:same",
        "arguments": None,
    }
    stage = Stage(spec)
    assert torch is stage._torch
    least, calls = float("inf"), 5000
    for _ in range(7):
        begun = time.perf_counter()
        for number in range(calls):
            stage.seed([(1 << 63) + number, (1 << 62) + number, (1 << 61) + number, (1 << 60) + number])
        least = min(least, (time.perf_counter() - begun) / calls)
    return least * 1e6


def prepare(work: Work) -> None:
    """Brings pairs, or pictures, into the folder."""
    import numpy

    folder = Path(work.prepared)
    if work.settings["recipe"] == "tokens" and not Path(folder, "pairs.jsonl").exists():
        write_pairs(folder, 20_000)
    if work.settings["recipe"] == "workers" and not Path(folder, "pictures.npy").exists():
        pictures = numpy.random.default_rng(5).integers(0, 256, (512, CROP, CROP, 3), numpy.uint8)
        numpy.save(folder / "pictures.npy", pictures)
