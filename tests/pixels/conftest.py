"""The program that runs operations on files."""

import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def program():
    named = os.environ.get("FOREBAY_APPLY_OPERATIONS")
    if named:
        return named
    subprocess.run(["cargo", "build", "-p", "forebay-transform", "--example", "apply_operations"], cwd=ROOT, check=True)
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    return str(target / "debug" / "examples" / "apply_operations")
