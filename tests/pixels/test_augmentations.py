"""Augmentations against torchvision v2's functionals on `uint8` tensors: to within one level.

Run as test_pixels.py is. What an operation draws is drawn here again, and given to torchvision.
"""

import math

import numpy as np
import pytest
from draws import Draws
from PIL import Image
from test_pixels import apply, photograph

torch = pytest.importorskip("torch")
F = pytest.importorskip("torchvision.transforms.v2.functional")

SIZES = [(61, 40), (64, 64), (33, 57), (200, 151)]
IMAGES = [(size, mode) for size in SIZES for mode in ("RGB", "L")]
SAMPLES = 6


class Case:
    """Images in files, and as tensors."""

    def __init__(self, tmp_path, size, mode, samples=SAMPLES):
        self.size, self.channels = size, {"L": 1, "RGB": 3}[mode]
        self.tmp_path, self.paths, self.tensors = tmp_path, [], []
        for seed in range(samples):
            image = photograph(*size, seed).convert(mode)
            self.paths.append(tmp_path / f"image-{seed}.png")
            image.save(self.paths[-1])
            pixels = np.asarray(image).reshape(size[1], size[0], self.channels).copy()
            self.tensors.append(torch.from_numpy(pixels).permute(2, 0, 1))

    def run(self, program, operations, size=None, channels=None):
        """The samples' images, channels first; their size is given where operations leave it open."""
        width, height = size or self.size
        decode = f'{{ op = "decode-image", channels = {self.channels} }}'
        # The size is known to the plan then, and is not changed.
        crop = f'{{ op = "center-crop", size = [{height}, {width}] }}'
        data = apply(program, self.tmp_path, f"{decode}, {operations}, {crop}", self.paths)
        return np.frombuffer(data, np.uint8).reshape(len(self.paths), channels or self.channels, height, width)


def assert_near(ours, expected, allowed=1, share=0.0):
    """Within `allowed` levels, but for a share of the pixels."""
    expected = expected.numpy()
    assert ours.shape == expected.shape
    off = np.abs(ours.astype(int) - expected) > allowed
    assert off.mean() <= share, (off.mean(), np.abs(ours.astype(int) - expected).max())


POINTS = [
    ("invert", "", F.invert),
    ("posterize", "bits = 3, ", lambda image: F.posterize(image, 3)),
    ("posterize", "bits = 0, ", lambda image: F.posterize(image, 0)),
    ("posterize", "bits = 8, ", lambda image: F.posterize(image, 8)),
    ("solarize", "threshold = 128, ", lambda image: F.solarize(image, 128)),
    ("solarize", "threshold = 99.5, ", lambda image: F.solarize(image, 99.5)),
    ("equalize", "", F.equalize),
    ("autocontrast", "", F.autocontrast),
    ("adjust-sharpness", "sharpness_factor = 0.3, ", lambda image: F.adjust_sharpness(image, 0.3)),
    ("adjust-sharpness", "sharpness_factor = 1.9, ", lambda image: F.adjust_sharpness(image, 1.9)),
]


@pytest.mark.parametrize("size,mode", IMAGES)
def test_levels_agree(program, tmp_path, size, mode):
    case = Case(tmp_path, size, mode, samples=2)
    for name, arguments, expected in POINTS:
        rows = case.run(program, f'{{ op = "{name}", {arguments} probability = 1.0 }}')
        for row, image in zip(rows, case.tensors):
            assert_near(row, expected(image))


