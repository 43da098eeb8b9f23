"""scripts/check-wheel on wheels made up for it."""

import platform
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("check-wheel")
MACHINE = platform.machine()

pytestmark = pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")


def check(folder, tag, program, mode=0o755):
    """What the script says of a wheel with this program, and its status."""
    wheel = folder / f"forebay-1-cp39-abi3-{tag}.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        entry = zipfile.ZipInfo("forebay/bin/forebay")
        entry.external_attr = (0o100000 | mode) << 16
        archive.writestr(entry, program)
        archive.writestr("forebay/__init__.py", "")
    done = subprocess.run([SCRIPT, wheel], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.returncode, done.stdout


def compiled(folder, source, *options):
    """What the C compiler makes of a source."""
    (folder / "source.c").write_text(source)
    subprocess.run(["cc", "-o", "made", *options, "source.c"], cwd=folder, check=True)
    return (folder / "made").read_bytes()


def test_a_wheel_that_needs_nothing_new_passes(tmp_path):
    program = compiled(tmp_path, "int answer(void) { return 42; }", "-shared", "-nostdlib")
    assert check(tmp_path, f"manylinux_2_28_{MACHINE}", program)[0] == 0


def test_newer_symbols_foreign_libraries_and_wrong_names_are_refused(tmp_path):
    plain = compiled(tmp_path, "int answer(void) { return 42; }", "-shared", "-nostdlib")
    status, told = check(tmp_path, f"manylinux_2_34_{MACHINE}", plain)
    assert (status, "its name does not end in manylinux_2_28" in told) == (1, True), told
    status, told = check(tmp_path, f"manylinux_2_28_{MACHINE}", plain, mode=0o644)
    assert (status, "no executable forebay/bin/forebay" in told) == (1, True), told
    other = "aarch64" if MACHINE == "x86_64" else "x86_64"
    status, told = check(tmp_path, f"manylinux_2_28_{other}", plain)
    assert (status, "is for another processor" in told) == (1, True), told

    # A library of this test, with a version that no glibc has yet.
    (tmp_path / "map").write_text("GLIBC_2.99 { global: answer; };")
    compiled(tmp_path, "int answer(void) { return 42; }", "-shared", "-nostdlib", "-Wl,--version-script=map")
    (tmp_path / "made").rename(tmp_path / "libnew.so")
    source = "int answer(void); int twice(void) { return 2 * answer(); }"
    program = compiled(tmp_path, source, "-shared", "-nostdlib", "-Wl,--no-as-needed", "./libnew.so")
    status, told = check(tmp_path, f"manylinux_2_28_{MACHINE}", program)
    assert (status, "needs GLIBC_2.99; build it with scripts/wheels" in told) == (1, True), told
    assert "libnew.so, which systems may not have" in told
