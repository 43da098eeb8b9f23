"""Map-style Datasets as a loader's target: items in the order of the stream, the same whatever happens to a worker."""

import json
import os
import signal
import subprocess
import sys
import textwrap

import forebay
import forebay.torch
import numpy
import pytest
import torch
from support import (
    EXAMPLES,
    ROOT,
    digests,
    epochs_of,
    indices,
    printed_by,
    programs_of,
    run_program,
    run_ranks,
    wait_until,
    workers,
    write_pictures,
)

ITEMS = 24


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes a module of Datasets and imports it."""
    monkeypatch.syspath_prepend(tmp_path)
    counter = iter(range(100))

    def make(source, name=None):
        name = name or f"datasets{next(counter)}_{os.getpid()}"
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(source))
        sys.modules.pop(name, None)
        return __import__(name)

    return make


RANDOM = """
    import random
    import numpy as np
    import torch

    class Random(torch.utils.data.Dataset):
        def __init__(self, items=24):
            self.items = items

        def __len__(self):
            return self.items

        def __getitem__(self, index):
            noise = [random.random(), np.random.random(), float(torch.rand(()))]
            return {"number": index, "noise": np.array(noise), "image": torch.full((3, 4), index, dtype=torch.float32)}
"""

PLAIN = """
    class Plain:
        def __init__(self, items=24, bad=()):
            self.items, self.bad = items, bad

        def __len__(self):
            return self.items

        def __getitem__(self, index):
            if index in self.bad:
                raise ValueError(f"item {index} is broken")
            return {"number": index}
"""


def loader_of(dataset, **options):
    given = {"batch_size": 4, "num_workers": 1, "epochs": 1, "timeout": 120, **options}
    return forebay.torch.Loader(dataset, **given)


def numbers(batches):
    return [int(number) for batch in batches for number in batch["number"]]


def equals(one, other):
    """Whether two batches are of one form and have the same tensors."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equals(one[key], other[key]) for key in one)
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(equals, one, other))
    return one.dtype == other.dtype and torch.equal(one, other)


FORMS = """
    import collections
    import numpy as np
    import torch

    Pair = collections.namedtuple("Pair", "left right")

    class Forms:
        def __init__(self, form):
            self.form = form

        def __len__(self):
            return 8

        def __getitem__(self, index):
            array = np.arange(6, dtype=np.float32).reshape(2, 3) + index
            tensor = torch.arange(4, dtype=torch.uint8) + index
            return {
                "tuple": (array, index),
                "list": [tensor, float(index)],
                "one": (array,),
                "single": tensor,
                "number": index,
                "dict": {"array": array, "number": index},
                "nested": (array, {"a": tensor, "b": {"c": index}}),
                "views": ((array, array + 1), index),
                "named": Pair(tensor, array),
            }[self.form]
"""


@pytest.mark.parametrize("form", ["tuple", "list", "one", "single", "number", "dict", "nested", "views", "named"])
def test_items_come_back_in_the_form_of_default_collate(module, form):
    dataset = module(FORMS).Forms(form)
    with loader_of(dataset, shuffle=False) as loader:
        found = list(loader)
    expected = list(torch.utils.data.DataLoader(dataset, batch_size=4))
    assert len(found) == len(expected) == 2
    for batch, wanted in zip(found, expected):
        if isinstance(batch, dict):
            batch.pop("index")
        assert equals(batch, wanted), (batch, wanted)


def test_numpy_arrays_are_given_without_pytorch(module):
    with forebay.Loader(module(FORMS).Forms("tuple"), batch_size=8, epochs=1, num_workers=1, shuffle=False) as loader:
        [(arrays, labels)] = loader
    assert type(arrays) is numpy.ndarray and arrays.shape == (8, 2, 3) and labels.tolist() == list(range(8))


def test_pictures_and_text(module):
    dataset = module("""
        from PIL import Image

        class Pictures:
            def __len__(self):
                return 4

            def __getitem__(self, index):
                return {"image": Image.new("RGB", (5, 3), (index, 7, 9)), "caption": "x" * (index + 1)}
    """).Pictures()
    output = {"output.caption": {"ragged": True, "max_bytes": "1KiB"}}
    with loader_of(dataset, shuffle=False, overrides=output) as loader:
        [batch] = loader
    assert batch["image"].shape == (4, 3, 5, 3) and batch["image"].dtype == torch.uint8
    assert batch["image"][:, 0, 0].tolist() == [[index, 7, 9] for index in range(4)]
    assert batch["caption"].strings() == ["x", "xx", "xxx", "xxxx"]


