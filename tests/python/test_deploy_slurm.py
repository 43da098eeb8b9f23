"""configs/deploy/slurm/feeders.sbatch with stand-ins for Slurm's commands, which run each part's tasks here.

The script itself was run by slurmctld and slurmd 22.05 on one machine: docs/how-to/feeders-on-slurm.md.
"""

import os
import signal
import subprocess
import sys

import pytest
from support import ROOT

SCRIPT = ROOT / "configs" / "deploy" / "slurm" / "feeders.sbatch"
SCONTROL = 'printf "cpu1\\ncpu2\\n"'
# Two feeders, each in a process group of its own; the trainers' command once.
SRUN = """
part="$1"; shift
[ "$part" = --het-group=1 ] || exec "$@"
for rank in 0 1; do
    SLURM_PROCID=$rank setsid "$@" & echo $! >> "$FOLDER/groups"
done
wait; wait
"""
SCANCEL = """
echo "$@" > "$FOLDER/cancelled"
while read -r group; do kill -TERM -- "-$group"; done < "$FOLDER/groups"
"""
# It dies once, and then serves until it is told to end.
FEEDER = """
import os, signal, sys
folder, name = os.environ["FOLDER"], sys.argv[4].replace(":", "-")
def end(*_):
    open(f"{folder}/drained-{name}", "w").close()
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
if os.path.exists(f"{folder}/begun-{name}"):
    os.rename(f"{folder}/begun-{name}", f"{folder}/again-{name}")
    signal.pause()
open(f"{folder}/begun-{name}", "w").write(" ".join(sys.argv[1:]))
os.kill(os.getpid(), signal.SIGKILL)
"""
# Waits until both feeders were started again.
TRAINER = """
while [ ! -e "$FOLDER/again-0.0.0.0-7000" ] || [ ! -e "$FOLDER/again-0.0.0.0-7001" ]; do sleep 0.05; done
echo "$FOREBAY_FEEDERS"
exit 7
"""


def write(path, head, text):
    path.write_text(f"{head}\n{text}")
    path.chmod(0o755)


@pytest.fixture
def slurm(tmp_path):
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("scontrol", SCONTROL), ("srun", SRUN), ("scancel", SCANCEL), ("train", TRAINER)):
        write(programs / name, "#!/bin/bash", text)
    write(programs / "feeder", f"#!{sys.executable}", FEEDER)
    variables = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "FOLDER": str(tmp_path),
        "FOREBAY_PROGRAM": str(programs / "feeder"),
        "FOREBAY_PORT": "7000",
        "SLURM_JOB_ID_HET_GROUP_1": "42",
        "SLURM_JOB_NODELIST_HET_GROUP_1": "cpu[1-2]",
    }
    yield tmp_path, {**os.environ, **variables}
    for group in (tmp_path / "groups").read_text().split():
        try:
            os.killpg(int(group), signal.SIGKILL)
        except ProcessLookupError:
            continue
        pytest.fail("a feeder outlived its job")


def test_trainers_know_the_feeders_which_are_started_again_and_drained(slurm):
    folder, variables = slurm
    ended = subprocess.run(
        ["bash", SCRIPT, "train"], env=variables, capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stdout) == (7, "cpu1:7000,cpu2:7001\n"), ended.stderr
    assert (folder / "again-0.0.0.0-7001").read_text() == "feed train.toml --listen 0.0.0.0:7001"
    assert {file.name for file in folder.glob("drained-*")} == {"drained-0.0.0.0-7000", "drained-0.0.0.0-7001"}
    assert (folder / "cancelled").read_text() == "--signal=TERM 42\n"


def test_script_is_a_heterogeneous_job_of_two_parts():
    lines = [line for line in SCRIPT.read_text().splitlines() if line.startswith("#SBATCH")]
    assert lines.count("#SBATCH hetjob") == 1
    trainers, feeders = "\n".join(lines).split("#SBATCH hetjob")
    assert "--gpus-per-node" in trainers and "--gpus" not in feeders
