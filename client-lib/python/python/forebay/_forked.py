"""Replaces the batches of the parent in a forked child, where their memory is not mapped."""

import os
from typing import Any, NoReturn

from . import _forebay
from ._exceptions import Error

# The methods that NumPy and Python call on an element.
# fmt: off
_REFLECTED = (
    "add", "and", "divmod", "floordiv", "lshift", "matmul", "mod", "mul", "or", "pow", "rshift", "sub",
    "truediv", "xor",
)
_USES = (
    *_REFLECTED, *(f"r{use}" for use in _REFLECTED), "abs", "array", "bool", "bytes", "call", "complex", "contains",
    "enter", "eq", "float", "format", "ge", "getitem", "gt", "hash", "index", "int", "invert", "iter", "le", "len",
    "lt", "ne", "neg", "next", "pos", "reduce_ex", "repr", "round", "setitem", "str",
)
# fmt: on


class Unmapped:
    """Stands for each element of an array over memory of the parent process. Every use raises an error."""

    __slots__ = ()

    def _refuse(self, *_: object) -> NoReturn:
        raise Error(
            "this batch belongs to the process that this one was forked from, and its memory is not mapped here; pass "
            "copies (`array.copy()`) to forked processes, start them with `spawn`, or attach a loader in the child"
        )

    __getattr__ = _refuse


for _use in _USES:
    setattr(Unmapped, f"__{_use}__", Unmapped._refuse)


def watch_forks() -> None:
    """Replaces the arrays of this process's batches in each child that Python forks."""
    element: Any = Unmapped()
    os.register_at_fork(after_in_child=lambda: _forebay.replace_arrays(element))
