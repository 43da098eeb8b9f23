"""The user's own Python as a stage: the same bytes whatever happens to its workers, and errors that name the sample."""

import collections
import importlib
import os
import subprocess
import sys
import textwrap

import forebay
import pytest
from support import digests, noise, write_pictures

SAMPLES = 48


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    """48 small pictures in three classes."""
    return write_pictures(tmp_path_factory.mktemp("pictures"), SAMPLES, lambda sample: sample // 16)


@pytest.fixture
def stage(tmp_path, pictures, monkeypatch):
    """Writes a module of stages; the configuration of one that follows decoding, without shuffle."""
    monkeypatch.syspath_prepend(tmp_path)
    counter = iter(range(100))

    def make(
        source, function="augment", before='{ op = "decode-image" }, { op = "random-resized-crop", size = 32 }', **keys
    ):
        module = f"stages{next(counter)}_{os.getpid()}"
        (tmp_path / f"{module}.py").write_text(textwrap.dedent(source))
        text = (
            f'[dataset]\nformat = "image-folder"\npath = "{pictures}"\n[order]\nshuffle = false\nseed = 5\nepochs = 2\n'
        )
        text += f'[batch]\nsize = 8\n[[stage]]\nname = "decode"\noperations = [{before}]\n'
        text += f'[[stage]]\nname = "augment"\npython = "{module}:{function}"\n'
        text += "".join(f"{key} = {value}\n" for key, value in keys.items())
        path = tmp_path / f"{module}.toml"
        path.write_text(text)
        return path

    return make


EVERY_GENERATOR = """
    import random, time
    import numpy as np
    import torch

    def augment(sample, rng):
        time.sleep(0.005)
        noise = [rng.random(), random.random(), np.random.random(), float(torch.rand(())), float(rng.normal())]
        image = sample["image"]
        image[::2] //= 2
        return {"image": image, "noise": np.array(noise), "label": sample["label"]}
"""


def test_batches_are_the_same_for_every_number_of_workers(stage):
    path = stage(EVERY_GENERATOR)
    alone, two, seven = (digests(path, overrides={"stage.augment.workers": count}) for count in (1, 2, 7))
    assert len(set(alone)) == 12, "twelve batches, each other than the others"
    assert alone == two == seven
    other_seed = digests(path, overrides={"stage.augment.workers": 2, "order.seed": 6})
    assert not set(other_seed) & set(alone)


@pytest.mark.parametrize(
    "attack",
    [
        "os.kill(os.getpid(), signal.SIGSEGV)",
        "os._exit(3)",
        "os.write(CONNECTION, b'x' * 16)",
        "os.write(CONNECTION, (1 << 62).to_bytes(8, 'little') * 2)",
        "os.close(CONNECTION); os.kill(os.getpid(), signal.SIGABRT)",
        "take_pages(); os.kill(os.getpid(), signal.SIGKILL)",
        "lie()",
        "scribble()",
    ],
)
def test_a_hostile_worker_harms_its_own_sample_alone(stage, attack):
    source = f"""
        import ctypes, os, signal, stat, struct, time

        def descriptors():
            for name in os.listdir("/proc/self/fd"):
                target = os.readlink(f"/proc/self/fd/{{name}}") if os.path.exists(f"/proc/self/fd/{{name}}") else ""
                yield int(name), target
        CONNECTION = ARENA = 0
        for number, target in descriptors():
            if number > 2 and target.startswith("socket:"):
                CONNECTION = number
            if number > 2 and "forebay-python" in target:
                ARENA = number
        assert CONNECTION and ARENA

        def lie():
            # An answer to a later call, the arena full of rubbish, and a reply that points behind its end.
            # Results of the call before may get some of it unnoticed: let them be read first.
            time.sleep(2)
            os.pwrite(ARENA, b"\\xff" * 65536, 0)
            for number in range(100):
                os.write(CONNECTION, struct.pack("<QQ", number, 40))

        def scribble():
            # Into the memory that is mapped, past the results of the call before and the rows of this one.
            for line in open("/proc/self/maps"):
                if "forebay-python" in line:
                    start, end = (int(word, 16) for word in line.split()[0].split("-"))
                    ctypes.memset(start, 0xFF, end - start)

        def take_pages():
            # The size is sealed; pages can be punched out of it.
            # The results of the call before are pages of it too: let them be read first.
            time.sleep(2)
            for length in (0, 4096, 1 << 60):
                try:
                    os.ftruncate(ARENA, length)
                except OSError:
                    continue
                raise RuntimeError("the arena has another size now")
            keep_size_and_punch_hole = 3
            for start in (0, os.fstat(ARENA).st_size // 2):
                punched = ctypes.CDLL(None).fallocate(
                    ARENA, keep_size_and_punch_hole, ctypes.c_long(start), ctypes.c_long(1 << 30)
                )
                assert punched == 0

        def augment(sample, rng):
            if sample["label"] == 1 and sample["image"][0, 0, 0] == MARK:
                {attack}
            return {{"image": sample["image"] + rng.integers(9, dtype="uint8"), "label": sample["label"]}}
        """
    before = '{ op = "decode-image" }, { op = "resize", size = [40, 50] }'
    pixels = noise(20)
    marked = f"MARK = {int(pixels[0, 0, 0])}\nSUM = {int(pixels.sum())}\n"
    source = marked + textwrap.dedent(source).replace(
        'sample["image"][0, 0, 0] == MARK', 'int(sample["image"].astype(int).sum()) == SUM'
    )
    path = stage(source, before=before, workers=2)
    with pytest.raises(forebay.BadSample, match=r"bad sample 20 .*20\.png"):
        digests(path)

    def rows(path, overrides):
        with forebay.Loader(path, timeout=120, overrides={"order.epochs": 1, **overrides}) as loader:
            return {int(i): image.tobytes() for batch in loader for i, image in zip(batch["index"], batch["image"])}

    harmless = stage(source.replace("== SUM:", "== -1:"), before=before, workers=2)
    expected = rows(harmless, {})
    survived = rows(path, {"errors.on_bad_sample": "substitute", "errors.budget": 4})
    assert 20 not in survived
    assert all(expected[sample] == row for sample, row in survived.items())
    assert len(survived) >= SAMPLES - 1


def test_a_module_that_cannot_be_imported_is_imported_once(stage, tmp_path):
    note = tmp_path / "imported"
    source = f"open({str(note)!r}, 'a').write('x')\nimport no_such_module\n\ndef augment(sample, rng): pass"
    path = stage(source, workers=1)
    with pytest.raises(forebay.ConfigError, match="No module named 'no_such_module'"):
        digests(path)
    assert note.read_text() == "x", "no other sample changes that"


def test_a_call_that_hangs_is_tried_twice_and_its_sample_and_time_out_are_named(stage, tmp_path):
    note = tmp_path / "calls"
    path = stage(
        f"""
        import time

        def augment(sample, rng):
            if sample["label"] == 1:
                open({str(note)!r}, "a").write(f"{{sample['image'].sum()}}\\n")
                time.sleep(1000)
            return {{"label": sample["label"]}}
        """,
        workers=1,
        timeout='"300ms"',
    )
    with forebay.Loader(path, timeout=120, overrides={"batch.size": 1}) as loader:
        with pytest.raises(forebay.StageError) as caught:
            list(loader)
        reason = f"`{path.stem}:augment` ran for more than 300ms, the `timeout` of stage `augment`, in each of 2 calls"
        text = str(caught.value)
        assert text.startswith("stage `augment` failed on sample 16 (")
        assert text.count(reason) == 1 and "raise `timeout`" in text and "remove the file" not in text
    # The other samples that hang may be called meanwhile.
    calls = collections.Counter(note.read_text().split()).values()
    assert 2 in calls and max(calls) == 2
    path.with_suffix(".py").write_text("import time\n\ndef augment(sample, rng): time.sleep(1000)\n")
    with pytest.raises(forebay.ConfigError, match=r"ran for more than 300ms, the `timeout` .* in each of 2 calls"):
        digests(path)


def test_large_arguments_reach_the_function(stage):
    # More than a control frame has, and than a variable of the environment.
    names = [f"class {number}" for number in range(40_000)]
    path = stage(
        """
        class augment:
            def __init__(self, names):
                self.names = names

            def __call__(self, sample, rng):
                assert self.names == [f"class {number}" for number in range(40_000)]
                return {"label": sample["label"]}
        """,
        workers=2,
        arguments="{ names = [" + ", ".join(f'"{name}"' for name in names) + "] }",
    )
    assert len(digests(path)) == 12


def test_a_result_that_cannot_be_taken_is_said_once(stage):
    path = stage('def augment(sample, rng):\n    return {"label": "two" if sample["label"] == 2 else 1}')
    with pytest.raises(forebay.StageError) as caught:
        digests(path)
    assert str(caught.value).count("`label` is text, and a whole number for the first samples") == 1


def test_an_exception_ends_with_the_users_own_traceback(stage):
    path = stage(
        """
        def check(label):
            if label == 1:
                raise LookupError("no such label: 1")

        def augment(sample, rng):
            check(sample["label"])
            return {"label": sample["label"]}
        """
    )
    with pytest.raises(forebay.StageError) as caught:
        digests(path)
    text = str(caught.value)
    assert text.startswith("stage `augment` failed on sample 16 (")
    assert "16.png) in epoch 0, seed 5: LookupError: no such label: 1" in text
    assert text.endswith('    raise LookupError("no such label: 1")\nLookupError: no such label: 1')
    assert "in check" in text and "_stage.py" not in text
    kept = {"errors.on_bad_sample": "substitute", "errors.budget": 100}
    assert len(digests(path, overrides=kept)) == 12


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("other = 1", "AttributeError: module .* has no attribute 'augment'"),
        ("augment = 7", "TypeError: .* is a int, which cannot be called"),
        ("import os; os._exit(5)", r"ends the worker \(exit status 5\)"),
        ("def augment(sample, rng):\n    return 5", "TypeError: the function returned int; return a dict"),
        ("def augment(sample, rng):\n    return {'a': object()}", "`a` is a object; return an array"),
        ("def augment(sample, rng):\n    1 / 0", "ZeroDivisionError: division by zero"),
        (
            "def augment(sample, rng):\n    return {'a': rng.random(int(rng.integers(1, 1000)))}",
            r"the length of `a` differs from sample to sample.*ragged = true",
        ),
    ],
)
def test_what_cannot_work_is_refused_at_the_start(stage, source, reason):
    path = stage(source)
    with pytest.raises(forebay.ConfigError, match="(?s)" + reason) as raised:
        forebay.Loader(path, timeout=120).close()
    # Once, with its function, where it is named.
    assert str(raised.value).count("stage `augment` (`") == str(raised.value).count("stage `augment`") <= 1


