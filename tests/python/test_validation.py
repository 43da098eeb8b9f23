"""The claims of docs/how-to/validation.md."""

import forebay
import pytest


@pytest.fixture
def validation(config):
    keys = config(size=4)
    keys["order"] = {"shuffle": False}
    keys["batch"]["last"] = "short"
    return keys


def ids(loader):
    return [id for batch in loader for id in batch["index"].tolist()]


def test_each_validation_has_all_samples_in_order(validation):
    validation["batch"]["size"] = 12
    with forebay.Loader(validation) as loader:
        assert loader.num_samples == 40 and len(loader) == 4
        for _ in range(3):
            assert ids(loader) == list(range(40))
        next(iter(loader))
        loader.set_epoch(0)
        assert ids(loader) == list(range(40))


@pytest.mark.parametrize("world_size", [2, 3, 7])
def test_padding_gives_ranks_equal_batches_and_each_sample_is_valid_once(validation, world_size):
    validation["batch"]["last"] = "pad"
    seen, counts = [], set()
    for rank in range(world_size):
        with forebay.Loader(validation, rank=rank, world_size=world_size, compare_ranks=False) as loader:
            batches = [(batch["index"].tolist(), batch["valid"].tolist()) for batch in loader]
        assert all(len(index) == 4 for index, _ in batches)
        counts.add(len(batches))
        seen += [id for index, valid in batches for id, is_valid in zip(index, valid) if is_valid]
    assert len(counts) == 1 and sorted(seen) == list(range(40))


@pytest.mark.parametrize("world_size", [2, 3])
def test_short_batches_have_each_sample_once_over_all_ranks(validation, world_size):
    seen = []
    for rank in range(world_size):
        with forebay.Loader(validation, rank=rank, world_size=world_size, compare_ranks=False) as loader:
            seen += ids(loader)
    assert sorted(seen) == list(range(40))


def test_a_validation_between_two_batches_does_not_move_training(config, validation):
    with forebay.Loader(config(size=4)) as train, forebay.Loader(validation) as loader:
        seen = []
        for number, batch in enumerate(train):
            seen += batch["index"].tolist()
            if number == 3:
                before = train.state_dict()
                assert ids(loader) == list(range(40))
                assert train.state_dict() == before
        assert seen == list(range(40))
