"""What a release rests on: one version everywhere, crates that may be published, what scripts/release refuses."""

import json
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def read(path):
    return (ROOT / path).read_text()


def workspace(key):
    """A key of [workspace.package]."""
    section = read("Cargo.toml").split("[workspace.package]")[1].split("\n[")[0]
    return re.search(rf'^{key} = "(.*)"$', section, re.MULTILINE)[1]


VERSION = workspace("version")


def run(*command, cwd=ROOT, **more):
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=300, **more)


@pytest.fixture(scope="module")
def packages():
    """The packages that cargo knows, members and dependencies."""
    done = run("cargo", "metadata", "--format-version", "1", "--locked")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["packages"]


@pytest.fixture(scope="module")
def published(packages):
    """The crates that scripts/release publishes, in its order."""
    names = run("scripts/release", "--crates").stdout.split()
    members = {package["name"]: package for package in packages if package["source"] is None}
    return [members[name] for name in names]


def test_every_place_names_the_version_of_the_workspace(packages):
    members = [package for package in packages if package["source"] is None]
    assert {package["version"] for package in members} == {VERSION}
    named = {
        "forebay.h": ".".join(re.findall(r"FOREBAY_VERSION_M?[A-Z]+ (\d+)", read("client-lib/c/include/forebay.h")))
    }
    for lock in ("Cargo.lock", "fuzz/Cargo.lock"):
        own = [
            found
            for found in re.findall(r'name = "(forebay[^"]*)"\nversion = "(.*)"', read(lock))
            if found[0] != "forebay-fuzz"
        ]
        assert len(own) > 20, lock
        named |= {f"{lock}: {name}": version for name, version in own}
    # A version beside a path is what a published crate asks for.
    for name, version in re.findall(
        r'^(forebay[\w-]*) = \{ path.* version = "=?([^"]*)"', read("Cargo.toml"), re.MULTILINE
    ):
        named[f"Cargo.toml: {name}"] = version
    named["the changelog"] = re.search(r"^## \[(.*?)\]", read("CHANGELOG.md"), re.MULTILINE)[1]
    named["the side-car"] = re.search(r"image: \S+/forebay:(\S+)", read("configs/deploy/kubernetes-sidecar.yaml"))[1]
    assert {place: version for place, version in named.items() if version != VERSION} == {}


def test_no_page_names_another_version_of_a_wheel_or_an_image():
    done = run(
        "git",
        "grep",
        "-nE",
        r"forebay[-:=@ ]{1,2}v?[0-9]+\.[0-9]+\.[0-9]+",
        "--",
        "*.md",
        "*.yaml",
        "*.yml",
        "*.toml",
        "*.py",
        "*.txt",
    )
    found = [line for line in done.stdout.splitlines() if VERSION not in line and not line.startswith("CHANGELOG.md")]
    assert found == []


def test_the_package_takes_its_version_from_the_crate():
    project = read("client-lib/python/pyproject.toml")
    assert 'dynamic = ["version"]' in project and not re.search(r"^version =", project, re.MULTILINE)
    assert "version.workspace = true" in read("client-lib/python/Cargo.toml")


def test_no_dependency_asks_for_a_newer_compiler_than_this_workspace(packages):
    def number(version):
        return [int(part) for part in version.split(".")][:2]

    oldest = workspace("rust-version")
    newer = {
        p["name"]: p["rust_version"]
        for p in packages
        if p["rust_version"] and number(p["rust_version"]) > number(oldest)
    }
    assert newer == {}, f"raise rust-version, {oldest}, or take older versions of these"
    assert f'oldest_rust="{oldest}"' in read("scripts/setup")
    # Records tell of their time.
    said = set(run("git", "grep", "-ohE", r"Rust 1\.[0-9]+", "--", "*.md", ":!docs/decisions").stdout.splitlines())
    assert said == {f"Rust {oldest}"}


def test_published_crates_are_described_and_need_published_crates_alone(packages, published):
    names = [package["name"] for package in published]
    open_to_all = {p["name"] for p in packages if p["source"] is None and p["publish"] != []}
    assert open_to_all == set(names), "publish = false, or a line in scripts/release"
    for place, package in enumerate(published):
        folder = Path(package["manifest_path"]).parent
        for key in ("description", "license", "repository", "readme", "keywords", "categories", "rust_version"):
            assert package[key], f"{package['name']}: {key}"
        assert len(package["keywords"]) <= 5 and len(package["categories"]) <= 5
        for file in ("README.md", "LICENSE-MIT", "LICENSE-APACHE"):
            assert (folder / file).is_file(), f"{package['name']}: {file}"
        for needed in package["dependencies"]:
            if needed.get("path"):
                # A version alone is looked up in the registry; a crate comes after those that it needs.
                assert needed["req"] != "*" and needed["name"] in names[:place], (package["name"], needed["name"])


def test_one_repository_is_named_everywhere(packages, published):
    home = workspace("repository")
    assert {package["repository"] for package in published} == {home}
    done = run("git", "grep", "-ohE", r"https://github\.com/[A-Za-z0-9-]+/forebay\b")
    assert set(done.stdout.split()) == {home}


