"""forebay.straggler_report: the judgement on made-up figures, and four real gloo ranks of which one is slow."""

import json
import shutil

import forebay
import numpy
import pytest
from forebay._rank_figures import RankFigures, StageFigures
from forebay._ranks import name_ranks
from forebay._straggler import judge
from support import run_ranks

# The judgement on made-up figures


def ranks(mean_waits, step=0.040, **each):
    """Figures of ranks with these waits; every other argument is a list with a value for each rank."""
    figures = [RankFigures(rank, wait_seconds=wait, step_seconds=step) for rank, wait in enumerate(mean_waits)]
    for name, values in each.items():
        for rank, value in zip(figures, values):
            setattr(rank, name, value)
    return figures


def stages(read=0.001, work=0.002):
    return [StageFigures("fetch", read, 16), StageFigures("preprocess", work, 2)]


def phased(waits, forward, backward=None, **each):
    pairs = zip(forward, backward or [0.01] * len(forward))
    return ranks(waits, phase_seconds=[{"forward": first, "backward": second} for first, second in pairs], **each)


LATE = [0.0, 0.001, 0.020, 0.0]


def on_rank_2(slow):
    return [stages(), stages(), slow, stages()]


def sized(batches, samples):
    return {"batch_bytes": [1e6, 1e6, batches, 1e6], "sample_bytes": [1e4, 1e4, samples, 1e4]}


ONE_SIZE = sized(1e6, 1e4)
BARRIERS = {"has_barriers": [True] * 4}
CASES = [
    (ranks(LATE), "waits-for-data", (2,), None),
    (ranks(LATE, stages=[stages()] * 4, **ONE_SIZE), "waits-for-data", (2,), None),
    (ranks(LATE, stages=on_rank_2(stages(read=0.1)), **ONE_SIZE), "slow-storage", (2,), "fetch"),
    (ranks(LATE, stages=on_rank_2(stages(work=0.005)), **ONE_SIZE), "slow-stage", (2,), "preprocess"),
    # Both are slower; the one that costs more of the output is named.
    (ranks(LATE, stages=on_rank_2(stages(read=0.003, work=0.005)), **ONE_SIZE), "slow-stage", (2,), "preprocess"),
    # Twice the bytes a sample explain twice the time.
    (ranks(LATE, stages=on_rank_2(stages(0.002, 0.004)), **sized(2e6, 2e4)), "larger-batches", (2,), None),
    (ranks(LATE, stages=[stages()] * 4, **sized(3e6, 1e4)), "larger-batches", (2,), None),
    (ranks([0.0, 0.020, 0.024, 0.0]), "waits-for-data", (2, 1), None),
    # A slow rank comes last to the collective in `backward` and waits there the least.
    (phased([0] * 4, [0.005, 0.005, 0.030, 0.005], [0.030, 0.030, 0.005, 0.030]), "slow-compute", (2,), "forward"),
    # The rank that waits for data shortens its own `backward`, which is not the cause.
    (phased(LATE, [0.005] * 4, [0.030, 0.029, 0.010, 0.030]), "waits-for-data", (2,), None),
    # Two of four: only barriers can tell which are slow and which wait.
    (phased([0] * 4, [0.005, 0.005, 0.030, 0.030], [0.03, 0.03, 0.005, 0.005]), "unknown", (), None),
    (phased([0] * 4, [0.005, 0.005, 0.030, 0.031], **BARRIERS), "slow-compute", (3, 2), "forward"),
    (phased([0] * 2, [0.005, 0.030], [0.030, 0.005]), "unknown", (), None),
    (phased([0] * 2, [0.005, 0.030], **BARRIERS), "slow-compute", (1,), "forward"),
    # Of two causes the one that costs more.
    (phased([0, 0, 0.010, 0], [0.005, 0.030, 0.005, 0.005], **BARRIERS), "slow-compute", (1,), "forward"),
    (phased([0, 0, 0.030, 0], [0.005, 0.015, 0.005, 0.005], **BARRIERS), "waits-for-data", (2,), None),
    (ranks([0.020] * 4), "everywhere", (), None),
    (ranks([0.0005] * 4), "unknown", (), None),
    (phased([0.0005] * 4, [0.02] * 4), "none", (), None),
    (ranks([0.02]), "none", (), None),
    (ranks([0.0] * 4, step=0.0), "unknown", (), None),
]


@pytest.mark.parametrize(("figures", "cause", "named", "stage"), CASES)
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


