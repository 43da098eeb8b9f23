"""The operations' pixels against Pillow and torchvision themselves.

Needs numpy and Pillow; the torchvision part is skipped where torchvision is missing. Run with pytest from anywhere;
FOREBAY_APPLY_OPERATIONS names a built example, else cargo builds `apply_operations` of forebay-transform.
"""

import io
import math
import pathlib
import subprocess
import textwrap
import zlib

import numpy as np
import pytest
from PIL import Image, ImageOps, PngImagePlugin


def photograph(width, height, seed=0):
    """Smooth gradients, texture and edges: what photographs are made of."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    channels = []
    for _ in range(3):
        image = 120 + 70 * np.sin(x / random.uniform(20, 90) + random.uniform(0, 6))
        image += 40 * np.cos(y / random.uniform(15, 70) + random.uniform(0, 6))
        for _ in range(12):
            cx, cy = random.uniform(0, width), random.uniform(0, height)
            radius = random.uniform(0.05, 0.3) * min(width, height)
            image[(x - cx) ** 2 + (y - cy) ** 2 < radius**2] += random.uniform(-90, 90)
        channels.append(image)
    image = np.stack(channels, axis=2) + random.normal(0, 6, (height, width, 1))
    return Image.fromarray(np.clip(image, 0, 255).astype(np.uint8))


def apply(program, tmp_path, operations, files, output="", seed=17, epoch=0, refused=None):
    """Runs the operations and gives the rows' bytes, one for each file that is not refused."""
    config = tmp_path / "config.toml"
    config.write_text(f"[[stage]]\noperations = [{operations}]\n[output]\n{output}\n")
    rows = tmp_path / "rows"
    result = subprocess.run(
        [program, config, str(seed), str(epoch), rows, *files],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    lines = result.stdout.splitlines()
    if refused is None:
        assert not lines, lines
    else:
        refused.extend(lines)
    return rows.read_bytes()


def decode(program, tmp_path, path, size, channels=3, options=""):
    decode_image = f'{{ op = "decode-image", channels = {channels} {options} }}'
    operations = f'{decode_image}, {{ op = "center-crop", size = [{size[1]}, {size[0]}] }}'
    data = apply(program, tmp_path, operations, [path], 'image = { layout = "NHWC" }')
    return np.frombuffer(data, np.uint8).reshape(size[1], size[0], channels)


MODES = {1: "L", 3: "RGB", 4: "RGBA"}


def assert_decodes_as_pillow(program, tmp_path, path, tolerance=0):
    for channels, mode in MODES.items():
        with Image.open(path) as image:
            expected = np.asarray(image.convert(mode)).reshape(image.height, image.width, channels)
            size = image.size
        ours = decode(program, tmp_path, path, size, channels)
        worst = int(np.abs(ours.astype(int) - expected).max())
        assert worst <= tolerance, (path.name, mode, worst)


JPEGS = [
    (mode, subsampling, progressive, size)
    for mode in ("RGB", "L", "CMYK")
    for subsampling in ("4:4:4", "4:2:2", "4:2:0", "4:1:1")
    for progressive in (False, True)
    for size in ((500, 375), (333, 501), (17, 9), (1, 1))
    if not (mode == "L" and subsampling != "4:4:4")
]


@pytest.mark.parametrize("mode,subsampling,progressive,size", JPEGS)
def test_jpeg_is_decoded_as_pillow_decodes_it(program, tmp_path, mode, subsampling, progressive, size):
    path = tmp_path / "image.jpg"
    photograph(*size).convert(mode).save(path, quality=90, subsampling=subsampling, progressive=progressive)
    assert_decodes_as_pillow(program, tmp_path, path)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_pillows_exif_transpose(program, tmp_path, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = photograph(61, 40)
    paths = [tmp_path / "image.jpg", tmp_path / "image.png", tmp_path / "image.webp"]
    for path in paths:
        image.save(path, exif=exif, **({"lossless": True} if path.suffix == ".webp" else {}))
        with Image.open(path) as opened:
            turned = ImageOps.exif_transpose(opened).convert("RGB")
        ours = decode(program, tmp_path, path, turned.size, options=", orientation = true")
        np.testing.assert_array_equal(ours, np.asarray(turned), path.name)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_indices_of_a_palette_are_pillows(program, tmp_path, bits):
    """Also where two entries are of one colour, an entry is transparent, or the palette is shorter than it may be."""
    count = min(1 << bits, 200)
    random = np.random.default_rng(bits)
    indices = random.integers(0, count, (45, 67)).astype(np.uint8)
    image = Image.fromarray(indices, "L").convert("P")
    palette = random.integers(0, 256, (count, 3)).astype(np.uint8)
    palette[-1] = palette[0]
    image.putpalette(palette.tobytes())
    path = tmp_path / "mask.png"
    image.save(path, bits=bits, transparency=bytes([9, 0]))
    with Image.open(path) as saved:
        assert saved.mode == "P"
        np.testing.assert_array_equal(np.asarray(saved), indices)
    ours = decode(program, tmp_path, path, (67, 45), 1, ', palette = "indices"')
    np.testing.assert_array_equal(ours[:, :, 0], indices)


def test_what_has_no_indices_is_refused_and_levels_of_grey_are_taken(program, tmp_path):
    image = photograph(31, 20)
    paths = [tmp_path / name for name in ("grey.png", "colour.png", "wide.png")]
    image.convert("L").save(paths[0])
    image.save(paths[1])
    Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 3).save(paths[2])
    refused = []
    decoding = '{ op = "decode-image", channels = 1, palette = "indices" }, { op = "center-crop", size = [20, 31] }'
    data = apply(program, tmp_path, decoding, paths, refused=refused)
    np.testing.assert_array_equal(np.frombuffer(data, np.uint8).reshape(20, 31), np.asarray(image.convert("L")))
    for line, reason in zip(refused, ["it has colours and no palette", "its levels have 16 bits, and 8 are read"]):
        assert line.endswith(f"the PNG file is not an image of indices: {reason}"), line
    assert len(refused) == 2


def pngs():
    image = photograph(131, 77)
    alpha = photograph(131, 77, 5).convert("L")
    with_alpha = image.copy()
    with_alpha.putalpha(alpha)
    palette = image.quantize(40)
    yield "rgb", image, {}
    yield "rgba", with_alpha, {}
    yield "grey", image.convert("L"), {}
    yield "grey-alpha", with_alpha.convert("LA"), {}
    yield "palette", palette, {}
    yield "palette-4-bits", image.quantize(11), {"bits": 4}
    yield "palette-2-bits", image.quantize(4), {"bits": 2}
    yield "palette-transparent", palette, {"transparency": bytes(range(0, 240, 6))}
    yield "one-bit", image.convert("1"), {}
    wide = np.asarray(image.convert("L")).astype(np.uint16) * 2
    yield "grey-16", Image.fromarray(wide), {}
    yield "grey-transparent", image.convert("L"), {"transparency": 120}
    yield "rgb-transparent", palette.convert("RGB"), {"transparency": palette.convert("RGB").getpixel((3, 3))}


PNGS = list(pngs())


@pytest.mark.parametrize("name,image,options", PNGS, ids=[name for name, _, _ in PNGS])
def test_png_is_decoded_as_pillow_decodes_it(program, tmp_path, name, image, options):
    path = tmp_path / f"{name}.png"
    image.save(path, **options)
    assert_decodes_as_pillow(program, tmp_path, path)


def chunk(name, body):
    return len(body).to_bytes(4, "big") + name + body + zlib.crc32(name + body).to_bytes(4, "big")


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_orientation_in_a_text_that_imagemagick_wrote(program, tmp_path, orientation, is_packed):
    exif = Image.Exif()
    exif[0x0112] = orientation
    block = exif.tobytes()
    digits = "\n".join(textwrap.wrap(block.hex(), 72))
    texts = PngImagePlugin.PngInfo()
    texts.add_text("Raw profile type exif", f"\nexif\n{len(block):8}\n{digits}\n", zip=is_packed)
    path = tmp_path / "image.png"
    photograph(90, 60).save(path, pnginfo=texts)
    with Image.open(path) as image:
        turned = ImageOps.exif_transpose(image)
    ours = decode(program, tmp_path, path, turned.size, options=", orientation = true")
    np.testing.assert_array_equal(ours, np.asarray(turned))


@pytest.mark.parametrize("colour,samples", [(2, 3), (4, 2), (6, 4)])
def test_png_of_16_bits_in_colour(program, tmp_path, colour, samples):
    random = np.random.default_rng(1)
    values = random.integers(0, 65536, (13, 21 * samples)).astype(">u2")
    rows = b"".join(b"\0" + row.tobytes() for row in values)
    header = (21).to_bytes(4, "big") + (13).to_bytes(4, "big") + bytes([16, colour, 0, 0, 0])
    path = tmp_path / "wide.png"
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    )
    assert_decodes_as_pillow(program, tmp_path, path)


