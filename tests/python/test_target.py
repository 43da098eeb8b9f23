"""What a loader is made of: a file, a dict, a folder, overrides and keyword arguments."""

import forebay
import pytest
from support import indices


def test_a_file_does_what_a_dict_does_and_keys_can_be_overridden(config, arrays_folder, tmp_path, monkeypatch):
    file = tmp_path / "train.toml"
    file.write_text(
        f'[dataset]\nformat = "npy"\npath = "{arrays_folder}"\n[order]\nshuffle = false\n'
        '[batch]\nsize = 8\n[[stage]]\nname = "preprocess"\noperations = []\n'
    )
    with forebay.Loader(file, overrides={"batch.size": 10, "order.epochs": 1}) as loader:
        assert loader.stream == "train"
        assert [len(batch["index"]) for batch in loader] == [10] * 4
        assert loader.epochs == 1
    # Relative paths of a dict start at the working directory.
    monkeypatch.chdir(arrays_folder.parent)
    relative = config()
    relative["dataset"]["path"] = arrays_folder.name
    with forebay.Loader(relative) as loader:
        assert len(loader) == 5


def test_a_dict_may_have_keys_with_dots(arrays_folder):
    keys = {
        "dataset.format": "npy",
        "dataset.path": str(arrays_folder),
        "batch": {"size": 8},
        "batch.last": "short",
        "order": {"epochs": 1, "shuffle": False},
        "stage": [{"name": "preprocess", "operations": []}],
        "stage.preprocess.concurrency": 1,
    }
    with forebay.Loader(keys) as loader:
        assert indices(loader) == list(range(40)) and loader.epochs == 1
    # `overrides` are over them.
    with forebay.Loader(keys, overrides={"order.epochs": 2}) as loader:
        assert loader.epochs == 2
    with pytest.raises(forebay.ConfigError, match=r"batch\.siez.*did you mean `batch\.size`"):
        forebay.Loader({**keys, "batch.siez": 4})
    with pytest.raises(forebay.ConfigError, match=r"`batch\.size` is given twice"):
        forebay.Loader({**keys, "batch.size": 4})


@pytest.fixture
def classes_folder(tmp_path):
    """Two classes with three images each."""
    image = pytest.importorskip("PIL.Image")
    for number in range(6):
        folder = tmp_path / "data" / "ab"[number // 3]
        folder.mkdir(parents=True, exist_ok=True)
        image.new("RGB", (32, 24), (number, 0, 0)).save(folder / f"{number}.png")
    return tmp_path / "data"


def test_a_folder_is_loaded_with_a_preset_and_keyword_arguments(classes_folder, make_loader, monkeypatch):
    keys = {"batch_size": 2, "preset": "imagenet-train", "epochs": 1, "seed": 5, "shuffle": False}
    with make_loader(str(classes_folder), **keys) as loader:
        batches = list(loader)
        assert loader.epochs == 1 and batches[0]["image"].shape == (2, 3, 224, 224)
        assert [int(label) for batch in batches for label in batch["label"]] == [0, 0, 0, 1, 1, 1]
        assert indices(batches) == list(range(6))
        state = loader.state_dict()
    with pytest.raises(forebay.StateMismatch, match=r"order\.seed"):
        make_loader(classes_folder, **{**keys, "seed": 6}, state=state)
    # None is as if left out.
    with make_loader(classes_folder, batch_size=3, preset="imagenet-eval", epochs=None) as loader:
        assert loader.epochs is None and len(loader) == 2
    monkeypatch.chdir(classes_folder.parent)
    with make_loader("./data", **keys) as loader:
        assert len(loader) == 3
    monkeypatch.delenv("FOREBAY_SOCKET", raising=False)
    with pytest.raises(forebay.ConfigError, match=r"`data` is a folder here.*did you mean `\./data`"):
        make_loader("data", **keys)


def test_keyword_arguments_are_keys_over_those_of_a_file_or_a_dict(config, arrays_folder, tmp_path):
    file = tmp_path / "train.toml"
    file.write_text(
        f'[dataset]\nformat = "npy"\npath = "{arrays_folder}"\n[order]\nepochs = 9\n'
        '[batch]\nsize = 8\n[[stage]]\nname = "preprocess"\noperations = []\n'
    )
    for target in (file, config()):
        with forebay.Loader(target, batch_size=10, epochs=1, shuffle=False) as loader:
            assert (loader.batch_size, loader.epochs, indices(loader)) == (10, 1, list(range(40)))
    with pytest.raises(forebay.ConfigError, match=r"`batch\.size` is given twice.*overrides"):
        forebay.Loader(file, batch_size=10, overrides={"batch.size": 8})
    with pytest.raises(TypeError, match=r"'batchsize'; did you mean 'batch_size'"):
        forebay.Loader(file, batchsize=10)
    with pytest.raises(TypeError, match=r"'decoder'; other keys go into `overrides`"):
        forebay.Loader(file, decoder="fast")


def test_a_folder_alone_is_refused_with_what_to_add(classes_folder, monkeypatch):
    with pytest.raises(forebay.ConfigError, match=r"is a folder.*preset=\"imagenet-train\""):
        forebay.Loader(classes_folder)
    with pytest.raises(forebay.ConfigError, match=r"batch\.size"):
        forebay.Loader(classes_folder, preset="imagenet-train")
    # A bare word is a stream's name, also where a folder has it.
    monkeypatch.chdir(classes_folder.parent)
    with pytest.raises(forebay.ConfigError, match=r"`\./data`"):
        forebay.Loader("data", preset="imagenet-train")
