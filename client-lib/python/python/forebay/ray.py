"""Feeders on a Ray cluster: CPU nodes that make rows for the trainers' daemons.

    import forebay.ray

    with forebay.ray.FeederGroup("feed.toml", min=2, max=8, cpus=16) as feeders:
        trainer = ray.train.torch.TorchTrainer(train, train_loop_config={"feeders": feeders.overrides}, ...)
        trainer.fit()

and in ``train``: ``forebay.torch.Loader("train.toml", overrides=config["feeders"])``. Ray places the feeders and
restarts them; a feeder that dies costs no row, and the rows are the same with any number of feeders.
"""

import contextlib
import http.client
import json
import logging
import math
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, Optional, Union

import ray as _ray
from ray.util import scheduling_strategies

from ._exceptions import ConfigError

__all__ = ["FeederGroup"]

logger = logging.getLogger("forebay.ray")
# Not all of Ray's functions have types.
ray: Any = _ray

GAUGE = "forebay_feeders_wanted"
# Seconds: between two looks at the actors, to drain a feeder, for a trainer's metrics, to write a file.
# A feeder sends what it has for up to 20 s.
TICK, DRAIN, SCRAPE, WRITE = 1.0, 25.0, 2.0, 5.0
# A feeder without an address for so many seconds after an error is replaced by a new actor.
REPLACE = 30.0
# The number of times in a row that fewer feeders are wanted before one is drained.
PATIENCE = 3

# Executes a command that the kernel kills when this process dies: also after SIGKILL, which runs no handler here.
GUARD = """
import ctypes, os, signal, sys
ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the actor died before its feeder started")
os.execvp(sys.argv[2], sys.argv[2:])
"""


def find_program() -> str:
    """FOREBAY_PROGRAM, else the program in this package, else the first one on PATH."""
    packaged = Path(__file__).with_name("bin") / "forebay"
    return os.environ.get("FOREBAY_PROGRAM") or (str(packaged) if packaged.is_file() else "forebay")


def read_gauge(text: str) -> Optional[float]:
    """The sum of the gauge over a daemon's streams; None if the daemon does not have it."""
    samples = [line.rsplit(" ", 1)[-1] for line in text.splitlines() if line.partition("{")[0].split(" ")[0] == GAUGE]
    wanted = sum(float(sample) for sample in samples)
    return wanted if samples and math.isfinite(wanted) else None


def scrape(addresses: Iterable[str]) -> list[float]:
    """The gauges of the daemons that answer. A proxy of the environment is not asked."""
    opener, found = urllib.request.build_opener(urllib.request.ProxyHandler({})), []
    for address in addresses:
        answers = contextlib.suppress(OSError, ValueError, http.client.HTTPException)
        with answers, opener.open(f"http://{address}/metrics", timeout=SCRAPE) as page:
            gauge = read_gauge(page.read(1 << 24).decode())
            found += [] if gauge is None else [gauge]
    return found