def test_an_interpreter_that_is_not_there_is_named(stage):
    path = stage("def augment(sample, rng): return sample")
    with pytest.raises(forebay.ConfigError, match="the interpreter `/no/python` cannot be started"):
        forebay.Loader(path, overrides={"python.interpreter": "/no/python"}).close()


def test_results_of_other_shapes_than_the_first_name_the_field(stage):
    source = """
        def augment(sample, rng):
            is_odd = sample["label"] == 2
            return {"image": sample["image"][: 16 if is_odd else 32], "label": sample["label"]}
        """
    with pytest.raises(
        forebay.StageError, match=r"`image` is uint8 \[16, 32, 3\], and the first sample's is uint8 \[32, 32, 3\]"
    ):
        digests(stage(source))


class TestInScripts:
    """Functions that are given to a loader."""

    def run(self, tmp_path, pictures, script, *arguments):
        head = f"""
            import forebay, sys
            CONFIG = {{"dataset": {{"path": {str(pictures)!r}, "format": "image-folder"}}, "batch": {{"size": 16}},
                "stage": [{{"name": "decode",
                    "operations": [{{"op": "decode-image"}}, {{"op": "resize", "size": [8, 8]}}]}}]}}
            """
        text = textwrap.dedent(head) + textwrap.dedent(script)
        if not arguments:
            path = tmp_path / "train.py"
            path.write_text(text)
            arguments = (str(path),)
        else:
            arguments = (*arguments, text)
        return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=120)

    def test_a_function_of_the_script_is_a_stage(self, tmp_path, pictures):
        script = """
            def double(sample, rng):
                print("from", __name__)
                return {"label": sample["label"] * 2, "text": "é" * sample["label"]}

            if __name__ == "__main__":
                output = {"text": {"ragged": True, "max_bytes": 16}}
                stages = {"double": double}
                with forebay.Loader({**CONFIG, "output": output}, stages=stages, epochs=1, shuffle=False) as loader:
                    for batch in loader:
                        print(batch["label"].tolist()[0], batch["text"][0].tobytes().decode())
            """
        done = self.run(tmp_path, pictures, script)
        assert done.returncode == 0, done.stderr
        assert done.stdout.split("\n")[:3] == ["0 ", "2 é", "4 éé"]
        assert "forebay: stage `double`, sample 20: from __mp_main__" in done.stderr

    def test_what_another_process_cannot_find_is_refused(self, tmp_path, pictures):
        script = 'forebay.Loader(CONFIG, stages={"one": lambda sample, rng: sample})'
        done = self.run(tmp_path, pictures, script)
        assert (
            "ConfigError: the function of stage `one`, `<lambda>`, cannot be found from another process" in done.stderr
        )
        script = 'def one(sample, rng): return sample\nforebay.Loader(CONFIG, stages={"one": one})'
        done = self.run(tmp_path, pictures, script, "-c")
        assert "%%writefile" in done.stderr


