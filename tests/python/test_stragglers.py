"""forebay.straggler_report: the judgement on figures made up, and four real gloo ranks of which one is slow."""

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import forebay
import numpy
import pytest
from forebay._rank_figures import RankFigures, StageFigures
from forebay._ranks import name_ranks
from forebay._straggler import judge

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
