"""Refuses uses of a loader with PyTorch's ``DataLoader`` that fail silently or obscurely; errors have the remedy."""

import sys
from typing import NoReturn

from ._exceptions import ConfigError


def refuse_worker_process() -> None:
    """Refuses a loader in a worker process of a ``DataLoader``: every worker would deliver all of this rank's batches.

    A single worker is refused as well: without ``persistent_workers`` it is restarted for each epoch, and its
    loader would begin at epoch 0 each time. PyTorch is not imported here: its workers have imported it.
    """
    data = sys.modules.get("torch.utils.data")
    worker = None if data is None else data.get_worker_info()
    if worker is not None:
        raise ConfigError(
            f"this is worker {worker.id} of {worker.num_workers} of a torch.utils.data.DataLoader, and each worker's "
            "loader would deliver all batches: make the loader in the main process and iterate over it in place of the "
            "DataLoader (`for batch in loader:`); its daemon reads and decodes in threads of its own"
        )


def refuse_index(index: object) -> NoReturn:
    """Refuses ``loader[index]``, which ``DataLoader(loader)`` uses."""
    raise TypeError(
        f"loader[{index!r}]: a Forebay loader gives finished batches in order and has no samples by index. If this "
        "comes from `DataLoader(loader)`: iterate over the loader itself, `for batch in loader:`; batch size, "
        "shuffling and workers are keys of its configuration (`batch.size`, `order.shuffle`, `cpu.cores`)"
    )