def test_every_item_comes_once_an_epoch_in_an_order_of_the_seed(module):
    dataset = module(PLAIN).Plain()
    orders = {}
    for seed in (1, 2):
        with loader_of(dataset, seed=seed, epochs=2) as loader:
            orders[seed] = [numbers(loader) for _ in loader.epochs_left()]
    with loader_of(dataset, seed=1, epochs=2) as loader:
        assert orders[1] == [numbers(loader) for _ in loader.epochs_left()]
    everything = [*orders[1], *orders[2]]
    assert all(sorted(order) == list(range(ITEMS)) for order in everything)
    assert len({tuple(order) for order in everything}) == 4


def test_augmentations_within_the_dataset_are_the_same_for_every_number_of_workers(module):
    dataset = module(RANDOM).Random()

    options = {"batch_size": 4, "epochs": 2}
    alone, three = (digests(dataset, num_workers=count, **options) for count in (1, 3))
    assert len(set(alone)) == 12 and alone == three


def rows(batch):
    return [(int(number), noise.tobytes()) for number, noise in zip(batch["number"], batch["noise"])]


def test_a_resume_in_the_middle_of_an_epoch_at_another_world_size_gives_the_same_items(module):
    dataset = module(RANDOM).Random()
    options = {"epochs": 1, "num_workers": 1, "timeout": 120}
    [whole] = epochs_of(rows, dataset, count=1, batch_size=4, **options)
    with forebay.Loader(dataset, batch_size=4, **options) as loader:
        batches = iter(loader)
        taken = [row for _ in range(2) for row in rows(next(batches))]
        state = loader.state_dict()
    [rest] = epochs_of(rows, dataset, count=1, world_size=2, batch_size=2, state=state, **options)
    assert taken + rest == whole and sorted(number for number, _ in whole) == list(range(ITEMS))


def test_the_object_survives_the_death_of_daemon_and_workers(module):
    source = PLAIN.replace("if index in self.bad", "import time; time.sleep(0.02)\n            if index in self.bad")
    dataset = module(source).Plain()
    with loader_of(dataset, seed=3, overrides={"ring": {"slots": 3, "hold": 1}}) as loader:
        whole = numbers(loader)
    with loader_of(dataset, seed=3, overrides={"ring": {"slots": 3, "hold": 1}}) as loader:
        batches = iter(loader)
        taken = numbers([next(batches)])
        for worker in workers(loader.daemon_pid):
            os.kill(worker, signal.SIGKILL)
        taken += numbers([next(batches)])
        os.kill(loader.daemon_pid, signal.SIGKILL)
        assert taken + numbers(batches) == whole
        assert loader.restarts == 1


def objects_open(process):
    """The descriptors of a Dataset object's memory in a process."""
    found = []
    for number in os.listdir(f"/proc/{process}/fd"):
        try:
            if "forebay-object" in os.readlink(f"/proc/{process}/fd/{number}"):
                found.append(number)
        except OSError:
            pass
    return found


def test_the_object_is_sealed_and_only_workers_of_its_stage_get_it(module):
    one = module("""
        import fcntl, os

        def seals():
            found = []
            for number in os.listdir("/proc/self/fd"):
                try:
                    if "forebay-object" in os.readlink(f"/proc/self/fd/{number}"):
                        found.append(fcntl.fcntl(int(number), 1034))
                except OSError:
                    pass
            return found

        at_import = seals()

        class Seals:
            def __len__(self):
                return 4

            def __getitem__(self, index):
                return {"fewest": min(at_import), "environment": int("FOREBAY_OBJECT" in os.environ)}

        def behind(sample, rng):
            return {**sample, "behind": len(seals())}
    """)
    with loader_of(one.Seals(), stages={"behind": one.behind}) as loader:
        [batch] = loader
        assert batch["fewest"].tolist() == [0b1111] * 4 and not batch["environment"].any()
        assert not batch["behind"].any()
        kept = len(objects_open(os.getpid()))
    assert kept == 1, "what is kept for a restart"
    # Its supervisor's thread closes it.
    wait_until(lambda: not objects_open(os.getpid()), "the end of the object's memory")


