"""A worker of a Python stage: ``python -m forebay.worker``, started by the daemon's spawner.

Descriptors at the start: 0 the socket to the daemon, 1 the arena (memory that only the daemon and this process have),
2 the log. The variable FOREBAY_WORKER has the number of a fourth one, with the description of the function. The socket
carries five little-endian words per call (its number, the start of its side of the arena, the offset and the size of
the header in it, the place of the reply) and two words per answer (the number, the reply's size).
daemon/crates/workers/src/call.rs and reply.rs describe the contents of the arena. No pickle is read or written.
"""

import importlib
import json
import os
import socket
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any


def main() -> None:
    """Serves calls until the daemon has ended."""
    spec = _read_spec()
    _die_with_the_spawner()
    if spec["foreground"]:
        from ._foreground import serve_in_foreground

        serve_in_foreground(spec, *spec["foreground"])
        return
    # While a trainer waits for the daemon's start, an import in its scheduling class does not slow it down.
    imports_in_normal_class = os.environ.pop("FOREBAY_NORMAL_IMPORT", None) is not None
    if not imports_in_normal_class:
        _lower(spec, [os.getpid()])
    _keep_memory()
    connection, arena = _take_descriptors()
    _set_breakpoints(spec["breakpoints"])
    from ._batch import BatchStage
    from ._stage import Stage, serve, tell
    from ._worker_log import Log

    log = Log(spec["place"])
    sys.stdout, sys.stderr = log.output, log.error
    try:
        stage = BatchStage(spec) if spec["batch"] else Stage(spec)
    except BaseException as error:  # whatever the user's module raises
        from ._stage import raised

        tell(connection, arena, {"raised": raised(error, own_frames=0)})
        log.end_lines()
        return
    if imports_in_normal_class:
        _lower_all(spec)
    tell(connection, arena, {**stage.hello, "ready_ns": time.monotonic_ns()})
    serve(stage, connection, arena, log)


def _read_spec() -> dict[str, Any]:
    """This worker's function: JSON in sealed memory, which all workers of a stage inherit and none keeps."""
    descriptor = int(os.environ.pop("FOREBAY_WORKER"))
    # Not from the descriptor's current offset, which all workers share.
    data = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    os.close(descriptor)
    spec: dict[str, Any] = json.loads(data)
    return spec


def _die_with_the_spawner() -> None:
    import ctypes
    import signal

    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def _lower(spec: dict[str, Any], threads: Iterable[int]) -> None:
    """Gives threads the scheduling class of the daemon's work threads."""
    policies = {"idle": os.SCHED_IDLE, "batch": os.SCHED_BATCH, "normal": os.SCHED_OTHER}
    for thread in threads:
        try:
            os.sched_setscheduler(thread, policies[spec["policy"]], os.sched_param(0))
            if spec["nice"]:
                nice = max(spec["nice"], os.getpriority(os.PRIO_PROCESS, thread))
                os.setpriority(os.PRIO_PROCESS, thread, nice)
        except ProcessLookupError:  # it has ended meanwhile
            pass
        except OSError as error:
            print(f"forebay: cannot lower a worker's scheduling class: {error}", file=sys.stderr)


def _lower_all(spec: dict[str, Any]) -> None:
    """Lowers all threads of this process, and of all processes that the import has started. Each inherits the class of
    its creator, so all are lowered when a scan finds no new one."""
    lowered: set[int] = set()
    while new := set(_threads_below(os.getpid())) - lowered:
        _lower(spec, sorted(new))
        lowered |= new


def _threads_below(process: int) -> Iterator[int]:
    try:
        threads = [int(name) for name in os.listdir(f"/proc/{process}/task")]
    except OSError:  # it has ended, or belongs to another user
        return
    yield from threads
    for thread in threads:
        try:
            with open(f"/proc/{process}/task/{thread}/children") as file:
                children = [int(child) for child in file.read().split()]
        except OSError:
            continue
        for child in children:
            yield from _threads_below(child)


def _keep_memory() -> None:
    """Makes the C library keep freed memory, up to a size: each sample needs as much as the previous one, and returning
    pages to the kernel in between costs more than copying a picture."""
    import ctypes

    trim_threshold, mmap_threshold = -1, -3
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # other C libraries have none
        mallopt(mmap_threshold, 32 << 20)
        mallopt(trim_threshold, 64 << 20)


def _take_descriptors() -> tuple[socket.socket, int]:
    """Moves the socket and the arena to new numbers: the user's code gets /dev/null as 0 and the log as 1."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, os.dup(0))
    arena = os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return connection, arena


def _set_breakpoints(are_refused: bool) -> None:
    """Refuses breakpoints, since a worker has no terminal. If another worker is in the foreground, they are ignored."""

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