class _Feeder:
    """An actor with the program as its child. Its methods run on the main thread, whose end the guard waits for."""

    def __init__(self, arguments: Sequence[str], program: Optional[str]) -> None:
        listen = f"{ray.util.get_node_ip_address()}:0"
        self._command = [program or find_program(), "feed", *arguments, "--listen", listen]
        self._start()

    def _start(self) -> None:
        guarded = [sys.executable, "-I", "-S", "-c", GUARD, str(os.getpid()), *self._command]
        self._child = subprocess.Popen(guarded, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._child.stdout is not None
        for line in self._child.stdout:
            before, _, address = line.strip().partition("listening on ")
            if address and not before:
                self._address = address
                return
        raise RuntimeError(
            f"{' '.join(self._command)} ended with {self._child.wait()}; the worker's log has the reason"
        )

    def address(self) -> str:
        """Where the feeder listens. One that ended is started again."""
        if self._child.poll() is not None:
            logger.warning("a feeder ended with %s and is started again", self._child.returncode)
            self._start()
        return self._address

    def drain(self) -> None:
        """Ends the feeder after the requests that it has."""
        self._child.send_signal(signal.SIGTERM)
        try:
            self._child.wait(DRAIN)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()


class _Node:
    """An actor on each node: it writes the feeders' file, and reads metrics that are served to the node alone."""

    def write(self, path: str, text: str) -> None:
        new = f"{path}.{secrets.token_hex(4)}"
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
        os.replace(new, path)

    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def scrape(self, addresses: Sequence[str]) -> list[float]:
        return scrape(addresses)


class _Member:
    """A feeder's actor as the group sees it: the answer it waits for, the address, and since when there is an error."""

    def __init__(self, actor: Any) -> None:
        self.actor, self.asked, self.address, self.failing = actor, None, None, None  # type: Any, Any, Any, Any


class FeederGroup:
    """A number of feeders on a Ray cluster, between ``min`` and ``max``.

    A thread of this process keeps the file of feeders on each node, which daemons read again when it changes, and reads
    ``forebay_feeders_wanted`` from the trainers' daemons every ten seconds: more feeders are started at once, and those
    above are drained when three readings in a row want fewer. Without a reading the number stays. Ray's autoscaler adds
    and removes nodes. The group ends with :meth:`close` or with this process, and so do its feeders.

    Args:
        config: the feeders' configuration, a path on the nodes, or several; it is not sent.
        min: the number of feeders at the beginning, and the least.
        max: the most; by default ``min``.
        cpus: CPUs that Ray reserves for each. A feeder uses those that its node allows or ``cpu.cores`` names.
        label_selector: labels of the nodes for them, as Ray's option of that name.
        metrics: addresses of the trainers' metrics (``listen.metrics``) as ``"host:port"``, or a function that gives
            them. A loopback address is asked on every node.
        file: where each node has the file; by default a new name in the folder for temporary files.
        overrides: keys that take the place of those in ``config``.
        program: the ``forebay`` program on the nodes; by default that of the package.

    Raises:
        ConfigError: ``min`` and ``max`` contradict each other.
    """

    def __init__(
        self,
        config: Union[str, "os.PathLike[str]", Sequence[str]],
        min: int = 1,
        max: Optional[int] = None,
        cpus: float = 1,
        label_selector: Optional[Mapping[str, str]] = None,
        *,
        metrics: Union[Iterable[str], Callable[[], Iterable[str]]] = (),
        file: Optional[str] = None,
        overrides: Optional[Mapping[str, Union[str, int, float, bool]]] = None,
        program: Optional[str] = None,
    ) -> None:
        self._least, self._most = min, min if max is None else max
        if not 0 <= self._least <= self._most:
            raise ConfigError(f"min={min} and max={max}: expected 0 <= min <= max")
        configs = [config] if isinstance(config, (str, os.PathLike)) else config
        self._arguments = [os.fspath(path) for path in configs]
        for key, value in (overrides or {}).items():
            self._arguments += ["--set", f"{key}={value if isinstance(value, str) else json.dumps(value)}"]
        self._program, self._metrics = program, metrics
        options: dict[str, Any] = {"num_cpus": cpus, "max_restarts": -1}
        if label_selector:
            options["label_selector"] = dict(label_selector)
        self._actor = ray.remote(_Feeder).options(**options)
        name = f"forebay-feeders-{os.getuid()}-{secrets.token_hex(4)}"
        self.file: str = file or str(Path(tempfile.gettempdir()) / name)
        """The path of the file on each node, for ``feeders.file``."""
        self.wanted: int = self._least
        """The number of feeders that the group has or starts."""
        self._members: list[_Member] = []
        self._leaving: list[tuple[Any, Any]] = []
        self._nodes: dict[str, Any] = {}
        self._written: dict[str, str] = {}
        self._fewer = 0
        self._lock, self._closing = threading.Lock(), threading.Event()
        self._tick()
        self._thread = threading.Thread(target=self._run, name="forebay-feeders", daemon=True)
        self._thread.start()

    @property
    def overrides(self) -> dict[str, str]:
        """The keys that a loader's configuration needs, for its argument ``overrides``."""
        return {"feeders.file": self.file}

    @property
    def addresses(self) -> list[str]:
        """The feeders that listen, as in the file."""
        return sorted(member.address for member in self._members if member.address)

    def wait(self, count: Optional[int] = None, timeout: float = 600) -> None:
        """Waits until so many feeders listen and each node has the file; by default ``wanted`` of them.

        Raises:
            TimeoutError: they did not come in time: no node has the CPUs or labels, or the feeders end.
        """
        until = time.monotonic() + timeout
        while len(self.addresses) < (self.wanted if count is None else count) or not self._is_written():
            if time.monotonic() > until:
                raise TimeoutError(
                    f"{len(self.addresses)} of {self.wanted} feeders listen after {timeout} s; `ray status` and the "
                    "workers' logs have the reason"
                )
            if self._closing.wait(TICK / 5):
                return

    def close(self) -> None:
        """Ends all feeders and removes the files. Trainers that still run make their rows themselves."""
        self._closing.set()
        self._thread.join()
        with self._lock:
            draining = [member.actor.drain.remote() for member in self._members if member.address]
            removing = [node.remove.remote(self.file) for node in self._nodes.values()]
            _settle(draining + [ref for _, ref in self._leaving], DRAIN + WRITE)
            _settle(removing, WRITE)
            for actor in [m.actor for m in self._members] + [a for a, _ in self._leaving] + list(self._nodes.values()):
                ray.kill(actor, no_restart=True)
            self._members, self._leaving, self._nodes = [], [], {}

    def __enter__(self) -> "FeederGroup":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        read_at = time.monotonic()
        while not self._closing.wait(TICK):
            try:
                if time.monotonic() - read_at >= 10:
                    read_at = time.monotonic()
                    self._scale(self._read_wanted())
                self._tick()
            # A cluster that changes gives errors of many kinds; the next round finds what is there then.
            except Exception as error:
                logger.warning("the feeders are looked after again in a second: %s", error)

    def _tick(self) -> None:
        """Asks the actors for their addresses, starts and drains some, and writes the files."""
        with self._lock:
            while len(self._members) < self.wanted:
                self._members.append(_Member(self._actor.remote(self._arguments, self._program)))
            while len(self._members) > self.wanted:
                # One that never came first, then the newest.
                member = next((m for m in self._members if not m.address), self._members[-1])
                self._members.remove(member)
                if member.address:
                    self._leaving.append((member.actor, member.actor.drain.remote()))
                else:
                    # It may still wait for a node, which a call would wait for as well.
                    ray.kill(member.actor, no_restart=True)
            self._ask()
            self._write()
            for actor, ref in list(self._leaving):
                if ray.wait([ref], timeout=0)[0]:
                    ray.kill(actor, no_restart=True)
                    self._leaving.remove((actor, ref))

    def _ask(self) -> None:
        for member in self._members:
            member.asked = member.asked or member.actor.address.remote()
        asked = [member.asked for member in self._members]
        ready = set(ray.wait(asked, num_returns=len(asked), timeout=TICK / 2)[0]) if asked else set()
        for place, member in enumerate(self._members):
            if member.asked not in ready:
                continue
            try:
                member.address, member.failing = ray.get(member.asked), None
            except ray.exceptions.RayError as error:
                if member.failing is None:
                    logger.warning(
                        "a feeder does not answer, and Ray restarts it: %s", str(error).strip().split("\n")[-1]
                    )
                member.address, member.failing = None, member.failing or time.monotonic()
                if time.monotonic() - member.failing > REPLACE:
                    ray.kill(member.actor, no_restart=True)
                    self._members[place] = _Member(self._actor.remote(self._arguments, self._program))
            member.asked = None

    def _write(self) -> None:
        """To each node that has another text: also to those that have just come."""
        alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        for gone in self._nodes.keys() - alive:
            del self._nodes[gone]
            self._written.pop(gone, None)
        for node in alive - self._nodes.keys():
            there = scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
            options = {"num_cpus": 0, "max_restarts": -1, "scheduling_strategy": there}
            self._nodes[node] = ray.remote(_Node).options(**options).remote()
        text = "".join(f"{address}\n" for address in self.addresses)
        refs = {
            actor.write.remote(self.file, text): node
            for node, actor in self._nodes.items()
            if self._written.get(node) != text
        }
        for ref in _settle(list(refs), WRITE):
            self._written[refs[ref]] = text

    def _is_written(self) -> bool:
        text = "".join(f"{address}\n" for address in self.addresses)
        return bool(self._written) and all(self._written.get(node) == text for node in list(self._nodes))

    def _read_wanted(self) -> Optional[int]:
        addresses = list(self._metrics() if callable(self._metrics) else self._metrics)
        local = [a for a in addresses if a.startswith(("127.", "localhost:", "[::1]:"))]
        found = scrape(a for a in addresses if a not in local)
        refs = [node.scrape.remote(local) for node in self._nodes.values()] if local else []
        for ref in _settle(refs, WRITE + SCRAPE * len(local)):
            found += ray.get(ref)
        return math.ceil(sum(found)) if found else None

    def _scale(self, wanted: Optional[int]) -> None:
        if wanted is None:
            return
        wanted = sorted((self._least, wanted, self._most))[1]
        self._fewer = self._fewer + 1 if wanted < self.wanted else 0
        if wanted > self.wanted or self._fewer >= PATIENCE:
            logger.info("%d feeders are wanted, and there were %d", wanted, self.wanted)
            self.wanted, self._fewer = wanted, 0


def _settle(refs: list[Any], timeout: float) -> list[Any]:
    """Those that succeeded in time. A node that is gone fails its own alone."""
    done = []
    for ref in ray.wait(refs, num_returns=len(refs), timeout=timeout)[0] if refs else []:
        with contextlib.suppress(ray.exceptions.RayError):
            ray.get(ref)
            done.append(ref)
    return done
