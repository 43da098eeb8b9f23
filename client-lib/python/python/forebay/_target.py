"""What a loader's first argument, its ``overrides`` and its keyword arguments say: a target, and keys to override."""

import difflib
import json
import os
from collections.abc import Callable, Mapping
from typing import Any, Literal, Optional, TypedDict, Union

from ._exceptions import ConfigError
from ._stages import stage_keys

Target = Union[str, "os.PathLike[str]", Mapping[str, Any], None]


class ConfigKeys(TypedDict, total=False):
    """The keyword arguments of a loader that are keys of its configuration. None is as if left out."""

    preset: Optional[str]
    batch_size: Optional[int]
    epochs: Optional[int]
    seed: Optional[int]
    shuffle: Union[bool, Literal["blocks"], None]
    stages: Optional[Mapping[str, Callable[..., Any]]]


_KEYS = {
    "preset": "preset",
    "batch_size": "batch.size",
    "epochs": "order.epochs",
    "seed": "order.seed",
    "shuffle": "order.shuffle",
}


def resolve_target(
    target: Target, overrides: Optional[Mapping[str, Any]], keywords: Mapping[str, Any]
) -> tuple[str, str, list[tuple[str, str]]]:
    """The target's kind and text for the native module, and the overridden keys with their values as JSON."""
    keys = dict(overrides or {})
    for key, value in stage_keys(keywords.get("stages")).items():
        if key in keys:
            raise ConfigError(f"`{key}` is given twice: in `stages` and in `overrides`")
        keys[key] = value
    for name, value in keywords.items():
        if name == "stages":
            continue
        if name not in _KEYS:
            nearest = difflib.get_close_matches(name, [*_KEYS, "stages"], 1)
            hint = f"did you mean {nearest[0]!r}?" if nearest else "other keys go into `overrides`"
            raise TypeError(f"a loader has no keyword argument {name!r}; {hint}")
        if value is None:
            continue
        if _KEYS[name] in keys:
            raise ConfigError(f"`{_KEYS[name]}` is given twice: as {name}={value!r} and in `overrides`")
        keys[_KEYS[name]] = value
    kind = "word"
    if target is None:
        kind, text = "first", ""
    elif isinstance(target, Mapping):
        plain, dotted = _split_dotted(target)
        kind, text = "json", to_json("the configuration", plain)
        keys = {**dotted, **keys}
    else:
        path = os.fspath(target)
        # A bare word is a stream's name; given as a path object, it is a path.
        is_path = not isinstance(target, str) or os.sep in path
        text = os.path.abspath(path) if not isinstance(target, str) else path
        if is_path and os.path.isdir(path):
            if not any(key == "preset" or key.split(".")[0] == "stage" for key in keys):
                raise ConfigError(
                    f"`{path}` is a folder, and what to do with its files is not said: give a preset, such as "
                    'Loader(folder, batch_size=64, preset="imagenet-train"), or a configuration file'
                )
            kind, text = "json", to_json("the configuration", {"dataset": {"path": os.path.abspath(path)}})
    return kind, text, [(key, to_json(f"`{key}`", value)) for key, value in keys.items()]


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