def test_files_are_decoded_by_the_user_and_cropped_by_forebay(stage):
    source = """
        import io
        import numpy as np
        from PIL import Image

        def augment(sample, rng):
            assert isinstance(sample["image"], bytes)
            picture = Image.open(io.BytesIO(sample["image"]))
            return {"image": picture, "size": np.array(picture.size), "label": sample["label"]}
        """
    path = stage(source, before="")
    path.write_text(path.read_text() + '[[stage]]\nname = "crop"\noperations = [{ op = "center-crop", size = 20 }]\n')
    with forebay.Loader(path, timeout=120) as loader:
        batch = next(iter(loader))
    assert batch["image"].shape == (8, 3, 20, 20) and batch["size"].tolist() == [[50, 40]] * 8
    assert (batch["image"][0].transpose(1, 2, 0) == noise(0)[10:30, 15:35]).all()


PRESETS = """
    def same(sample, rng):
        return sample

    def drops(sample, rng):
        return {"mean": float(sample.get("image", sample.get("global_0")).mean()), "label": sample["label"]}

    def floats(sample, rng):
        return {"image": sample["image"].astype("float32") / 255, "label": sample["label"]}
"""


@pytest.mark.parametrize(
    ("preset", "function", "fields"),
    [
        ("imagenet-train", "same", {"image": ("uint8", (4, 224, 224, 3))}),
        ("imagenet-train", "floats", {"image": ("float32", (4, 224, 224, 3))}),
        ("imagenet-eval", "drops", {"mean": ("float64", (4,))}),
        ("clip", "same", {"image": ("uint8", (4, 224, 224, 3))}),
        ("dino", "drops", {"mean": ("float64", (4,))}),
    ],
)
@pytest.mark.parametrize("way", ["toml", "stages"])
def test_a_preset_takes_a_python_stage_at_its_end(stage, pictures, tmp_path, preset, function, fields, way):
    module = stage(PRESETS, function).stem
    text = f'preset = "{preset}"\ndataset = {{ path = "{pictures}", format = "image-folder" }}\nbatch.size = 4\n'
    keywords = {}
    if way == "toml":
        text += f'[[stage]]\nname = "mine"\npython = "{module}:{function}"\n'
    else:
        keywords["stages"] = {"mine": getattr(importlib.import_module(module), function)}
    (tmp_path / "preset.toml").write_text(text)
    with forebay.Loader(tmp_path / "preset.toml", **keywords) as loader:
        batch = next(iter(loader))
        assert {name: (str(batch[name].dtype), batch[name].shape) for name in fields} == fields


