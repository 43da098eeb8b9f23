"""The example that trains on pictures of several aspect ratios: its batches, and a killed run that goes on to the same
losses."""

import json
import random

import forebay
import numpy
import pytest
from PIL import Image
from support import load_example
from test_text_examples import OF_TOKENIZER, check, check_a_kill, copy_configuration, sentence, single_thread  # noqa: F401

torch = pytest.importorskip("torch")
pytest.importorskip("tokenizers")

PICTURES, SHAPES = 60, {(32, 32), (24, 40), (40, 24), (16, 64), (64, 16), (16, 56), (56, 16), (16, 48), (48, 16)}


def diffusion(folder):
    """The example's configuration with smaller numbers over flat pictures of several aspect ratios."""
    generator, lines = random.Random(2), []
    for number in range(PICTURES):
        width, height = generator.choice([(40, 40), (50, 30), (30, 50)])
        colour = [generator.randrange(256) for _ in range(3)]
        Image.fromarray(numpy.full((height, width, 3), colour, numpy.uint8)).save(folder / f"{number:02}.png")
        lines.append(json.dumps({"image": f"{number:02}.png", "text": sentence(generator, most=9)}) + "\n")
    (folder / "pictures.jsonl").write_text("".join(lines))
    return copy_configuration(
        "diffusion",
        folder,
        ("pixels = 262_144, step = 64, sides = [256, 1024]", "pixels = 1024, step = 8, sides = [16, 64]"),
        ("pool = 16_384", "pool = 30"),
        ("size = 16", "size = 8"),
    )


def test_batches_have_one_shape_with_captions_beside_their_pictures(tmp_path):
    found, shapes = [], set()
    with forebay.torch.Loader(diffusion(tmp_path)) as loader:
        for batch in loader:
            rows, channels, height, width = batch["image"].shape
            assert channels == 3 and batch["caption"].shape == (rows, batch["caption_lengths"].max())
            shapes.add((height, width))
            found += batch["index"].tolist()
            for row, number in enumerate(batch["index"].tolist()):
                with Image.open(tmp_path / f"{number:02}.png") as picture:
                    colour = torch.tensor(picture.getpixel((0, 0)))
                expected = (colour / 255 - 0.5) / 0.5
                assert torch.allclose(batch["image"][row], expected[:, None, None].expand(3, height, width), atol=1e-6)
    assert sorted(found) == list(range(PICTURES))
    assert len(shapes) == 3 and shapes <= SHAPES, shapes


def test_training_goes_on_to_the_same_losses(tmp_path):
    example = load_example("diffusion/train")
    check(example, diffusion(tmp_path), tmp_path / "run.pt", example.Denoiser, OF_TOKENIZER)


def test_a_program_that_was_killed_goes_on_behind_its_checkpoint(tmp_path):
    arguments = [str(diffusion(tmp_path)), str(tmp_path / "run.pt"), OF_TOKENIZER]
    check_a_kill("diffusion/train", "Denoiser", arguments)
