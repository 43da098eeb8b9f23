"""Ragged fields that ``batch.pad`` makes one array, padded to the longest row of their batch."""

import math
import struct
from typing import TYPE_CHECKING, Any, Optional

if TYPE_CHECKING:
    from ._forebay import Terms


class Padding:
    """Pads a batch's fields and adds their lengths as the fields ``NAME_lengths``."""

    def __init__(self, terms: "Terms") -> None:
        types = {name: dtype for name, dtype, _, _, _ in terms["tensors"]}
        self._fields = [(name, types[name], multiple_of, value) for name, multiple_of, value in terms["padding"]]

    @classmethod
    def of(cls, terms: "Terms") -> Optional["Padding"]:
        """The padding of a session; None if it pads no field."""
        return cls(terms) if terms["padding"] else None

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """The batch, changed in place: padded fields are copies, and hold no slot."""
        for name, dtype, multiple_of, value in self._fields:
            ragged = batch[name]
            batch[name] = ragged.padded(_value_of(value, dtype, str(ragged.values.dtype)), multiple_of)
            batch[f"{name}_lengths"] = ragged.lengths // math.prod(ragged.row_shape)
        return batch


def _value_of(value: float, dtype: str, array_dtype: str) -> Any:
    """The value as a number of the field's type."""
    if dtype == "bfloat16" and array_dtype == "uint16":
        # NumPy without ml_dtypes has the bits: rounded to nearest, ties to even.
        bits = struct.unpack("<I", struct.pack("<f", value))[0]
        return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return value if "float" in dtype else int(value)
