"""Texts for benchmarks: pieces of the files of text in Python's library and its installed packages."""

from __future__ import annotations

import random
import sysconfig
from pathlib import Path


def pieces(count: int) -> list[str]:
    """Texts of 1 to 12 kB."""
    generator = random.Random(1)
    folders = [Path(sysconfig.get_paths()[name]) for name in ("stdlib", "purelib")]
    files = sorted(
        path for folder in folders for ending in ("py", "md", "rst", "txt") for path in folder.rglob(f"*.{ending}")
    )
    found: list[str] = []
    for path in generator.sample(files, len(files)):
        text = path.read_text(errors="ignore")
        place = 0
        while place < len(text) and len(found) < count:
            length = generator.randrange(1000, 12000)
            found.append(text[place : place + length])
            place += length
    return found
