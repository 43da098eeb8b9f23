"""Where the loaders run: a Python environment for each under target/bench/venvs, and the data that they read.

Everything here is made once and found again. A peer that cannot be installed is a reason in words, never an exception:
the others are compared all the same.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peer_loaders import FOREBAY, PEERS, Peer

ROOT = Path(__file__).resolve().parents[2]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).absolute()
FOREBAY_VENV = Path(os.environ.get("FOREBAY_VENV", TARGET / "venv")).absolute()
BENCH = TARGET / "bench"
PROGRAM = TARGET / "release" / "forebay"
INSTALL_LIMIT_SECONDS = 1800


def say(text: str) -> None:
    """Progress goes to stderr; stdout holds the results alone."""
    print(f"{Path(sys.argv[0]).name}: {text}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Environment:
    """An interpreter that has a loader, or the reason why there is none."""

    python: Path
    missing: str = ""


def run_quietly(command: list[Any], limit_seconds: float = INSTALL_LIMIT_SECONDS) -> str | None:
    """Nothing when the command succeeds, else the lines of its output that say why."""
    try:
        done = subprocess.run(
            [str(part) for part in command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=limit_seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"not done after {limit_seconds:.0f} seconds"
    if done.returncode == 0:
        return None
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    telling = [line for line in lines if "rror" in line and "subprocess-exited" not in line]
    return (telling or lines or [f"status {done.returncode}"])[-1][:300]


def site_packages(environment: Path) -> Path:
    return next((environment / "lib").glob("python*/site-packages"))


def venv_name(peer: Peer) -> str:
    """Peers with the same requirements share an environment."""
    same = [other for other in PEERS.values() if other.requirements == peer.requirements and peer.requirements]
    return (same[0] if same else peer).name


def put_behind(folder: Path, peer: Peer) -> None:
    """Lets an environment see the packages of the one below it. Said anew each time: the folder may have moved."""
    if peer.layered_on:
        below = site_packages(BENCH / "venvs" / peer.layered_on)
        (site_packages(folder) / f"{peer.layered_on}.pth").write_text(f"{below}\n")


def install(peer: Peer) -> Environment:
    """Makes the peer's environment unless it stands already."""
    folder = BENCH / "venvs" / venv_name(peer)
    python = folder / "bin" / "python"
    wanted = json.dumps([list(peer.requirements), peer.layered_on])
    stamp = folder / ".installed"
    if peer.layered_on:
        below = install(PEERS[peer.layered_on])
        if below.missing:
            return Environment(python, f"it needs {PEERS[peer.layered_on].title}: {below.missing}")
    try:
        if stamp.read_text() == wanted:
            put_behind(folder, peer)
            return Environment(python)
    except OSError:
        pass
    say(f"installing {', '.join(peer.requirements)} into {folder}")
    base = os.environ.get("PYTHON", sys.executable)
    reason = None if python.exists() else run_quietly([base, "-m", "venv", folder])
    if reason is None:
        put_behind(folder, peer)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if reason is None and "--no-build-isolation" in peer.pip_options:
        reason = run_quietly([*pip, "setuptools", "wheel", "numpy"])
    if reason is None:
        reason = run_quietly([*pip, *peer.pip_options, *peer.requirements])
    if reason is None:
        reason = run_quietly([python, "-c", f"import {', '.join(peer.imports)}"], 300)
    if reason is not None:
        return Environment(python, "; ".join(part for part in (reason, peer.remedy) if part))
    stamp.write_text(wanted)
    return Environment(python)


def build_program(python: bool) -> None:
    """Builds the release program, and makes the Python environment that builds the wheel."""
    subprocess.run(["scripts/setup", *(["--python"] if python else [])], cwd=ROOT, check=True, stdout=sys.stderr)
    say("building the program")
    subprocess.run(["cargo", "build", "--quiet", "--release", "--package", "forebay"], cwd=ROOT, check=True)


def install_wheel(into: Path) -> None:
    """Builds the wheel around the built program and installs it into an environment."""
    say("building the wheel")
    with tempfile.TemporaryDirectory() as folder:
        build = [str(FOREBAY_VENV / "bin" / "maturin"), "build", "--release", "--quiet", "--out", folder]
        built = {**os.environ, "FOREBAY_WHEEL_PROGRAM": str(PROGRAM)}
        subprocess.run(build, cwd=ROOT / "client-lib" / "python", env=built, check=True)
        pip = [str(into / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "numpy"], check=True)
        wheels = [str(path) for path in Path(folder).glob("*.whl")]
        subprocess.run([*pip, "--no-deps", "--force-reinstall", *wheels], check=True)


def forebay_environment(build: bool) -> Environment:
    """Forebay's own environment with this tree's wheel; with `build` false, whatever was installed there before."""
    folder = BENCH / "venvs" / FOREBAY.name
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([os.environ.get("PYTHON", sys.executable), "-m", "venv", str(folder)], check=True)
        build = True
    if build:
        build_program(python=True)
        install_wheel(folder)
    return Environment(python)


def make_images(folder: Path, images: int, size: tuple[int, int], build: bool) -> None:
    """Generates the JPEGs in 100 classes and reads them once, so that every run finds them in the page cache.

    With `build` false the program that an earlier run installed generates them.
    """
    options = ["--images", images, "--classes", 100, "--width", size[0], "--height", size[1]]
    command: list[Any] = ["scripts/make-dataset", folder]
    if not build:
        command = [forebay_environment(False).python, "-m", "forebay", "demo", "--generate", folder]
    subprocess.run([str(part) for part in [*command, *options]], cwd=ROOT, check=True, stdout=sys.stderr)
    read_once(folder, "*/*.jpg")


def make_arrays(folder: Path, count: int) -> None:
    """Makes `.npy` files of 256 × 1024 float32, 1 MiB each, and reads them once."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        path = folder / f"{number:05}.npy"
        if not path.exists():
            write_npy(path, (256, 1024), os.urandom(4096) * 256)
    read_once(folder, "*.npy")


def write_npy(path: Path, shape: tuple[int, int], content: bytes) -> None:
    """A float32 array in version 1.0 of NumPy's format."""
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + content)


def make_few_images(python: Path, folder: Path) -> None:
    options = ["--images", "64", "--classes", "4"]
    command = [str(python), "-m", "forebay", "demo", "--generate", str(folder), *options]
    subprocess.run(command, check=True, stdout=sys.stderr)


def read_once(folder: Path, pattern: str) -> None:
    say(f"reading {folder} into the page cache")
    for file in folder.glob(pattern):
        file.read_bytes()


def machine() -> str:
    model = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    cores = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    git = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    # Linux x.y alone: the rest of the release names the machine's owner.
    release = ".".join(platform.release().split("-")[0].split(".")[:2])
    return (
        f"{model}, {cores} cores, {memory:.0f} GiB, Linux {release}, {platform.machine()}, commit {commit or 'unknown'}"
    )
