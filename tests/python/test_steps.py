"""forebay.StepTimer and forebay.straggler_report: one process, figures made up, and four real gloo ranks."""

import json
import os
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import forebay
import numpy
import pytest
from forebay._durations import Durations, in_words, typical
from forebay._rank_figures import RankFigures, StageFigures
from forebay._ranks import name_ranks
from forebay._straggler import judge

# Durations


def test_quantiles_are_right_to_a_few_percent_and_memory_is_bounded():
    draws = numpy.random.default_rng(1).lognormal(-5, 1.5, 20_000)
    durations = Durations()
    for seconds in draws:
        durations.record(float(seconds))
    for share in (0.5, 0.9, 0.99):
        assert durations.quantile(share) == pytest.approx(float(numpy.quantile(draws, share)), rel=0.03)
    assert durations.mean() == pytest.approx(draws.mean())
    assert durations.greatest == draws.max() and durations.least == draws.min()
    assert len(durations._buckets) < 300
    durations.record(-1.0)
    assert durations.least == 0.0


def test_figures_of_nothing_are_zero():
    assert Durations().to_dict() == {"count": 0, "total": 0.0, "mean": 0.0, "p50": 0.0, "p90": 0.0, "p99": 0.0}


def test_a_typical_value_counts_bursts_and_not_outliers():
    bursts = [0.0, 0.0, 0.0, 4.0] * 16
    assert typical(bursts) == 1.0
    bursts[5] = 1000.0
    assert typical(bursts) == 1.0
    assert typical([1.0, 3.0]) == 2.0 and typical([]) == 0.0


def test_times_are_told_with_the_unit_that_suits():
    assert [in_words(seconds) for seconds in (0, 4.1e-5, 0.0123, 0.2067, 2.0625, 1234.5)] == [
        *("0 µs", "41 µs", "12.3 ms", "207 ms", "2.06 s", "1234 s"),
    ]


# StepTimer


def slow_batches(count, seconds):
    for number in range(count):
        time.sleep(seconds)
        yield number


def test_waits_steps_and_phases_are_told_apart():
    timer = forebay.StepTimer()
    for number in timer.steps(slow_batches(11, 0.004)):
        with timer("forward"):
            time.sleep(0.006)
        if number % 2:
            with timer("log"):
                pass
    report = timer.report()
    assert report.steps == 11
    # The first wait is the start.
    assert report.wait["count"] == 10 and report.work["count"] == 11
    assert report.first_wait_seconds >= 0.004
    assert report.wait["mean"] >= 0.004 and report.work["mean"] >= 0.006
    assert report.step["total"] == pytest.approx(report.wait["total"] + report.work["total"], abs=report.work["p99"])
    assert report.phases["forward"]["count"] == 11 and report.phases["log"]["count"] == 5
    assert report.work["total"] >= report.phases["forward"]["total"] >= 11 * 0.006
    assert set(json.loads(report.to_json())) >= {"steps", "wait", "work", "step", "phases"}
    assert [line.split()[0] for line in str(report).splitlines()[1:6]] == ["step", "wait", "work", "forward", "log"]


def test_a_timer_iterates_its_loader_over_epochs_and_forgets_on_reset():
    timer = forebay.StepTimer([1, 2, 3])
    assert len(timer) == 3
    assert [*timer, *timer] == [1, 2, 3, 1, 2, 3]
    assert timer.report().steps == 6 and timer.report().wait["count"] == 5
    timer.reset()
    list(timer)
    assert timer.report().steps == 3 and timer.report().wait["count"] == 3
    with pytest.raises(TypeError, match="no loader"):
        forebay.StepTimer().steps()


def test_phases_nest_and_one_that_fails_is_not_counted():
    timer = forebay.StepTimer()
    with timer("outer"), timer("inner"):
        pass
    with pytest.raises(KeyError), timer("outer"):
        raise KeyError
    assert {name: figures["count"] for name, figures in timer.report().phases.items()} == {"outer": 1, "inner": 1}