def test_elements_of_arrays_are_shared_by_workers_and_may_be_written_to(module):
    dataset = module("""
        import numpy as np
        import torch

        class Large:
            def __init__(self):
                self.array = np.arange(1 << 20, dtype=np.int64)
                self.tensor = torch.arange(1 << 20)

            def __len__(self):
                return 4

            def __getitem__(self, index):
                self.array[index] += 0
                with open("/proc/self/smaps") as file:
                    maps = [line.split() for line in file]
                at = next(place for place, line in enumerate(maps) if "forebay-object" in "".join(line))
                sizes = {line[0]: int(line[1]) for line in maps[at + 1 : at + 22] if line[-1] == "kB"}
                own = sizes["Private_Dirty:"]
                return self.array[index], self.tensor[index], own
    """).Large()
    with loader_of(dataset, shuffle=False, num_workers=2) as loader:
        [(first, second, own)] = loader
    assert first.tolist() == second.tolist() == [0, 1, 2, 3]
    assert max(own.tolist()) < 1024, "of 16 MiB, the pages that were written to"


def test_an_exception_names_the_item_and_has_the_traceback_of_the_dataset(module):
    dataset = module(PLAIN).Plain(bad=(17,))
    with loader_of(dataset, shuffle=False) as loader, pytest.raises(forebay.StageError) as raised:
        list(loader)
    message = str(raised.value)
    assert f"{type(dataset).__module__}:Plain[17]" in message and "dataset[17]" in message
    assert "item 17 is broken" in message and 'raise ValueError(f"item {index} is broken")' in message
    assert "run-sample" not in message and "_dataset_worker.py" not in message


def test_a_broken_item_is_replaced_where_bad_samples_are(module):
    dataset = module(PLAIN).Plain(bad=(17,))
    overrides = {"errors.on_bad_sample": "substitute", "errors.budget": 4}
    with loader_of(dataset, shuffle=False, overrides=overrides) as loader:
        found = numbers(loader)
    assert len(found) == ITEMS and 17 not in found


@pytest.mark.parametrize("what", ["class", "length", "source"])
def test_a_state_of_another_dataset_is_refused_by_name(module, what):
    source = PLAIN + "\n    class Other(Plain):\n        pass\n"
    one = module(source, "resumed")
    with loader_of(one.Plain()) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with loader_of(one.Plain(), state=state) as loader:
        assert len(numbers(loader)) == ITEMS - 4
    other = {
        "class": lambda: one.Other(),
        "length": lambda: one.Plain(items=28),
        "source": lambda: module(source + "\n    # edited\n", "resumed").Plain(),
    }[what]()
    with pytest.raises(forebay.StateMismatch) as raised:
        loader_of(other, state=state)
    message = str(raised.value)
    assert "the Dataset differs (saved `resumed:Plain of 24 items" in message
    assert ("resumed:Other" if what == "class" else "28 items" if what == "length" else "source") in message
    with loader_of(other, state=state, force=True) as loader:
        assert len(numbers(loader)) == (24 if what == "length" else 20)


def test_a_wrapped_dataset_counts_as_well(module):
    dataset = module(PLAIN).Plain()
    part = torch.utils.data.Subset(dataset, [3, 5, 7, 11])
    with loader_of(part, shuffle=False) as loader:
        assert numbers(loader) == [3, 5, 7, 11]
        assert "of " + type(dataset).__module__ + ":Plain of 4 items" in loader.state_dict()["object"]


def test_ranks_with_different_datasets_are_refused(tmp_path):
    (tmp_path / "differing.py").write_text(textwrap.dedent(PLAIN))
    reports = run_ranks(
        tmp_path,
        2,
        """
        import json, os, sys
        import torch.distributed
        import forebay.torch
        from differing import Plain

        torch.distributed.init_process_group("gloo")
        rank = torch.distributed.get_rank()
        try:
            forebay.torch.Loader(Plain(24 + 4 * rank), batch_size=2, num_workers=1, timeout=120)
            message = ""
        except forebay.ConfigError as error:
            message = str(error)
        with open(os.path.join(sys.argv[1], f"{rank}.json"), "w") as file:
            json.dump(message, file)
        """,
    )
    for message in reports:
        assert "differing:Plain of 24 items" in message and "differing:Plain of 28 items" in message, message