@pytest.mark.parametrize("operation", ["equalize", "autocontrast", "adjust-sharpness", "gaussian-blur"])
def test_images_of_few_levels_and_few_pixels_agree(program, tmp_path, operation):
    functions = {
        "equalize": ("probability = 1.0", F.equalize),
        "autocontrast": ("probability = 1.0", F.autocontrast),
        "adjust-sharpness": ("sharpness_factor = 3, probability = 1.0", lambda i: F.adjust_sharpness(i, 3)),
        "gaussian-blur": ("kernel_size = 3, sigma = 0.7", lambda i: F.gaussian_blur(i, [3, 3], [0.7, 0.7])),
    }
    arguments, expected = functions[operation]
    for number, (height, width) in enumerate([(2, 2), (3, 3), (16, 16), (17, 2)]):
        for levels in ([7], [0, 255], [3, 4, 200]):
            pixels = np.random.default_rng(number).choice(levels, (height, width, 3)).astype(np.uint8)
            path = tmp_path / "image.png"
            Image.fromarray(pixels).save(path)
            operations = f'{{ op = "decode-image" }}, {{ op = "{operation}", {arguments} }}'
            crop = f'{{ op = "center-crop", size = [{height}, {width}] }}'
            data = apply(program, tmp_path, f"{operations}, {crop}", [path])
            ours = np.frombuffer(data, np.uint8).reshape(3, height, width)
            assert_near(ours, expected(torch.from_numpy(pixels).permute(2, 0, 1)))


JITTERS = [
    ("brightness", [0.4, 1.7], F.adjust_brightness),
    ("contrast", [0.3, 1.6], F.adjust_contrast),
    ("saturation", [0.0, 2.0], F.adjust_saturation),
    ("hue", [-0.5, 0.5], F.adjust_hue),
]


@pytest.mark.parametrize("size,mode", IMAGES)
def test_colours_agree(program, tmp_path, size, mode):
    case = Case(tmp_path, size, mode)
    for name, bounds, function in JITTERS:
        rows = case.run(program, f'{{ op = "color-jitter", {name} = {bounds} }}')
        for sample, (row, image) in enumerate(zip(rows, case.tensors)):
            draws = Draws(sample, 1)
            draws.shuffled(range(4))
            assert_near(row, function(image, draws.uniform(*bounds)))
    # All four, in the order that is drawn: each may add a level, and the next one's factor multiplies it.
    spread = "brightness = 0.4, contrast = 0.4, saturation = 0.4, hue = 0.1"
    rows = case.run(program, f'{{ op = "color-jitter", {spread} }}')
    for sample, (row, image) in enumerate(zip(rows, case.tensors)):
        draws = Draws(sample, 1)
        order = draws.shuffled(range(4))
        factors = [draws.uniform(0.6, 1.4) for _ in range(3)] + [draws.uniform(-0.1, 0.1)]
        for which in order:
            image = JITTERS[which][2](image, factors[which])
        assert_near(row, image, allowed=4)
        assert_near(row, image, share=0.02)


def test_every_colour_keeps_torchvisions_hue(program, tmp_path):
    """A grid of all colours, corners and greys included, turned by several angles."""
    steps = np.linspace(0, 255, 16).round().astype(np.uint8)
    pixels = np.stack(np.meshgrid(steps, steps, steps), axis=-1).reshape(64, 64, 3)
    path = tmp_path / "image.png"
    Image.fromarray(pixels).save(path)
    tensor = torch.from_numpy(pixels).permute(2, 0, 1)
    for turn in (-0.5, -0.21, 0.0, 0.04, 1 / 6, 0.5):
        jitter = f'{{ op = "color-jitter", hue = [{turn:.17f}, {turn:.17f}] }}'
        crop = '{ op = "center-crop", size = [64, 64] }'
        data = apply(program, tmp_path, f'{{ op = "decode-image" }}, {jitter}, {crop}', [path])
        assert_near(np.frombuffer(data, np.uint8).reshape(3, 64, 64), F.adjust_hue(tensor, turn))


@pytest.mark.parametrize("size,mode", IMAGES)
def test_grey_agrees(program, tmp_path, size, mode):
    case = Case(tmp_path, size, mode, samples=2)
    for channels in (1, 3):
        rows = case.run(program, f'{{ op = "grayscale", channels = {channels} }}', channels=channels)
        for row, image in zip(rows, case.tensors):
            assert_near(row, F.rgb_to_grayscale(image, channels))
    rows = case.run(program, '{ op = "random-grayscale", probability = 1.0 }')
    for row, image in zip(rows, case.tensors):
        assert_near(row, F.rgb_to_grayscale(image, case.channels))


