"""The user's functions as stages: their names for a daemon's workers, and the interpreter that runs them."""

import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, Optional

from ._exceptions import ConfigError

NOTEBOOK = (
    "is defined in a notebook or a session, where another process cannot find it; write it to a file (in a notebook "
    "with `%%writefile transforms.py` at the top of its cell) and import it from there"
)


def worker_keys() -> dict[str, Any]:
    """This process's interpreter, its search path and its script, as keys of a configuration."""
    keys: dict[str, Any] = {"python.path": [os.path.abspath(folder) for folder in sys.path]}
    if sys.executable:
        keys["python.interpreter"] = sys.executable
    main = main_script()
    if main is not None:
        keys["python.main"] = main
    return keys


def stage_keys(stages: Optional[Mapping[str, Callable[..., Any]]]) -> dict[str, str]:
    """The keys that name the functions of stages."""
    return {
        f"stage.{name}.python": name_of(f"the function of stage `{name}`", function)
        for name, function in (stages or {}).items()
    }


def main_script() -> Optional[str]:
    """The script or the module that this process runs; None in a notebook or a session."""
    module = sys.modules.get("__main__")
    spec = getattr(module, "__spec__", None)
    if spec is not None:
        # `python -m package` runs package.__main__.
        return str(spec.name)
    path = getattr(module, "__file__", None)
    # A program on the standard input has a name that is not a file name.
    return os.path.abspath(path) if path is not None and os.path.isfile(path) else None


def name_of(what: str, function: Any) -> str:
    """The name by which another process finds a function or a class; ``what`` names it in errors.

    Raises:
        ConfigError: no other process can find it.
    """
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not callable(function) or module is None or name is None:
        raise ConfigError(f"{what} is a {type(function).__name__}; give a function or a class of a module")
    if "<lambda>" in name or "<locals>" in name:
        raise ConfigError(
            f"{what}, `{name}`, cannot be found from another process; define it at the top of a module or of the script"
        )
    if module == "__main__" and main_script() is None:
        raise ConfigError(f"{what}, `{name}`, {NOTEBOOK}")
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not function:
        raise ConfigError(f"{what} is not what `{module}.{name}` names; give what the module defines")
    return f"{module}:{name}"
