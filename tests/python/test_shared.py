"""`Loader(shared=True)`: ranks in separate processes share a daemon; its limits are named."""

import json
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

RANK = """
import json, sys, forebay, numpy
with forebay.Loader(sys.argv[1], rank=int(sys.argv[2]), world_size=2, shared=True) as loader:
    ids = [int(index) for batch in loader for index in batch["index"]]
    print(json.dumps({"ids": ids, "pid": loader.daemon_pid}), flush=True)
    sys.stdin.readline()
"""


def test_ranks_share_a_daemon_and_nothing_is_left(tmp_path: Path) -> None:
    config = config_of_pairs(tmp_path)
    # A socket's path is at most 107 bytes long.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        _share(config, Path(folder))


def _share(config: Path, folder: Path) -> None:
    environment = os.environ | {"XDG_RUNTIME_DIR": str(folder)}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(config), str(rank)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    found = [json.loads(rank.stdout.readline()) for rank in ranks if rank.stdout is not None]
    assert sorted(found[0]["ids"] + found[1]["ids"]) == list(range(40))
    assert len(list((folder / "forebay").glob("shared-train-*.sock"))) == 1
    assert [one["pid"] for one in found] == [None, None], "it is no private daemon"
    for rank in ranks:
        rank.communicate("\n")
        assert rank.returncode == 0
    end = time.monotonic() + 60
    while list((folder / "forebay").iterdir()) and time.monotonic() < end:
        time.sleep(0.1)
    assert list((folder / "forebay").iterdir()) == []


def test_what_a_shared_daemon_cannot_take_is_refused(tmp_path: Path) -> None:
    config = config_of_pairs(tmp_path)
    weights = {"order.weights": np.ones(40)}
    with pytest.raises(forebay.ConfigError, match="shared daemon may outlive"):
        forebay.Loader(str(config), overrides=weights, shared=True)
    with pytest.raises(forebay.ConfigError, match="needs a daemon of its loader alone"):
        forebay.Loader([1, 2, 3, 4], batch_size=2, shared=True)
    with pytest.raises(forebay.ConfigError, match="`shared` is for a configuration"):
        forebay.Loader(str(tmp_path / "absent.sock"), shared=True)
