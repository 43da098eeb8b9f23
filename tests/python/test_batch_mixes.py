"""MixUp and CutMix through a daemon: against the same batches unmixed, and the same after a restart and a resume."""

import forebay
import numpy
import pytest
from support import arrays_of, config_of, write_pictures

SAMPLES, SIZE = 44, 8


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """44 small pictures in four classes."""
    return write_pictures(tmp_path_factory.mktemp("mixed"), SAMPLES, lambda sample: sample % 4)


def config(pictures, operations, **output):
    preprocess = [
        {"op": "decode-image"},
        {"op": "random-resized-crop", "size": 24},
        {"op": "rand-augment"},
        {"op": "random-erasing", "value": "random"},
    ]
    return config_of(
        {"format": "image-folder", "path": str(pictures)},
        preprocess,
        order={"seed": 5, "epochs": 2},
        batch={"size": SIZE, "operations": operations},
        output={"image": output} if output else {},
    )


def batches(config, state=None):
    with forebay.Loader(config, timeout=120, state=state) as loader:
        return [{**arrays_of(batch), "state": loader.state_dict()} for _ in loader.epochs_left() for batch in loader]


CHOICE = [{"op": "choice", "operations": [{"op": "mixup", "alpha": 0.8}, {"op": "cutmix"}]}]


@pytest.mark.parametrize("output", [{}, {"dtype": "float32", "layout": "NHWC"}])
def test_batches_are_the_unmixed_ones_mixed_in_pairs(pictures, output):
    plain, mixed = batches(config(pictures, [], **output)), batches(config(pictures, CHOICE, **output))
    assert len(plain) == len(mixed) == 12
    sums = 0
    for before, after in zip(plain, mixed):
        numpy.testing.assert_array_equal(before["index"], after["index"])
        numpy.testing.assert_array_equal(before["label"], after["label"])
        numpy.testing.assert_array_equal(before["label"][::-1], after["label_b"])
        assert after["label_b"].dtype == numpy.int64 and after["mix"].dtype == numpy.float32
        assert (after["mix"] == after["mix"][0]).all()
        share = after["mix"][0]
        own, partner = before["image"], before["image"][::-1]
        summed = own * share + partner * (1 - share)
        if own.dtype == numpy.uint8:
            summed = numpy.rint(summed).astype(numpy.uint8)
        is_own, is_partner = after["image"] == own, after["image"] == partner
        if (is_own | is_partner).all():
            # The middle row of an odd number is its own partner.
            rows = [row for row in range(len(own)) if row != len(own) - 1 - row]
            assert abs(is_own[rows].mean() - share) < 0.03
        else:
            sums += 1
            numpy.testing.assert_allclose(after["image"], summed, atol=1e-6)
    assert 1 <= sums <= 11


def test_soft_labels_are_the_shares_of_the_classes(pictures):
    operations = [{"op": "mixup", "alpha": 0.3, "classes": 4}]
    plain, mixed = batches(config(pictures, [])), batches(config(pictures, operations))
    for before, after in zip(plain, mixed):
        assert after["label"].shape == (len(before["label"]), 4) and after["label"].dtype == numpy.float32
        assert "mix" not in after and "label_b" not in after
        numpy.testing.assert_allclose(after["label"].sum(axis=1), 1, atol=1e-6)
        one_hot = numpy.eye(4, dtype=numpy.float32)[before["label"]]
        shares = after["label"][before["label"] != before["label"][::-1]].max(axis=1)
        share = shares[0] if len(shares) else 1
        either = [one_hot * s + one_hot[::-1] * (1 - s) for s in (share, 1 - share)]
        assert min(numpy.abs(after["label"] - each).max() for each in either) < 1e-6


def test_mixed_batches_are_the_same_again_and_after_a_resume(pictures):
    first, again = batches(config(pictures, CHOICE)), batches(config(pictures, CHOICE))
    resumed = batches(config(pictures, CHOICE), state=first[3]["state"])
    assert len(resumed) == len(first) - 4
    for one, other in list(zip(first, again)) + list(zip(first[4:], resumed)):
        for name in ("image", "label", "label_b", "mix", "index"):
            numpy.testing.assert_array_equal(one[name], other[name])


def test_a_state_of_other_batch_operations_is_refused(pictures):
    state = batches(config(pictures, CHOICE))[2]["state"]
    with pytest.raises(forebay.StateMismatch, match="operations"):
        batches(config(pictures, [{"op": "mixup"}]), state=state)


def test_the_strong_preset_gives_mixed_batches(pictures):
    with forebay.Loader(f"{pictures}/", preset="imagenet-train-strong", batch_size=4, timeout=120) as loader:
        batch = next(iter(loader))
    assert batch["image"].shape == (4, 3, 224, 224) and batch["image"].dtype == numpy.uint8
    assert set(batch) == {"image", "label", "label_b", "mix", "index"}