@pytest.mark.parametrize("size,mode", IMAGES)
@pytest.mark.parametrize("kernel", [[3, 3], [23, 23], [5, 9], [1, 7]])
def test_blur_agrees(program, tmp_path, size, mode, kernel):
    case = Case(tmp_path, size, mode, samples=2)
    rows = case.run(program, f'{{ op = "gaussian-blur", kernel_size = {kernel}, sigma = [0.1, 3.0] }}')
    for sample, (row, image) in enumerate(zip(rows, case.tensors)):
        sigma = Draws(sample, 1).uniform(0.1, 3.0)
        assert_near(row, F.gaussian_blur(image, kernel, [sigma, sigma]))


MODES = [("nearest", F.InterpolationMode.NEAREST), ("bilinear", F.InterpolationMode.BILINEAR)]
# A place halfway between two pixels goes to either: torch's sums round differently.
TIES = {"nearest": 0.004, "bilinear": 0.0}


def fill_of(case):
    return [10.0, 200.0, 77.0][: case.channels]


@pytest.mark.parametrize("size,mode", IMAGES)
@pytest.mark.parametrize("name,interpolation", MODES)
def test_rotations_agree(program, tmp_path, size, mode, name, interpolation):
    case = Case(tmp_path, size, mode)
    arguments = f'interpolation = "{name}", fill = {fill_of(case)}'
    rows = case.run(program, f'{{ op = "rotate", degrees = [-180, 180], {arguments} }}')
    centred = case.run(program, f'{{ op = "rotate", degrees = 45, center = [10, 3], interpolation = "{name}" }}')
    for sample, image in enumerate(case.tensors):
        angle = Draws(sample, 1).uniform(-180, 180)
        expected = F.rotate(image, angle, interpolation, fill=fill_of(case))
        assert_near(rows[sample], expected, share=TIES[name])
        angle = Draws(sample, 1).uniform(-45, 45)
        expected = F.rotate(image, angle, interpolation, center=[10, 3], fill=0)
        assert_near(centred[sample], expected, share=TIES[name])
    for angle in (0, 90, 180, 270, 33):
        expected = F.rotate(case.tensors[0], angle, interpolation, expand=True, fill=0)
        angles = f"degrees = [{angle}, {angle}], expand = true"
        rows = case.run(
            program,
            f'{{ op = "rotate", {angles}, interpolation = "{name}" }}',
            size=(expected.shape[2], expected.shape[1]),
        )
        assert_near(rows[0], expected, share=TIES[name])


@pytest.mark.parametrize("size,mode", IMAGES)
@pytest.mark.parametrize("name,interpolation", MODES)
def test_affine_transformations_agree(program, tmp_path, size, mode, name, interpolation):
    case = Case(tmp_path, size, mode)
    arguments = "degrees = 30, translate = [0.1, 0.2], scale = [0.7, 1.4], shear = [-10, 10, -5, 15]"
    rows = case.run(program, f'{{ op = "affine", {arguments}, interpolation = "{name}", fill = {fill_of(case)} }}')
    for sample, (row, image) in enumerate(zip(rows, case.tensors)):
        draws = Draws(sample, 1)
        angle = draws.uniform(-30, 30)
        furthest = [0.1 * size[0], 0.2 * size[1]]
        translate = [round(draws.uniform(-most, most)) for most in furthest]
        scale = draws.uniform(0.7, 1.4)
        shear = [draws.uniform(-10, 10), draws.uniform(-5, 15)]
        expected = F.affine(image, angle, translate, scale, shear, interpolation, fill=fill_of(case))
        assert_near(row, expected, share=TIES[name])