@pytest.mark.parametrize(
    ("dataset", "order", "printed"),
    [
        ("Squares(), transform=negative", "list", [[0, -1, -4, -9, -16, -25]]),
        ("Subset(Squares(), range(6))", "list", [[0, 1, 4, 9, 16, 25]]),
        ("ConcatDataset([Squares()])", "list", [[0, 1, 4, 9, 16, 25]]),
        ("random_split(Squares(), [6, 0])[0]", "sorted", [[0, 1, 4, 9, 16, 25]]),
    ],
)
def test_a_dataset_of_the_script_within_one_of_pytorch(tmp_path, dataset, order, printed):
    """And by itself."""
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent(f"""
            import forebay.torch
            from torch.utils.data import ConcatDataset, Subset, random_split

            class Squares:
                def __len__(self):
                    return 6

                def __getitem__(self, index):
                    return index * index

            def negative(item):
                return -item

            if __name__ == "__main__":
                options = {{"batch_size": 6, "epochs": 1, "num_workers": 1, "shuffle": False, "timeout": 120}}
                with forebay.torch.Loader({dataset}, **options) as loader:
                    print([{order}(batch.tolist()) for batch in loader])
        """)
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=240)
    assert done.stdout == f"{printed}\n", done.stderr


@pytest.mark.parametrize("dataset", ["Made(len)", "Holder(Made(len))", "Holder(function)"])
def test_a_class_of_a_session_is_refused_with_the_remedy(tmp_path, dataset):
    (tmp_path / "module_of_holder.py").write_text(
        textwrap.dedent("""
            class Holder:
                def __init__(self, held):
                    self.held = held

                def __len__(self):
                    return 1

                def __getitem__(self, index):
                    return index
        """)
    )
    text = textwrap.dedent(f"""
        import forebay
        from module_of_holder import Holder

        class Made(Holder):
            pass

        def function():
            pass

        forebay.Loader({dataset}, batch_size=1)
    """)
    done = subprocess.run([sys.executable, "-"], input=text, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert "ConfigError" in done.stderr and "%%writefile" in done.stderr, done.stderr


class Lambda:
    def __init__(self):
        self.augment = lambda item: item

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return self.augment(index)


class OpenFile(Lambda):
    def __init__(self):
        self.file = open(__file__)  # noqa: SIM115


def test_what_cannot_be_pickled_is_named_with_what_to_do():
    with pytest.raises(forebay.ConfigError, match=r"<lambda>.*at the top of a module"):
        forebay.Loader(Lambda(), batch_size=2)
    with pytest.raises(forebay.ConfigError, match=r"cannot pickle.*open files and connections in `__getitem__`"):
        forebay.Loader(OpenFile(), batch_size=2)

    class Local(Lambda):
        def __init__(self):
            pass

    with pytest.raises(forebay.ConfigError, match=r"Local.*at the top of a module"):
        forebay.Loader(Local(), batch_size=2)


def test_a_length_that_differs_in_the_worker_is_an_error_at_the_start(module):
    dataset = module("""
        import os

        class Counted:
            def __init__(self):
                self.process = os.getpid()

            def __len__(self):
                return 8 if os.getpid() == self.process else 9

            def __getitem__(self, index):
                return index
    """).Counted()
    with pytest.raises(forebay.Error, match="9 items in a worker and had 8 in the trainer"):
        loader_of(dataset)


def test_transform_is_called_on_the_item_and_counts_for_the_stream(module):
    one = module(
        PLAIN
        + """
    def double(item):
        return {"number": 2 * item["number"]}

    class Add:
        def __init__(self, much):
            self.much = much

        def __call__(self, item):
            return {"number": item["number"] + self.much}
    """
    )
    with loader_of(one.Plain(), shuffle=False, transform=one.double) as loader:
        assert numbers(loader) == [2 * number for number in range(ITEMS)]
        state = loader.state_dict()
    with loader_of(one.Plain(), shuffle=False, transform=one.Add(5)) as loader:
        assert numbers(loader) == [number + 5 for number in range(ITEMS)]
    with pytest.raises(forebay.StateMismatch, match="operations"):
        loader_of(one.Plain(), shuffle=False, transform=one.Add(5), state=state)


def test_a_stage_may_follow(module):
    one = module(
        PLAIN
        + """
    def negate(sample, rng):
        return {"number": -sample["number"]}
    """
    )
    with loader_of(one.Plain(), shuffle=False, stages={"negate": one.negate}) as loader:
        assert numbers(loader) == [-number for number in range(ITEMS)]


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ("{}", "an empty dict"),
        ("{1: 2}", "the key 1; keys are strings"),
        ("{'index': 2}", "`index`, which a batch has"),
        ("{'item': 2}", "name them otherwise"),
        ("{'0': 2}", "name them otherwise"),
        ("{'a/b': 2}", "without `/`"),
        ("{'a': None}", "`a` is a NoneType"),
    ],
)
def test_items_that_no_batch_can_hold_are_refused_by_name(module, item, words):
    dataset = module(f"""
        class Odd:
            def __len__(self):
                return 4

            def __getitem__(self, index):
                return {item}
    """).Odd()
    with pytest.raises(forebay.Error) as raised:
        loader_of(dataset)
    assert words in str(raised.value)


