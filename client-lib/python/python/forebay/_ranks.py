"""Rank and world size from torch.distributed and Ray Train, if the program uses them. They are never imported here."""

import sys
import warnings
from typing import Any, Optional


def initialised_distributed() -> Optional[Any]:
    """The module torch.distributed, if it is initialised."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed


def ask_torch() -> Optional[tuple[int, int]]:
    """Rank and world size, if torch.distributed is initialised."""
    distributed = initialised_distributed()
    return None if distributed is None else (distributed.get_rank(), distributed.get_world_size())


def ask_ray() -> Optional[tuple[int, int]]:
    """Rank and world size of a worker of Ray Train that trains with several."""
    train = sys.modules.get("ray.train")
    if train is None:
        return None
    try:
        with warnings.catch_warnings():
            # Outside of a worker Ray warns and answers 0 of 1, or raises.
            warnings.simplefilter("ignore")
            context = train.get_context()
            rank, world_size = context.get_world_rank(), context.get_world_size()
    except Exception:
        return None
    return (int(rank), int(world_size)) if world_size is not None and world_size > 1 else None


def name_ranks(ranks: list[int]) -> str:
    """``rank 3``, ``ranks 0 to 6``, ``ranks 0, 2, 5 and 9 more``."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if ranks == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]} to {ranks[-1]}" if len(ranks) > 2 else f"ranks {ranks[0]} and {ranks[1]}"
    shown = ", ".join(str(rank) for rank in ranks[:8])
    return f"ranks {shown}" + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