def test_a_timed_loop_keeps_no_batch_but_its_own(config):
    with forebay.Loader(config()) as loader:
        held = []
        for batch in forebay.StepTimer(loader):
            del batch
            held.append(loader.stats()["client"]["held"])
        assert held == [0] * 5


def test_memory_does_not_grow_with_the_steps():
    timer = forebay.StepTimer(range(3000))
    for _ in timer:
        with timer("phase"):
            pass
    assert len(timer.recent) == 256 and len(timer.phases["phase"]._buckets) < 500


def test_the_device_is_the_loaders_unless_it_is_named():
    torch = pytest.importorskip("torch")

    class OnDevice(list):
        device = torch.device("cuda:1")

    class OfJax(list):
        class Device:
            __module__ = "jaxlib"

            def __str__(self):
                return "cuda:0"

        device = Device()

    assert forebay.StepTimer(OnDevice())._cuda == torch.device("cuda:1")
    assert forebay.StepTimer(OnDevice(), device="cpu")._cuda is None
    assert forebay.StepTimer(device="cuda:0")._cuda == torch.device("cuda:0")
    assert forebay.StepTimer(OfJax())._cuda is None and forebay.StepTimer([])._cuda is None


class FakeCuda:
    """Events of a GPU that takes 3 ms a phase and reaches them when it is let."""

    def __init__(self):
        self.reached = 0
        self.recorded = 0
        self.made = 0

    def event(self):
        self.made += 1
        return FakeEvent(self)


class FakeEvent:
    def __init__(self, cuda):
        self.cuda = cuda

    def record(self):
        self.cuda.recorded += 1
        self.number = self.cuda.recorded

    def query(self):
        return self.number <= self.cuda.reached

    def elapsed_time(self, later):
        assert later.query(), "asked before the GPU was there"
        return 3.0 * (later.number - self.number)


@pytest.fixture
def on_fake_cuda(monkeypatch):
    """A timer whose events are a scripted GPU's."""
    cuda = FakeCuda()
    timer = forebay.StepTimer()
    timer._cuda = "cuda:0"

    def record_event():
        event = timer._spare_events.pop() if timer._spare_events else cuda.event()
        event.record()
        return event

    def wait_for_device():
        cuda.reached = cuda.recorded

    monkeypatch.setattr(timer, "_record_event", record_event)
    monkeypatch.setattr(timer, "_wait_for_device", wait_for_device)
    return timer, cuda


def test_phases_on_a_gpu_wait_for_it_at_the_report_alone(on_fake_cuda):
    timer, cuda = on_fake_cuda
    for _ in range(200):
        with timer("forward"):
            pass
    assert cuda.reached == 0 and not timer.phases
    report = timer.report()
    assert report.phases["forward"]["count"] == 200 and report.phases["forward"]["mean"] == pytest.approx(0.003)
    assert report.phases_dropped == 0


def test_events_that_a_gpu_has_passed_are_used_again(on_fake_cuda):
    timer, cuda = on_fake_cuda
    for _ in range(1000):
        with timer("forward"):
            pass
        cuda.reached = max(0, cuda.recorded - 10)
    assert cuda.made <= 140
    assert timer.report().phases["forward"]["count"] == 1000


def test_phases_that_a_gpu_never_reaches_are_dropped_and_counted(on_fake_cuda):
    timer, _ = on_fake_cuda
    for _ in range(5000):
        with timer("forward"):
            pass
    assert len(timer._pending) == 4096
    assert timer.report().phases_dropped == 904
    assert "904 phases were not counted" in str(timer.report())


# The judgement, on figures made up


def ranks(mean_waits, step=0.040, **each):
    """Figures of ranks with these waits; every other argument is a list with one value a rank."""
    figures = [RankFigures(rank, wait_seconds=wait, step_seconds=step) for rank, wait in enumerate(mean_waits)]
    for name, values in each.items():
        for rank, value in zip(figures, values):
            setattr(rank, name, value)
    return figures


def stages(read=0.001, work=0.002):
    return [StageFigures("fetch", read, 16), StageFigures("preprocess", work, 2)]


