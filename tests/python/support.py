"""Functions that several tests of the Python package share."""

import contextlib
import hashlib
import importlib
import importlib.util
import io
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tarfile
import textwrap
import time
import urllib.error
import urllib.request
from pathlib import Path

import forebay
import numpy

WATCHDOG_SECONDS = 240
ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "daemon/crates/formats/fixtures"
EXAMPLES = ROOT / "client-lib/python/examples"
PROGRAM = os.environ.get("FOREBAY_PROGRAM") or str(Path(forebay.__file__).with_name("bin") / "forebay")


def config_of(dataset, operations=(), **tables):
    """A configuration of one stage: an epoch in batches of 4, the last one short. Keys of `tables` are over these."""
    made = {
        "dataset": dataset,
        "order": {"epochs": 1},
        "batch": {"size": 4, "last": "short"},
        "stage": [{"name": "work", "operations": list(operations)}],
    }
    for name, keys in tables.items():
        made[name] = {**made.get(name, {}), **keys} if isinstance(keys, dict) else keys
    return made


def indices(batches):
    return [int(index) for batch in batches for index in batch["index"]]


def arrays_of(batch):
    """A batch's fields as arrays of their own, and as lists of them where rows differ in length."""
    return {
        name: [numpy.array(row) for row in value] if isinstance(value, forebay.Ragged) else numpy.array(value)
        for name, value in batch.items()
    }


def rows_of(batches):
    """The fields of each sample, by its index."""
    found = {}
    for batch in map(arrays_of, batches):
        for row, index in enumerate(batch.pop("index").tolist()):
            assert index not in found
            found[index] = {name: value[row] for name, value in batch.items()}
    return found


def rows_across_a_resume(config):
    """The rows of an epoch whose first batch comes from one loader, and the others from one that resumes behind it."""
    rows, state = {}, None
    for most in (1, None):
        with forebay.Loader(config, state=state) as loader:
            taken = rows_of(itertools.islice(loader, most))
            state = loader.state_dict()
        assert taken and not rows.keys() & taken.keys()
        rows |= taken
    return rows


def digest(batch):
    hasher = hashlib.blake2b()
    for name in sorted(batch):
        value = batch[name]
        # Between the rows of a field that is not compact there are bytes of earlier batches.
        rows = [numpy.asarray(row) for row in value] if isinstance(value, forebay.Ragged) else [value]
        for row in rows:
            hasher.update(str(row.shape).encode())
            hasher.update(numpy.ascontiguousarray(row).tobytes())
    return hasher.hexdigest()


def digests(config, **keywords):
    """A digest for each batch of all epochs."""
    with forebay.Loader(config, timeout=120, **keywords) as loader:
        return [digest(batch) for _ in loader.epochs_left() for batch in loader]


def epochs_of(rows, config, count=2, world_size=1, **options):
    """The samples of each epoch in the order of the world's batches; `rows` gives those of a batch."""
    found = []
    loaders = [
        forebay.Loader(config, rank=rank, world_size=world_size, compare_ranks=False, **options)
        for rank in range(world_size)
    ]
    try:
        for _ in range(count):
            batches = [[rows(batch) for batch in loader] for loader in loaders]
            number = max(len(of_rank) for of_rank in batches)
            parts = [of_rank[place] for place in range(number) for of_rank in batches if place < len(of_rank)]
            found.append([sample for part in parts for sample in part])
    finally:
        for loader in loaders:
            loader.close()
    return found


def kill_in_each_epoch(config, whole, after):
    """Takes epochs whose daemon is killed after so many batches of each: their samples are those of `whole`."""
    with forebay.Loader(config) as loader:
        for samples in whole:
            batches = iter(loader)
            taken = indices([next(batches) for _ in range(after)])
            os.kill(loader.daemon_pid, signal.SIGKILL)
            assert taken + indices(batches) == samples
        assert loader.restarts == len(whole)


