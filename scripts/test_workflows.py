"""The workflows of the hosted CI: few rights, an end to each job, and commands that exist."""

import re
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
SETUP = ROOT / ".github" / "actions" / "setup" / "action.yml"


def steps(made):
    for job in made["jobs"].values():
        yield from job["steps"]


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_a_workflow_has_few_rights_and_ends(file):
    made = yaml.safe_load(file.read_text())
    assert made["permissions"] == {"contents": "read"}
    assert made["concurrency"]["group"]
    for name, job in made["jobs"].items():
        assert job["timeout-minutes"], name
        assert "permissions" not in job, name
        # A name such as `latest` changes what runs without a commit.
        assert "latest" not in str(job["runs-on"]), name
    assert "secrets." not in file.read_text()


@pytest.mark.parametrize("file", [*WORKFLOWS, SETUP], ids=lambda file: file.stem)
def test_actions_are_githubs_own_or_this_repositorys_and_pinned(file):
    used = re.findall(r"uses: (\S+)", file.read_text())
    assert all(re.fullmatch(r"actions/[\w-]+@v\d+|\./\.github/actions/setup", action) for action in used), used


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_what_a_workflow_runs_exists(file):
    made = yaml.safe_load(file.read_text())
    commands = [step["run"] for step in steps(made) if "run" in step]
    for job in made["jobs"].values():
        commands += [
            row["command"] for row in job.get("strategy", {}).get("matrix", {}).get("include", []) if "command" in row
        ]
    programs = re.findall(r"(?:^|[\s$(])((?:scripts/|\.ci/)[\w-]+)", "\n".join(commands))
    assert programs or not commands
    missing = [name for name in programs if not (ROOT / name).is_file()]
    assert missing == []


def test_every_kind_of_check_is_run_somewhere():
    text = "\n".join(file.read_text() for file in WORKFLOWS)
    cargo = ("cargo-deny check advisories", "cargo semver-checks", "cargo check --workspace --all-targets --locked")
    scripts = (
        "test --quick",
        "fuzz --all",
        "sanitize",
        "prove --short",
        "break-orderings",
        "count-instructions",
        "wheels",
        "site",
    )
    for command in (".ci/run", *cargo, *(f"scripts/{name}" for name in scripts)):
        assert command in text, command