def test_interlaced_png(program, tmp_path):
    image = np.asarray(photograph(45, 29))
    data = b""
    for y0, x0, dy, dx in [
        (0, 0, 8, 8),
        (0, 4, 8, 8),
        (4, 0, 8, 4),
        (0, 2, 4, 4),
        (2, 0, 4, 2),
        (0, 1, 2, 2),
        (1, 0, 2, 1),
    ]:
        data += b"".join(b"\0" + row.tobytes() for row in image[y0::dy, x0::dx])
    header = (45).to_bytes(4, "big") + (29).to_bytes(4, "big") + bytes([8, 2, 0, 0, 1])
    path = tmp_path / "interlaced.png"
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")
    )
    assert_decodes_as_pillow(program, tmp_path, path)


@pytest.mark.parametrize("lossless", [False, True])
@pytest.mark.parametrize("alpha", [False, True])
def test_webp_is_decoded_as_pillow_decodes_it(program, tmp_path, lossless, alpha):
    image = photograph(133, 77)
    if alpha:
        image.putalpha(photograph(133, 77, 5).convert("L"))
    path = tmp_path / "image.webp"
    image.save(path, lossless=lossless, quality=85)
    assert_decodes_as_pillow(program, tmp_path, path, tolerance=0 if lossless else 1)


