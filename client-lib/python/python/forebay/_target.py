"""Resolves a loader's first argument, its ``overrides`` and its keyword arguments: a target, and keys to override."""

import difflib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Optional, Protocol, TypedDict, Union

from ._data_loader_arguments import ARGUMENTS, keys_of_arguments
from ._dataset import dataset_config, is_dataset
from ._exceptions import ConfigError
from ._stages import stage_keys
from ._weights import hand_over_weights


class MapDataset(Protocol):
    """The methods of a map-style Dataset."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: Any) -> Any: ...


Target = Union[str, "os.PathLike[str]", Mapping[str, Any], MapDataset, None]


class ConfigKeys(TypedDict, total=False):
    """The keyword arguments of a loader that are keys of its configuration. None means absent."""

    preset: Optional[str]
    batch_size: Optional[int]
    epochs: Optional[int]
    seed: Optional[int]
    shuffle: Union[bool, Literal["blocks"], None]
    part: Optional[str]
    stages: Optional[Mapping[str, Callable[..., Any]]]
    # Of a Dataset object.
    transform: Optional[Callable[[Any], Any]]
    # Arguments of torch.utils.data.DataLoader that have a meaning here.
    num_workers: Optional[int]
    drop_last: Optional[bool]
    sampler: Any
    batch_sampler: Any
    collate_fn: Any
    pin_memory: Optional[bool]
    pin_memory_device: Optional[str]
    persistent_workers: Optional[bool]
    prefetch_factor: Optional[int]
    worker_init_fn: Any
    generator: Any
    multiprocessing_context: Any
    in_order: Optional[bool]


@dataclass
class Resolved:
    """A loader's resolved arguments."""

    # The target's kind and its text, for the native module.
    kind: str
    text: str
    # Keys that override the target's, each with its value as JSON.
    keys: list[tuple[str, str]]
    # The descriptor of a Dataset object's memory.
    object: Optional[int] = None
    # Objects that must live as long as the loader.
    held: list[Any] = field(default_factory=list)

    @property
    def is_dataset(self) -> bool:
        return self.object is not None

    @property
    def is_configured(self) -> bool:
        """Whether it is a configuration, not a running daemon."""
        return self.kind == "json" or self.text.endswith(".toml")

    @property
    def may_have_batch_size(self) -> bool:
        """Whether the configuration has `batch.size` or `batch.budget`, or is not known here."""
        if self.kind != "json" or any(key in ("batch.size", "batch.budget") for key, _ in self.keys):
            return True
        batch = json.loads(self.text).get("batch", {})
        return isinstance(batch, dict) and ("size" in batch or "budget" in batch)

    def close(self) -> None:
        """Closes the object's memory: the daemon has it."""
        if self.object is not None:
            os.close(self.object)


_KEYS = {
    "preset": "preset",
    "batch_size": "batch.size",
    "epochs": "order.epochs",
    "seed": "order.seed",
    "shuffle": "order.shuffle",
    "part": "dataset.split.part",
}


def resolve_target(target: Any, overrides: Optional[Mapping[str, Any]], keywords: Mapping[str, Any]) -> Resolved:
    """Resolves the target, ``overrides`` and the keyword arguments of a loader; the caller closes the result."""
    has_object = is_dataset(target)
    keys = dict(overrides or {})
    for key, value in stage_keys(keywords.get("stages")).items():
        if key in keys:
            raise ConfigError(f"`{key}` is given twice: in `stages` and in `overrides`")
        keys[key] = value
    transform = keywords.get("transform") if has_object else None
    for name, (key, of) in _named_keys(keywords, has_object):
        if key in keys:
            raise ConfigError(f"`{key}` is given twice: as {name} and in `overrides`")
        keys[key] = of
    resolved = Resolved("word", "", [])
    if has_object:
        _refuse_keys_of_files(keys)
        plain, resolved.object = dataset_config(target, transform)
        resolved.kind, resolved.text = "json", to_json("the configuration", plain)
    elif target is None:
        resolved.kind = "first"
    elif isinstance(target, Mapping):
        plain, dotted = _split_dotted(target)
        plain, held = hand_over_weights(plain)
        resolved.held += held
        resolved.kind, resolved.text = "json", to_json("the configuration", plain)
        keys = {**dotted, **keys}
    else:
        resolved.kind, resolved.text = _of_path(target, keys)
    try:
        keys, held = hand_over_weights(keys)
        resolved.held += held
        resolved.keys = [(key, to_json(f"`{key}`", value)) for key, value in keys.items()]
    except BaseException:
        resolved.close()
        raise
    return resolved


def _named_keys(keywords: Mapping[str, Any], has_object: bool) -> list[tuple[str, tuple[str, Any]]]:
    """The keys of keyword arguments, each with the argument's name in messages."""
    found: list[tuple[str, tuple[str, Any]]] = []
    arguments = {name: value for name, value in keywords.items() if name in ARGUMENTS}
    if has_object:
        arguments.pop("transform", None)
    shuffle = keywords.get("shuffle")
    for name, value in arguments.items():
        for pair in keys_of_arguments({name: value, "shuffle": shuffle}, has_object).items():
            if pair != ("order.shuffle", shuffle):
                found.append((f"{name}={value!r}", pair))
    for name, value in keywords.items():
        if name == "stages" or name in ARGUMENTS:
            continue
        if name not in _KEYS:
            nearest = difflib.get_close_matches(name, [*_KEYS, *ARGUMENTS, "stages"], 1)
            hint = f"did you mean {nearest[0]!r}?" if nearest else "other keys go into `overrides`"
            raise TypeError(f"a loader has no keyword argument {name!r}; {hint}")
        if value is not None:
            found.append((f"{name}={value!r}", (_KEYS[name], value)))
    return found


