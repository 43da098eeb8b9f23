"""scripts/check-imports: what it refuses."""

import runpy
from pathlib import Path

import pytest

SCRIPT = runpy.run_path(str(Path(__file__).with_name("check-imports")))

UPWARD = {
    "by a use": "use crate::core::Engine;\n",
    "in a group": "use crate::{\n    actors::fetch,\n    core::Engine,\n};\n",
    "by a path in code": "fn f() { crate::core::start() }\n",
}


@pytest.mark.parametrize("text", UPWARD.values(), ids=UPWARD)
def test_a_layer_that_names_one_above_it_is_refused_with_its_line(tmp_path, text):
    file = tmp_path / "actors/worker.rs"
    file.parent.mkdir()
    file.write_text("//! Of crate::core.\n" + text)
    (refusal,) = SCRIPT["layers"](tmp_path)
    assert refusal.startswith("actors/worker.rs:"), refusal
    assert refusal.endswith("actors names core, a layer above it")


def test_comments_tests_and_lower_layers_are_not_refused(tmp_path):
    for name in ("actors/worker.rs", "core/tests.rs"):
        file = tmp_path / name
        file.parent.mkdir()
        file.write_text(
            "use crate::ground::Slot; // as crate::core has it\n"
            "#[cfg(test)]\nmod tests {\n    use crate::core::Engine;\n}\n"
        )
    assert SCRIPT["layers"](tmp_path) == []


def test_each_crate_has_one_floor():
    names = [name for floor in SCRIPT["FLOORS"] for name in floor]
    assert len(names) == len(set(names))


def test_a_crate_without_a_floor_and_one_that_depends_upward_are_named(tmp_path):
    manifest = '[package]\nname = "{}"\nversion = "0.1.0"\nedition = "2024"\n'
    workspace = '[workspace]\nmembers = ["a", "b", "c"]\nresolver = "3"\n'
    (tmp_path / "Cargo.toml").write_text(workspace)
    for folder, name, dependency in (
        ("a", "forebay-keys", '[dependencies]\nforebay-engine = { path = "../b" }\n'),
        ("b", "forebay-engine", ""),
        ("c", "made-up", ""),
    ):
        (tmp_path / folder / "src").mkdir(parents=True)
        (tmp_path / folder / "src/lib.rs").touch()
        (tmp_path / folder / "Cargo.toml").write_text(manifest.format(name) + dependency)
    wrong = sorted(SCRIPT["crates"](tmp_path))
    assert len(wrong) == 2, wrong
    assert wrong[0].startswith("forebay-keys (floor 1) depends on forebay-engine")
    assert wrong[1].startswith("made-up has no floor")
