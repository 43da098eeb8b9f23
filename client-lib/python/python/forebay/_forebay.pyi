from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypedDict

__version__: str

class Terms(TypedDict):
    stream: str
    batch_size: int
    batches_per_epoch: int
    samples_per_epoch: int
    epochs: int | None
    slots: int
    hold: int
    rank: int
    world_size: int
    rank_source: str
    # Name, type, shape of a row, whether ragged, whether channels_last.
    tensors: list[tuple[str, str, list[int], bool, bool]]

class Session:
    def __init__(
        self,
        kind: str,
        target: str,
        *,
        rank: tuple[int, int] | None,
        distributed: tuple[int, int] | None,
        state: str | None,
        force: bool,
        timeout: float,
        overrides: list[tuple[str, str]],
        program: Path | None,
        # Ordinal, pin policy, handle of the side stream.
        device: tuple[int, str, int] | None = None,
    ) -> None: ...
    def begin(self) -> Epoch: ...
    def state(self, held_back: int) -> str: ...
    def load_state(self, text: str, force: bool) -> None: ...
    def set_epoch(self, epoch: int) -> None: ...
    def stats(self) -> tuple[str, dict[str, Any]]: ...
    def terms(self) -> Terms: ...
    def given_up(self) -> int: ...
    def daemon(self) -> tuple[int | None, int]: ...
    def close(self) -> None: ...
    # For batches on a device. Of a region: its tensor, whether it is a ragged one's table, bytes, rows of the table.
    def regions(self) -> list[tuple[int, bool, int, int]]: ...
    def offer(self, owner: object, addresses: list[int]) -> None: ...
    def begin_on_device(self) -> int: ...
    # The owner, the rows, the bytes of each tensor.
    def next_on_device(self, iteration: int, stream: int) -> tuple[Any, int, list[int]] | None: ...

class Epoch(Iterator[dict[str, Any]]):
    def __iter__(self) -> Epoch: ...
    def __next__(self) -> dict[str, Any]: ...

class Slot: ...