def _refuse_keys_of_files(keys: Mapping[str, Any]) -> None:
    """Refuses keys that a Dataset object has no place for."""
    if "batch.size" not in keys:
        raise ConfigError("batch_size= is required: the samples of a batch, for each rank")
    for key in keys:
        if key == "preset":
            raise ConfigError(
                f"preset={keys[key]!r} decodes and crops picture files, and the target is a Dataset object, whose "
                "items are what `__getitem__` returns; leave the preset out, or give it with the folder of files in "
                "place of the Dataset"
            )
        if key == "listen.socket":
            raise ConfigError(
                "`listen.socket` is for a daemon that several clients attach to, and a Dataset object is run by the "
                "daemon of its own loader alone; leave the key out"
            )


# Suffixes of files with samples, and of lists of them.
_OF_DATA = (
    ".csv",
    ".tsv",
    ".jsonl",
    ".json",
    ".parquet",
    ".arrow",
    ".tar",
    ".bin",
    ".npy",
    ".npz",
    ".tfrecord",
    ".array_record",
    ".arrayrecord",
)
_PACKED = (".gz", ".zst", ".xz", ".bz2")


def _of_path(target: Union[str, "os.PathLike[str]"], keys: Mapping[str, Any]) -> tuple[str, str]:
    """The kind and the text of a target that is a path, a URL or a word."""
    path = os.fspath(target)
    is_url = "://" in path
    # A bare word is a stream's name; given as a path object, it is a path.
    is_path = not isinstance(target, str) or os.sep in path
    named = path.rpartition("/")[2].lower()
    while named.endswith(_PACKED):
        named = named.rpartition(".")[0]
    if is_url or (named.endswith(_OF_DATA) and not os.path.isdir(path)):
        what = "a URL" if is_url else "a file of data"
        start = "" if is_url else f"; `forebay init {path}` writes one for it"
        raise ConfigError(
            f"`{path}` is {what}, and a loader takes a configuration{start}. Or give it as data: "
            f'Loader({{"dataset.path": "{path}"}}, batch_size=64, …), with a preset or with `stage`, what is done with '
            "each sample"
        )
    if is_path and os.path.isdir(path):
        if not any(key == "preset" or key.split(".")[0] == "stage" for key in keys):
            raise ConfigError(
                f"`{path}` is a folder, and what to do with its files is not said: give a preset, such as "
                'Loader(folder, batch_size=64, preset="imagenet-train"), or a configuration file'
            )
        return "json", to_json("the configuration", {"dataset": {"path": os.path.abspath(path)}})
    return "word", os.path.abspath(path) if not isinstance(target, str) else path


def _split_dotted(config: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A dict's keys without dots and those with dots, which are overrides of the others."""
    plain: dict[str, Any] = {}
    dotted: dict[str, Any] = {}
    for key, value in config.items():
        (dotted if isinstance(key, str) and "." in key else plain)[key] = value
    for key in dotted:
        found: Any = plain
        for part in key.split("."):
            found = found.get(part, _ABSENT) if isinstance(found, Mapping) else _ABSENT
        if found is not _ABSENT:
            raise ConfigError(f"`{key}` is given twice: with dots, and in a dict within the dict")
    return plain, dotted


_ABSENT = object()


def to_json(what: str, value: Any) -> str:
    """A value as JSON text; ``what`` names it in errors."""
    try:
        return json.dumps(value, default=_plain, allow_nan=False)
    except (TypeError, ValueError, RuntimeError) as error:
        path = ".".join(_path_to_mistake(value))
        where = f"{what}, at `{path}`," if path else what
        raise ConfigError(f"{where} cannot be written as JSON: {error}") from None


def _plain(item: Any) -> Any:
    if isinstance(item, os.PathLike):
        return os.fspath(item)
    if hasattr(item, "item") and not isinstance(item, type):  # a NumPy or PyTorch scalar
        return item.item()
    raise TypeError(f"a value of type {type(item).__name__}; write {_remedy(item)}")


def _remedy(item: Any) -> str:
    # A type such as numpy.float32, a numpy.dtype or a torch.dtype.
    if "dtype" in type(item).__name__.lower() or isinstance(item, type):
        return f'its name, "{getattr(item, "__name__", None) or str(item).rpartition(".")[2]}"'
    return "a text, a number, True or False, a list or a dict"


def _path_to_mistake(value: Any) -> list[str]:
    """The keys to the first value within that cannot be written."""
    if isinstance(value, Mapping):
        within: Any = value.items()
    elif isinstance(value, (list, tuple)):
        within = enumerate(value)
    else:
        return []
    for key, item in within:
        try:
            json.dumps(item, default=_plain, allow_nan=False)
        except (TypeError, ValueError, RuntimeError):
            return [str(key), *_path_to_mistake(item)]
    return []
