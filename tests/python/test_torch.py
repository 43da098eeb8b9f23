"""forebay.torch.Loader: tensors that share the slot's memory."""

import gc
import sys
import warnings

import forebay
import pytest
from support import run_script

torch = pytest.importorskip("torch")


def test_tensors_are_writable_views_that_keep_their_slot(config):
    with forebay.torch.Loader(config()) as loader:
        kept = next(iter(loader))
        assert kept["array"].dtype == torch.float32 and kept["array"].shape == (8, 3, 3072)
        assert kept["index"].dtype == torch.int64
        kept["array"][0] = 9
        view = kept["array"][0]
        del kept
        gc.collect()
        assert loader.stats()["client"]["held"] == 1
        assert (view == 9).all()
        del view
        gc.collect()
        assert loader.stats()["client"]["held"] == 0


def test_a_loop_keeps_no_batch_but_its_own(config):
    with forebay.torch.Loader(config()) as loader:
        held = []
        for batch in loader:
            del batch
            held.append(loader.stats()["client"]["held"])
        assert held == [0] * 5


@pytest.mark.parametrize("knows_numpy_the_type", [True, False])
def test_bfloat16_comes_as_torch_knows_it(narrow, monkeypatch, knows_numpy_the_type):
    if knows_numpy_the_type:
        pytest.importorskip("ml_dtypes")
    else:
        monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with forebay.torch.Loader(narrow) as loader:
        array = next(iter(loader))["array"]
    assert array.dtype == torch.bfloat16 and float(array[3, 0, 0]) == 3.0


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_images_are_nchw_shaped_in_the_memory_format_of_their_layout(picture, layout):
    pixels, config = picture
    with forebay.torch.Loader(config(layout)) as loader:
        tensor = next(iter(loader))["image"]
        assert tensor.shape == (1, 3, 6, 4)
        format = torch.channels_last if layout == "NHWC" else torch.contiguous_format
        assert tensor.is_contiguous(memory_format=format)
        assert (tensor[0].permute(1, 2, 0).numpy() == pixels).all()


def test_another_device_is_refused_with_what_to_do(config):
    with pytest.raises(forebay.ConfigError, match=r"CPU.*to\(device\)"):
        forebay.torch.Loader(config(), device="meta")


class MakesItsLoader(torch.utils.data.IterableDataset):
    """What a first attempt writes: a loader in each worker."""

    def __init__(self, config):
        self.config = config

    def __iter__(self):
        with forebay.torch.Loader(self.config) as loader:
            for batch in loader:
                yield {name: field.clone() for name, field in batch.items()}


@pytest.mark.parametrize("workers", [1, 2])
def test_a_loader_in_a_data_loaders_worker_is_refused(config, workers):
    batches = torch.utils.data.DataLoader(MakesItsLoader(config()), batch_size=None, num_workers=workers)
    with pytest.raises(forebay.ConfigError, match=rf"worker \d of {workers} .*main process.*for batch in loader"):
        next(iter(batches))
    # In the main process nothing comes twice.
    here = torch.utils.data.DataLoader(MakesItsLoader(config()), batch_size=None, num_workers=0)
    assert sum(1 for _ in here) == 5


@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_loader_over_a_loader_is_refused_with_what_to_write(config, workers):
    with forebay.torch.Loader(config()) as loader:
        with pytest.raises(TypeError, match=r"DataLoader\(loader\)`: iterate over the loader itself"):
            next(iter(torch.utils.data.DataLoader(loader, batch_size=None, num_workers=workers)))
        with pytest.raises(TypeError, match=r"loader\[0\]"):
            loader[0]
        assert sum(1 for _ in loader) == 5


def test_a_process_group_that_gives_ranks_up_before_the_storage_is_warned_of(config, monkeypatch):
    from forebay import _group_timeout

    two_ranks = {"rank": 0, "world_size": 2}
    monkeypatch.setattr(_group_timeout, "default_group_seconds", lambda: 600.0)
    with pytest.warns(RuntimeWarning, match=r"600 s.* 1800 s \(dataset.outage_timeout\)"):
        forebay.torch.Loader(config(), **two_ranks).close()
    for seconds in (3600.0, None):
        monkeypatch.setattr(_group_timeout, "default_group_seconds", lambda seconds=seconds: seconds)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            forebay.torch.Loader(config(), **two_ranks).close()


def test_the_time_out_of_a_process_group_is_found(tmp_path):
    script = """
        import datetime, sys
        import torch.distributed as distributed
        from forebay import _group_timeout

        assert _group_timeout.default_group_seconds() is None
        distributed.init_process_group(
            "gloo", init_method="file://" + sys.argv[1], rank=0, world_size=1, timeout=datetime.timedelta(seconds=77)
        )
        assert _group_timeout.default_group_seconds() == 77, _group_timeout.default_group_seconds()
    """
    finished = run_script(script, str(tmp_path / "store"))
    assert finished.returncode == 0, finished.stderr