def phases(*forward, backward=None):
    return [
        {"forward": forward[rank], "backward": 0.01 if backward is None else backward[rank]}
        for rank in range(len(forward))
    ]


LATE = [0.0, 0.001, 0.020, 0.0]
ONE_SIZE = {"batch_bytes": [1e6] * 4, "sample_bytes": [1e4] * 4}


@pytest.mark.parametrize(
    ("figures", "cause", "named", "stage"),
    [
        (ranks(LATE), "waits-for-data", (2,), None),
        (ranks(LATE, stages=[stages()] * 4, **ONE_SIZE), "waits-for-data", (2,), None),
        (
            ranks(LATE, stages=[stages(), stages(), stages(read=0.1), stages()], **ONE_SIZE),
            *("slow-storage", (2,), "fetch"),
        ),
        (
            ranks(LATE, stages=[stages(), stages(), stages(work=0.005), stages()], **ONE_SIZE),
            *("slow-stage", (2,), "preprocess"),
        ),
        # Both are slower; the one that costs more of the output is named.
        (
            ranks(LATE, stages=[stages(), stages(), stages(read=0.003, work=0.005), stages()], **ONE_SIZE),
            *("slow-stage", (2,), "preprocess"),
        ),
        # Twice the bytes a sample explain twice the time.
        (
            ranks(
                LATE,
                stages=[stages(), stages(), stages(0.002, 0.004), stages()],
                batch_bytes=[1e6, 1e6, 2e6, 1e6],
                sample_bytes=[1e4, 1e4, 2e4, 1e4],
            ),
            *("larger-batches", (2,), None),
        ),
        (
            ranks(LATE, stages=[stages()] * 4, batch_bytes=[1e6, 1e6, 3e6, 1e6], sample_bytes=[1e4] * 4),
            *("larger-batches", (2,), None),
        ),
        (ranks([0.0, 0.020, 0.024, 0.0]), "waits-for-data", (2, 1), None),
        # Slow ranks come late to the collective in `backward` and wait there the least.
        (
            ranks([0] * 4, phase_seconds=phases(0.005, 0.005, 0.030, 0.005, backward=[0.030, 0.030, 0.005, 0.030])),
            *("slow-compute", (2,), "forward"),
        ),
        # The rank that waits for data shortens its own `backward`, which is not the cause.
        (
            ranks(LATE, phase_seconds=phases(0.005, 0.005, 0.005, 0.005, backward=[0.030, 0.029, 0.010, 0.030])),
            *("waits-for-data", (2,), None),
        ),
        # Two of four: who is slow and who waits cannot be told, unless barriers keep the waits out.
        (
            ranks([0] * 4, phase_seconds=phases(0.005, 0.005, 0.030, 0.030, backward=[0.03, 0.03, 0.005, 0.005])),
            *("unknown", (), None),
        ),
        (
            ranks([0] * 4, phase_seconds=phases(0.005, 0.005, 0.030, 0.031), has_barriers=[True] * 4),
            *("slow-compute", (3, 2), "forward"),
        ),
        (
            ranks([0] * 2, phase_seconds=phases(0.005, 0.030, backward=[0.030, 0.005])),
            *("unknown", (), None),
        ),
        (ranks([0] * 2, phase_seconds=phases(0.005, 0.030), has_barriers=[True] * 2), "slow-compute", (1,), "forward"),
        # Of two causes the one that costs more.
        (
            ranks([0, 0, 0.010, 0], phase_seconds=phases(0.005, 0.030, 0.005, 0.005), has_barriers=[True] * 4),
            *("slow-compute", (1,), "forward"),
        ),
        (
            ranks([0, 0, 0.030, 0], phase_seconds=phases(0.005, 0.015, 0.005, 0.005), has_barriers=[True] * 4),
            *("waits-for-data", (2,), None),
        ),
        (ranks([0.020] * 4), "everywhere", (), None),
        (ranks([0.0005] * 4), "unknown", (), None),
        (ranks([0.0005] * 4, phase_seconds=phases(*[0.02] * 4)), "none", (), None),
        (ranks([0.02]), "none", (), None),
        (ranks([0.0] * 4, step=0.0), "unknown", (), None),
    ],
)
def test_the_slow_rank_and_the_cause_are_named(figures, cause, named, stage):
    report = judge(figures)
    assert (report.cause, report.ranks, report.stage) == (cause, named, stage), str(report)
    assert report.rank == (named[0] if named else None)
    assert report.sentence.startswith(name_ranks(sorted(named)) if named else ("no ", "all ranks", "there is one"))
    assert judge(figures[::-1]) == report
    assert json.loads(report.to_json())["sentence"] == report.sentence and report.sentence in str(report)


