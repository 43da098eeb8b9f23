"""A worker of a Python stage: ``python -m forebay.worker``, started by the daemon's spawner.

Descriptors at the start: 0 the socket to the daemon, 1 the arena (memory that only the daemon and this process have),
2 the log. The socket carries five little-endian words a call (its number, where its side of the arena begins, where in
it the header lies, the header's bytes, where the reply goes) and two words an answer (the number, the reply's bytes).
What lies in the arena is described in daemon/crates/workers/src/call.rs and reply.rs. No pickle is read or written.
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
    if spec["foreground"]:
        from ._foreground import serve_in_foreground

        serve_in_foreground(spec, *spec["foreground"])
        return
    _lower(spec)
    _keep_memory()
    connection, arena = _take_descriptors()
    _set_breakpoints(spec["breakpoints"])
    from ._batch import BatchStage
    from ._stage import Log, Stage, serve, tell

    log = Log(spec["place"])
    sys.stdout = sys.stderr = log
    try:
        stage = BatchStage(spec) if spec["batch"] else Stage(spec)
    except BaseException as error:  # whatever the user's module raises
        from ._stage import raised

        tell(connection, arena, {"raised": raised(error, own_frames=0)})
        return
    tell(connection, arena, stage.hello)
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


def _keep_memory() -> None:
    """Has the C library keep what is freed, up to a size: each sample takes as much as the one before, and giving pages
    back to the kernel between them costs more than copying a picture."""
    import ctypes

    trim_threshold, mmap_threshold = -1, -3
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # other C libraries have none
        mallopt(mmap_threshold, 32 << 20)
        mallopt(trim_threshold, 64 << 20)


def _take_descriptors() -> tuple[socket.socket, int]:
    """The socket and the arena, at numbers of their own: what the user's code reads from 0 ends, what it writes to 1
    goes to the log."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, os.dup(0))
    arena = os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return connection, arena


def _set_breakpoints(are_refused: bool) -> None:
    """A worker has no terminal. Beside one in the foreground, which has it, breakpoints pass."""

    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError(
            "a worker has no terminal for a debugger; `forebay run-sample CONFIG ID` runs one sample with one"
        )

    def ignore(*_: Any, **__: Any) -> None:
        pass

    if not are_refused:
        import pdb

        sys.breakpointhook = ignore
        pdb.set_trace = ignore
    elif "PYTHONBREAKPOINT" not in os.environ:
        sys.breakpointhook = refuse


if __name__ == "__main__":
    importlib.invalidate_caches()
    main()
