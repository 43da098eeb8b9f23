"""forebay.StepTimer and the durations that it counts, on the host's clock and on the events of a scripted GPU."""

import json
import time

import forebay
import numpy
import pytest
from forebay._durations import Durations, in_words, typical

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
    assert report.step["total"] == pytest.approx(
        report.wait["total"] + report.work["total"], abs=2 * report.work["p99"]
    )
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
