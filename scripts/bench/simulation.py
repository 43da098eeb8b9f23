"""The simulation behind `simulate`: jobs, hosts, feeders, and what follows from a job by arithmetic alone."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush

# The share of requests that may be asked for twice, and the time after which a dead feeder's rows are asked for again.
HEDGED, DETECTION = 0.05, 1.0
# How busy all cores may be: the rest fills the rings again after a death.
LOAD = 0.8


@dataclass(frozen=True)
class Job:
    """What is simulated. Times are in seconds."""

    ranks: int = 8
    ranks_a_host: int = 8
    batch: int = 100
    step: float = 0.125
    row: float = 0.0006
    receive: float = 0.00014
    host_cores: float = 8
    feeders: int = 0
    feeder_cores: float = 64
    ring: int = 8
    steps: int = 60
    request: int = 32
    # Requests of a host that are out at one feeder.
    window: int = 1
    spread: int = 32
    round_trip: float = 0.0005
    # A request stalls for this long with this probability.
    stall: float = 0.0
    stalls: float = 0.0
    # Feeders that die, one after the other over the run, and how long each is down.
    deaths: int = 0
    down: float = 60.0
    # 0: no request is asked for twice.
    hedge: float = 0.05
    seed: int = 0

    @property
    def hosts(self) -> int:
        return math.ceil(self.ranks / self.ranks_a_host)

    @property
    def rows(self) -> int:
        """Rows a host and step."""
        return self.ranks_a_host * self.batch

    @property
    def cores_wanted(self) -> float:
        """Cores a host that make all rows in time."""
        return self.rows * self.row / self.step

    def feeders_wanted(self) -> int:
        """As the gauge `forebay_feeders_wanted`, and one more that may be down. A host's cores receive, too."""
        missing = self.cores_wanted / LOAD - self.host_cores
        if self.cores_wanted <= LOAD * self.host_cores or self.receive >= self.row:
            return 0
        return 1 + math.ceil(self.hosts * missing / (1 - self.receive / self.row) / self.feeder_cores)

    def slots_wanted(self) -> int:
        """Slots that hide a feeder's death: one at the trainer, one in making, and steps until its rows are there."""
        again = DETECTION + max(self.row, self.request * self.row / self.feeder_cores)
        return 2 + math.ceil(again / self.step)

    def connections(self) -> tuple[int, float]:
        """Connections of a host, and of a feeder on average."""
        own = min(self.spread, self.feeders)
        return own, self.hosts * own / max(1, self.feeders)

    def rate(self) -> float:
        """Rows a second that all cores together make, if trainers never wait for anything else: the closed form."""
        host, remote = self.hosts * self.host_cores, self.feeders * self.feeder_cores / self.row
        # The hosts' cores receive, and make rows with what is left.
        received = min(remote, host / self.receive if self.receive else math.inf)
        return received + (host - received * self.receive) / self.row


@dataclass
class Found:
    """What a run showed."""

    elapsed: float = 0.0
    waits: list[float] = field(default_factory=list)
    requests: int = 0
    remote: int = 0
    hedged: int = 0
    again: int = 0
    failures: int = 0
    twice: int = 0

    def efficiency(self, job: Job) -> float:
        """The share of the time in which trainers compute, from the first step to the end of the last one."""
        return job.steps * job.step / self.elapsed

    def waiting(self) -> float:
        """The share of steps that waited."""
        return sum(wait > 1e-9 for wait in self.waits) / len(self.waits)


class Request:
    """Rows of one batch of one host."""

    __slots__ = ("batch", "done", "host", "rows", "units")

    def __init__(self, host: Host, batch: int, rows: int, units: tuple[int, int]) -> None:
        self.host, self.batch, self.rows, self.units, self.done = host, batch, rows, units, False


class Host:
    """A daemon: its queue, its cores as one, the feeders that it knows and their outstanding requests."""

    def __init__(self, feeders: list[int]) -> None:
        self.feeders, self.outstanding = feeders, dict.fromkeys(feeders, 0)
        self.queue: deque[Request] = deque()
        self.left: dict[int, int] = {}
        self.is_making, self.busy_until, self.oldest = False, 0.0, 0