def test_batches_of_uneven_cost_have_a_remedy():
    even, uneven = [[100] * 8] * 4, [[100, 400] * 4, [400, 100] * 4, [100] * 8, [100] * 8]
    for costs, has_remedy in [(even, False), (uneven, True), ([[0] * 8] * 4, False), ([[]] * 4, False)]:
        for figures in (ranks([0.0005] * 4, costs=costs), ranks(LATE, costs=costs), ranks([0.020] * 4, costs=costs)):
            report = judge(figures)
            assert ("`batch.budget`" in report.sentence) == has_remedy, report.sentence
    assert "2.3 times the elements of the mean" in judge(ranks(LATE, costs=uneven)).sentence
    assert "costs" not in judge(ranks(LATE, costs=uneven)).to_dict()["figures"][0]


def test_a_timer_counts_the_cost_of_rows_that_differ_in_length():
    def rows(lengths):
        values, ends = numpy.zeros(sum(lengths)), numpy.cumsum(lengths)
        return forebay.Ragged(values, ends - lengths, numpy.array(lengths))

    padded = {"tokens": numpy.zeros((2, 8)), "tokens_lengths": numpy.array([3, 8])}
    timer = forebay.StepTimer()
    for _ in timer.steps([{"a": rows([3, 5]), "b": rows([1, 7])}, {"label": numpy.zeros(4)}, [1], padded, {}]):
        pass
    assert list(timer.recent_costs) == [14, 0, 0, 16, 0]


def test_without_torch_distributed_there_is_one_rank(config):
    with forebay.Loader(config()) as loader:
        for _ in loader:
            pass
        report = forebay.straggler_report(loader)
    assert report.cause == "none" and "there is one rank" in report.sentence
    assert [stage.name for stage in report.figures[0].stages] == ["fetch", "preprocess"]


def test_the_start_is_no_wait_of_a_rank(config):
    with forebay.Loader(config([{"op": "delay", "milliseconds": 100}])) as loader:
        batches = sum(1 for _ in loader)
        [figures] = forebay.straggler_report(loader).figures
        waits = loader.stats()["client"]["wait_seconds"]
    assert waits["after_start"] < waits["total"]
    assert figures.wait_seconds == pytest.approx(waits["after_start"] / (batches - 1))


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
        }, overrides=dict(overrides), compare_ranks=False)  # one rank is given slower operations

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
        train("healthy", loader, forward=0.016)
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
    # All of them load a sample in 8 ms, and rank 0 has six times as many.
    with loader_of({"batch.size": 12} if rank == 0 else {}, delay=8) as loader:
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


# By the name of a run: its cause, the slow rank, and that rank's stage.
EXPECTED = {
    "healthy": ("none", None, None),
    "slow stage": ("slow-stage", 3, "preprocess"),
    "slow storage": ("slow-storage", 1, "fetch"),
    "larger batches": ("larger-batches", 0, None),
    "slow compute": ("slow-compute", 2, "forward"),
    "slow compute with barriers": ("slow-compute", 2, "forward"),
    "no phases": ("unknown", None, None),
    "moving": ("everywhere", None, None),
}


def answer_of(report):
    return report["cause"], report["rank"], report["stage"]


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """The reports of each rank, by the name of the run.

    Other work on the machine may slow down any rank: up to three rounds are run until all answers are right.
    """
    pytest.importorskip("torch")
    arrays = tmp_path_factory.mktemp("many-arrays")
    for sample in range(2000):
        numpy.save(arrays / f"{sample:04}.npy", numpy.full((3, 5), sample, numpy.float32))
    strace = shutil.which("strace") or ""
    for _ in range(3):
        folder = tmp_path_factory.mktemp("ranks")
        found = run_ranks(folder, 4, RANKS, arrays, strace, XDG_CACHE_HOME=str(folder / "cache"))
        first = found[0]
        are_right = all(answer_of(first[name]) == EXPECTED[name] for name in EXPECTED if name in first)
        if are_right and first["moving"]["moves"]:
            break
    return found


@pytest.mark.parametrize("name", list(EXPECTED))
def test_four_ranks_come_to_the_same_and_right_answer(reports, name):
    if name == "slow storage" and name not in reports[0]:
        pytest.skip("no strace here to slow the storage down")
    first = reports[0][name]
    assert answer_of(first) == EXPECTED[name], first
    assert all(other[name] == first for other in reports)
    assert len(first["figures"]) == 4
    if name == "moving":
        assert first["moves"]


def test_a_group_compares_its_own_ranks(reports):
    assert [[figures["rank"] for figures in rank["half"]["figures"]] for rank in reports] == [[0, 1]] * 2 + [[2, 3]] * 2