def test_arguments_of_a_data_loader_have_their_meaning(module):
    dataset = module(PLAIN).Plain(items=10)
    with loader_of(dataset, drop_last=False, shuffle=False, num_workers=3) as loader:
        assert [len(batch["number"]) for batch in loader] == [4, 4, 2]
        [stage] = [one for one in loader.stats()["streams"][0]["stages"] if one["name"] == "dataset"]
        assert stage["python"]["workers"] == 3
    with loader_of(dataset, drop_last=True, sampler=torch.utils.data.SequentialSampler(dataset)) as loader:
        assert numbers(loader) == list(range(8))
    without_effect = {
        "num_workers": 0,
        "collate_fn": torch.utils.data.default_collate,
        "pin_memory": False,
        "persistent_workers": True,
        "timeout": 0,
        "prefetch_factor": None,
    }
    with loader_of(dataset, sampler=torch.utils.data.RandomSampler(dataset), **without_effect) as loader:
        assert len(set(numbers(loader))) == 8


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ({"sampler": torch.utils.data.WeightedRandomSampler([1.0], 4)}, "'order.weights': weights"),
        ({"sampler": torch.utils.data.SubsetRandomSampler([1])}, "Subset(dataset, indices)"),
        ({"batch_sampler": [[1, 2]]}, "`batch_size` at a time"),
        ({"collate_fn": len}, "batch.operations"),
        ({"pin_memory": True}, 'device="cuda:0"'),
        ({"pin_memory_device": "cuda"}, 'device="cuda:0"'),
        ({"prefetch_factor": 4}, "ring.slots"),
        ({"worker_init_fn": len}, "are seeded for each item"),
        ({"generator": torch.Generator()}, "seed=generator.initial_seed()"),
        ({"multiprocessing_context": "spawn"}, "programs of their own"),
        ({"in_order": False}, "in order always"),
        ({"num_workers": -1}, "a whole number of worker processes"),
        ({"num_worker": 1}, "did you mean 'num_workers'?"),
    ],
)
def test_arguments_without_meaning_are_refused_with_what_replaces_them(argument, words):
    [name] = argument
    with pytest.raises(TypeError) as raised:
        forebay.torch.Loader([1, 2, 3], batch_size=1, **argument)
    assert name in str(raised.value) and words in str(raised.value), raised.value


def test_arguments_beside_files_say_what_they_are_there(config):
    with pytest.raises(TypeError, match=r"num_workers=2; files are decoded by threads"):
        forebay.Loader(config(), num_workers=2)
    with pytest.raises(TypeError, match=r"stages=\{'transform': function\}"):
        forebay.Loader(config(), transform=len)
    with forebay.Loader({**config(size=7)}, drop_last=False) as loader:
        assert len(loader) == 6
    with pytest.raises(forebay.ConfigError, match="given twice: as drop_last=True and in `overrides`"):
        forebay.Loader(config(), drop_last=True, overrides={"batch.last": "drop"})


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(range(3))


class NoLength(torch.utils.data.Dataset):
    def __getitem__(self, index):
        return index


def test_other_objects_are_refused_with_what_to_give():
    for target, words in [
        (Stream(), "an iterable Dataset.*WebDataset, Parquet"),
        (iter([1]), "an iterable Dataset"),
        (torch.utils.data.DataLoader([1, 2]), r"Loader\(loader.dataset, batch_size=…\)"),
        (NoLength(), "without `__len__`"),
        (7, "without `__getitem__` and `__len__`"),
        ([], "has no items"),
    ]:
        with pytest.raises(forebay.ConfigError, match=words):
            forebay.torch.Loader(target, batch_size=1)
    with pytest.raises(forebay.ConfigError, match="batch_size= is required"):
        forebay.torch.Loader([1, 2])
    with pytest.raises(forebay.ConfigError, match="decodes and crops picture files"):
        forebay.torch.Loader([1, 2], batch_size=1, preset="imagenet-train")
    with pytest.raises(forebay.ConfigError, match=r"`listen.socket` is for a daemon that several clients"):
        forebay.torch.Loader([1, 2], batch_size=1, overrides={"listen.socket": "/tmp/socket"})


