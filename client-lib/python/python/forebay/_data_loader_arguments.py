"""The arguments of ``torch.utils.data.DataLoader`` on a loader: their keys, or their replacements.

One table, :data:`ARGUMENTS`; docs/how-to/from-pytorch.md documents it.
"""

import sys
from collections.abc import Mapping
from typing import Any, Callable, Optional

from ._exceptions import ConfigError

# A function of the argument's value and of whether the target is a Dataset object. It returns keys of the
# configuration, or raises an exception that says what replaces the argument.
_Rule = Callable[[Any, bool], dict[str, Any]]


class _Replaced(Exception):
    """The argument, or its value, has no meaning here: names the replacement."""


def _num_workers(value: Any, is_dataset: bool) -> dict[str, Any]:
    if not is_dataset:
        raise _Replaced(
            "files are decoded by threads of the daemon, as many as there are cores (`cpu.cores`); a stage of your own "
            'Python has the key `workers`, as in overrides={"stage.NAME.workers": 8}'
        )
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise _Replaced("it is a whole number of worker processes, 0 or more")
    # 0 means the trainer's own process, which never calls the Dataset here: one worker does.
    return {"stage.dataset.workers": max(value, 1)}


def _drop_last(value: Any, is_dataset: bool) -> dict[str, Any]:
    return {"batch.last": "drop" if value else "short"}


def _pin_memory(value: Any, is_dataset: bool) -> dict[str, Any]:
    if not value:
        return {}
    raise _Replaced(
        'forebay.torch.Loader(…, device="cuda:0") gives batches that are on the GPU already, copied ahead of the '
        "trainer from pinned memory"
    )


def _sampler(value: Any, is_dataset: bool) -> dict[str, Any]:
    data = sys.modules.get("torch.utils.data")
    if data is not None and type(value) is data.SequentialSampler:
        return {"order.shuffle": False}
    if data is not None and type(value) is data.RandomSampler and not value.replacement:
        return {"order.shuffle": True}
    name = type(value).__name__
    replacement = {
        "RandomSampler": "overrides={'order.weights': numpy.ones(len(dataset)), 'order.samples_per_epoch': …} draws "
        "with replacement",
        "WeightedRandomSampler": "overrides={'order.weights': weights, 'order.samples_per_epoch': num_samples}",
        "SubsetRandomSampler": "torch.utils.data.Subset(dataset, indices) as the Dataset",
        "DistributedSampler": "nothing: every rank's loader gives its own share (`rank`, `world_size`)",
    }.get(
        name,
        "the order is a function of seed and epoch, which any rank and any resume can repeat: `shuffle`, `seed`, "
        "`order.weights`, or torch.utils.data.Subset(dataset, indices) as the Dataset",
    )
    raise _Replaced(f"in place of a {name}: {replacement}")


def _collate_fn(value: Any, is_dataset: bool) -> dict[str, Any]:
    data = sys.modules.get("torch.utils.data")
    if data is not None and value is data.default_collate:
        return {}
    raise _Replaced(
        "items are collated by the daemon, as default_collate does it. A function on complete batches, "
        '`collate(batch, rng)`, is overrides={"batch.operations": [{"op": "python", "call": "module:collate"}]}; '
        "fields whose rows differ in length need no padding: "
        'overrides={"output.NAME": {"ragged": True, "max_bytes": "64KiB"}}'
    )


def _transform(value: Any, is_dataset: bool) -> dict[str, Any]:
    raise _Replaced(
        "it is called with the items of a Dataset object. For files, your function is a stage: "
        "stages={'transform': function}, called as function(sample, rng)"
    )


def _nothing(*allowed: Any, instead: str) -> _Rule:
    """An argument that has no effect here with one of these values."""

    def rule(value: Any, is_dataset: bool) -> dict[str, Any]:
        if any(value is one or (type(value) is type(one) and value == one) for one in allowed):
            return {}
        raise _Replaced(instead)

    return rule


# None means absent.
ARGUMENTS: Mapping[str, _Rule] = {
    "num_workers": _num_workers,
    "drop_last": _drop_last,
    "sampler": _sampler,
    "batch_sampler": _nothing(
        instead="batches are cut from the order, `batch_size` at a time; an order of your own is `order.weights`, or "
        "torch.utils.data.Subset(dataset, indices) as the Dataset with shuffle=False"
    ),
    "collate_fn": _collate_fn,
    "pin_memory": _pin_memory,
    "pin_memory_device": _nothing("", instead='forebay.torch.Loader(…, device="cuda:0") names the device'),
    "persistent_workers": _nothing(True, False, instead="workers live as long as the loader"),
    "prefetch_factor": _nothing(
        instead='the ring\'s slots are the batches that are made ahead, over all workers: overrides={"ring.slots": 8}'
    ),
    "worker_init_fn": _nothing(
        instead="`random`, `numpy.random` and PyTorch's default generator are seeded for each item; open files in "
        "`__getitem__` at its first call"
    ),
    "generator": _nothing(instead="`seed` keys the order and every draw: seed=generator.initial_seed() % 2**63"),
    "multiprocessing_context": _nothing(instead="the daemon starts workers as programs of their own"),
    "in_order": _nothing(True, instead="batches come in order always, at no cost: workers work ahead of it"),
    "transform": _transform,
}


def keys_of_arguments(keywords: Mapping[str, Any], is_dataset: bool) -> dict[str, Any]:
    """The keys for arguments of a DataLoader; the other arguments are left to the caller.

    Raises:
        TypeError: an argument or a value without a meaning here; the message names the replacement.
    """
    keys: dict[str, Any] = {}
    for name, value in keywords.items():
        rule: Optional[_Rule] = ARGUMENTS.get(name)
        if rule is None or value is None:
            continue
        try:
            found = rule(value, is_dataset)
        except _Replaced as replaced:
            raise TypeError(f"a loader has no {name}={value!r}; {replaced}") from None
        for key, of in found.items():
            if key == "order.shuffle" and keywords.get("shuffle") not in (None, of):
                raise ConfigError(f"`{key}` is given twice: as shuffle={keywords['shuffle']!r} and as {name}={value!r}")
            keys[key] = of
    return keys
