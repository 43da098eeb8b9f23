"""Pictures within texts: patches and grids are those of the image processor of Qwen2-VL in Transformers, and the text
has a token for each of their merged patches."""

import io
import json
import os
import random
import signal
from pathlib import Path

import forebay
import numpy
import pytest
from support import digest, digests, load_example

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
PIL = pytest.importorskip("PIL")
Image = pytest.importorskip("PIL.Image")
tokenizers = pytest.importorskip("tokenizers")

FIXTURES = Path(__file__).resolve().parents[2] / "daemon/crates/text/fixtures"
PAD = "<|image_pad|>"
# As the template of Qwen2-VL prints the content of a message, with marks around what the model says.
TEMPLATE = """
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.role == 'assistant' %}
        {%- generation %}{{ message.content[0].text + '<|im_end|>' }}{% endgeneration %}
    {%- else %}
        {%- for part in message.content %}
            {%- if part.type == 'image' %}{{ '<|image_pad|>' }}{% else %}{{ part.text }}{% endif %}
        {%- endfor %}
        {{- '<|im_end|>' }}
    {%- endif %}
    {{- '\\n' }}
{%- endfor %}
"""
PICTURES = pyarrow.list_(pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())]))


def picture(generator, mode="RGB"):
    size = (generator.randrange(5, 120), generator.randrange(5, 120))
    return Image.frombytes(mode, size, generator.randbytes(size[0] * size[1] * len(mode)))


def png(image):
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def rows(count=40, seed=4):
    """Conversations about 0 to 3 pictures, and the pictures."""
    generator = random.Random(seed)
    made = []
    for number in range(count):
        pictures = [picture(generator, "RGBA" if number % 7 == 3 else "RGB") for _ in range(number % 4)]
        content = [{"type": "text", "text": f"Look {number}"}, *({"type": "image", "text": None} for _ in pictures)]
        answer = [{"type": "text", "text": f"I see {len(pictures)}"}]
        turns = [{"role": "user", "content": content}, {"role": "assistant", "content": answer}]
        made.append((pictures, turns))
    return made


def write(folder, made, files=None):
    """A table of the rows; `files`: the files of each row's pictures in their place."""
    files = files or [[png(picture) for picture in pictures] for pictures, _ in made]
    table = pyarrow.table(
        {
            "images": pyarrow.array([[{"bytes": file, "path": None} for file in row] for row in files], PICTURES),
            "messages": [turns for _, turns in made],
            "number": list(range(len(made))),
        }
    )
    parquet.write_table(table, folder / "data.parquet", row_group_size=15)


def config(folder, arguments="", batch="size = 5", chat="", tables=""):
    tokenizer = tokenizers.Tokenizer.from_file(str(FIXTURES / "byte-level.json"))
    tokenizer.add_special_tokens([PAD])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    path = folder / "pictures.toml"
    path.write_text(f"""
[dataset]
format = "parquet"
path = "data.parquet"
index = "saved.index"
[dataset.fields]
images = {{ from = "images", as = "images" }}
chat = {{ from = "messages", as = "text" }}
number = {{ from = "number" }}
[batch]
{batch}
last = "short"
[order]
epochs = 1
[[stage]]
name = "pictures"
operations = [{{ op = "image-patches", max_images = 3, max_pixels = 6272{arguments} }}]
[[stage]]
name = "text"
[[stage.operations]]
op = "chat"
template = "chat_template.jinja"
tokenizer = "tokenizer.json"
to = "input_ids"
labels = "labels"
image_token = "{PAD}"
{chat}
[output]
input_ids = {{ ragged = true, compact = true, max_bytes = "64KiB" }}
labels = {{ ragged = true, compact = true, max_bytes = "64KiB" }}
image_grid_thw = {{ ragged = true, compact = true }}
pixel_values = {{ ragged = true, compact = true }}
{tables}
""")
    return path


