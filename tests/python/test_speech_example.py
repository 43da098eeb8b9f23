"""The example that trains on speech: its batches, its loss, and a killed run that goes on to the same losses."""

import json
import random
import wave

import forebay
import numpy
import pytest
from support import load_example
from test_text_examples import check, check_a_kill, copy_configuration, sentence, single_thread  # noqa: F401

torch = pytest.importorskip("torch")
tokenizers = pytest.importorskip("tokenizers")

CHARACTERS = " abcdefghijklmnopqrstuvwxyz"
VOCABULARY = 1 + len(CHARACTERS)  # with the blank
SOUNDS, BUDGET, POOL = 60, 12.0, 20
RATES = 16000, 8000  # as the model has it, and to be resampled


def transcripts():
    generator = random.Random(6)
    return [sentence(generator, least=1, most=8) for _ in range(SOUNDS)]


def levels(text, rate):
    """A tone for each character, for 80 ms; 16 bits."""
    time = numpy.arange(80 * rate // 1000) / rate
    tones = [numpy.sin(2 * numpy.pi * (300 + 100 * CHARACTERS.index(character)) * time) for character in text]
    return numpy.rint(8000 * numpy.concatenate(tones)).astype("<i2")


def speech(folder):
    """The example's configuration with smaller numbers over such sounds."""
    lines = []
    for number, text in enumerate(transcripts()):
        rate = RATES[number % 3 == 2]
        with wave.open(str(folder / f"{number:02}.wav"), "wb") as file:
            file.setparams((1, 2, rate, 0, "NONE", ""))
            file.writeframes(levels(text, rate).tobytes())
        lines.append(json.dumps({"audio": f"{number:02}.wav", "text": text, "speaker": "a"}) + "\n")
    (folder / "speech.jsonl").write_text("".join(lines))
    config = copy_configuration(
        "speech",
        folder,
        ("seconds = 240.0", f"seconds = {BUDGET}"),
        ("pool = 16_384", f"pool = {POOL}"),
        ("max_rows = 32", "max_rows = 12"),
    )
    tokens = {"<blank>": 0} | {character: number for number, character in enumerate(CHARACTERS, 1)}
    tokenizers.Tokenizer(tokenizers.models.BPE(tokens, [])).save(str(folder / "tokenizer.json"))
    return config


def test_batches_of_speech_are_within_the_seconds_with_sounds_beside_their_transcripts(tmp_path):
    found, shapes = [], set()
    with forebay.torch.Loader(speech(tmp_path)) as loader:
        for batch in loader:
            rows, longest = batch["audio"].shape
            assert rows * longest <= BUDGET * 16000 and longest == batch["audio_lengths"].max()
            assert batch["labels"].shape == (rows, batch["labels_lengths"].max())
            shapes.add((rows, longest))
            for row, number in enumerate(batch["index"].tolist()):
                text, found = transcripts()[number], [*found, number]
                sound = batch["audio"][row, : batch["audio_lengths"][row]]
                assert len(sound) == 1280 * len(text) and not batch["audio"][row, len(sound) :].any()
                if number % 3 != 2:
                    assert (sound * 32768 == torch.from_numpy(levels(text, 16000).astype("f4"))).all()
                labels = batch["labels"][row, : batch["labels_lengths"][row]]
                assert "".join(CHARACTERS[token - 1] for token in labels.tolist()) == text
    assert sorted(found) == list(range(SOUNDS))
    assert len({rows for rows, _ in shapes}) > 1 and len({longest for _, longest in shapes}) > 3, shapes


def test_the_loss_of_a_padded_batch_is_that_of_its_sounds_alone(tmp_path):
    example = load_example("speech/train")
    torch.manual_seed(2)
    model = example.Speech(VOCABULARY).double()
    padded = 0
    with forebay.torch.Loader(speech(tmp_path)) as loader:
        for batch in loader:
            batch = {name: value.double() if name == "audio" else value for name, value in batch.items()}
            alone = []
            for row in range(len(batch["audio"])):
                sound, text = batch["audio_lengths"][row], batch["labels_lengths"][row]
                one = {
                    "audio": batch["audio"][row : row + 1, :sound],
                    "audio_lengths": sound[None],
                    "labels": batch["labels"][row : row + 1, :text],
                    "labels_lengths": text[None],
                }
                padded += sound < batch["audio"].shape[1]
                alone.append(example.loss_of(model, one, 0))
            assert min(alone) > 0
            # Noise in place of the silence behind a sound's end: a frame that sees it changes the loss.
            behind = torch.arange(batch["audio"].shape[1]) >= batch["audio_lengths"][:, None]
            batch["audio"] = torch.where(behind, torch.randn_like(batch["audio"]), batch["audio"])
            assert torch.allclose(example.loss_of(model, batch, 0), torch.stack(alone).mean(), rtol=1e-9)
    assert padded > SOUNDS / 3


@pytest.mark.parametrize("samples", [1, 399, 400, 1039, 1040])
def test_a_sound_that_is_too_short_for_a_frame_has_no_loss(samples):
    example = load_example("speech/train")
    model = example.Speech(VOCABULARY)
    batch = {
        "audio": torch.zeros(1, samples),
        "audio_lengths": torch.tensor([samples]),
        "labels": torch.tensor([[3]]),
        "labels_lengths": torch.tensor([1]),
    }
    loss = example.loss_of(model, batch, 0)
    loss.backward()
    assert (loss > 0) == (samples == 1040) and model.head.weight.grad.isfinite().all()


def test_training_on_speech_goes_on_to_the_same_losses(tmp_path):
    example = load_example("speech/train")
    check(example, speech(tmp_path), tmp_path / "run.pt", example.Speech, f"--vocabulary={VOCABULARY}")


def test_a_program_that_was_killed_goes_on_behind_its_checkpoint(tmp_path):
    arguments = [str(speech(tmp_path)), str(tmp_path / "run.pt"), f"--vocabulary={VOCABULARY}"]
    check_a_kill("speech/train", "Speech", arguments)
