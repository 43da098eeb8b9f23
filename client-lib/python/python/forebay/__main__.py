"""``python -m forebay`` and the ``forebay`` command: the program in this package."""

import os
import sys
from pathlib import Path


def main() -> None:
    """Becomes the ``forebay`` program."""
    program = Path(__file__).with_name("bin") / "forebay"
    if not program.is_file():
        sys.exit(
            f"forebay: {program} is missing: this package was built without the program; build the wheel with "
            "`maturin build --release` in client-lib/python, or name a program in FOREBAY_PROGRAM"
        )
    os.execv(program, ["forebay", *sys.argv[1:]])


if __name__ == "__main__":
    main()
