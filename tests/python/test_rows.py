"""`forebay.Dataset`: samples by index, equal to a loader's, in threads, forked and spawned processes."""

import pickle
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import forebay
import numpy as np
import pytest
import torch
from PIL import Image


@pytest.fixture(autouse=True)
def _own_sockets(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Shared daemons of other tests are not met."""
    # A socket's path is at most 107 bytes long.
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield


def _pictures(folder: Path, keys: str = "") -> str:
    for number in range(24):
        place = folder / "data" / f"class-{number % 3}"
        place.mkdir(parents=True, exist_ok=True)
        Image.effect_noise((60, 50), 80).convert("RGB").save(place / f"{number:02}.png")
    path = folder / "train.toml"
    path.write_text(
        f'preset = "imagenet-train"\ndataset.path = "{folder}/data"\nbatch.size = 8\nbatch.last = "short"\n'
        f'cpu.policy = "normal"\n{keys}'
    )
    return str(path)


def _rows(config: str, epoch: int) -> dict[int, dict[str, Any]]:
    with forebay.Loader(config) as loader:
        loader.set_epoch(epoch)
        return {
            int(index): {name: values[row].copy() for name, values in batch.items()}
            for batch in loader
            for row, index in enumerate(batch["index"])
        }


def _are_equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def test_loader_shows_samples_of_any_epoch_beside_its_batches(tmp_path: Path) -> None:
    mixes = 'batch.operations = [{ op = "mixup", alpha = 0.4, classes = 3 }]'
    config = _pictures(tmp_path, mixes)
    plain = {"batch.operations": []}
    with forebay.Loader(config) as loader, forebay.Loader(config, overrides=plain) as without_mixes:
        batches = iter(loader)
        first, expected = next(batches), next(iter(without_mixes))
        ids = expected["index"]
        assert np.array_equal(first["index"], ids)
        found = loader.samples(ids)
        assert found.keys() == expected.keys()
        assert all(np.array_equal(found[name], expected[name]) for name in found)
        assert not np.array_equal(loader.samples(ids[:2], epoch=5)["image"], found["image"][:2])
        assert len(list(batches)) == 2, "the rest of its epoch"


def test_samples_by_index_are_a_loaders(tmp_path: Path) -> None:
    config = _pictures(tmp_path)
    dataset = forebay.Dataset(config)
    assert len(dataset) == 24
    for epoch in (0, 2):
        dataset.set_epoch(epoch)
        expected = _rows(config, epoch)
        assert all(_are_equal(dataset[index], expected[index]) for index in (0, 23, 7, np.int64(5)))
        assert _are_equal(dataset[-1], expected[23])
        assert [int(row["index"]) for row in dataset] == list(range(24))
        assert all(_are_equal(row, expected[index]) for index, row in enumerate(dataset))
        for indices in (slice(3, 20), [4, 4, 1], np.array([9, 2]), slice(None, None, -1)):
            numbers = list(range(24))[indices] if isinstance(indices, slice) else [int(one) for one in indices]
            found = dataset[indices]
            assert found["index"].tolist() == numbers
            assert np.array_equal(found["image"], np.stack([expected[one]["image"] for one in numbers]))
    for wrong in (24, -25):
        with pytest.raises(IndexError, match="of 24 samples"):
            dataset[wrong]
    with pytest.raises(TypeError):
        dataset["0"]
    dataset.close()
    assert int(dataset[3]["index"]) == 3, "the next use opens another session"
    dataset.close()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_a_data_loader_have_sessions_of_their_own(tmp_path: Path, method: str) -> None:
    config = _pictures(tmp_path)
    dataset = forebay.Dataset(config, epoch=1)
    expected = _rows(config, 1)
    assert _are_equal(dataset[0], expected[0]), "the parent's session is open at the fork"
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=5, shuffle=True, num_workers=4, multiprocessing_context=method
    )
    seen = []
    for batch in loader:
        for row, index in enumerate(batch["index"].tolist()):
            seen.append(index)
            assert np.array_equal(batch["image"][row].numpy(), expected[index]["image"])
    assert sorted(seen) == list(range(24))
    assert _are_equal(dataset[1], expected[1]), "the parent's session goes on"
    dataset.close()


def test_threads_share_a_dataset_and_a_copy_is_another_session(tmp_path: Path) -> None:
    config = _pictures(tmp_path)
    dataset, expected = forebay.Dataset(config), _rows(config, 0)
    copy = pickle.loads(pickle.dumps(dataset))
    assert len(copy) == 24 and _are_equal(copy[2], expected[2])
    wrong = []

    def take(first: int) -> None:
        wrong.extend(index for index in range(first, 24, 12) if not _are_equal(dataset[index], expected[index]))

    threads = [threading.Thread(target=take, args=(first,)) for first in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    copy.close()
    dataset.close()


def test_a_bad_sample_is_an_error_of_its_index_alone(tmp_path: Path) -> None:
    config = _pictures(tmp_path, 'errors.on_bad_sample = "substitute"\n')
    (tmp_path / "data" / "class-0" / "03.png").write_bytes(b"no picture")
    dataset = forebay.Dataset(config, shared=False)
    # The second file of the first class.
    with pytest.raises(forebay.BadSample, match=r"03\.png"):
        dataset[1]
    with pytest.raises(forebay.BadSample):
        dataset[:3]
    assert int(dataset[2]["index"]) == 2
    dataset.close()


def test_what_has_no_rows_by_index_is_refused(tmp_path: Path) -> None:
    config = _pictures(tmp_path)
    mixes = {"batch.operations": [{"op": "mixup", "alpha": 0.2}], "output.image.dtype": "float32"}
    with pytest.raises(forebay.ConfigError, match=r"batch\.operations"):
        forebay.Dataset(config, overrides=mixes, shared=False)
    with pytest.raises(forebay.ConfigError, match="items by index already"):
        forebay.Dataset([1, 2, 3], batch_size=2)
    with pytest.raises(ValueError, match="counted from 0"):
        forebay.Dataset(config, epoch=-1)