@pytest.fixture
def project(tmp_path):
    """A repository with what scripts/release reads before it builds; its changelog has the version and a date."""
    (tmp_path / "scripts").mkdir()
    for name in ("release", "common.sh"):
        shutil.copy(ROOT / "scripts" / name, tmp_path / "scripts" / name)
    shutil.copy(ROOT / "rust-toolchain.toml", tmp_path)
    (tmp_path / "Cargo.toml").write_text('[workspace.package]\nversion = "9.8.7"\nedition = "2024"\n')
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## [9.8.7] - 2030-02-28\n")

    def commit():
        for command in (
            ["init", "--quiet"],
            ["add", "--all"],
            ["commit", "--quiet", "--allow-empty", "--message", "x"],
        ):
            done = run("git", "-c", "user.name=x", "-c", "user.email=x@x", *command, cwd=tmp_path)
            assert done.returncode == 0, done.stderr

    def dry_run():
        done = run("scripts/release", "--dry-run", cwd=tmp_path)
        return done.returncode, done.stderr

    commit()
    return tmp_path, commit, dry_run


def test_a_release_is_dry_run_without_building(project):
    folder, _, dry_run = project
    assert dry_run() == (0, "")
    assert not (folder / "dist").exists()


def test_a_release_is_refused_with_changes_without_its_changelog_and_with_its_tag(project):
    folder, commit, dry_run = project
    (folder / "forgotten").write_text("")
    status, stderr = dry_run()
    assert (status, "the tree has changes" in stderr) == (1, True), stderr
    (folder / "forgotten").unlink()
    (folder / "CHANGELOG.md").write_text("# Changelog\n\n## [9.8.7] - unreleased\n")
    commit()
    status, stderr = dry_run()
    assert (status, "give it a date" in stderr, "the tree" in stderr) == (1, True, False), stderr
    (folder / "CHANGELOG.md").write_text("# Changelog\n\n## [9.8.70] - 2030-02-28\n")
    commit()
    status, stderr = dry_run()
    assert (status, 'no section "## [9.8.7]' in stderr) == (1, True), stderr
    (folder / "CHANGELOG.md").write_text("# Changelog\n\n## [9.8.7] - 2030-02-28\n")
    commit()
    run("git", "tag", "v9.8.7", cwd=folder)
    status, stderr = dry_run()
    assert (status, "the tag v9.8.7 exists" in stderr) == (1, True), stderr


def test_bills_of_materials_name_what_the_notices_name(tmp_path):
    done = run("scripts/sbom", tmp_path)
    assert done.returncode == 0, done.stderr
    notices = tmp_path / "notices"
    assert run("scripts/notices", notices).returncode == 0
    titles = set(re.findall(r"^([\w.-]+) ([0-9][\w.+-]*) \(.*\)$", notices.read_text(), re.MULTILINE))
    wheel, program = (
        json.loads((tmp_path / f"forebay-{VERSION}-{what}.cdx.json").read_text()) for what in ("wheel", "program")
    )
    foreign = {
        (part["name"], part["version"]) for part in wheel["components"] if part.get("purl", "").startswith("pkg:cargo/")
    }
    assert foreign and foreign == titles
    assert {part["name"] for part in wheel["components"]} >= {"libjpeg-turbo", "forebay-python", "pyo3"}
    assert not {part["name"] for part in program["components"]} & {"forebay-python", "pyo3"}
    for made in (wheel, program):
        named = {part["bom-ref"] for part in made["components"]} | {made["metadata"]["component"]["bom-ref"]}
        assert {line["ref"] for line in made["dependencies"]} == named
        assert {to for line in made["dependencies"] for to in line["dependsOn"]} <= named
        assert all("hashes" in part for part in made["components"] if part.get("purl", "").startswith("pkg:cargo/"))
    first = {file.name: file.read_bytes() for file in tmp_path.glob("*.json")}
    run("scripts/sbom", tmp_path)
    assert first == {file.name: file.read_bytes() for file in tmp_path.glob("*.json")}


def test_the_source_distribution_has_the_program_and_the_package(tmp_path):
    if not shutil.which("maturin") and not Path(sys.executable).with_name("maturin").exists():
        pytest.skip("maturin is not installed")
    done = run("scripts/sdist", tmp_path)
    assert done.returncode == 0, done.stderr
    [file] = tmp_path.iterdir()
    top = f"forebay-{VERSION}"
    assert file.name == f"{top}.tar.gz"
    with tarfile.open(file) as archive:
        names = set(archive.getnames())
        text = {name: archive.extractfile(f"{top}/{name}").read().decode() for name in ("PKG-INFO", "pyproject.toml")}
    assert all(name.startswith(f"{top}/") or name == top for name in names)
    assert names >= {f"{top}/{path}" for path in ("Cargo.lock", "daemon/src/main.rs", "scripts/notices", "LICENSE-MIT")}
    assert f"\nVersion: {VERSION}\n" in text["PKG-INFO"]
    # What the project file names is there, but for what build.rs makes.
    paths = re.findall(r'^(?:readme|python-source|manifest-path) = "(.*)"$', text["pyproject.toml"], re.MULTILINE)
    assert len(paths) == 3 and {f"{top}/{path}" for path in paths} <= names
