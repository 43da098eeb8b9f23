"""Puts the archive of scripts/gpu-pack together: a wheel, a Rust example, the checks, and a manifest of what they are.

It builds nothing. The same content gives the same bytes.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import re
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

LIMIT_BYTES = 60 << 20
FOLDER = "forebay-gpu-check"


class TooLarge(Exception):
    """The archive would not reach a machine that takes so much at most."""


def glibc_of(content: bytes) -> str | None:
    """The newest version of glibc that a program names; None when it names none."""
    found = {(int(major), int(minor)) for major, minor in re.findall(rb"GLIBC_(\d+)\.(\d+)", content)}
    return "{}.{}".format(*max(found)) if found else None


def glibc_of_wheel(name: str) -> str | None:
    """What the tag of a wheel's name asks for: `manylinux_2_34_x86_64` is 2.34."""
    found = re.search(r"manylinux_(\d+)_(\d+)_", name)
    return f"{found[1]}.{found[2]}" if found else None


def newest(versions: Sequence[str | None]) -> str | None:
    """The greatest of versions such as `2.34`."""
    known = [version for version in versions if version]
    return max(known, key=lambda version: [int(part) for part in version.split(".")], default=None)


def said_by(command: Sequence[str]) -> str:
    """The first line that a program prints; why not, when it does not."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return f"unknown ({error})"
    return done.stdout.strip().splitlines()[0] if done.returncode == 0 and done.stdout.strip() else "unknown"


def manifest_of(files: Mapping[str, bytes], wheel: str, versions: Mapping[str, str]) -> dict[str, Any]:
    """What is inside, of which versions, and what it needs where it is unpacked."""
    glibc = newest([glibc_of_wheel(wheel), *(glibc_of(files[name]) for name in files if name == "device")])
    needs = [f"Linux with glibc {glibc} or newer" if glibc else "Linux", "an NVIDIA driver for CUDA 12 or newer"]
    needs += ["Python 3.9 or newer with PyTorch for CUDA and NumPy", "bash, tar"]
    return {
        **versions,
        "wheel": wheel,
        "glibc": glibc,
        "needs": needs,
        "files": {
            name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            for name, content in sorted(files.items())
        },
    }


def archive(files: Mapping[str, bytes], limit_bytes: int = LIMIT_BYTES) -> bytes:
    """The archive's bytes. Programs are those without an ending.

    Raises:
        TooLarge: it would be larger than the limit.
    """
    packed = io.BytesIO()
    # mtime 0: the same content packs to the same bytes.
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as zipped, tarfile.open(fileobj=zipped, mode="w") as tar:
        for name, content in sorted(files.items()):
            entry = tarfile.TarInfo(f"{FOLDER}/{name}")
            entry.size = len(content)
            entry.mode = 0o644 if "." in Path(name).name else 0o755
            tar.addfile(entry, io.BytesIO(content))
    size = packed.tell()
    if size > limit_bytes:
        largest = max(files, key=lambda name: len(files[name]))
        raise TooLarge(
            f"the archive has {size / (1 << 20):.1f} MiB, and {limit_bytes / (1 << 20):.0f} MiB is the most; "
            f"the largest file is {largest} with {len(files[largest]) / (1 << 20):.1f} MiB: "
            "is it stripped and built for release?"
        )
    return packed.getvalue()


def contents(scripts: Path, wheel: Path, binary: Path | None) -> dict[str, bytes]:
    """All files but the manifest, under their names in the archive's folder."""
    files = {"gpu-check": (scripts / "gpu-check").read_bytes(), wheel.name: wheel.read_bytes()}
    for path in sorted((scripts / "gpu").glob("*.py")):
        files[f"gpu/{path.name}"] = path.read_bytes()
    if binary is not None:
        files["device"] = binary.read_bytes()
    return files


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wheel", type=Path, required=True)
    parser.add_argument("--binary", type=Path, help="the Rust example `device`; left out: its rows are not measured")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=LIMIT_BYTES, help="bytes")
    arguments = parser.parse_args()
    scripts = Path(__file__).resolve().parents[1]
    commit = said_by(["git", "-C", str(scripts), "rev-parse", "HEAD"])
    if said_by(["git", "-C", str(scripts), "status", "--porcelain"]) != "unknown":
        commit += " with changes"
    try:
        files = contents(scripts, arguments.wheel, arguments.binary)
        versions = {"commit": commit, "rustc": said_by(["rustc", "--version"])}
        manifest = manifest_of(files, arguments.wheel.name, versions)
        files["manifest.json"] = (json.dumps(manifest, indent=1) + "\n").encode()
        packed = archive(files, arguments.limit)
    except (OSError, TooLarge) as error:
        print(f"gpu-pack: {error}", file=sys.stderr)
        return 1
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_bytes(packed)
    print(f"{arguments.out}: {len(packed) / (1 << 20):.1f} MiB; needs {'; '.join(manifest['needs'])}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
