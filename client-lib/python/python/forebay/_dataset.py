"""A map-style Dataset as a loader's target: its configuration, and the form of its items in a batch.

The object runs in worker processes of the loader's private daemon, in a separate stage. It travels in sealed memory
(:mod:`forebay._object_memory`), which the daemon passes on unread. The stream's identity has its class, a digest of the
files that define the class, and its length, but not its arguments.
"""

import hashlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Callable, Optional

from ._dataset_worker import JOINT, RESERVED, SINGLE, module_of, parts_of
from ._exceptions import ConfigError
from ._object_memory import write_object
from ._stages import name_of

# The stage that calls the object.
STAGE = "dataset"
_TARGET = "forebay._dataset_worker:Items"


def is_dataset(target: Any) -> bool:
    """Whether a loader's target is a map-style Dataset.

    Raises:
        ConfigError: it looks like a Dataset but has no items by number.
    """
    if target is None or isinstance(target, (str, bytes, os.PathLike, Mapping)):
        return False
    name = f"{type(target).__module__}.{type(target).__qualname__}"
    data = sys.modules.get("torch.utils.data")
    if data is not None and isinstance(target, data.DataLoader):
        raise ConfigError(
            f"the target is a {name}; give its Dataset, `Loader(loader.dataset, batch_size=…)`: the loader takes the "
            "DataLoader's place"
        )
    has_items = hasattr(target, "__getitem__") and hasattr(target, "__len__")
    if has_items and not (data is not None and isinstance(target, data.IterableDataset)):
        return True
    if hasattr(target, "__iter__"):
        raise ConfigError(
            f"the target is a {name}, an iterable Dataset: without `__getitem__` and `__len__` its samples have no "
            "place in an order that is shuffled, dealt to ranks and resumed. Give a map-style Dataset, or the files "
            "that it reads (WebDataset, Parquet, MDS, TFRecord and others) as `dataset.path` of a configuration"
        )
    lacks = [name for name in ("__getitem__", "__len__") if not hasattr(target, name)]
    raise ConfigError(
        f"the target is a {name} without {' and '.join(f'`{name}`' for name in lacks)}; give a configuration file, a "
        "dict, a folder with a preset, a running daemon's socket, or a map-style Dataset"
    )


def dataset_config(dataset: Any, transform: Optional[Callable[[Any], Any]]) -> tuple[dict[str, Any], int]:
    """The configuration that calls a Dataset, and the descriptor of its memory, which the caller closes."""
    parts = parts_of(dataset)
    name_of("the class of the Dataset", type(dataset))
    names = [f"{type(part).__module__}:{type(part).__qualname__}" for part in parts]
    files = list(dict.fromkeys(filter(None, (_file_of(module_of(part)) for part in parts))))
    items = len(dataset)
    if items == 0:
        raise ConfigError(f"the Dataset has no items: `len({type(dataset).__qualname__})` is 0")
    arguments = {}
    if transform is not None:
        if not callable(transform):
            raise ConfigError(f"transform= is a {type(transform).__name__}; give a function, a class's object or None")
        is_named = hasattr(transform, "__qualname__")
        arguments["transform"] = name_of("transform=", transform if is_named else type(transform))
    digest = hashlib.blake2b(digest_size=16)
    for file in files:
        digest.update(Path(file).read_bytes())
    config = {
        "dataset": {
            "format": "python",
            # For messages. A class without a file belongs to the interpreter or to an extension.
            "path": files[-1] if files else os.path.abspath(__file__),
            "class": " of ".join(dict.fromkeys(names)),
            "source": digest.hexdigest(),
            "items": items,
        },
        "stage": [{"name": STAGE, "python": _TARGET, "arguments": arguments}],
    }
    return config, write_object((dataset, transform), items, "the Dataset")


def _file_of(module: str) -> Optional[str]:
    file = getattr(sys.modules.get(module), "__file__", None)
    return os.path.abspath(file) if file and os.path.isfile(file) else None


class ItemForm:
    """The form of items, by the names of a batch's fields."""

    def __init__(self, names: list[str]) -> None:
        tree: dict[str, Any] = {}
        for name in (name for name in names if name not in RESERVED):
            *before, last = name.split(JOINT)
            node = tree
            for step in before:
                node = node.setdefault(step, {})
            node[last] = name
        self._own = [name for name in names if name in RESERVED]
        self._tree = tree[SINGLE] if list(tree) == [SINGLE] else _tuples(tree)
        if "valid" in self._own and not isinstance(self._tree, dict):
            raise ConfigError(
                '`batch.last` = "pad" marks padding in the field `valid`, which batches of '
                "tuples and of single values have no place for; return a dict from `__getitem__`, or set "
                '`drop_last=False`, which is `batch.last` = "short"'
            )

    def batch(self, fields: dict[str, Any]) -> Any:
        """A batch in that form: an array or a tensor, a tuple of them, or a dict."""
        formed = _filled(self._tree, fields)
        # The batch's additional fields are only in dicts.
        if isinstance(formed, dict):
            formed.update({name: fields[name] for name in self._own})
        return formed


def _tuples(tree: dict[str, Any]) -> Any:
    """The tree with tuples in place of the dicts whose keys are 0, 1 and so on."""
    formed = {key: _tuples(below) if isinstance(below, dict) else below for key, below in tree.items()}
    places = [str(place) for place in range(len(formed))]
    return tuple(formed[place] for place in places) if set(formed) == set(places) else formed


def _filled(tree: Any, fields: dict[str, Any]) -> Any:
    if isinstance(tree, str):
        return fields[tree]
    if isinstance(tree, tuple):
        return tuple(_filled(below, fields) for below in tree)
    return {key: _filled(below, fields) for key, below in tree.items()}
