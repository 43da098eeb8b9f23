"""`forebay.megatron` and `forebay.torchtitan`: the batches that these trainers take, and where they go on.

Megatron-Core 0.16.1 and torchtitan 0.3.0 are not in CI's environment: what is compared with their code is skipped
there, and torchtitan's base class is stood in for.
"""

import dataclasses
import importlib.util
import itertools
import json
import os
import signal
import sys
import types
from dataclasses import dataclass

import forebay
import pytest
from test_text_migrations import END, LENGTH, write_tokens

torch = pytest.importorskip("torch")

import forebay.megatron  # noqa: E402
import forebay.torch  # noqa: E402

PACKED = 'boundaries = ["position_ids", "cu_seqlens"]'


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """Three epochs of packed documents, in batches of 8."""
    return write_tokens(tmp_path_factory.mktemp("tokens"), PACKED)


@pytest.fixture
def rows(config):
    """The tokens of all batches, from the loader alone."""
    with forebay.Loader(config) as loader:
        return [batch["tokens"].tolist() for _ in loader.epochs_left() for batch in loader]


def rest(batches):
    """The tokens of the batches that are left."""
    return [batch["tokens"].tolist() for batch in iter(lambda: next(batches, None), None)]


@pytest.mark.parametrize("taken", [0, 3, "epoch", "epoch and one"])
def test_megatron_goes_on_where_it_saved_and_where_it_has_consumed(config, rows, taken):
    epoch = len(rows) // 3
    taken = {"epoch": epoch, "epoch and one": epoch + 1}.get(taken, taken)
    with forebay.torch.Loader(config) as loader:
        batches = forebay.megatron.Batches(loader)
        assert [next(batches)["tokens"].tolist() for _ in range(taken)] == rows[:taken]
        # What dies with the trainer.
        os.kill(loader.daemon_pid, signal.SIGKILL)
        state = json.loads(json.dumps(batches.save_state()))
    with forebay.torch.Loader(config, state=state) as loader:
        assert rest(forebay.megatron.Batches(loader)) == rows[taken:]
    with forebay.torch.Loader(config) as loader:
        assert rest(forebay.megatron.Batches(loader, consumed_samples=taken * 8)) == rows[taken:]


def test_megatrons_full_validation_takes_whole_epochs(config, rows):
    with forebay.torch.Loader(config) as loader:
        batches = forebay.megatron.Batches(loader)
        assert len(batches) == len(rows) // 3
        # As `cyclic_iter`.
        passes = [[batch["tokens"].tolist() for batch in batches] for _ in range(3)]
    assert [batch for one in passes for batch in one] == rows and {len(one) for one in passes} == {len(batches)}


def test_megatron_refuses_what_it_cannot_train_on_or_go_to(config, arrays_folder):
    refused = pytest.raises(forebay.ConfigError, match=r"consumed_samples=12 .* 8 samples on 1 ranks: .*save_state")
    with forebay.torch.Loader(config) as loader, refused:
        forebay.megatron.Batches(loader, consumed_samples=12)
    stage = [{"name": "copy", "operations": []}]
    arrays = {"dataset": {"format": "npy", "path": str(arrays_folder)}, "batch": {"size": 4}, "stage": stage}
    refused = pytest.raises(forebay.ConfigError, match=r"no `labels` and no `tokens`.*\[dataset.tokens\]")
    with forebay.torch.Loader(arrays) as loader, refused:
        forebay.megatron.Batches(loader)


def test_megatrons_positions_are_those_of_rows_without_boundaries(tmp_path):
    with forebay.torch.Loader(write_tokens(tmp_path)) as loader:
        made = next(forebay.megatron.Batches(loader, attention_mask=True))
    assert (made["position_ids"] == torch.arange(LENGTH)).all() and "cu_seqlens" not in made
    assert (made["attention_mask"] == ~torch.ones(LENGTH, LENGTH).tril().bool()).all() and made["loss_mask"].all()
    assert made["attention_mask"].shape == (8, 1, LENGTH, LENGTH)


def test_lengths_of_documents_are_those_of_megatrons_packed_attention(config):
    with forebay.torch.Loader(config) as loader:
        made = next(forebay.megatron.Batches(loader))
    for row, positions in enumerate(made["position_ids"]):
        starts = torch.nonzero(positions == 0).flatten().tolist()
        bounds = [*starts, LENGTH]
        assert made["cu_seqlens"][row].tolist() == bounds + [LENGTH] * (LENGTH + 1 - len(bounds))
        assert made["max_seqlen"][row] == max(end - start for start, end in itertools.pairwise(bounds))
    assert made["cu_seqlens"].dtype == torch.int32


