"""Where the loaders run: a Python environment for each under target/bench/venvs, and the data that they read.

Everything is made once and used again.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
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


class NotInstalled(Exception):
    """A loader that has no environment; the text says why."""


def run_quietly(command: list[Any], limit_seconds: float = INSTALL_LIMIT_SECONDS) -> None:
    """Runs a step of an installation. Raises `NotInstalled` with the line of its output that says why it failed."""
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
        raise NotInstalled(f"not done after {limit_seconds:.0f} seconds") from None
    if done.returncode != 0:
        lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
        telling = [line for line in lines if "rror" in line and "subprocess-exited" not in line]
        raise NotInstalled((telling or lines or [f"status {done.returncode}"])[-1][:300])


def site_packages(environment: Path) -> Path:
    return next((environment / "lib").glob("python*/site-packages"))


def venv_name(peer: Peer) -> str:
    """Peers with the same requirements share an environment."""
    same = [other for other in PEERS.values() if other.requirements == peer.requirements and peer.requirements]
    return (same[0] if same else peer).name


def put_behind(folder: Path, peer: Peer) -> None:
    """Lets an environment see the packages of the one below it. Written each time, since the folder may have moved."""
    if peer.layered_on:
        below = site_packages(BENCH / "venvs" / peer.layered_on)
        (site_packages(folder) / f"{peer.layered_on}.pth").write_text(f"{below}\n")


def install(peer: Peer) -> Path:
    """The interpreter of the peer's environment, which is made unless it is complete. Raises `NotInstalled`."""
    folder = BENCH / "venvs" / venv_name(peer)
    python, stamp = folder / "bin" / "python", folder / ".installed"
    wanted = json.dumps([list(peer.requirements), peer.layered_on])
    if peer.layered_on:
        try:
            install(PEERS[peer.layered_on])
        except NotInstalled as reason:
            raise NotInstalled(f"it needs {PEERS[peer.layered_on].title}: {reason}") from None
    if stamp.exists() and stamp.read_text() == wanted:
        put_behind(folder, peer)
        return python
    say(f"installing {', '.join(peer.requirements)} into {folder}")
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    try:
        if not python.exists():
            run_quietly([os.environ.get("PYTHON", sys.executable), "-m", "venv", folder])
        put_behind(folder, peer)
        if "--no-build-isolation" in peer.pip_options:
            run_quietly([*pip, "setuptools", "wheel", "numpy"])
        run_quietly([*pip, *peer.pip_options, *peer.requirements])
        run_quietly([python, "-c", f"import {', '.join(peer.imports)}"], 300)
    except NotInstalled as reason:
        raise NotInstalled("; ".join(part for part in (str(reason), peer.remedy) if part)) from None
    stamp.write_text(wanted)
    return python


def build_program(python: bool) -> None:
    """Builds the release program, and makes the Python environment that builds the wheel."""
    subprocess.run(["scripts/setup", *(["--python"] if python else [])], cwd=ROOT, check=True, stdout=sys.stderr)
    say("building the program")
    subprocess.run(["cargo", "build", "--quiet", "--release", "--package", "forebay"], cwd=ROOT, check=True)


def build_server() -> None:
    """Builds the web server of `storage_speed`."""
    build = [
        "cargo",
        "build",
        "--quiet",
        "--release",
        "--package",
        "forebay-storage-remote",
        "--example",
        "storage_speed",
    ]
    subprocess.run(build, cwd=ROOT, check=True, stdout=sys.stderr)


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


def forebay_environment(build: bool) -> Path:
    """The interpreter of Forebay's environment with this tree's wheel, or with what was installed before."""
    folder = BENCH / "venvs" / FOREBAY.name
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([os.environ.get("PYTHON", sys.executable), "-m", "venv", str(folder)], check=True)
        build = True
    if build:
        build_program(python=True)
        install_wheel(folder)
    return python


def make_images(folder: Path, images: int, size: tuple[int, int], build: bool) -> None:
    """Generates the JPEGs in 100 classes and reads them once, so that every run finds them in the page cache.

    With `build` false the program that an earlier run installed generates them.
    """
    options = ["--images", images, "--classes", 100, "--width", size[0], "--height", size[1]]
    command: list[Any] = ["scripts/make-dataset", folder]
    if not build:
        command = [forebay_environment(False), "-m", "forebay", "demo", "--generate", folder]
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
