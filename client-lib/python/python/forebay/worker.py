"""A worker of a Python stage: ``python -m forebay.worker``, started by the daemon's spawner.

Descriptors at the start: 0 the socket to the daemon, 1 the arena (memory that only the daemon and this process have),
2 the log. The socket carries four little-endian words a call (its number, where its header lies in the arena, the
header's bytes, where the reply goes) and two words an answer (the number, the reply's bytes). What lies in the arena
is described in daemon/crates/workers/src/call.rs and reply.rs. No pickle is read or written.
"""

import importlib
import json
import os
import socket
import sys
from typing import Any


def main() -> None:
    """Serves calls until the daemon is gone."""
    spec = json.loads(os.environ.pop("FOREBAY_WORKER"))
    _die_with_the_spawner()
    _lower(spec)
    connection, arena = _take_descriptors()
    from ._stage import Log, Stage, serve

    log = Log(spec["stage"])
    sys.stdout = sys.stderr = log
    try:
        stage = Stage(spec)
    except BaseException as error:  # whatever the user's module raises
        from ._stage import raised

        _tell(connection, arena, json.dumps({"raised": raised(error, own_frames=0)}).encode())
        return
    _tell(connection, arena, json.dumps({"source": stage.source_digest}).encode())
    serve(stage, connection, arena, log)


def _die_with_the_spawner() -> None:
    import ctypes
    import signal

    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def _lower(spec: dict[str, Any]) -> None:
    """Takes the scheduling class of the daemon's work threads."""
    policies = {"idle": os.SCHED_IDLE, "batch": os.SCHED_BATCH, "normal": os.SCHED_OTHER}
    try:
        os.sched_setscheduler(0, policies[spec["policy"]], os.sched_param(0))
        if spec["nice"]:
            os.setpriority(os.PRIO_PROCESS, 0, max(spec["nice"], os.getpriority(os.PRIO_PROCESS, 0)))
    except OSError as error:
        print(f"forebay: cannot lower a worker's scheduling class: {error}", file=sys.stderr)


def _take_descriptors() -> tuple[socket.socket, int]:
    """The socket and the arena, at numbers of their own: what the user's code reads from 0 ends, what it writes to 1
    goes to the log."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, os.dup(0))
    arena = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    return connection, arena


def _tell(connection: socket.socket, arena: int, text: bytes) -> None:
    """The first message, numbered 0."""
    os.ftruncate(arena, max(os.fstat(arena).st_size, 64 + len(text)))
    os.pwrite(arena, text, 64)
    connection.sendall((0).to_bytes(8, "little") + len(text).to_bytes(8, "little"))


if __name__ == "__main__":
    importlib.invalidate_caches()
    main()