def test_megatron_core_makes_the_same_of_the_same_tokens(config):
    dataset = pytest.importorskip("megatron.core.datasets.gpt_dataset")
    rerun = pytest.importorskip("megatron.core.rerun_state_machine")
    with forebay.torch.Loader(config, overrides={"ring.slots": 8, "ring.hold": 6}) as loader:
        # As `build_train_valid_test_data_iterators` wraps an external data loader.
        iterator = rerun.RerunDataIterator(forebay.megatron.Batches(loader, attention_mask=True))
        made = [next(iterator) for _ in range(3)]
        assert iterator.iterable.save_state()["samples"] == 24
        for batch in made:
            for row, tokens in enumerate(batch["tokens"]):
                names = ["attention_mask", "loss_mask", "position_ids"]
                theirs = dataset._get_ltor_masks_and_position_ids(tokens, END, True, True, True, True)
                for name, expected in zip(names, theirs):
                    assert torch.equal(batch[name][row], expected) and batch[name].dtype == expected.dtype, name
                last = batch["labels"][row][:-1]
                assert (last == tokens[1:])[batch["loss_mask"][row][:-1] == 1].all()


@pytest.fixture
def titan(monkeypatch):
    """`forebay.torchtitan`, over torchtitan or what a data loader has of its base class."""
    is_installed = importlib.util.find_spec("torchtitan") is not None
    if not is_installed:

        class BaseDataLoader:
            @dataclass
            class Config:
                dataset: str = ""
                dataset_path: str = ""

                def build(self, **options):
                    return self._owner(config=dataclasses.replace(self), **options)

            def __init_subclass__(cls):
                cls.Config._owner = cls

        names = ["torchtitan", "torchtitan.components", "torchtitan.components.dataloader"]
        for name in names:
            monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        sys.modules[names[-1]].BaseDataLoader = BaseDataLoader
    yield importlib.import_module("forebay.torchtitan")
    if not is_installed:
        # Made of the stand-in.
        del sys.modules["forebay.torchtitan"]


def build(module, config, rank=0, world_size=1, batch=8, length=LENGTH, **options):
    """As torchtitan's trainer builds it."""
    others = {"tokenizer": None, "seq_len": length, "snapshot_every_n_steps": None, "local_batch_size": batch}
    made = module.DataLoader.Config(file=str(config), **options)
    return made.build(dp_rank=rank, dp_world_size=world_size, **others)


def test_torchtitan_goes_on_in_an_epoch_at_another_world_size(titan, config, rows):
    first, second = (build(titan, config, rank, 2, batch=4) for rank in range(2))
    items = [list(itertools.islice(loader, 3)) for loader in (first, second)]
    for step in range(3):
        assert [row for of_rank in items for row in of_rank[step][0]["input"].tolist()] == rows[step]
    inputs, labels = items[0][0]
    assert sorted(inputs) == ["input", "positions"] and inputs["positions"].shape == labels.shape == (4, LENGTH)
    assert {value.dtype for value in (*inputs.values(), labels)} == {torch.int64}
    state = first.state_dict()
    assert state == second.state_dict()
    for loader in (first, second):
        os.kill(loader.loader.daemon_pid, signal.SIGKILL)
        loader.loader.close()
    resumed = build(titan, config)
    # The state of a new run.
    resumed.load_state_dict({})
    resumed.load_state_dict(state)
    assert [inputs["input"].tolist() for inputs, _ in resumed] == rows[3:]
    resumed.loader.close()


def test_torchtitans_validator_takes_one_epoch(titan, config, rows):
    loader = build(titan, config, infinite=False)
    assert [inputs["input"].tolist() for inputs, _ in loader] == rows[: len(rows) // 3]
    loader.loader.close()


def test_torchtitan_is_told_of_another_length(titan, config):
    with pytest.raises(forebay.ConfigError, match=r"`tokens` \[32\].*seq_len = 64: set `dataset.tokens.length`"):
        build(titan, config, length=64)


def test_torchtitans_trainer_and_checkpoints_take_the_loader(titan, config, rows, tmp_path):
    trainer = pytest.importorskip("torchtitan.trainer")
    checkpoint = pytest.importorskip("torch.distributed.checkpoint")
    metrics = types.SimpleNamespace(ntokens_since_last_log=0, data_loading_times=[])
    loader = build(titan, config)
    batches = trainer.Trainer.batch_generator(types.SimpleNamespace(metrics_processor=metrics), loader)
    seen = [next(batches)[0]["input"].tolist() for _ in range(4)]
    assert seen == rows[:4] and metrics.ntokens_since_last_log == 4 * 8 * LENGTH
    checkpoint.save({"dataloader": loader}, checkpoint_id=tmp_path / "step-4", no_dist=True)
    loader.loader.close()
    resumed = build(titan, config)
    checkpoint.load({"dataloader": resumed}, checkpoint_id=tmp_path / "step-4", no_dist=True)
    batches = trainer.Trainer.batch_generator(types.SimpleNamespace(metrics_processor=metrics), resumed)
    with pytest.raises(trainer.DataloaderExhaustedError):
        while True:
            seen.append(next(batches)[0]["input"].tolist())
    assert seen == rows
    resumed.loader.close()