class Feeder:
    """A feeder: its queue, in the order of batches, which life it is in, and what it is asked for since when."""

    def __init__(self) -> None:
        self.life, self.is_up, self.is_known_down, self.is_busy = 0, True, False, False
        self.queue: list[tuple[int, int, Request]] = []
        self.asked: dict[Request, float] = {}


class Simulation:
    """One run. Events are (time, number, what, of what); the number keeps their order."""

    def __init__(self, job: Job) -> None:
        self.job, self.random, self.found = job, random.Random(job.seed), Found()
        self.feeders = [Feeder() for _ in range(job.feeders)]
        spread = min(job.spread, job.feeders)
        self.hosts = [Host(self.random.sample(range(job.feeders), spread)) for _ in range(job.hosts)]
        self.events: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self.number, self.now, self.step, self.step_end = 0, 0.0, 0, 0.0
        self.ready: dict[int, int] = {}
        self.latencies: deque[float] = deque(maxlen=256)
        self.hedge_after, self.begun = job.hedge, 0.0

    def run(self) -> Found:
        for batch in range(min(self.job.ring, self.job.steps)):
            self.open_batch(batch)
        while self.step < self.job.steps or self.now < self.step_end:
            self.now, _, event, subject = heappop(self.events)
            event(*subject)
        self.found.elapsed = self.now - self.begun
        return self.found

    def at(self, when: float, event: Callable[..., None], *subject: object) -> None:
        self.number += 1
        heappush(self.events, (when, self.number, event, subject))

    def open_batch(self, batch: int) -> None:
        """All hosts have a free slot."""
        for host in self.hosts:
            sizes = list(pieces(self.job.rows, self.job.request))
            host.left[batch] = len(sizes)
            self.found.requests += len(sizes)
            for rows in sizes:
                host.queue.append(Request(host, batch, rows, self.best_two(host)))
            self.dispatch(host)

    def best_two(self, host: Host) -> tuple[int, int]:
        """The two feeders of a unit: random, but they stay the request's."""
        if len(host.feeders) < 2:
            return (host.feeders[0], host.feeders[0]) if host.feeders else (-1, -1)
        first, second = self.random.sample(host.feeders, 2)
        return first, second

    def dispatch(self, host: Host) -> None:
        """Gives requests to the host's cores, then to feeders, in the order of batches."""
        while host.queue and not host.is_making and self.job.host_cores:
            self.make_here(host, host.queue.popleft())
        while host.queue and (number := self.choose(host, host.queue[0])) >= 0:
            self.ask(number, host.queue.popleft())

    def make_here(self, host: Host, request: Request) -> None:
        if request.done:
            return
        host.is_making = True
        begun = max(self.now, host.busy_until)
        host.busy_until = begun + request.rows * self.job.row / self.job.host_cores
        self.at(host.busy_until, self.made_here, request)

    def made_here(self, request: Request) -> None:
        request.host.is_making = False
        self.finish(request)
        self.dispatch(request.host)

    def choose(self, host: Host, request: Request) -> int:
        """The less loaded of the request's two feeders, another one if neither has room, else -1."""
        room = self.job.window

        def load(number: int) -> int:
            return room if self.feeders[number].is_known_down else host.outstanding[number]

        if not host.feeders:
            return -1
        best = min(request.units, key=load)
        if load(best) >= room:
            best = min(host.feeders, key=load)
        return best if load(best) < room else -1

    def ask(self, number: int, request: Request) -> None:
        if request.done:
            return
        feeder, job = self.feeders[number], self.job
        request.host.outstanding[number] += 1
        self.found.remote += 1
        feeder.asked[request] = self.now
        self.number += 1
        heappush(feeder.queue, (request.batch, self.number, request))
        self.serve(number)
        if job.hedge:
            self.at(self.now + self.hedge_after, self.hedge, number, request)

    def serve(self, number: int) -> None:
        feeder, job = self.feeders[number], self.job
        if feeder.is_busy or not feeder.is_up or not feeder.queue:
            return
        feeder.is_busy = True
        _, _, request = heappop(feeder.queue)
        time = request.rows * job.row / job.feeder_cores
        # The last row takes a row's time on its core, however many cores there are.
        late = max(0.0, job.row - time) + job.round_trip
        late += job.stall if self.random.random() < job.stalls else 0.0
        self.at(self.now + time, self.served, number, feeder.life, request, late)

    def served(self, number: int, life: int, request: Request, late: float) -> None:
        feeder = self.feeders[number]
        if life == feeder.life:
            feeder.is_busy = False
            self.at(self.now + late, self.received, number, life, request)
            self.serve(number)

    def received(self, number: int, life: int, request: Request) -> None:
        feeder, host = self.feeders[number], request.host
        if life != feeder.life or request not in feeder.asked:
            return
        self.latencies.append(self.now - feeder.asked.pop(request))
        if self.found.remote % 256 == 0:
            self.hedge_after = max(self.job.hedge, 2 * sorted(self.latencies)[len(self.latencies) * 95 // 100])
        host.outstanding[number] -= 1
        cost = request.rows * self.job.receive / (self.job.host_cores or 1)
        host.busy_until = max(self.now, host.busy_until) + cost
        self.finish(request)
        self.dispatch(host)

    def hedge(self, number: int, request: Request) -> None:
        is_oldest = request.batch == request.host.oldest
        if request.done or request not in self.feeders[number].asked or not is_oldest:
            return
        if self.found.hedged < HEDGED * self.found.requests:
            self.found.hedged += 1
            others = [other for other in request.host.feeders if other != number]
            request.units = (self.random.choice(others),) * 2 if others else request.units
            request.host.queue.appendleft(request)
            self.dispatch(request.host)

    def finish(self, request: Request) -> None:
        if request.done:
            self.found.twice += 1
            return
        request.done, host = True, request.host
        host.left[request.batch] -= 1
        if host.left[request.batch]:
            return
        self.ready[request.batch] = self.ready.get(request.batch, 0) + 1
        while host.left.get(host.oldest) == 0:
            del host.left[host.oldest]
            host.oldest += 1
        self.begin_step()

    def begin_step(self) -> None:
        # Rings are full at the first step, since trainers begin slowly.
        awaited = self.step if self.step else min(self.job.ring, self.job.steps) - 1
        if self.now < self.step_end or self.ready.get(awaited, 0) < len(self.hosts):
            return
        if self.step < self.job.steps:
            if self.step == 0:
                self.begun = self.step_end = self.now
                self.plan_deaths()
            self.found.waits.append(self.now - self.step_end)
            self.step_end = self.now + self.job.step
            self.at(self.step_end, self.end_step, self.step)
            self.step += 1

    def plan_deaths(self) -> None:
        """Evenly over the run, each of another feeder."""
        dying = self.random.sample(range(len(self.feeders)), min(self.job.deaths, len(self.feeders)))
        for place, number in enumerate(dying, 1):
            self.at(self.now + place * self.job.steps * self.job.step / (len(dying) + 1), self.fail, number)

    def end_step(self, step: int) -> None:
        if step + self.job.ring < self.job.steps:
            self.open_batch(step + self.job.ring)
        self.begin_step()

    def fail(self, number: int) -> None:
        feeder = self.feeders[number]
        self.found.failures += 1
        feeder.is_up, feeder.is_busy, feeder.life = False, False, feeder.life + 1
        feeder.queue.clear()
        self.at(self.now + DETECTION, self.detect, number)
        self.at(self.now + self.job.down, self.repair, number)

    def detect(self, number: int) -> None:
        """What the feeder was asked for is put back, also what was sent after its death."""
        feeder = self.feeders[number]
        feeder.is_known_down = True
        lost, feeder.asked = feeder.asked, {}
        for request in sorted(lost, key=lambda request: -request.batch):
            request.host.outstanding[number] -= 1
            if not request.done:
                self.found.again += 1
                request.host.queue.appendleft(request)
        for host in self.hosts if lost else []:
            self.dispatch(host)

    def repair(self, number: int) -> None:
        feeder = self.feeders[number]
        feeder.is_up, feeder.is_known_down = True, False


def pieces(rows: int, size: int) -> Iterator[int]:
    while rows > 0:
        yield min(rows, size)
        rows -= size


def simulate(job: Job) -> Found:
    """Runs a job."""
    return Simulation(job).run()
