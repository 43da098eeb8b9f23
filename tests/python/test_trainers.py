"""`Loader(trainer=...)`: trainers of a configuration share its daemon, each with its batch size, ranks and end."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import forebay
import numpy as np
import pytest
from support import config_of_pairs

TRAINER = """
import sys, forebay
with forebay.Loader(sys.argv[1], trainer=sys.argv[2], batch_size=int(sys.argv[3])) as loader:
    print([[int(index) for index in batch["index"]] for batch in loader], flush=True)
    sys.stdin.readline()
    (stream,) = loader.stats()["streams"]
    print(sorted(one["trainer"] for one in loader.stats()["sessions"]), stream["sharing"]["num_made"], flush=True)
    sys.stdin.readline()
"""


def _ids(config: Path, batch_size: int) -> str:
    with forebay.Loader(str(config), batch_size=batch_size) as loader:
        return str([[int(index) for index in batch["index"]] for batch in loader])


def test_trainers_share_a_daemon_and_have_their_own_batches(tmp_path: Path) -> None:
    config = config_of_pairs(tmp_path)
    # A socket's path is at most 107 bytes long.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        environment = os.environ | {"XDG_RUNTIME_DIR": folder}
        sizes = {"lr-1e-3": 4, "lr-3e-4": 5, "eval": 3}
        trainers = [
            subprocess.Popen(
                [sys.executable, "-c", TRAINER, str(config), name, str(size)],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for name, size in sizes.items()
        ]
        lines = [trainer.stdout.readline().strip() for trainer in trainers if trainer.stdout is not None]
        assert lines == [_ids(config, size) for size in sizes.values()]
        first = trainers[0]
        assert first.stdin is not None and first.stdout is not None
        first.stdin.write("\n")
        first.stdin.flush()
        names, made = first.stdout.readline().strip().rsplit(" ", 1)
        assert names == str(sorted(sizes))
        # Each of 40 rows is made for at least one of them.
        assert int(made) >= 40
        for trainer in trainers:
            trainer.communicate("\n\n")
            assert trainer.returncode == 0
        end = time.monotonic() + 60
        while list((Path(folder) / "forebay").iterdir()) and time.monotonic() < end:
            time.sleep(0.1)
        assert list((Path(folder) / "forebay").iterdir()) == []


def test_names_that_cannot_be_and_weights_in_memory_are_refused(tmp_path: Path) -> None:
    config = config_of_pairs(tmp_path)
    with pytest.raises(forebay.ConfigError, match="no control characters"):
        forebay.Loader(str(config), trainer="a\nb")
    with pytest.raises(forebay.ConfigError, match="shared daemon may outlive"):
        forebay.Loader(str(config), overrides={"order.weights": np.ones(40)}, trainer="a")
    with pytest.raises(forebay.ConfigError, match="the configuration that all trainers share has none"):
        forebay.Loader({"dataset.path": str(tmp_path)}, batch_size=4, trainer="a")
    with pytest.raises(forebay.ConfigError, match="a Dataset object"):
        forebay.Loader([1, 2, 3, 4], batch_size=2, trainer="a")