def refused_of_lengths(program, tmp_path, whole, suffix, lengths):
    """The names of the files, cut off at the lengths, that are refused, and of those that Pillow refuses."""
    paths, expected, refused = [], [], []
    for length in lengths:
        path = tmp_path / f"{length}.{suffix}"
        path.write_bytes(whole[:length])
        paths.append(path)
        try:
            with Image.open(path) as image:
                image.convert("RGB")
        except Exception:
            expected.append(path.name)
    # A crop whose pixels are complete in most of the files.
    operations = '{ op = "decode-image" }, { op = "center-crop", size = 8 }'
    apply(program, tmp_path, operations, paths, refused=refused)
    return [pathlib.Path(line.split(": ")[0]).name for line in refused], expected


@pytest.mark.parametrize("lossless", [False, True])
@pytest.mark.parametrize("alpha", [False, True])
@pytest.mark.parametrize("cropped", [False, True])
def test_the_first_frame_of_an_animated_webp_is_pillows(program, tmp_path, lossless, alpha, cropped):
    """Colours under alpha 0 as they are stored, and a frame that is smaller than the canvas at its place."""
    frames = [photograph(120, 80, seed) for seed in (1, 2)]
    if alpha:
        opacity = np.zeros((80, 120), np.uint8)
        opacity[20:60, 30:90] = np.arange(60) * 4
        for frame in frames:
            frame.putalpha(Image.fromarray(opacity))
    if cropped:
        for frame in frames:
            frame.paste(0, (0, 0, 16, 80))
    path = tmp_path / "image.webp"
    frames[0].save(path, save_all=True, append_images=frames[1:], lossless=lossless, exact=True)
    assert_decodes_as_pillow(program, tmp_path, path, tolerance=0 if lossless else 1)


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp"])
def test_truncation_is_refused_where_pillow_refuses(program, tmp_path, suffix):
    whole = io.BytesIO()
    photograph(120, 90).save(whole, {"jpg": "JPEG"}.get(suffix, suffix))
    whole = whole.getvalue()
    lengths = [len(whole), *range(len(whole) - 40, len(whole)), len(whole) // 2, 200, 40]
    refused, expected = refused_of_lengths(program, tmp_path, whole, suffix, lengths)
    if suffix == "png":
        # Pillow stops reading when it has the pixels: it takes a file that lacks a part of its last 24 bytes.
        last = {f"{length}.png" for length in range(len(whole) - 24, len(whole))}
        assert set(refused) - last == set(expected) - last
        assert set(refused) >= set(expected)
    else:
        assert refused == expected


def assert_close(ours, expected, name):
    """The tolerance that the project promises: mean at most 1 level, 3 at the 99.9th percentile."""
    difference = np.abs(ours.astype(int) - expected.astype(int))
    assert difference.mean() <= 1, (name, difference.mean())
    assert np.percentile(difference, 99.9) <= 3, (name, np.percentile(difference, 99.9))


FILTERS = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
    "nearest": Image.Resampling.NEAREST,
}