def test_a_straggler_that_moves_means_that_loading_is_too_slow_everywhere():
    waits = [[0.030 if step % 4 == rank else 0.0 for step in range(64)] for rank in range(4)]
    figures = ranks([0.0075] * 4, waits=waits, limit=["preprocess"] * 4)
    report = judge(figures)
    assert report.cause == "everywhere" and report.moves and report.ranks == ()
    assert report.lost_seconds == pytest.approx(0.030)
    assert "moves from step to step (rank 0 in 25%" in report.sentence
    assert "the limit of ranks 0 to 3 is `preprocess`" in report.sentence
    # Seldom on each of many ranks is often for all of them together.
    many = 64
    waits = [[0.030 if step % many == rank else 0.0 for step in range(64)] for rank in range(many)]
    assert judge(ranks([0.03 / many] * many, waits=waits)).cause == "everywhere"
    # The steps are laid beside each other by their number.
    shifted = [[0.030 if (step + rank) % 4 == 0 else 0.0 for step in range(64)] for rank in range(4)]
    report = judge(ranks([0.0075] * 4, waits=shifted, waits_from_step=range(4)))
    assert report.cause == "everywhere" and report.lost_seconds < 0.010 and not report.moves
    assert "all ranks wait for data, 7.5 ms and more" in report.sentence


def test_without_torch_distributed_there_is_one_rank(config):
    with forebay.Loader(config()) as loader:
        for _ in loader:
            pass
        report = forebay.straggler_report(loader)
    assert report.cause == "none" and "there is one rank" in report.sentence
    assert [stage.name for stage in report.figures[0].stages] == ["fetch", "preprocess"]


def test_figures_that_cannot_be_had_do_not_stop_the_other_ranks():
    class Broken:
        def stats(self):
            raise forebay.DaemonLost("gone")

    report = forebay.straggler_report(forebay.StepTimer(Broken()))
    assert "rank 0 has no figures of its loader: DaemonLost: gone" in str(report)


# Four ranks