def inline(value):
    """A value as TOML has it within a line; strings, numbers and lists are written as JSON's."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {inline(of)}" for key, of in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(inline, value)) + "]"
    return json.dumps(value)


def write_toml(path, config):
    path.write_text("".join(f"{key} = {inline(value)}\n" for key, value in config.items()))
    return path


def run_program(*arguments, **variables):
    """Runs `forebay` to its end, with more variables of the environment."""
    command, environment = [PROGRAM, *map(str, arguments)], {**os.environ, **variables}
    return subprocess.run(command, capture_output=True, text=True, timeout=WATCHDOG_SECONDS, env=environment)


def run_script(script, *arguments, **options):
    """Runs a text in an interpreter of its own, to its end."""
    command = [sys.executable, "-c", textwrap.dedent(script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=WATCHDOG_SECONDS, **options)


def write_tar(path, members, **options):
    """Writes an archive of names and contents."""
    with tarfile.open(path, "w", **options) as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def write_pictures(folder, count, class_of, shape=(40, 50, 3)):
    """Writes pictures of noise in class folders, `class0/00.png` the first; the pixels of the n-th are `noise(n)`."""
    from PIL import Image

    for sample in range(count):
        path = folder / f"class{class_of(sample)}" / f"{sample:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noise(sample, shape)).save(path)
    return folder


def noise(sample, shape=(40, 50, 3)):
    return numpy.random.default_rng(sample).integers(0, 255, shape, dtype=numpy.uint8)


def processes():
    """The parent of each process that lives, and its command."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            state, parent = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[:2]
            if state not in "ZX":
                found[int(name)] = (int(parent), Path(f"/proc/{name}/cmdline").read_text())
    return found


def below(process, command):
    """The processes below one whose command line has this in it."""
    found = processes()

    def is_below(number):
        while number in found and number != process:
            number = found[number][0]
        return number == process

    return [number for number, (_, line) in found.items() if command in line and is_below(number)]


def workers(of=None):
    """The workers below a process, or below this one."""
    return below(os.getpid() if of is None else of, "forebay.worker")


def wait_until(condition, what):
    end = time.monotonic() + WATCHDOG_SECONDS
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen"
        time.sleep(0.01)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def started(command, address, **terms):
    """Runs a server until it has been used; it answers at the address."""
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **terms)

    def answers():
        assert process.poll() is None, f"{command[0]} has ended"
        try:
            urllib.request.urlopen(address, timeout=5).read()
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False
        return True

    try:
        wait_until(answers, f"the answer of {command[0]}")
        yield
    finally:
        process.kill()
        process.wait()


def programs_of(page, language="python"):
    """The Python programs of a page of the documentation, or its blocks of another language."""
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "docs" / "how-to" / page).read_text(), re.DOTALL)


def replace_once(text, *replaced):
    """A text with other parts, each of which it has once."""
    for old, new in replaced:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def printed_by(program, **names):
    """The lines that a program prints."""
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(compile(program, "a page's program", "exec"), names)
    return output.getvalue().splitlines()


def load_example(name):
    specification = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def check_that_an_example_learns(name, arguments, drop, losses, last, **keywords):
    """The mean of its last losses is below this part of the first one; the program fits on a page."""
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) < 40
    found = load_example(name).main(arguments, **keywords)
    assert len(found) >= losses and all(numpy.isfinite(found))
    assert numpy.mean(found[-last:]) < drop * found[0], found


def script_modules(folder):
    """Returns a function that imports modules of a scripts folder, which is on the path only meanwhile."""

    def load(name):
        sys.path.insert(0, str(folder))
        try:
            return importlib.import_module(name)
        finally:
            sys.path.remove(str(folder))

    return load


def run_ranks(folder, ranks, script, *arguments, launcher=(), **variables):
    """Runs a script on several ranks under torchrun, below `launcher` if there is one.

    The script's first argument is the folder, into which each rank writes its report: RANK.json. Returns the reports.
    """
    program = folder / "script.py"
    program.write_text(textwrap.dedent(script))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command += ["--no-python", *launcher, sys.executable] if launcher else []
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "FOREBAY_SOCKET"))}
    done = subprocess.run(
        [*command, program, folder, *map(str, arguments)],
        cwd=folder,
        env={**inherited, "OMP_NUM_THREADS": "1", **variables},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]


def config_of_pairs(folder: Path) -> Path:
    """One epoch of 40 pairs of numbers in batches of 4: the configuration's path."""
    numpy.save(folder / "samples.npy", numpy.arange(80, dtype=numpy.float32).reshape(40, 2))
    path = folder / "train.toml"
    path.write_text(
        f'dataset.format = "npy"\ndataset.path = "{folder}/samples.npy"\nbatch.size = 4\norder.epochs = 1\n'
        'cpu.policy = "normal"\nstage = [{ name = "unpack", operations = [] }]\n'
    )
    return path