@pytest.mark.parametrize("interpolation", FILTERS)
@pytest.mark.parametrize("size", [(500, 375), (375, 500), (1600, 1067), (90, 60)])
def test_resize_agrees_with_pillow(program, tmp_path, interpolation, size):
    path = tmp_path / "image.jpg"
    photograph(*size).save(path, quality=92)
    operations = f'{{ op = "decode-image" }}, {{ op = "resize", size = [224, 199], interpolation = "{interpolation}" }}'
    data = apply(program, tmp_path, operations, [path], 'image = { layout = "NHWC" }')
    ours = np.frombuffer(data, np.uint8).reshape(224, 199, 3)
    with Image.open(path) as image:
        expected = np.asarray(image.convert("RGB").resize((199, 224), FILTERS[interpolation]))
    assert_close(ours, expected, interpolation)


def test_resize_of_alpha_agrees_with_pillow(program, tmp_path):
    image = photograph(300, 200)
    image.putalpha(photograph(300, 200, 5).convert("L"))
    path = tmp_path / "image.png"
    image.save(path)
    operations = '{ op = "decode-image", channels = 4 }, { op = "resize", size = [64, 80] }'
    data = apply(program, tmp_path, operations, [path], 'image = { layout = "NHWC" }')
    ours = np.frombuffer(data, np.uint8).reshape(64, 80, 4)
    expected = np.asarray(image.resize((80, 64), Image.Resampling.BILINEAR))

    def seen(image):
        """Colours as they show: without opacity a colour is a quotient of small numbers."""
        return np.concatenate([image[..., :3] * (image[..., 3:] / 255), image[..., 3:]], axis=2)

    assert_close(seen(ours), seen(expected), "alpha")


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(500, 375), (375, 500), (300, 301), (1200, 800), (200, 130)])
def test_resize_256_and_center_crop_224_agree_with_torchvision(program, tmp_path, interpolation, size):
    transforms = pytest.importorskip("torchvision.transforms")
    path = tmp_path / "image.jpg"
    photograph(*size).save(path, quality=92)
    resize = f'{{ op = "resize", size = 256, interpolation = "{interpolation}" }}'
    operations = f'{{ op = "decode-image" }}, {resize}, {{ op = "center-crop", size = 224 }}'
    data = apply(program, tmp_path, operations, [path])
    ours = np.frombuffer(data, np.uint8).reshape(3, 224, 224)
    reference = transforms.Compose(
        [transforms.Resize(256, transforms.InterpolationMode(interpolation)), transforms.CenterCrop(224)]
    )
    with Image.open(path) as image:
        expected = np.asarray(reference(image.convert("RGB"))).transpose(2, 0, 1)
    assert_close(ours, expected, size)


@pytest.mark.parametrize("size,crop", [((61, 40), (70, 50)), ((61, 40), (30, 80)), ((64, 41), (31, 20))])
def test_center_crop_pads_as_torchvision(program, tmp_path, size, crop):
    transforms = pytest.importorskip("torchvision.transforms")
    image = photograph(*size)
    path = tmp_path / "image.png"
    image.save(path)
    operations = f'{{ op = "decode-image" }}, {{ op = "center-crop", size = [{crop[0]}, {crop[1]}] }}'
    data = apply(program, tmp_path, operations, [path], 'image = { layout = "NHWC" }')
    ours = np.frombuffer(data, np.uint8).reshape(*crop, 3)
    np.testing.assert_array_equal(ours, np.asarray(transforms.CenterCrop(crop)(image)))


