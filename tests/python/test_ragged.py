"""Ragged fields as padded arrays, and on other devices."""

import forebay
import numpy
import pytest

KINDS = ["numpy", "torch", "jax"]


def made(kind, rows, row_shape=(), dtype="float32"):
    """Rows of a region in which other elements lie between them."""
    offsets, parts, place = [], [], 0
    for row in rows:
        elements = numpy.asarray(row, dtype).reshape(-1)
        parts += [numpy.full(2, 77, dtype), elements]
        offsets.append(place + 2)
        place += 2 + len(elements)
    values = numpy.concatenate(parts) if parts else numpy.empty(0, dtype)
    lengths = numpy.array([numpy.asarray(row).size for row in rows], numpy.int64)
    arrays = [values, numpy.array(offsets, numpy.int64), lengths]
    if kind == "torch":
        torch = pytest.importorskip("torch")
        arrays = [torch.from_numpy(array) for array in arrays]
    elif kind == "jax":
        jax = pytest.importorskip("jax")
        arrays = [jax.numpy.asarray(array) for array in arrays]
    return forebay.Ragged(*arrays, row_shape)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_padded_to_the_longest_a_multiple_and_a_maximum(kind):
    ragged = made(kind, [[1, 2, 3], [], [4, 5, 6, 7, 8]])
    padded = ragged.padded(-1)
    assert type(padded) is type(ragged.values) and padded.dtype == ragged.values.dtype
    assert padded.tolist() == [[1, 2, 3, -1, -1], [-1] * 5, [4, 5, 6, 7, 8]]
    assert ragged.mask().tolist() == [[True] * 3 + [False] * 2, [False] * 5, [True] * 5]
    assert ragged.padded(0, multiple_of=4).shape == (3, 8) and ragged.mask(multiple_of=4).shape == (3, 8)
    assert ragged.padded(0, max_length=2).tolist() == [[1, 2], [0, 0], [4, 5]]
    assert ragged.padded(0, multiple_of=16, max_length=16).shape == (3, 16)
    # The result is a copy, and the rows stay.
    assert [row.tolist() for row in ragged] == [[1, 2, 3], [], [4, 5, 6, 7, 8]]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_several_dimensions_and_batches_without_elements_are_padded(kind):
    boxes = made(kind, [[[1, 2], [3, 4]], [], [[5, 6]]], row_shape=(2,))
    assert boxes.padded(0).tolist() == [[[1, 2], [3, 4]], [[0, 0]] * 2, [[5, 6], [0, 0]]]
    assert boxes.mask().tolist() == [[True, True], [False, False], [True, False]]
    assert boxes.padded(9, max_length=1).tolist() == [[[1, 2]], [[9, 9]], [[5, 6]]]
    assert made(kind, [[], []], row_shape=(4,)).padded(0).shape == (2, 0, 4)
    assert made(kind, []).padded(0).shape == (0, 0)


def test_every_type_of_a_tensor_is_padded():
    torch = pytest.importorskip("torch")
    for dtype in (torch.bfloat16, torch.float16, torch.float64, torch.uint8, torch.int64, torch.bool):
        values = torch.tensor([1, 0, 1]).to(dtype)
        ragged = forebay.Ragged(values, torch.tensor([0, 2]), torch.tensor([2, 1]))
        assert torch.equal(ragged.padded(0), torch.tensor([[1, 0], [1, 0]]).to(dtype)), dtype


@pytest.mark.parametrize("options", [{"multiple_of": 0}, {"max_length": 0}, {"multiple_of": 8, "max_length": 12}])
def test_numbers_that_cannot_pad_are_refused(options):
    with pytest.raises(ValueError, match="max_length = "):
        made("numpy", [[1]]).padded(0, **options)


def test_rows_move_to_a_device_where_their_arrays_have_one():
    torch = pytest.importorskip("torch")
    ragged = made("torch", [[1, 2], [3]])
    moved = ragged.to("meta")
    assert {part.device.type for part in (moved.values, moved.offsets, moved.lengths)} == {"meta"}
    assert [row.tolist() for row in ragged.to(torch.device("cpu"), non_blocking=True)] == [[1, 2], [3]]
    jax = pytest.importorskip("jax")
    assert [row.tolist() for row in made("jax", [[1, 2], [3]]).to(jax.devices("cpu")[0])] == [[1, 2], [3]]
    with pytest.raises(TypeError, match=r"forebay\.torch\.Loader"):
        made("numpy", [[1]]).to("cuda")
