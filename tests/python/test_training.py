"""Whole trainers over JPEG folders: a loop that learns, ranks under torchrun, pixels as torchvision gives them."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy
import pytest

torch = pytest.importorskip("torch")
torchvision = pytest.importorskip("torchvision")
Image = pytest.importorskip("PIL.Image")

import forebay.torch  # noqa: E402


def write_images(folder, classes=4, each=24, size=(72, 56)):
    """Class folders of noisy JPEGs whose colour tells the class."""
    draws = numpy.random.default_rng(5)
    colours = [(200, 60, 50), (60, 190, 70), (60, 80, 200), (190, 180, 60)]
    for label in range(classes):
        (folder / f"class-{label}").mkdir(parents=True)
        for number in range(each):
            pixels = numpy.array(colours[label]) + draws.normal(0, 45, (size[1], size[0], 3))
            image = Image.fromarray(pixels.clip(0, 255).astype(numpy.uint8))
            image.save(folder / f"class-{label}" / f"{number:03}.jpg", quality=92)
    return classes * each


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    return folder, write_images(folder)


def training_config(folder, **order):
    return {
        "preset": "imagenet-train",
        "dataset": {"path": str(folder)},
        "order": {"seed": 1, **order},
        "batch": {"size": 16},
        "stage": [
            {
                "name": "preprocess",
                "operations": [
                    {"op": "decode-image"},
                    {"op": "random-resized-crop", "size": 32},
                    {"op": "random-horizontal-flip"},
                ],
            }
        ],
        "output": {
            "image": {"dtype": "float32", "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]},
        },
    }


def test_a_training_loop_learns(images):
    folder, _ = images
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 5, stride=2),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(4),
        torch.nn.Flatten(),
        torch.nn.Linear(128, 4),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    losses = []
    with forebay.torch.Loader(training_config(folder, epochs=8)) as loader:
        for _ in range(8):
            total = 0.0
            for batch in loader:
                loss = torch.nn.functional.cross_entropy(model(batch["image"]), batch["label"])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.item()
            losses.append(total / len(loader))
        with pytest.raises(forebay.EpochsFinished):
            iter(loader)
    assert losses[-1] < losses[0] / 3, losses


def test_the_eval_preset_gives_torchvisions_pixels(images):
    folder, count = images
    config = {"preset": "imagenet-eval", "dataset": {"path": str(folder)}, "batch": {"size": 10}}
    reference = torchvision.datasets.ImageFolder(
        str(folder),
        torchvision.transforms.Compose(
            [
                torchvision.transforms.Resize(256),
                torchvision.transforms.CenterCrop(224),
                torchvision.transforms.PILToTensor(),
            ]
        ),
    )
    seen = 0
    with forebay.torch.Loader(config) as loader:
        for batch in loader:
            for image, label, index in zip(batch["image"], batch["label"], batch["index"]):
                expected, expected_label = reference[int(index)]
                assert int(index) == seen and int(label) == expected_label
                difference = (image.int() - expected.int()).abs().float()
                assert difference.mean() <= 1 and difference.flatten().quantile(0.999) <= 3
                seen += 1
    assert seen == count


TRAINER = """
    import json, os, sys
    import torch.distributed
    import forebay.torch

    torch.distributed.init_process_group("gloo")
    train, val = forebay.torch.Loader("train"), forebay.torch.Loader("val")
    report = {"rank": torch.distributed.get_rank(), "source": str(train.rank_source), "epochs": [], "val": []}
    for _ in range(2):
        report["epochs"].append([int(index) for batch in train for index in batch["index"]])
        for number, batch in enumerate(val):
            report["val"].append([int(index) for index in batch["index"]])
            if number == 1:
                break
    report["state"] = train.state_dict()
    with open(os.path.join(sys.argv[1], f"{report['rank']}.json"), "w") as file:
        json.dump(report, file)
    torch.distributed.destroy_process_group()
"""


@pytest.mark.parametrize("ranks", [2, 4])
def test_torchrun_starts_a_daemon_beside_each_rank(images, tmp_path, ranks):
    folder, count = images
    for name, shuffle in (("train", "true"), ("val", "false")):
        (tmp_path / f"{name}.toml").write_text(
            f'preset = "imagenet-eval"\ndataset.path = "{folder}"\nbatch.size = 8\nbatch.last = "drop"\n'
            f"order.shuffle = {shuffle}\nring.slots = 3\n"
        )
    trainer = tmp_path / "trainer.py"
    trainer.write_text(textwrap.dedent(TRAINER))
    scripts = Path(sys.executable).parent
    command = [
        *(str(scripts / "torchrun"), "--no-python", "--nproc-per-node", str(ranks), "--master-port", "0"),
        *("--standalone", str(scripts / "forebay"), "run", "train.toml", "val.toml", "--"),
        *(sys.executable, str(trainer), str(tmp_path)),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    reports = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(ranks)]
    for epoch in range(2):
        ids = [index for report in reports for index in report["epochs"][epoch]]
        assert len(ids) == len(set(ids)) == count // (8 * ranks) * 8 * ranks
    assert reports[0]["epochs"][0] != reports[0]["epochs"][1]
    for rank, report in enumerate(reports):
        # The first two global batches of each val epoch, this rank's rows.
        first = [list(range(start, start + 8)) for start in (8 * rank, 8 * ranks + 8 * rank)]
        assert report["val"] == first + first
        assert report["state"] == reports[0]["state"]
