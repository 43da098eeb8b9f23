"""The JSON schema of configurations, as an editor uses it: every example fits, and mistakes are marked."""

import json
import subprocess

import pytest
from support import PROGRAM, ROOT

jsonschema = pytest.importorskip("jsonschema")
tomllib = pytest.importorskip("tomllib", reason="Python 3.11 reads TOML")

CONFIGS = sorted((ROOT / "configs").glob("*.toml"))


@pytest.fixture(scope="module")
def validator():
    done = subprocess.run([PROGRAM, "check", "--schema"], capture_output=True, text=True, timeout=60, check=True)
    schema = json.loads(done.stdout)
    checker = jsonschema.validators.validator_for(schema)
    assert checker is jsonschema.Draft7Validator
    checker.check_schema(schema)
    return checker(schema)


def marked(validator, text):
    """Where the schema does not hold."""
    return [".".join(map(str, error.absolute_path)) for error in validator.iter_errors(tomllib.loads(text))]


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.stem)
def test_every_example_fits(validator, file):
    assert marked(validator, file.read_text()) == []


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("prset = 'imagenet-train'", ""),
        ("preset = 'imagenet'", "preset"),
        ("batch.sise = 3", "batch"),
        ("batch.size = '3'", "batch.size"),
        ("[ring]\nmemory = '4 gib'", "ring.memory"),
        ("[dataset]\nread_timeout = '30'", "dataset"),
        ("[dataset]\nformat = 'image-foldr'", "dataset"),
        ("[[stage]]\nname = 'a'\noperations = [{ op = 'resize' }]", "stage.0.operations.0"),
    ],
)
def test_misspelt_keys_and_wrong_values_are_marked_in_their_place(validator, text, place):
    [found] = marked(validator, text)
    assert found == place


@pytest.mark.parametrize(
    "text",
    [
        "batch.last = '${LAST:-drop}'",
        "ring.memory = '${MEMORY:-1GiB}'",
        "dataset.format = '${FORMAT}'",
        "dataset.path = '${DATA}/x'",
    ],
)
def test_a_variable_may_replace_a_word_or_a_size(validator, text):
    assert marked(validator, text) == []
