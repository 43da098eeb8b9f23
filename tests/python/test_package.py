"""What the wheel carries beside the Python module: the program, its command and the licence texts."""

import os
import subprocess
import sys
from pathlib import Path

import forebay
import pytest
from support import run_script

PACKAGE = Path(forebay.__file__).parent

carried = pytest.mark.skipif(not (PACKAGE / "bin").exists(), reason="the package was not installed from a wheel")


@carried
def test_the_program_is_carried_and_tells_the_packages_version():
    program = PACKAGE / "bin" / "forebay"
    assert os.access(program, os.X_OK)
    for command in ([program], [sys.executable, "-m", "forebay"], [Path(sys.executable).with_name("forebay")]):
        result = subprocess.run([*command, "--version"], capture_output=True, text=True, env={}, timeout=60)
        assert (result.returncode, result.stdout.strip()) == (0, f"forebay {forebay.__version__}"), result


@carried
def test_the_licences_are_carried():
    notices = (PACKAGE / "licenses" / "THIRD-PARTY-NOTICES.txt").read_text()
    assert "libjpeg-turbo" in notices
    assert (PACKAGE / "licenses" / "LICENSE-MIT").exists() and (PACKAGE / "licenses" / "LICENSE-APACHE").exists()


def test_types_are_promised_and_frameworks_are_imported_on_demand_only():
    assert (PACKAGE / "py.typed").exists()
    script = """
        import sys
        import forebay, forebay.accelerate

        forebay.Loader
        forebay.headspace(lambda: range(99), lambda n: None, after=20, steps=20)
        forebay.straggler_report(forebay.StepTimer(range(3)))
        frameworks = {"torch", "jax", "accelerate", "transformers", "pytorch_lightning"}
        print(frameworks & set(sys.modules))
    """
    done = run_script(script)
    assert done.stdout == "set()\n", done
    with pytest.raises(AttributeError, match="nothing"):
        forebay.nothing  # noqa: B018
