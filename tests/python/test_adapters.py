"""What the modules for other libraries do beside their examples, which test_examples.py runs."""

import types

import pytest


def accelerator(rank, world_size):
    registered = []
    return types.SimpleNamespace(
        process_index=rank,
        num_processes=world_size,
        device="cpu",
        register_for_checkpointing=registered.append,
        registered=registered,
    )


def test_a_loader_that_was_made_before_the_process_group_is_refused(config):
    import forebay.accelerate

    refused = pytest.raises(ValueError, match=r"rank 0 of 1 \(no launcher\).*rank=1 and world_size=2")
    with forebay.Loader(config(size=4)) as loader, refused:
        forebay.accelerate.prepare(accelerator(1, 2), loader)


def test_accelerates_batches_count_steps_and_end_with_the_epochs(config):
    pytest.importorskip("accelerate")
    import forebay.accelerate
    import forebay.torch

    with forebay.torch.Loader(config(size=4)) as loader:
        one = accelerator(0, 1)
        batches = forebay.accelerate.prepare(one, loader)
        assert one.registered == [loader] and len(batches) == 10 and batches.steps_taken == 0
        seen = []
        for _ in batches.epochs_left():
            for batch in batches:
                seen += batch["index"].tolist()
        assert seen == list(range(40)) * 2 and batches.steps_taken == 20
        with pytest.raises(forebay.EpochsFinished):
            iter(batches)
        batches.set_epoch(1)
        next(iter(batches))
        assert batches.steps_taken == 11


def test_lightning_validates_on_the_whole_epoch_each_time(config, tmp_path):
    lightning = pytest.importorskip("pytorch_lightning")
    torch = pytest.importorskip("torch")
    import forebay.lightning

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.validated, self.trained = [], []

        def training_step(self, batch, _):
            self.trained += batch["index"].tolist()
            return self.layer(batch["index"][:, None].float()).mean()

        def validation_step(self, batch, _):
            self.validated.append(batch["index"].tolist())

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.001)

    model = Model()
    # One epoch of validation data is enough for every validation.
    validation = config(size=8)
    validation["order"]["epochs"] = 1
    data = forebay.lightning.DataModule(config(size=4), validation, {"timeout": 120})
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        devices=1,
        use_distributed_sampler=False,
        num_sanity_val_steps=2,
        default_root_dir=tmp_path,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, datamodule=data)
    whole = [list(range(first, first + 8)) for first in range(0, 40, 8)]
    assert model.validated == whole[:2] + whole * 2
    assert model.trained == list(range(40)) * 2
    with pytest.raises(forebay.Error, match="closed"):
        trainer.train_dataloader.stats()


def test_transformers_gives_the_model_the_batch_without_bookkeeping(config, tmp_path):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    import forebay.torch
    import forebay.transformers

    given = []

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def forward(self, **fields):
            given.append(sorted(fields))
            return {"loss": self.layer(torch.ones(1, 1)).sum()}

    with forebay.torch.Loader(config(size=4)) as loader:
        fields = sorted(set(next(iter(loader))) - {"index"})
    with forebay.torch.Loader(config(size=4)) as loader:
        arguments = transformers.TrainingArguments(
            str(tmp_path),
            num_train_epochs=1,
            per_device_train_batch_size=4,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
        )
        forebay.transformers.Trainer(model=Model(), args=arguments, loader=loader).train()
    assert given == [fields] * 10