def test_patches_and_tokens_are_those_of_transformers(tmp_path):
    pytest.importorskip("torch")
    module = pytest.importorskip("transformers.models.qwen2_vl.image_processing_pil_qwen2_vl")
    processor = module.Qwen2VLImageProcessorPil(max_pixels=6272)
    made = rows()
    write(tmp_path, made)
    count = 0
    with forebay.Loader(config(tmp_path)) as loader:
        tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
        pad = tokenizer.token_to_id(PAD)
        for batch in loader:
            fields = ("number", "pixel_values", "image_grid_thw", "input_ids", "labels")
            for number, values, grid, ids, labels in zip(*(batch[field] for field in fields), strict=True):
                pictures, turns = made[number]
                grid, ids = numpy.asarray(grid), numpy.asarray(ids)
                tokens = [0] * len(pictures)
                if pictures:
                    expected = processor(images=pictures, return_tensors="np")
                    assert grid.tolist() == expected["image_grid_thw"].tolist()
                    if int(PIL.__version__.partition(".")[0]) >= 13:
                        assert numpy.array_equal(numpy.asarray(values), expected["pixel_values"])
                    tokens = [int(row.prod()) // 4 for row in grid]
                assert grid.shape == (len(pictures), 3) and numpy.asarray(values).shape == (grid.prod(1).sum(), 1176)
                # As processors do: the text with each token repeated, then its ids.
                said = turns[1]["content"][0]["text"] + "<|im_end|>"
                asked = turns[0]["content"][0]["text"] + "".join(PAD * repeats for repeats in tokens)
                text = f"<|im_start|>user\n{asked}<|im_end|>\n<|im_start|>assistant\n{said}\n"
                assert ids.tolist() == tokenizer.encode(text, add_special_tokens=False).ids
                labels = numpy.asarray(labels)
                assert (labels[ids == pad] == -100).all() and (ids == pad).sum() == sum(tokens)
                assert labels[labels != -100].tolist() == tokenizer.encode(said, add_special_tokens=False).ids
                count += 1
    assert count == len(made)


def test_no_batch_differs_after_kills_and_a_state_resumes(tmp_path):
    write(tmp_path, rows(120))
    path = config(tmp_path)
    whole = digests(path)
    with forebay.Loader(path) as loader:
        found = []
        for number, batch in enumerate(loader):
            found.append(digest(batch))
            if number in (1, 5):
                os.kill(loader.daemon_pid, signal.SIGKILL)
        assert loader.restarts == 2
    assert found == whole
    with forebay.Loader(path) as loader:
        first = [digest(batch) for _, batch in zip(range(3), loader, strict=False)]
        state = json.loads(json.dumps(loader.state_dict()))
    with forebay.Loader(path, state=state) as loader:
        assert [digest(batch) for batch in loader] == whole[len(first) :]


def test_rows_of_few_pictures_and_many_are_batched_by_bytes(tmp_path):
    write(tmp_path, rows(40))
    path = config(tmp_path, batch='budget = { bytes = "100KiB" }\nmax_rows = 8')
    path.write_text(path.read_text().replace('last = "short"', 'last = "drop"'))
    with forebay.Loader(path) as loader:
        numbers = [int(number) for batch in loader for number in batch["number"]]
    assert sorted(numbers) == list(range(40))


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("cut", "image 1 of 1: "),
        ("text", "image 1 of 1: "),
        ("narrow", r"image 1 of 1: 402x2 pixels: one side is 201.0 times the other"),
        ("many", "the sample has 4 images, more than `max_images` of `image-patches`, 3"),
        ("none", r"image 1 of `images` has no bytes in the table"),
        ("fewer", r'the text has 1 of "<\|image_pad\|>", and the sample has 0 images'),
    ],
)
def test_a_sample_that_cannot_be_used_ends_the_stream_with_its_reason(tmp_path, kind, reason):
    made = rows(2)
    good = png(made[1][0][0])
    files = {
        "cut": [good[: len(good) // 2]],
        "text": [b"no picture"],
        "narrow": [png(Image.new("RGB", (402, 2)))],
        "many": [good] * 4,
        "none": [None],
        "fewer": [],
    }[kind]
    write(tmp_path, made, [[], files])
    with forebay.Loader(config(tmp_path)) as loader, pytest.raises(forebay.Error, match=reason):
        for _ in loader:
            pass


def test_the_example_learns_what_is_in_a_picture_and_goes_on(tmp_path):
    pytest.importorskip("torch")
    generator = random.Random(6)
    colours = {"red": (250, 20, 20), "blue": (20, 20, 250)}
    made = []
    for number in range(120):
        name = ("red", "blue")[number % 2]
        image = Image.new("RGB", (generator.randrange(40, 90), generator.randrange(40, 90)), colours[name])
        content = [{"type": "image", "text": None}, {"type": "text", "text": "?"}]
        turns = [{"role": "user", "content": content}]
        made.append(([image], [*turns, {"role": "assistant", "content": [{"type": "text", "text": name}]}]))
    write(tmp_path, made)
    path = config(tmp_path, batch="size = 4", tables="")
    token = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json")).token_to_id(PAD)
    example = load_example("train_vlm")
    options = [str(path), str(tmp_path / "state.pt"), f"--image-token={token}", "--vocabulary=600", "--lr=0.01"]
    losses = example.main([*options, "--steps=20"])
    assert len(losses) == 20 and sum(losses[-5:]) / 5 < 0.3 * losses[0], losses
    rest = example.main([*options, "--steps=10", "--resume"])
    assert len(rest) == 10 and max(rest) < 0.3 * losses[0], rest