RANKS = """
    import itertools, json, os, subprocess, sys, time
    import torch, torch.distributed as distributed
    import forebay

    torch.set_num_threads(1)
    folder, arrays, strace = sys.argv[1:4]
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    gradients = torch.zeros(10)
    reports = {}

    def spin(seconds):
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            pass

    def loader_of(overrides=(), delay=0):
        return forebay.Loader({
            "dataset": {"format": "npy", "path": arrays},
            "order": {"seed": 3},
            "batch": {"size": 2},
            "cpu": {"policy": "normal"},
            "stage": [
                {"name": "fetch", "concurrency": 1},
                {"name": "preprocess", "concurrency": 1, "operations": [{"op": "delay", "milliseconds": delay}]},
            ],
            "ring": {"slots": 3, "hold": 1},
        }, overrides=dict(overrides))

    def train(name, loader, steps=40, timer=None, forward=0.004, slow_forward=0.0, spinning=False):
        timer = timer or forebay.StepTimer()
        distributed.barrier()
        for batch in itertools.islice(timer.steps(loader), steps):
            with timer("forward"):
                time.sleep(forward)
                (spin if spinning else time.sleep)(slow_forward)
            with timer("backward"):
                distributed.all_reduce(gradients)
        reports[name] = forebay.straggler_report(timer).to_dict()

    with loader_of() as loader:
        train("healthy", loader)
    # Rank 3's samples sleep 10 ms on its only thread, so it waits 16 of 20 ms.
    with loader_of(delay=10 if rank == 3 else 0) as loader:
        train("slow stage", loader)
    if strace:
        with loader_of() as loader:
            throttle = None
            if rank == 1:
                # Storage whose opens take 15 ms.
                throttle = subprocess.Popen(
                    [strace, "-f", "-qq", "-o", os.devnull, "-p", str(loader.daemon_pid),
                     "-e", "trace=openat", "-e", "inject=openat:delay_enter=15000"])
                while "TracerPid:\\t0" in open(f"/proc/{loader.daemon_pid}/status").read() and throttle.poll() is None:
                    time.sleep(0.01)
            train("slow storage", loader)
            if throttle:
                throttle.terminate()
                throttle.wait()
    # All of them load a sample in 2 ms, and rank 0 has six times as many.
    with loader_of({"batch.size": 12} if rank == 0 else {}, delay=2) as loader:
        train("larger batches", loader, steps=30)
    slow = {"slow_forward": 0.025 if rank == 2 else 0.0, "spinning": True}
    with loader_of() as loader:
        train("slow compute", loader, **slow)
        train("slow compute with barriers", loader, steps=20, timer=forebay.StepTimer(barriers=True), **slow)
        # The same without phases.
        timer = forebay.StepTimer(loader)
        for batch in itertools.islice(timer, 20):
            spin(slow["slow_forward"])
            distributed.all_reduce(gradients)
        reports["no phases"] = forebay.straggler_report(timer).to_dict()
    def moving():
        for step in itertools.count():
            time.sleep(0.025 if step % 4 == rank else 0)
            yield step
    train("moving", moving())
    # Of half of the ranks.
    halves = distributed.new_group([0, 1]), distributed.new_group([2, 3])
    reports["half"] = forebay.straggler_report(forebay.StepTimer(), group=halves[rank // 2]).to_dict()

    with open(os.path.join(folder, f"{rank}.json"), "w") as file:
        json.dump(reports, file)
    distributed.destroy_process_group()
"""


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """The reports of each rank, by the name of the run."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("ranks")
    arrays = tmp_path_factory.mktemp("many-arrays")
    for sample in range(2000):
        numpy.save(arrays / f"{sample:04}.npy", numpy.full((3, 5), sample, numpy.float32))
    program = folder / "ranks.py"
    program.write_text(textwrap.dedent(RANKS))
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "FOREBAY_SOCKET"))},
        **{"OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(folder / "cache")},
    }
    torchrun = [str(Path(sys.executable).parent / "torchrun"), "--nproc-per-node", "4", "--standalone"]
    result = subprocess.run(
        [*torchrun, str(program), str(folder), str(arrays), shutil.which("strace") or ""],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr[:4000]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(4)]


@pytest.mark.parametrize(
    ("name", "cause", "rank", "stage"),
    [
        ("healthy", "none", None, None),
        ("slow stage", "slow-stage", 3, "preprocess"),
        ("slow storage", "slow-storage", 1, "fetch"),
        ("larger batches", "larger-batches", 0, None),
        ("slow compute", "slow-compute", 2, "forward"),
        ("slow compute with barriers", "slow-compute", 2, "forward"),
        ("no phases", "unknown", None, None),
        ("moving", "everywhere", None, None),
    ],
)
def test_four_ranks_come_to_the_same_and_right_answer(reports, name, cause, rank, stage):
    if name == "slow storage" and name not in reports[0]:
        pytest.skip("no strace here to slow the storage down")
    first = reports[0][name]
    assert (first["cause"], first["rank"], first["stage"]) == (cause, rank, stage), first
    assert all(other[name] == first for other in reports)
    assert len(first["figures"]) == 4
    if name == "moving":
        assert first["moves"]


def test_a_group_compares_its_own_ranks(reports):
    assert [[figures["rank"] for figures in rank["half"]["figures"]] for rank in reports] == [[0, 1]] * 2 + [[2, 3]] * 2
