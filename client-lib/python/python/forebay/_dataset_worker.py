"""A trainer's Dataset in a worker of its daemon: the function of the stage that calls ``__getitem__``.

An item becomes a dict of fields, and :mod:`forebay._dataset` restores the items' form from their names:

    a dict             its keys; the keys of a nested dict are joined with ``/``
    a tuple or a list  "0", "1", ...; nested ones likewise, except that a list of numbers is one array
    anything else      "item"
"""

import os
import sys
from collections.abc import Mapping
from typing import Any

from . import _stage
from ._object_memory import read_object

SINGLE = "item"
JOINT = "/"
# Fields of every batch, whatever the items are.
RESERVED = ("index", "valid")


class Items:
    """Calls the object; ``transform`` is the name of the function that is called with its items, which came with it."""

    def __init__(self, transform: str = "") -> None:
        descriptor = int(os.environ.pop("FOREBAY_OBJECT"))
        (self._dataset, self._transform), items = read_object(descriptor, _stage.import_main)
        os.close(descriptor)
        if len(self._dataset) != items:
            raise ValueError(
                f"the Dataset has {len(self._dataset)} items in a worker and had {items} in the trainer; its length "
                "must depend on nothing but what is pickled"
            )
        parts = [*parts_of(self._dataset), *([] if self._transform is None else [self._transform])]
        # The module whose digest saved states compare. The Dataset's source is part of the stream's identity already.
        self.forebay_source = "" if self._transform is None else module_of(self._transform)
        # A stage searches these for pipelines with separate generators.
        self.forebay_holders = parts
        self.forebay_modules = [sys.modules[module_of(part)] for part in parts]

    def __call__(self, sample: dict[str, Any], rng: Any) -> dict[str, Any]:
        item = self._dataset[sample["number"]]
        return fields_of(item if self._transform is None else self._transform(item))


def module_of(value: Any) -> str:
    """The module of a function, of a class, or of an object's class."""
    return str((value if hasattr(value, "__qualname__") else type(value)).__module__)


def parts_of(dataset: Any) -> list[Any]:
    """A Dataset and the Datasets that it wraps, as ``Subset`` and ``ConcatDataset`` do."""
    parts: list[Any] = []
    waiting = [dataset]
    while waiting:
        part = waiting.pop(0)
        if any(part is other for other in parts):
            continue
        parts.append(part)
        own = getattr(part, "__dict__", {})
        several = own.get("datasets")
        within = [own.get("dataset"), *(several if isinstance(several, (list, tuple)) else [])]
        waiting += [
            one
            for one in within
            if hasattr(one, "__getitem__") and hasattr(one, "__len__") and type(one).__module__ != "builtins"
        ]
    return parts


def fields_of(item: Any) -> dict[str, Any]:
    """An item's fields; see the module's documentation."""
    fields: dict[str, Any] = {}
    if isinstance(item, Mapping):
        _add_members(fields, "", item)
        names = list(item)
        if names == [SINGLE] or (names and names == [str(place) for place in range(len(names))]):
            raise ValueError(
                f"the item has the keys {names}, by which a batch tells single values and tuples; name them otherwise"
            )
        for name in RESERVED:
            if name in item:
                raise ValueError(f"the item has the key `{name}`, which a batch has of its own; name it otherwise")
    elif isinstance(item, (tuple, list)):
        _add_members(fields, "", {str(place): value for place, value in enumerate(item)})
    else:
        fields[SINGLE] = item
    if not fields:
        raise ValueError(f"the item is an empty {type(item).__name__}")
    return fields


def _add_members(fields: dict[str, Any], before: str, members: Mapping[Any, Any]) -> None:
    for key, value in members.items():
        if not isinstance(key, str) or not key or JOINT in key:
            raise ValueError(f"the item has the key {key!r}; keys are strings without `{JOINT}`")
        name = before + key
        if isinstance(value, Mapping):
            _add_members(fields, name + JOINT, value)
        elif isinstance(value, (tuple, list)) and value and not _is_of_numbers(value):
            _add_members(fields, name + JOINT, {str(place): within for place, within in enumerate(value)})
        else:
            fields[name] = value


def _is_of_numbers(value: Any) -> bool:
    return all(
        _is_of_numbers(within)
        if isinstance(within, (tuple, list))
        else not isinstance(within, (str, bytes, Mapping))
        and not getattr(within, "shape", None)
        and not hasattr(within, "__array_interface__")
        for within in value
    )