def test_a_configuration_alone_cannot_name_a_dataset_object(tmp_path):
    path = tmp_path / "object.toml"
    path.write_text(
        '[dataset]\nformat = "python"\npath = "/"\nclass = "mydata:Pictures"\nsource = "12ab"\nitems = 5\n'
        '[batch]\nsize = 2\n[[stage]]\nname = "items"\noperations = []\n'
    )
    for command in (["check", path], ["serve", path, "--socket", tmp_path / "socket"]):
        done = run_program(*command)
        assert done.returncode != 0 and "a Dataset object of a trainer (`mydata:Pictures`)" in done.stderr + done.stdout
    with pytest.raises(forebay.ConfigError, match=r"make it with `forebay.Loader\(dataset"):
        forebay.Loader(path)


@pytest.mark.parametrize("name", ["pairs.csv", "rows.parquet", "shard.tar.gz", "tokens.bin", "s3://train/{0..3}.tar"])
def test_data_in_place_of_a_configuration_is_refused_with_how_to_give_it(tmp_path, name):
    target = name if "://" in name else str(tmp_path / name)
    if "://" not in name:
        (tmp_path / name).write_bytes(b"\xff\xfe")
    for options in ({}, {"preset": "imagenet-train", "batch_size": 4}):
        with pytest.raises(forebay.ConfigError) as raised:
            forebay.Loader(target, **options)
        assert f'Loader({{"dataset.path": "{target}"}}' in str(raised.value)
        assert ("forebay init" in str(raised.value)) == ("://" not in name)


@pytest.mark.parametrize("kind", ["numpy", "float32", "tensor", "list", "nested"])
def test_weights_may_be_an_array(config, kind):
    weights = numpy.zeros(40)
    weights[[3, 7]] = 1
    given = {
        "numpy": weights,
        "float32": weights.astype(numpy.float32),
        "tensor": torch.from_numpy(weights),
        "list": weights.tolist(),
        "nested": weights,
    }[kind]
    target = {**config(), "order": {"samples_per_epoch": 16, "epochs": 1}}
    overrides = {"order.weights": given}
    if kind == "nested":
        target["order"]["weights"], overrides = given, None
    with forebay.Loader(target, overrides=overrides) as loader:
        batches = iter(loader)
        taken = next(batches)["index"].tolist()
        os.kill(loader.daemon_pid, signal.SIGKILL)
        taken += indices(batches)
    assert set(taken) == {3, 7} and len(taken) >= 16


def test_a_dataset_may_be_weighted(module):
    weights = torch.zeros(ITEMS)
    weights[5] = 1
    overrides = {"order.weights": weights, "order.samples_per_epoch": 8}
    with loader_of(module(PLAIN).Plain(), overrides=overrides) as loader:
        assert numbers(loader) == [5] * 8


@pytest.fixture
def pictures(tmp_path):
    """24 pictures in three class folders, with a list of their labels."""
    folder = write_pictures(tmp_path / "pictures", ITEMS, lambda sample: sample % 3, (50, 40, 3))
    rows = [{"file": f"class{number % 3}/{number:02}.png", "label": number % 3} for number in range(ITEMS)]
    (folder / "labels.json").write_text(json.dumps(rows))
    return folder


def test_the_programs_of_the_page_print_the_same_items(pictures, module):
    of_class, *programs = programs_of("from-pytorch.md")
    module(of_class, "pictures")
    assert len(programs) == 2
    printed = [printed_by(program, folder=str(pictures)) for program in programs]
    assert len(printed[0]) == ITEMS
    assert sorted(printed[0]) == sorted(printed[1]) and printed[0] != printed[1]


def test_every_argument_that_is_taken_is_in_the_table_of_the_page():
    from forebay._data_loader_arguments import ARGUMENTS

    table = (ROOT / "docs/how-to/from-pytorch.md").read_text().partition("## Arguments")[2]
    assert [name for name in ARGUMENTS if f"`{name}" not in table and name != "transform"] == []


def test_the_example_goes_on_from_its_checkpoint_with_the_same_batches(pictures, tmp_path):
    def run(*options):
        command = [sys.executable, EXAMPLES / "train_dataset.py", pictures]
        fixed = ["--batch-size", "4", "--workers", "1", "--epochs", "2", "--save-every", "4"]
        done = subprocess.run([*command, *options, *fixed], capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    whole = run(tmp_path / "whole.pth")
    assert len(whole) == 12
    assert run(tmp_path / "part.pth", "--stop-after", "4") == whole[:4]
    assert run(tmp_path / "part.pth", "--resume") == whole[4:]
