"""Presets over JPEG folders: pixels as torchvision gives them, and ranks under torchrun."""

import numpy
import pytest
from support import PROGRAM, run_ranks

torch = pytest.importorskip("torch")
torchvision = pytest.importorskip("torchvision")
Image = pytest.importorskip("PIL.Image")

import forebay.torch  # noqa: E402


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Class folders of noisy JPEGs, and their number."""
    folder = tmp_path_factory.mktemp("images")
    draws = numpy.random.default_rng(5)
    for number in range(96):
        path = folder / f"class-{number // 24}" / f"{number:03}.jpg"
        path.parent.mkdir(exist_ok=True)
        pixels = draws.normal(128, 45, (56, 72, 3)).clip(0, 255).astype(numpy.uint8)
        Image.fromarray(pixels).save(path, quality=92)
    return folder, 96


def test_the_eval_preset_gives_torchvisions_pixels(images):
    folder, count = images
    config = {"preset": "imagenet-eval", "dataset": {"path": str(folder)}, "batch": {"size": 10}}
    transforms = torchvision.transforms
    steps = [transforms.Resize(256), transforms.CenterCrop(224), transforms.PILToTensor()]
    reference = torchvision.datasets.ImageFolder(str(folder), transforms.Compose(steps))
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


def test_torchrun_starts_a_daemon_beside_each_rank(images, tmp_path):
    folder, count = images
    ranks = 2
    for name, shuffle in (("train", "true"), ("val", "false")):
        (tmp_path / f"{name}.toml").write_text(
            f'preset = "imagenet-eval"\ndataset.path = "{folder}"\nbatch.size = 8\nbatch.last = "drop"\n'
            f"order.shuffle = {shuffle}\nring.slots = 3\n"
        )
    reports = run_ranks(tmp_path, ranks, TRAINER, launcher=(PROGRAM, "run", "train.toml", "val.toml", "--"))
    for epoch in range(2):
        ids = [index for report in reports for index in report["epochs"][epoch]]
        assert len(ids) == len(set(ids)) == count // (8 * ranks) * 8 * ranks
    assert reports[0]["epochs"][0] != reports[0]["epochs"][1]
    for rank, report in enumerate(reports):
        # The first two global batches of each val epoch, this rank's rows.
        first = [list(range(start, start + 8)) for start in (8 * rank, 8 * ranks + 8 * rank)]
        assert report["val"] == first + first
        assert report["state"] == reports[0]["state"]
