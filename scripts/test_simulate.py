"""The simulation of feeders against closed forms, and against itself with the same seed."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "bench" / "simulate"


sys.path.insert(0, str(PROGRAM.parent))

import simulation as sim  # noqa: E402


def planned(job):
    """As the table has it."""
    return replace(job, feeders=job.feeders_wanted(), ring=job.slots_wanted(), stall=0.5, stalls=0.001, deaths=1)


# A trainer that takes all it gets.
GREEDY = 1e-9


def rate(job):
    """Rows a second, without the time in which the rings are filled."""
    found = sim.simulate(job)
    return (job.steps - job.ring) * job.rows * job.hosts / found.elapsed


def test_a_host_alone_makes_as_many_rows_as_its_cores_allow():
    job = sim.Job(ranks=1, ranks_a_host=1, batch=320, host_cores=3, row=0.002, step=GREEDY, ring=4, steps=400)
    assert rate(job) == pytest.approx(3 / 0.002, rel=0.01)
    assert job.rate() == 3 / 0.002


@pytest.mark.parametrize("feeders", [1, 2, 4])
@pytest.mark.parametrize("receive", [0.0, 0.0005])
def test_saturated_feeders_and_hosts_reach_the_sum_of_their_cores(feeders, receive):
    job = sim.Job(
        ranks=1, ranks_a_host=1, batch=640, host_cores=1, feeder_cores=1, feeders=feeders, row=0.005, receive=receive,
        step=GREEDY, ring=4, steps=300, window=2, hedge=0,
    )  # fmt: skip
    # By hand: a core makes 200 rows a second; the host's loses `receive` for each of the feeders'.
    by_hand = 200 * feeders + 200 * (1 - 200 * feeders * receive)
    assert job.rate() == pytest.approx(by_hand)
    assert rate(job) == pytest.approx(by_hand, rel=0.03)


def test_steps_never_wait_where_cores_suffice_and_last_as_long_as_rows_do_where_they_do_not():
    enough = sim.Job(ranks=16, host_cores=8, row=0.001, steps=50)
    assert enough.cores_wanted == pytest.approx(6.4)
    found = sim.simulate(enough)
    assert found.waiting() == 0 and found.efficiency(enough) == pytest.approx(1)
    short = sim.Job(ranks=16, host_cores=4, row=0.001, steps=400)
    # Of 6.4 cores there are 4; the rings, which are full at first, help for the first steps.
    efficiency = (4 / 6.4) / (1 - short.ring / short.steps)
    assert sim.simulate(short).efficiency(short) == pytest.approx(efficiency, rel=0.02)


def test_a_death_is_hidden_by_the_ring_or_costs_what_the_ring_is_too_short_for():
    job = sim.Job(
        ranks=8, ranks_a_host=8, batch=100, host_cores=0, feeders=8, feeder_cores=4, row=0.001, receive=0.0,
        steps=60, deaths=1, hedge=0, round_trip=0,
    )  # fmt: skip
    deep = sim.simulate(replace(job, ring=job.slots_wanted()))
    assert deep.failures == 1 and deep.again > 0 and deep.waiting() == 0
    # Three slots: one is the trainer's, one full, one is being made when the feeder dies.
    shallow = sim.simulate(replace(job, ring=3))
    assert shallow.again > 0
    assert max(shallow.waits) == pytest.approx(sim.DETECTION - 2 * job.step, abs=1.1 * job.step)


def test_stalls_stop_as_many_steps_as_probability_says_and_hedges_hide_them():
    job = sim.Job(
        ranks=1, ranks_a_host=1, batch=64, host_cores=0, feeders=8, feeder_cores=8, row=0.001, receive=0.0, step=0.1,
        ring=2, steps=4000, request=8, window=4, stall=5.0, stalls=0.002, hedge=0,
    )  # fmt: skip
    # A step of 8 requests waits if one of them stalls; one that stalls beside it costs nothing more.
    expected = 1 - (1 - job.stalls) ** 8
    assert sim.simulate(job).waiting() == pytest.approx(expected, rel=0.3)
    hedged = sim.simulate(replace(job, hedge=0.02))
    assert hedged.hedged > 0 and hedged.waiting() == 0


def test_every_row_is_made_and_what_is_made_twice_counts_once():
    job = planned(sim.Job(ranks=80, row=0.05, batch=25, host_cores=32, steps=30))
    found = sim.simulate(job)
    assert len(found.waits) == job.steps
    assert found.hedged > 0 and found.twice <= found.hedged + found.again
    assert found.hedged <= sim.HEDGED * found.requests + 1


def test_the_same_seed_gives_the_same_result_and_another_one_another():
    job = planned(sim.Job(ranks=80, row=0.05, batch=25, host_cores=32, steps=30))
    assert sim.simulate(job) == sim.simulate(job)
    assert sim.simulate(job) != sim.simulate(replace(job, seed=1))


def test_what_to_buy_follows_from_rows_and_cores():
    # 8 ranks × 200 rows/s × 50 ms are 80 cores; at 0.8 of them busy, 100. 32 are on the host.
    job = sim.Job(ranks=80, row=0.05, receive=0.0, batch=25, host_cores=32)
    assert job.cores_wanted == pytest.approx(80)
    assert job.feeders_wanted() == 1 + -(-10 * 68 // 64)
    assert sim.Job(ranks=80, row=0.0006, host_cores=8).feeders_wanted() == 0
    # Where receiving costs as much as making, a feeder does not help.
    assert sim.Job(ranks=80, row=0.0006, receive=0.0006, host_cores=1).feeders_wanted() == 0
    job = replace(job, ranks=10_000, feeders=1560)
    assert job.connections() == (32, pytest.approx(25.6, rel=0.01))
    # 1 s until a death is noticed, a row's 50 ms, in steps of 125 ms; two slots are the trainer's and that in making.
    assert job.slots_wanted() == 2 + 9


def test_measured_runs_are_compared(tmp_path):
    runs = [
        {"feeders": count, "feeder_cores": 1, "host_cores": 1, "row_ms": 5, "receive_ms": 0, "rows_a_second": rows}
        for count, rows in ((1, 400), (4, 1000))
    ]
    path = tmp_path / "runs.json"
    path.write_text(json.dumps(runs))
    shown = subprocess.run([sys.executable, PROGRAM, "--compare", path], capture_output=True, text=True, check=True)
    lines = shown.stdout.splitlines()
    assert len(lines) == 3
    assert [float(line.split()[-1]) for line in lines[1:]] == pytest.approx([1, 1], abs=0.06)
