"""`forebay run-sample`: one sample in the foreground, as a run has it, under a debugger too."""

import os
import pty
import re
import select
import subprocess
import sys
import textwrap

import forebay
import pytest
from support import PROGRAM, rows_of, run_program, write_pictures


@pytest.fixture
def recipe(tmp_path):
    """Writes a module of functions beside a configuration of native stages around them; the configuration's path."""
    folder = write_pictures(tmp_path / "pictures", 24, lambda sample: sample // 8)

    def make(source, stages=("augment",), more=""):
        (tmp_path / "own.py").write_text(textwrap.dedent(source))
        text = f'[dataset]\nformat = "image-folder"\npath = "{folder}"\n[order]\nshuffle = false\nseed = 5\n'
        text += '[batch]\nsize = 8\n[[stage]]\nname = "decode"\n'
        text += 'operations = [{ op = "decode-image" }, { op = "random-resized-crop", size = 8 }]\n'
        text += "".join(f'[[stage]]\nname = "{name}"\npython = "own:{name}"\n' for name in stages)
        text += '[[stage]]\nname = "after"\noperations = [{ op = "random-resized-crop", size = 2 }]\n'
        path = tmp_path / "train.toml"
        path.write_text(text + more)
        return path

    return make


def run(*arguments):
    return run_program("run-sample", *arguments, "--set", f"python.interpreter={sys.executable}")


def values(printed, name):
    """The numbers of a field of at most 24 of them, as they are printed."""
    (line,) = re.findall(rf"^  {name} +(?:\w+ \[[\d, ]*\]: )?([-\d., ]+)(?:;.*)?$", printed, re.MULTILINE)
    return [float(number) for number in line.split(", ")]


SEVERAL = """
    import random
    import numpy as np

    def augment(sample, rng):
        print("called with", sample["label"])
        image = sample["image"]
        return {"image": image // 2 + rng.integers(0, 100, image.shape, np.uint8), "label": sample["label"]}

    def second(sample, rng):
        sample["drawn"] = np.array([random.random(), rng.random()])
        sample["caption"] = "é" * sample["label"]
        return sample
"""


def test_what_is_shown_is_what_a_run_has(recipe):
    path = recipe(SEVERAL, ("augment", "second"), '[output]\ncaption = { ragged = true, max_bytes = "1KiB" }\n')
    with forebay.Loader(path, overrides={"order.epochs": 2, "python.path": []}) as loader:
        rows = {epoch: rows_of(loader) for epoch in loader.epochs_left()}
    for epoch, sample, more in ((0, 0, ()), (1, 17, ()), (1, 17, ("--stage", "second"))):
        done = run(path, sample, "--epoch", epoch, *more)
        assert done.returncode == 0, done.stderr
        expected = rows[epoch][sample]
        assert values(done.stdout, "image") == expected["image"].ravel().tolist()
        assert values(done.stdout, "drawn")[:2] == [round(float(drawn), 4) for drawn in expected["drawn"]]
        assert f"{sample:02}.png) in epoch {epoch}, seed 5" in done.stdout.splitlines()[-1]
        # Each function is called for this sample alone, and once.
        printed = [line for line in done.stdout.splitlines() if line.startswith("called with")]
        assert printed == ([] if more else [f"called with {sample // 8}"])
        assert ("stage `augment` returns" in done.stdout) == (not more)
        assert "stage `second` returns\n  image               uint8 [8, 8, 3], " in done.stdout
        assert not done.stderr
    assert 'caption             text of 4 bytes: "éé"' in done.stdout
    assert rows[0][17]["image"].tolist() != rows[1][17]["image"].tolist()


def test_without_python_stages_the_fields_are_shown(recipe):
    path = recipe("", (), '[[batch.operations]]\nop = "mixup"\nalpha = 0.2\nclasses = 3\n')
    with forebay.Loader(path, overrides={"batch.operations": []}) as loader:
        expected = next(iter(loader))["image"][3].ravel().tolist()
    done = run(path, 3)
    assert done.returncode == 0, done.stderr
    assert values(done.stdout, "image") == expected
    assert values(done.stdout, "label") == [0]
    assert "not run, as they need a batch: `mixup`" in done.stdout


def test_the_command_of_an_error_shows_it_again(recipe):
    path = recipe(
        """
        def augment(sample, rng):
            if sample["label"] == 1:
                print("no such label, as the function says")
                raise LookupError(f"no such label: {rng.integers(1 << 40)}")
            return sample
        """
    )
    with pytest.raises(forebay.StageError) as caught, forebay.Loader(path) as loader:
        list(loader)
    (command,) = re.findall(r"^  (forebay run-sample .*)$", str(caught.value), re.MULTILINE)
    assert command.startswith(f"forebay run-sample {path} 8 --epoch 0"), command
    environment = {**os.environ, "PATH": f"{os.path.dirname(PROGRAM)}:{os.environ['PATH']}"}
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 1
    assert done.stdout == "no such label, as the function says\n"
    # The same draws give the same message.
    raised = str(caught.value).splitlines()[-1]
    assert raised.startswith("LookupError: no such label: ") and raised in done.stderr
    assert 'in augment\n    raise LookupError(f"no such label' in done.stderr and "_foreground.py" not in done.stderr
    assert done.stderr.rstrip().endswith(f"sample 8 ({path.parent}/pictures/class1/08.png) in epoch 0, seed 5")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("def augment(sample, rng):\n    1 / 0", "ZeroDivisionError: division by zero"),
        ("import os\ndef augment(sample, rng):\n    os.abort()", r"the sample crashes the worker \(signal 6\)"),
        ("def augment(sample, rng):\n    return {'a': {}}", "`a` is a dict; return an array"),
        (
            # The first samples say what is expected, as in a run.
            "def augment(sample, rng):\n    return {**sample, 'a': rng.random(4 if sample['label'] == 2 else 3)}",
            r"`a` is float64 \[4\], and the first sample's is float64 \[3\]",
        ),
    ],
)
def test_what_ends_a_run_is_shown_with_the_sample(recipe, source, reason):
    path = recipe(source)
    done = run(path, 20)
    assert done.returncode == 1 and re.search(reason, done.stderr), done.stderr
    assert done.stderr.rstrip().endswith("20.png) in epoch 0, seed 5")


