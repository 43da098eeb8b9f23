"""The names of a dataset: classes in label order, and the file of a sample."""

import os
import signal

import forebay
import numpy
import pytest
from support import config_of, indices, wait_until

Image = pytest.importorskip("PIL.Image")


@pytest.fixture
def folders(tmp_path):
    """Four classes, one without samples; the configuration of batches of three."""
    for name, count in [("zebra", 4), ("Ärger", 3), ("empty", 0), ("ant", 5)]:
        (tmp_path / name).mkdir()
        for number in range(count):
            Image.new("RGB", (8, 8), (number, 2, 3)).save(tmp_path / name / f"{number}.png")
    operations = [{"op": "decode-image"}, {"op": "resize", "size": [8, 8]}]
    dataset = {"format": "image-folder", "path": str(tmp_path)}
    return config_of(dataset, operations, order={"seed": 5, "epochs": 2}, batch={"size": 3})


def check_paths(loader, batch):
    paths = loader.paths(batch["index"])
    for path, index, label in zip(paths, batch["index"], batch["label"]):
        assert path == loader.path(index) and os.path.isfile(path)
        assert os.path.basename(os.path.dirname(path)) == loader.classes[int(label)]
    return paths


def test_labels_have_their_class_and_ids_their_file(folders, make_loader):
    with make_loader(folders) as loader:
        assert loader.classes == ["ant", "empty", "zebra", "Ärger"]
        batches = iter(loader)
        seen = check_paths(loader, next(batches))
        state = loader.state_dict()
        for wrong in (-1, 12, 2**63):
            with pytest.raises(IndexError, match=r"samples 0 to 11"):
                loader.path(wrong)
        # Nothing was lost by asking.
        seen += [path for batch in batches for path in check_paths(loader, batch)]
        assert len(set(seen)) == 12
    with make_loader(folders, state=state) as loader:
        assert [path for batch in loader for path in loader.paths(batch["index"])] == seen[3:]
    shares = []
    for rank in range(2):
        with make_loader(folders, rank=rank, world_size=2) as loader:
            shares += [path for batch in loader for path in check_paths(loader, batch)]
    assert sorted(shares) == sorted(seen)


def test_labels_of_all_samples_come_without_reading_one(folders, make_loader):
    with make_loader(folders) as loader:
        labels = loader.labels
        assert not labels.flags.writeable, "it is the loader's own"
        assert labels.dtype == numpy.int64 and labels.tolist() == [0] * 5 + [2] * 4 + [3] * 3
        for batch in loader:
            assert labels[numpy.asarray(batch["index"])].tolist() == numpy.asarray(batch["label"]).tolist()


def test_more_labels_than_a_frame_holds_are_those_of_the_manifest(tmp_path):
    names = ["ant", "bee", "cow"]
    wanted = [number * number % 3 for number in range(20_001)]
    rows = [f"text {number},{names[label]}" for number, label in enumerate(wanted)]
    (tmp_path / "rows.csv").write_text("\n".join(["text,label", *rows, ""]))
    fields = {"text": {"from": "text"}, "label": {"from": "label", "classes": names}}
    config = config_of({"format": "manifest", "path": str(tmp_path / "rows.csv"), "fields": fields})
    with forebay.Loader(config) as loader:
        assert loader.labels.tolist() == wanted
        # A draw by class: each class weighs the same.
        weights = 1 / numpy.bincount(loader.labels)[loader.labels]
    drawn = {**config, "order": {"weights": weights, "samples_per_epoch": 3000, "epochs": 1}}
    with forebay.Loader(drawn) as loader:
        counts = numpy.bincount(numpy.concatenate([batch["label"] for batch in loader]), minlength=3)
        assert counts[2] == 0 and abs(counts[0] - counts[1]) < 300


def test_labels_that_only_samples_have_are_refused_with_the_remedy(config):
    with forebay.Loader(config()) as loader:
        with pytest.raises(
            forebay.ConfigError, match=r"not in the index of the dataset: .* read the others from the batches"
        ):
            loader.labels  # noqa: B018
        # The session goes on.
        assert indices(loader) == list(range(40))


def test_arrays_without_classes_have_none_and_a_restart_changes_no_name(config):
    with forebay.Loader(config()) as loader:
        assert loader.classes == []
        before = loader.paths(range(40))
        assert [os.path.basename(path) for path in before] == [f"{sample:03}.npy" for sample in range(40)]
        batches = iter(loader)
        first = next(batches)
        os.kill(loader.daemon_pid, signal.SIGKILL)
        assert loader.paths(range(40)) == before
        wait_until(lambda: loader.restarts == 1, "a restart")
        assert indices([first]) + indices(batches) == list(range(40))


def test_more_classes_than_a_frame_holds_come_whole(tmp_path):
    names = sorted(f"{number:05}-{'x' * 200}" for number in range(1500))
    for name in names:
        (tmp_path / name).mkdir()
        numpy.savez(tmp_path / name / "0.npz", value=numpy.zeros(3))
    config = config_of({"format": "npz", "path": str(tmp_path)})
    with forebay.Loader(config) as loader:
        assert loader.classes == names
        paths = loader.paths(reversed(range(1500)))
        assert paths == [str(tmp_path / name / "0.npz") for name in reversed(names)]
