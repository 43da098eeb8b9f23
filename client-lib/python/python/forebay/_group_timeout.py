"""Warns if ranks would time out before the daemon stops waiting for its storage.

During an outage the loader waits for ``dataset.outage_timeout``. A rank without its storage joins no collective
during this time, and the others end with an error of the process group after that group's time-out.
"""

import warnings
from typing import Any, Optional

from ._ranks import initialised_distributed


def warn_if_shorter(loader: Any) -> None:
    """Warns if the default process group's time-out is shorter than the stream's ``dataset.outage_timeout``."""
    if loader.world_size == 1:
        return
    group_seconds = default_group_seconds()
    if group_seconds is None:
        return
    streams = loader.stats()["streams"]
    outage_seconds = next(
        (stream.get("outage_timeout_seconds", 0) for stream in streams if stream["name"] == loader.stream), 0
    )
    if group_seconds < outage_seconds:
        warnings.warn(
            f"the process group gives a rank up after {group_seconds:g} s, and the loader waits up to "
            f"{outage_seconds:g} s (dataset.outage_timeout) for a storage that is away: a longer outage ends the other "
            "ranks. Give init_process_group a timeout that is longer than that, or lower dataset.outage_timeout",
            RuntimeWarning,
            stacklevel=3,
        )


def default_group_seconds() -> Optional[float]:
    """The shortest time-out of the default process group's backends; ``None`` without one or if it is unknown."""
    distributed = initialised_distributed()
    if distributed is None:
        return None
    try:
        # No public function of PyTorch has it.
        group = distributed.group.WORLD
        backends = [group._get_backend(device) for device in group._device_types]
        return min(float(backend.options._timeout.total_seconds()) for backend in backends)
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return None