def test_normalised_floats_are_torchvisions(program, tmp_path):
    transforms = pytest.importorskip("torchvision.transforms")
    image = photograph(64, 48)
    path = tmp_path / "image.png"
    image.save(path)
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    normalize = f'{{ op = "normalize", mean = {mean}, std = {std} }}'
    operations = f'{{ op = "decode-image" }}, {{ op = "center-crop", size = [48, 64] }}, {normalize}'
    data = apply(program, tmp_path, operations, [path])
    ours = np.frombuffer(data, np.float32).reshape(3, 48, 64)
    reference = transforms.Compose([transforms.ToTensor(), transforms.Normalize(mean, std)])
    np.testing.assert_array_equal(ours, reference(image).numpy())


def positions_image(width, height):
    """Red grows with x and green with y, so that a resized crop shows its box."""
    y, x = np.mgrid[0:height, 0:width]
    image = np.stack([x * 255 / (width - 1), y * 255 / (height - 1), 0 * x], axis=2)
    return Image.fromarray(np.rint(image).astype(np.uint8))


def test_random_resized_crops_are_distributed_as_torchvisions(program, tmp_path):
    torch = pytest.importorskip("torch")
    transforms = pytest.importorskip("torchvision.transforms")
    width, height, count = 400, 250, 1500
    path = tmp_path / "positions.png"
    positions_image(width, height).save(path)
    operations = '{ op = "decode-image" }, { op = "random-resized-crop", size = [32, 32] }'
    data = apply(program, tmp_path, operations, [path] * count, 'image = { layout = "NHWC" }')
    rows = np.frombuffer(data, np.uint8).reshape(count, 32, 32, 3).astype(float)

    def measure(rows):
        """Reads boxes from what became of the positions."""
        left, right = rows[:, :, 4, 0].mean(axis=1), rows[:, :, 27, 0].mean(axis=1)
        top, bottom = rows[:, 4, :, 1].mean(axis=1), rows[:, 27, :, 1].mean(axis=1)
        ratio = (right - left) * width / ((bottom - top) * height)
        return np.stack([(right - left) * (bottom - top), np.log(ratio), left + right, top + bottom])

    torch.manual_seed(3)
    with Image.open(path) as image:
        positions = image.convert("RGB")
    crop = transforms.RandomResizedCrop(32)
    reference = np.stack([np.asarray(crop(positions)) for _ in range(3 * count)]).astype(float)
    ours, reference = measure(rows), measure(reference)
    for name, a, b in zip(["area", "log ratio", "middle x", "middle y"], ours, reference):
        # Kolmogorov and Smirnov's distance; 1.95 is its critical value at 0.1 %. A little more for rounded pixels.
        points = np.sort(np.concatenate([a, b]))
        distance = np.abs(
            np.searchsorted(np.sort(a), points, side="right") / a.size
            - np.searchsorted(np.sort(b), points, side="right") / b.size
        ).max()
        assert distance < 1.95 * math.sqrt(1 / a.size + 1 / b.size) + 0.01, (name, distance)


def test_random_resized_crop_pixels_are_crop_then_resize(program, tmp_path):
    path = tmp_path / "image.jpg"
    photograph(500, 375).save(path, quality=92)
    # An area and a ratio that leave one box: the whole image.
    operations = (
        '{ op = "decode-image" }, { op = "random-resized-crop", size = 224, area = [1.0, 1.0], ratio = [1.0, 1.0] }'
    )
    data = apply(program, tmp_path, operations, [path], 'image = { layout = "NHWC" }')
    ours = np.frombuffer(data, np.uint8).reshape(224, 224, 3)
    with Image.open(path) as image:
        # Ten tries fail; the fallback is the central square.
        square = image.convert("RGB").crop((62, 0, 437, 375))
        expected = np.asarray(square.resize((224, 224), Image.Resampling.BILINEAR))
    assert_close(ours, expected, "central square")