def test_a_preset_takes_a_batch_function_that_makes_its_field(stage, pictures, tmp_path):
    source = """
        import numpy

        def drops(sample, rng):
            return {"label": sample["label"]}

        def makes(batch, rng):
            return {"image": numpy.zeros((len(batch["label"]), 2), "float32"), "label": batch["label"]}
    """
    module = stage(source, "drops").stem
    text = f'preset = "imagenet-train"\ndataset.path = "{pictures}"\nbatch.size = 4\n'
    text += f'[[stage]]\nname = "mine"\npython = "{module}:drops"\n'
    text += f'[[batch.operations]]\nop = "python"\ncall = "{module}:makes"\n'
    (tmp_path / "preset.toml").write_text(text)
    with forebay.Loader(tmp_path / "preset.toml") as loader:
        assert next(iter(loader))["image"].shape == (4, 2)


def test_what_the_user_writes_of_a_field_that_is_no_image_stays_an_error(stage, pictures, tmp_path):
    module = stage(PRESETS, "same").stem
    text = f'preset = "imagenet-train"\ndataset.path = "{pictures}"\nbatch.size = 4\noutput.image.layout = "NHWC"\n'
    (tmp_path / "preset.toml").write_text(text + f'[[stage]]\nname = "mine"\npython = "{module}:same"\n')
    with pytest.raises(forebay.ConfigError, match="is for decoded images, and `image` is not one"):
        forebay.Loader(tmp_path / "preset.toml")
