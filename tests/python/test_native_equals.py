"""`forebay doctor` names the steps of a Python stage that have a native equal, and the time that they take."""

import json
import re
import sys
import textwrap
import threading
import types

import pytest
from support import config_of, run_program, write_pictures, write_toml


@pytest.fixture
def doctor(tmp_path):
    """Runs the program on a stage `augment` whose module is `source`, or on `collate`, of batches; its findings
    about Python, as JSON."""
    folder = write_pictures(tmp_path / "pictures", 12, lambda sample: 0, (120, 160, 3))

    def run(source, arguments=(), of_batches=False):
        (tmp_path / "own.py").write_text(textwrap.dedent(source))
        stages, batch = [{"name": "decode", "operations": [{"op": "decode-image"}]}], {}
        if of_batches:
            stages[0]["operations"].append({"op": "center-crop", "size": 100})
            batch = {"operations": [{"op": "python", "call": "own:collate", "workers": 1}]}
        else:
            stages.append({"name": "augment", "python": "own:augment", "workers": 1})
        dataset = {"format": "image-folder", "path": str(folder)}
        python = {"interpreter": sys.executable}
        path = write_toml(tmp_path / "train.toml", config_of(dataset, stage=stages, batch=batch, python=python))
        done = run_program("doctor", path, "--json", "--read-seconds", "0", *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return [one for one in json.loads(done.stdout)["findings"] if one["name"] == "python"]

    return run


def steps(findings):
    """By class: milliseconds of the step and of the function, the finding."""
    found = {}
    for finding in findings:
        one = re.match(
            r"`([\w.]+)` in stage `augment`(?: takes ([\d.]+) of ([\d.]+) ms a sample)?[:;]", finding["state"]
        )
        if one:
            found[one[1]] = (float(one[2] or 0), float(one[3] or 0), finding)
    return found


V1 = """
    import torch
    from torchvision import transforms as T

    class Slow:
        def __call__(self, image):
            for _ in range(20):
                torch.ones(300, 300) @ torch.ones(300, 300)
            return image

    class Own(T.RandomVerticalFlip):
        pass

    steps = [T.ToTensor(), T.RandomApply([T.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.9), T.RandomHorizontalFlip(p=1.0)]
    run = T.Compose([*steps, T.RandomCrop(64), Own(), T.RandomErasing(), Slow(), T.Lambda(lambda image: image)])

    def augment(sample, rng):
        return {"image": run(sample["image"]), "label": sample["label"]}
"""

V2 = """
    import torch
    from torchvision.transforms import v2

    def pipeline():
        # Nothing that can be reached from the function holds them before it is called.
        steps = [v2.ToImage(), v2.RandomResizedCrop(64), v2.GaussianBlur(23), v2.ElasticTransform()]
        return v2.Compose([*steps, v2.ToDtype(torch.float32, scale=True)])

    def augment(sample, rng):
        return {"image": pipeline()(sample["image"]), "label": sample["label"]}
"""

ALBUMENTATIONS = """
    import albumentations as A

    class Own:
        def __init__(self):
            either = A.OneOf([A.RandomBrightnessContrast(p=1), A.ColorJitter(p=1)], p=1)
            steps = [A.HorizontalFlip(p=1), either, A.GridDistortion(p=1), A.CoarseDropout(p=1)]
            self.run = A.Compose([*steps, A.RandomCrop(64, 64)])

        def __call__(self, sample, rng):
            return {"image": self.run(image=sample["image"])["image"], "label": sample["label"]}

    class augment(Own):
        pass
"""


def test_steps_of_torchvision_are_named_with_their_operation_and_time(doctor):
    pytest.importorskip("torchvision")
    findings = doctor(V1)
    found = steps(findings)
    names = ["ToTensor", "RandomApply", "ColorJitter", "RandomHorizontalFlip", "RandomCrop", "RandomErasing"]
    assert set(found) == {f"torchvision.{name}" for name in names}
    spent, function, jitter = found["torchvision.ColorJitter"]
    assert jitter["state"].endswith("the native operation `color-jitter` does the same")
    assert '{ op = "color-jitter", brightness' in jitter["remedy"]
    assert 0 < spent < function
    # What holds a step is not given its time, and what is none of torchvision's stays out.
    assert found["torchvision.RandomApply"][1] == 0
    together = re.search(r"native equal take ([\d.]+) of ([\d.]+) ms", findings[0]["state"])
    timed = sum(spent for spent, *_ in found.values())
    assert float(together[1]) == pytest.approx(timed, rel=0.1, abs=0.4)
    assert float(together[1]) < 0.9 * float(together[2])


def test_steps_that_are_made_in_the_call_are_found_too(doctor):
    pytest.importorskip("torchvision")
    found = steps(doctor(V2))
    names = ["ToImage", "RandomResizedCrop", "GaussianBlur", "ToDtype"]
    assert set(found) == {f"torchvision.{name}" for name in names}
    assert "`area`" in found["torchvision.RandomResizedCrop"][2]["remedy"]
    # The distortion takes most of it and has no native equal.
    _, function, _ = found["torchvision.GaussianBlur"]
    assert sum(spent for spent, *_ in found.values()) < function


def test_steps_of_albumentations_are_named_and_what_differs(doctor):
    pytest.importorskip("albumentations")
    found = steps(doctor(ALBUMENTATIONS))
    names = ["HorizontalFlip", "OneOf", "RandomBrightnessContrast", "ColorJitter", "CoarseDropout", "RandomCrop"]
    assert set(found) == {f"albumentations.{name}" for name in names}
    assert "`color-jitter` is close to it" in found["albumentations.RandomBrightnessContrast"][2]["state"]
    assert "brightness is a factor" in found["albumentations.RandomBrightnessContrast"][2]["remedy"]
    _, function, flip = found["albumentations.HorizontalFlip"]
    assert function > 0 and "does the same" in flip["state"]


def test_what_is_the_users_own_yields_nothing(doctor):
    source = """
        def augment(sample, rng):
            return {"image": sample["image"][::2, ::2].copy(), "label": sample["label"]}
    """
    assert doctor(source) == []
    own = """
        from torchvision.transforms import v2

        class RandomHorizontalFlip(v2.Transform):
            def transform(self, inpt, params):
                return inpt

        run = v2.Compose([RandomHorizontalFlip()])

        def augment(sample, rng):
            return {"image": run(sample["image"]), "label": sample["label"]}
    """
    pytest.importorskip("torchvision")
    assert doctor(own) == []


def test_a_function_that_cannot_be_timed_is_named_and_none_is_called_on_demand(doctor):
    source = """
        calls = 0

        def augment(sample, rng):
            global calls
            calls += 1
            if calls > 8:  # those of the start
                raise ValueError("no more")
            return {"image": sample["image"], "label": sample["label"]}
    """
    assert doctor(source, arguments=["--call-seconds", "0"]) == []
    (finding,) = doctor(source)
    assert "could not be timed: ValueError: no more" in finding["state"]


def test_a_function_on_batches_is_timed_with_a_batch(doctor):
    source = """
        calls = 0

        def collate(batch, rng):
            global calls
            calls += 1
            if calls > 2:  # those of the start
                raise ValueError(f"no more than {len(batch['label'])} samples")
            return batch
    """
    (finding,) = doctor(source, of_batches=True)
    assert finding["state"].startswith("the function of `batch.operations[0]` could not be timed: ValueError: ")
    assert finding["state"].endswith(" no more than 4 samples")
    pytest.importorskip("torchvision")
    source = """
        import time
        import torch
        from torchvision.transforms import v2

        flip = v2.RandomHorizontalFlip(1.0)
        to_floats = v2.ToDtype(torch.float32, scale=True)

        def collate(batch, rng):
            time.sleep(0.02)
            return {**batch, "image": to_floats(flip(torch.from_numpy(batch["image"])))}
    """
    together, *found = [finding["state"] for finding in doctor(source, of_batches=True)]
    of_function = "the function on batches `batch.operations[0]`"
    assert re.match(rf"steps of {re.escape(of_function)} that have a native equal take [0-9.]+ of [0-9.]+ ms", together)
    pattern = rf"`torchvision\.(\w+)` in {re.escape(of_function)} takes ([0-9.]+) of ([0-9.]+) ms a batch of 4; "
    steps = {step[1]: step for step in (re.match(pattern, one) for one in found)}
    assert set(steps) == {"RandomHorizontalFlip", "ToDtype"}
    assert all(float(step[2]) < 20 <= float(step[3]) for step in steps.values())


def test_a_function_that_takes_longer_than_its_time_is_timed_once(doctor):
    pytest.importorskip("torchvision")
    source = """
        import time
        from torchvision.transforms import v2

        image = v2.ToImage()

        def augment(sample, rng):
            time.sleep(0.1)
            return {"image": image(sample["image"]), "label": sample["label"]}
    """
    found = steps(doctor(source, arguments=["--call-seconds", "0.01"]))
    _, function, _ = found["torchvision.ToImage"]
    assert function >= 100


def test_a_step_has_its_own_time_alone_and_an_exception_passes(monkeypatch):
    v2 = pytest.importorskip("torchvision.transforms.v2")
    import torch
    from forebay import _transform_times

    now = 0

    def transform(self, inpt, params):
        nonlocal now
        now += 10
        if inpt.shape[-1] == 3:
            raise ValueError("three")
        return inpt

    class Own(v2.Transform):
        pass

    monkeypatch.setattr(_transform_times, "time", types.SimpleNamespace(perf_counter_ns=lambda: now))
    monkeypatch.setattr(v2.Lambda, "transform", transform)
    Own.transform = transform
    run = v2.RandomApply([Own(), v2.Lambda(None)], p=1)
    good, bad = torch.zeros(3, 4, 4), torch.zeros(3, 3, 3)
    times = _transform_times.TransformTimes()
    times.begin()
    with pytest.raises(ValueError, match="three"):
        v2.RandomApply([v2.Lambda(None)], p=1)(bad)
    run(good)
    thread = threading.Thread(target=run, args=(good,))
    thread.start()
    thread.join()
    took = [("torchvision.Lambda", 20), ("torchvision.RandomApply", 0)]
    assert sorted(times.end()) == took
    run(good)
    assert sorted(times.end()) == took
    times.begin()
    assert times.end() == []


@pytest.mark.parametrize("package", ["torchvision", "albumentations"])
def test_what_is_told_can_be_written(doctor, tmp_path, package):
    """Each entry that is told is one that a configuration may have."""
    pytest.importorskip(package)
    told = steps(doctor(ALL[package]))
    assert len(told) == {"torchvision": 31, "albumentations": 28}[package]
    entries = [re.match(r"\{ op = .*? \}(?=, with your arguments)", one["remedy"]) for *_, one in told.values()]
    entries = [entry[0].replace("operations = []", 'operations = [{ op = "invert" }]') for entry in entries if entry]
    assert len(entries) > 20
    # A configuration for each alone. What normalizes comes last.
    dataset = {"format": "image-folder", "path": str(tmp_path / "pictures")}
    for entry in entries:
        crop = "" if "normalize" in entry else '{ op = "center-crop", size = 200 }'
        operations = f'{{ op = "decode-image" }}, {{ op = "resize", size = [230, 230] }}, {entry}, {crop}'
        path = write_toml(tmp_path / "native.toml", config_of(dataset, stage=[]))
        path.write_text(path.read_text().replace("stage = []", f'[[stage]]\nname = "all"\noperations = [{operations}]'))
        done = run_program("check", "--plan-only", path)
        assert done.returncode == 0, entry + done.stderr


ALL_TORCHVISION = """
    from torchvision.transforms import v2

    degrees = {"degrees": 15}
    arguments = {
        "Resize": {"size": 100}, "CenterCrop": {"size": 90}, "RandomCrop": {"size": 80}, "Pad": {"padding": 2},
        "RandomResizedCrop": {"size": 64}, "RandomRotation": degrees, "RandomAffine": degrees,
        "GaussianBlur": {"kernel_size": 3}, "RandomAdjustSharpness": {"sharpness_factor": 2},
        "RandomPosterize": {"bits": 4}, "RandomSolarize": {"threshold": 128}, "Grayscale": {"num_output_channels": 3},
    }
    names = "Resize CenterCrop RandomCrop RandomResizedCrop RandomHorizontalFlip RandomVerticalFlip Pad RandomRotation"
    names += " RandomAffine RandomPerspective ColorJitter Grayscale RandomGrayscale GaussianBlur RandomAdjustSharpness"
    names += " RandomInvert RandomPosterize RandomSolarize RandomEqualize RandomAutocontrast RandAugment"
    names += " TrivialAugmentWide AutoAugment AugMix"
    made = [getattr(v2, name)(**arguments.get(name, {})) for name in names.split()]
    lists = [kind([v2.RandomInvert()]) for kind in (v2.RandomApply, v2.RandomChoice, v2.RandomOrder)]
    last = [v2.ToDtype(__import__("torch").float32, scale=True), v2.Normalize([0.5] * 3, [0.2] * 3), v2.RandomErasing()]
    run = v2.Compose([v2.ToImage(), *made, *lists, v2.Resize((64, 64)), *last])

    def augment(sample, rng):
        return {"image": run(sample["image"]), "label": sample["label"]}
"""

ALL_ALBUMENTATIONS = """
    import albumentations as A

    sized = {"height": 80, "width": 90, "p": 1}
    arguments = {"Resize": sized, "CenterCrop": sized, "RandomCrop": sized}
    arguments |= {"SmallestMaxSize": {"max_size": 100, "p": 1}, "RandomResizedCrop": {"size": (64, 64)}}
    names = "Resize SmallestMaxSize CenterCrop RandomCrop RandomResizedCrop HorizontalFlip VerticalFlip Pad Rotate"
    names += " Affine ShiftScaleRotate Perspective ColorJitter RandomBrightnessContrast HueSaturationValue ToGray"
    names += " GaussianBlur Posterize Solarize Equalize AutoContrast InvertImg Erasing CoarseDropout"
    made = [getattr(A, name)(**arguments.get(name, {"p": 1})) for name in names.split()]
    lists = [A.OneOf([A.InvertImg(p=1)], p=1), A.Sequential([A.InvertImg(p=1)], p=1)]
    run = A.Compose([*made, *lists, A.Normalize(), A.ToTensorV2()])

    def augment(sample, rng):
        return {"image": run(image=sample["image"])["image"], "label": sample["label"]}
"""

ALL = {"torchvision": ALL_TORCHVISION, "albumentations": ALL_ALBUMENTATIONS}