def test_a_bad_file_is_shown_with_its_sample(recipe):
    path = recipe("def augment(sample, rng): return sample")
    (path.parent / "pictures" / "class0" / "05.png").write_bytes(b"no picture")
    with pytest.raises(forebay.BadSample) as caught, forebay.Loader(path) as loader:
        list(loader)
    assert f"this runs it again:\n  forebay run-sample {path} 5 --epoch 0" in str(caught.value)
    done = run(path, 5)
    assert done.returncode == 1 and "the sample does not come so far" in done.stderr
    assert done.stderr.rstrip().endswith("05.png) in epoch 0, seed 5")


def test_stages_and_samples_that_are_not_there_are_named(recipe):
    path = recipe("def augment(sample, rng): return sample")
    assert "there is no sample 24; the dataset has 24, counted from 0" in run(path, 24).stderr
    assert "its Python stages: `augment`" in run(path, 0, "--stage", "decode").stderr
    refused = run(path, 0, "--stage", "later")
    assert refused.returncode == 1 and "--set stage.later.python=MODULE:FUNCTION" in refused.stderr
    # What it says works: a function of a script, which imports a module beside it.
    script = path.parent / "scripts" / "train.py"
    script.parent.mkdir()
    (script.parent / "beside.py").write_text("FACTOR = 3\n")
    script.write_text(
        "import beside\ndef later(sample, rng):\n    return {'label': sample['label'] * beside.FACTOR}\n"
        "if __name__ == '__main__':\n    raise SystemExit('this trains')\n"
    )
    keys = ("--set", "stage.later.python=__main__:later")
    assert "no script is known for `__main__`" in run(path, 20, "--stage", "later", *keys).stderr
    done = run(path, 20, "--stage", "later", *keys, "--set", f"python.main={script}")
    assert done.returncode == 0, done.stderr
    assert values(done.stdout, "label") == [6]


class Terminal:
    """The program with a terminal of its own."""

    def __init__(self, *arguments):
        command = [PROGRAM, "run-sample", *map(str, arguments), "--set", f"python.interpreter={sys.executable}"]
        self.process, self.terminal = pty.fork()
        if self.process == 0:
            os.environ["TERM"] = "dumb"
            os.execv(PROGRAM, command)
        self.text = ""

    def read_until(self, wanted):
        """Reads on until the text is there, or to the end; what came before it since the last call."""
        while wanted is None or wanted not in self.text:
            assert select.select([self.terminal], [], [], 60)[0], f"{wanted!r} does not come: {self.text}"
            try:
                self.text += os.read(self.terminal, 4096).decode()
            except OSError:  # The other end is closed.
                assert wanted is None, f"{wanted!r} does not come: {self.text}"
                break
        read, _, self.text = (self.text, "", "") if wanted is None else self.text.partition(wanted)
        return read

    def send(self, text):
        os.write(self.terminal, text.encode())

    def status(self):
        os.close(self.terminal)
        return os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])


@pytest.mark.parametrize("how", ["breakpoint()", "import pdb; pdb.set_trace()"])
def test_a_debugger_reads_from_the_terminal(recipe, how):
    path = recipe(
        f"""
        def augment(sample, rng):
            label = sample["label"]
            {how}
            return {{"image": sample["image"], "label": label}}
        """
    )
    reason = r"run-sample CONFIG ID` runs one sample" if how == "breakpoint()" else "BdbQuit"
    with pytest.raises(forebay.ConfigError, match=reason):
        forebay.Loader(path).close()
    terminal = Terminal(path, 20)
    terminal.read_until("(Pdb) ")
    terminal.send("p 'label', label, sample['image'].shape\n")
    assert "('label', 2, (8, 8, 3))" in terminal.read_until("(Pdb) ")
    # An interrupt is for the debugger's command, and not the end. At its prompt, readline may miss one.
    terminal.send("print('be' 'gun'); exec('while True: pass')\n")
    terminal.read_until("begun")
    terminal.send("\x03")
    terminal.read_until("*** KeyboardInterrupt")
    terminal.read_until("(Pdb) ")
    terminal.send("label = 7\n")
    terminal.read_until("(Pdb) ")
    terminal.send("c\n")
    assert "label               7\r\n" in terminal.read_until(None)
    assert terminal.status() == 0


def test_ctrl_c_ends_a_function_that_hangs(recipe):
    path = recipe(
        """
        import time

        def augment(sample, rng):
            if sample["label"] == 2:
                print("it hangs")
                while True:
                    time.sleep(0.01)
            return sample
        """
    )
    terminal = Terminal(path, 20)
    terminal.read_until("it hangs")
    terminal.send("\x03")
    text = terminal.read_until(None)
    assert "in augment" in text and "KeyboardInterrupt" in text and "20.png) in epoch 0" in text
    assert terminal.status() == 1