@pytest.mark.parametrize("size,mode", IMAGES)
@pytest.mark.parametrize("name,interpolation", MODES)
def test_perspectives_agree(program, tmp_path, size, mode, name, interpolation):
    case = Case(tmp_path, size, mode)
    arguments = f'probability = 1.0, distortion_scale = 0.6, interpolation = "{name}", fill = {fill_of(case)}'
    rows = case.run(program, f'{{ op = "perspective", {arguments} }}')
    width, height = size
    for sample, (row, image) in enumerate(zip(rows, case.tensors)):
        draws = Draws(sample, 1)
        draws.uniform()
        bounds = [int(0.6 * (width // 2)) + 1, int(0.6 * (height // 2)) + 1]
        ends = []
        for is_right, is_below in [(0, 0), (1, 0), (1, 1), (0, 1)]:
            moved = [draws.below(bound) for bound in bounds]
            ends.append([(width - bounds[0]) * is_right + moved[0], (height - bounds[1]) * is_below + moved[1]])
        starts = [[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]]
        expected = F.perspective(image, starts, ends, interpolation, fill=fill_of(case))
        assert_near(row, expected, share=TIES[name])


@pytest.mark.parametrize("size,mode", IMAGES)
@pytest.mark.parametrize("beyond", ["constant", "edge", "reflect", "symmetric"])
def test_margins_agree(program, tmp_path, size, mode, beyond):
    case = Case(tmp_path, size, mode, samples=2)
    for given, padding in [("5", [5, 5, 5, 5]), ("[3, 12]", [3, 12, 3, 12]), ("[1, 0, 20, 9]", [1, 0, 20, 9])]:
        for fill in (fill_of(case), [0.0]):
            padded = (size[0] + padding[0] + padding[2], size[1] + padding[1] + padding[3])
            arguments = f'padding = {given}, padding_mode = "{beyond}", fill = {fill}'
            rows = case.run(program, f'{{ op = "pad", {arguments} }}', size=padded)
            for row, image in zip(rows, case.tensors):
                value = fill if beyond == "constant" else 0
                assert_near(row, F.pad(image, padding, value, beyond), allowed=0)


@pytest.mark.parametrize("beyond", ["constant", "reflect"])
@pytest.mark.parametrize("crop", [(40, 30), (66, 70)])
def test_random_crops_with_margins_agree(program, tmp_path, beyond, crop):
    case = Case(tmp_path, (61, 40), "RGB")
    arguments = f'size = [{crop[1]}, {crop[0]}], padding = 4, padding_mode = "{beyond}", fill = 9'
    rows = case.run(program, f'{{ op = "random-crop", {arguments} }}', size=crop)
    for sample, (row, image) in enumerate(zip(rows, case.tensors)):
        draws = Draws(sample, 1)
        sides = [61 + 8, 40 + 8]
        missing = [max(0, wanted - side) for wanted, side in zip(crop, sides)]
        choices = [abs(wanted - side) + 1 for wanted, side in zip(crop, sides)]
        top, left = draws.below(choices[1]), draws.below(choices[0])
        padding = [4 + missing[0], 4 + missing[1]] * 2
        padded = F.pad(image, padding, 9, beyond)
        assert_near(row, F.crop(padded, top, left, crop[1], crop[0]), allowed=0)


def test_flips_and_crops_that_wait_come_before_what_changes_pixels(program, tmp_path):
    """A rotation of a flipped part is not the flipped part of a rotation."""
    case = Case(tmp_path, (61, 40), "RGB", samples=1)
    before = '{ op = "random-horizontal-flip", probability = 1.0 }, { op = "center-crop", size = [40, 30] }'
    rotate = '{ op = "rotate", degrees = [20, 20], interpolation = "bilinear" }'
    rows = case.run(program, f"{before}, {rotate}", size=(30, 40))
    image = F.center_crop(F.horizontal_flip(case.tensors[0]), [40, 30])
    assert_near(rows[0], F.rotate(image, 20, F.InterpolationMode.BILINEAR, fill=0))


def test_probabilities_are_kept(program, tmp_path):
    path = tmp_path / "image.png"
    Image.new("L", (1, 1), 10).save(path)
    count = 4000
    operations = '{ op = "decode-image", channels = 1 }, { op = "invert", probability = 0.3 }, '
    data = apply(program, tmp_path, operations + '{ op = "center-crop", size = 1 }', [path] * count)
    share = (np.frombuffer(data, np.uint8) == 245).mean()
    assert abs(share - 0.3) < 5 * math.sqrt(0.3 * 0.7 / count)


# What the automatic augmentations choose from, by the bin of ten or more strengths: torchvision's own tables.
def table(of, bins, width, height):
    space = {}
    for name, (magnitudes, signed) in of._AUGMENTATION_SPACE.items():
        values = magnitudes(bins, height, width)
        space[name] = (None if values is None else [float(value) for value in values], signed)
    return space


class Chosen:
    """Transformations as an operation draws them, done by torchvision."""

    def __init__(self, of, bins, size, interpolation, fill=None):
        self.space = table(of, bins, *size)
        self.apply = of()._apply_image_or_video_transform
        self.arguments = (F.InterpolationMode(interpolation), {"others": fill})

    def one(self, image, name, draws, bin):
        """`bin` is the strength's number, or draws it."""
        strengths, is_signed = self.space[name]
        strength = 0.0
        if strengths is not None:
            strength = strengths[bin(draws) if callable(bin) else bin]
            if is_signed and draws.uniform() < 0.5:
                strength = -strength
        return self.apply(image, name, strength, *self.arguments)


def assert_chain_near(row, expected, interpolation="nearest"):
    """Some pixels may be a neighbour's, and a level that differs may be stretched by what follows."""
    difference = np.abs(row.astype(int) - expected.numpy())
    assert (difference > 1).mean() <= 0.03, (difference > 1).mean()
    assert difference.mean() < 1, difference.mean()


V2 = pytest.importorskip("torchvision.transforms.v2")
MANY = 40


@pytest.mark.parametrize("size,mode", [((61, 40), "RGB"), ((64, 64), "L"), ((200, 151), "RGB")])
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
def test_rand_augment_agrees(program, tmp_path, size, mode, interpolation):
    case = Case(tmp_path, size, mode, samples=MANY)
    for bins, magnitude, fill in [(31, 9, None), (11, 10, 50.0)]:
        arguments = f'num_magnitude_bins = {bins}, magnitude = {magnitude}, interpolation = "{interpolation}"'
        arguments += "" if fill is None else f", fill = {fill}"
        rows = case.run(program, f'{{ op = "rand-augment", num_ops = 1, {arguments} }}')
        chosen = Chosen(V2.RandAugment, bins, size, interpolation, fill)
        names, seen = list(chosen.space), set()
        for sample, (row, image) in enumerate(zip(rows, case.tensors)):
            draws = Draws(sample, 1)
            name = names[draws.below(len(names))]
            seen.add(name)
            expected = chosen.one(image, name, draws, magnitude)
            assert_near(row, expected, share=TIES[interpolation])
        assert len(seen) >= 10
    rows = case.run(program, '{ op = "rand-augment", num_ops = 3 }')
    chosen = Chosen(V2.RandAugment, 31, size, "nearest")
    for sample, (row, image) in enumerate(zip(rows, case.tensors)):
        draws = Draws(sample, 1)
        for _ in range(3):
            image = chosen.one(image, names[draws.below(len(names))], draws, 9)
        assert_chain_near(row, image)


@pytest.mark.parametrize("bins", [31, 2, 10])
def test_trivial_augment_agrees(program, tmp_path, bins):
    case = Case(tmp_path, (61, 40), "RGB", samples=2 * MANY)
    rows = case.run(program, f'{{ op = "trivial-augment-wide", num_magnitude_bins = {bins} }}')
    chosen = Chosen(V2.TrivialAugmentWide, bins, case.size, "nearest")
    names = list(chosen.space)
    for sample, (row, image) in enumerate(zip(rows, case.tensors)):
        draws = Draws(sample, 1)
        name = names[draws.below(len(names))]
        expected = chosen.one(image, name, draws, lambda draws: draws.below(bins))
        assert_near(row, expected, share=TIES["nearest"])


@pytest.mark.parametrize("policy", ["imagenet", "cifar10", "svhn"])
def test_auto_augment_agrees(program, tmp_path, policy):
    case = Case(tmp_path, (61, 40), "RGB", samples=2 * MANY)
    rows = case.run(program, f'{{ op = "auto-augment", policy = "{policy}" }}')
    chosen = Chosen(V2.AutoAugment, 10, case.size, "nearest")
    pairs = V2.AutoAugment()._get_policies(V2.AutoAugmentPolicy(policy))
    for sample, (row, image) in enumerate(zip(rows, case.tensors)):
        draws = Draws(sample, 1)
        for name, probability, bin in pairs[draws.below(len(pairs))]:
            if draws.uniform() < probability:
                image = chosen.one(image, name, draws, bin)
        assert_chain_near(row, image)


@pytest.mark.parametrize("all_ops", ["true", "false"])
def test_aug_mix_agrees(program, tmp_path, all_ops):
    case = Case(tmp_path, (61, 40), "RGB", samples=MANY)
    rows = case.run(program, f'{{ op = "aug-mix", severity = 5, all_ops = {all_ops} }}')
    chosen = Chosen(V2.AugMix, 10, case.size, "bilinear")
    names = list(V2.AugMix._AUGMENTATION_SPACE if all_ops == "true" else V2.AugMix._PARTIAL_AUGMENTATION_SPACE)
    for sample, (row, image) in enumerate(zip(rows, case.tensors)):
        draws = Draws(sample, 1)
        of_image, of_chains = draws.dirichlet(2)
        shares = [share * of_chains for share in draws.dirichlet(3)]
        mixed = image * np.float32(of_image)
        for share in shares:
            chain = image
            for _ in range(1 + draws.below(3)):
                name = names[draws.below(len(names))]
                chain = chosen.one(chain, name, draws, lambda draws: draws.below(5))
            mixed = mixed + chain * np.float32(share)
        assert_chain_near(row, mixed.to(torch.uint8))


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_erased_parts_agree(program, tmp_path, mode):
    case = Case(tmp_path, (61, 40), mode, samples=MANY)
    levels = [10, 200, 77][: case.channels]
    arguments = f"probability = 0.7, scale = [0.05, 0.9], ratio = [0.2, 6], value = {levels}"
    rows = case.run(program, f'{{ op = "random-erasing", {arguments} }}')
    erased = 0
    for sample, (row, image) in enumerate(zip(rows, case.tensors)):
        draws, expected = Draws(sample, 1), image
        for _ in range(10 if draws.uniform() < 0.7 else 0):
            area, ratio = 61 * 40 * draws.uniform(0.05, 0.9), math.exp(draws.uniform(math.log(0.2), math.log(6)))
            height, width = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if height < 40 and width < 61:
                top, left = draws.below(40 - height + 1), draws.below(61 - width + 1)
                value = torch.tensor(levels, dtype=torch.float32)[:, None, None]
                expected = F.erase(image, top, left, height, width, value)
                erased += 1
                break
        assert_near(row, expected, allowed=0)
    assert 15 <= erased <= 39
    noise = case.run(program, '{ op = "random-erasing", probability = 1.0, scale = [0.5, 0.5], value = "random" }')
    changed = noise != np.stack([image.numpy() for image in case.tensors])
    mean, deviation = ((0.449, 0.226), (0.485, 0.229))[case.channels == 3]
    found = noise[:, 0][changed[:, 0]] / 255
    assert abs(found.mean() - mean) < 0.01 and abs(found.std() - deviation) < 0.01
    assert 0.45 < changed.mean() < 0.51


def test_lists_of_operations_are_done_as_they_are_drawn(program, tmp_path):
    case = Case(tmp_path, (61, 40), "RGB", samples=MANY)
    never, always = "probability = 0.0", "probability = 1.0"
    invert, light = f'{{ op = "invert", {always} }}', '{ op = "color-jitter", brightness = [1.3, 1.3] }'
    rows = case.run(program, f'{{ op = "random-apply", operations = [{invert}, {light}], probability = 0.4 }}')
    chosen = case.run(program, f'{{ op = "random-choice", operations = [{invert}, {light}], probabilities = [3, 1] }}')
    ordered = case.run(program, f'{{ op = "random-order", operations = [{invert}, {light}] }}')
    unchanged = case.run(program, f'{{ op = "random-apply", operations = [{invert}], {never} }}')
    functions = [F.invert, lambda image: F.adjust_brightness(image, 1.3)]
    for sample, image in enumerate(case.tensors):
        draw = Draws(sample, 1).uniform()
        both = functions[1](functions[0](image))
        assert_near(rows[sample], both if draw < 0.4 else image)
        assert_near(chosen[sample], functions[draw >= 0.75](image))
        first, second = Draws(sample, 1).shuffled([0, 1])
        assert_near(ordered[sample], functions[second](functions[first](image)))
        assert_near(unchanged[sample], image, allowed=0)
