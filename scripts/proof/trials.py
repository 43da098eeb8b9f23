"""The trials of scripts/prove: each of them runs, and tells its lines of the table."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable

from proof.corpora import CORPORA
from proof.running import ROOT, TARGET, Amounts, Failed, Found, Line, Trial, call, program, say, test, test_output

# What fuzzing has come to so far, kept with the sources; scripts/fuzz adds to the second.
FUZZ_COUNTS = (ROOT / "fuzz" / "counts.tsv", TARGET / "fuzz" / "counts.tsv")
ENGINE = ["--package", "forebay-engine", "--lib"]
EXACTLY_ONCE = ["--package", "forebay-tests", "--test", "exactly_once"]
ORDER = ["--package", "forebay-tests", "--test", "order"]
ERRORS = ["--package", "forebay-tests", "--test", "errors"]
LIFECYCLE = ["--package", "forebay-tests", "--test", "lifecycle"]
DATASET = ["--package", "forebay-dataset", "--lib"]
INSIGHT = ["--package", "forebay-tests", "--test", "insight"]

# What a run survives, and the test of it.
RECOVERY = {
    "index of another user, cut short in the run": (
        LIFECYCLE,
        "recovery::an_index_of_another_user_is_copied_and_no_restart_depends_on_its_file",
    ),
    "index in a network home, replaced in the run": (
        DATASET,
        "index_bytes::tests::file_on_another_host_is_copied_and_may_be_truncated_afterwards",
    ),
    "ten daemons that wait for one index": (
        LIFECYCLE,
        "recovery::daemons_that_wait_for_the_index_of_another_ask_ever_less_often",
    ),
    "trainer at its limit of open files (EMFILE)": (
        LIFECYCLE,
        "recovery::a_trainer_that_has_no_descriptor_left_restarts_its_daemon_all_the_same",
    ),
    "full disk where the index is saved (ENOSPC)": (
        LIFECYCLE,
        "recovery::a_full_disk_where_the_index_is_saved_ends_no_run_and_no_restart",
    ),
    "trainer and daemon suspended beyond the time-out": (
        LIFECYCLE,
        "recovery::a_suspension_of_trainer_and_daemon_is_no_time_without_progress",
    ),
    "`serve` refuses the session for a while": (
        LIFECYCLE,
        "recovery::a_served_daemon_that_refuses_a_session_for_a_while_is_asked_again",
    ),
    "`serve` refuses until the time-out, then accepts": (
        LIFECYCLE,
        "recovery::a_refusal_that_lasts_is_an_error_with_the_reason",
    ),
    "sample that ends the daemon, with SIGKILL beside it": (
        ERRORS,
        "killers::a_sample_that_ends_the_daemon_is_substituted_and_kills_beside_it_change_no_batch",
    ),
    "the same, named under `fail`, after resumes too": (
        ERRORS,
        "killers::under_fail_the_trainer_gets_the_sample_that_ends_the_daemon_also_after_a_resume",
    ),
    "the same under `serve`": (
        ERRORS,
        "killers::under_serve_the_sample_is_found_by_the_daemons_that_a_service_manager_starts",
    ),
    "ordinary user": (LIFECYCLE, "recovery::an_ordinary_user_has_the_same_restarts"),
}

# When a storage is away, and the test of it, which has the outages of each errno.
OUTAGES = {
    "at a start": "outages::a_start_waits_for_every_way_of_being_away",
    "in the run": "outages::in_the_run_every_way_of_being_away_is_waited_for_and_named",
    "at a restart": "outages::a_daemon_that_is_restarted_during_an_outage_waits_for_its_end",
}
ERRNOS = 8

# What is refused to another container that shares the network, and the test of it.
NAMESPACES = {
    "a private daemon, from user and PID namespaces of their own": (
        INSIGHT,
        "namespaces::another_container_can_neither_look_into_a_private_daemon_nor_have_batches_replayed",
    ),
    "a private daemon in a container, from outside": (
        INSIGHT,
        "namespaces::a_private_daemon_in_a_container_is_not_looked_into_from_outside",
    ),
    "replays of a served daemon, unless allowed": (
        INSIGHT,
        "namespaces::a_served_daemon_replays_for_other_containers_only_where_the_configuration_says_so",
    ),
}


def killed(mode: str, test: str, outcome: str) -> Trial:
    """A trial of kills: the program compares every batch and looks for what is left."""

    def wanted(amounts: Amounts) -> int:
        return amounts.kills_of_all if mode == "all" else amounts.kills

    def run(amounts: Amounts, seed: int) -> Found:
        return program("forebay-test-kills", mode, "--kills", str(wanted(amounts)), "--seed", str(seed))

    def quantiles(times: dict[str, float]) -> str:
        return f"p50 {times['p50']:.3f} s, p99 {times['p99']:.3f} s"

    def lines(found: Found, amounts: Amounts) -> list[Line]:
        result = f"{found['kills']} kills, {found['batches']:,} batches, {found['mismatches']} differ"
        reached = found["kills"] >= wanted(amounts) and found["mismatches"] == 0
        made = [Line(test, f"{wanted(amounts)} kills, {outcome}", result, reached)]
        if times := found.get("seconds_to_next_batch"):
            if mode == "shared":
                result = f"p50 {times['p50']:.3f} s, at most {times['max']:.3f} s"
                test_of_next = "from SIGKILL of a shared daemon to the next batch of each of eight trainers"
                made.append(Line(test_of_next, "≤ 2 s", result, times["max"] <= 2.0))
            else:
                fresh = found["seconds_to_fresh_batch"]
                result = f"{quantiles(times)}; to one that the new daemon filled: {quantiles(fresh)}"
                reached = fresh["p50"] < 0.5 and fresh["p99"] < 1.0
                test_of_next = "from SIGKILL of the daemon to the next batch"
                made.append(Line(test_of_next, "p50 < 0.5 s, p99 < 1 s", result, reached))
        if (times := found.get("seconds_to_end")) and mode == "trainer":
            test_of_end = "from SIGKILL of the trainer to the end of its daemon"
            made.append(Line(test_of_end, "p99 < 1 s", quantiles(times), times["p99"] < 1))
        return made

    return Trial(test, run, lines)


def remote(amounts: Amounts, seed: int) -> Found:
    """Trainers, daemons and the server behind which the data lies, in bad weather."""
    return program("forebay-test-kills", "remote", "--kills", str(amounts.kills_with_server), "--seed", str(seed))


def remote_lines(found: Found, amounts: Amounts) -> list[Line]:
    """Of a kill nothing may be left; an entry of a cache is whole or not there."""
    of = found["kills_of"]
    left = ", ".join(f"{count} {key.replace('_', ' ')}" for key, count in found["left"].items())
    result = (
        f"{found['kills']:,} kills ({of['server']} of the server, {of['daemon']} of daemons, {of['trainer']} of "
        f"trainers), {found['batches']:,} batches, {found['mismatches']} differ, {found['lost']} samples lost, "
        f"{found['repeated']} repeated; {found['damaged_entries']} damaged entries, {left} left"
    )
    goal = f"{amounts.kills_with_server:,} kills, every sample once, digests of the local run, nothing left"
    reached = found["ok"] and found["kills"] >= amounts.kills_with_server
    return [Line("SIGKILL of server, daemons and trainers, data behind a URL in bad weather", goal, result, reached)]


def feeders(amounts: Amounts, seed: int) -> Found:
    """Trainers, daemons and feeders, which join and drain, too."""
    return program("forebay-test-kills", "feeders", "--kills", str(amounts.kills), "--seed", str(seed))


def feeders_lines(found: Found, amounts: Amounts) -> list[Line]:
    """Of no side anything may be left."""
    of = found["kills_of"]
    sums = {key: count + found["left_of_feeders"][key] for key, count in found["left"].items()}
    left = ", ".join(f"{count} {key.replace('_', ' ')}" for key, count in sums.items())
    result = (
        f"{found['kills']:,} events ({of['feeder_joins']} joins, {of['feeder_drains']} drains and {of['feeder']} kills "
        f"of feeders, {of['daemon']} kills of daemons, {of['trainer']} of trainers), {found['batches']:,} batches, "
        f"{found['mismatches']} differ, {found['lost']} samples lost, {found['repeated']} repeated; {left} left"
    )
    goal = f"{amounts.kills:,} events, every sample once, digests of the run without feeders, nothing left"
    reached = found["ok"] and found["kills"] >= amounts.kills
    return [Line("SIGKILL of feeders, daemons and trainers while feeders join and drain", goal, result, reached)]


def workers(amounts: Amounts, seed: int) -> Found:
    python = TARGET / "venv" / "bin" / "python"
    if not python.exists():
        raise Failed(f"{python} is not there; `scripts/test` makes it and installs the package")
    script = ["tests/python/worker_kills.py", "--kills", str(amounts.kills), "--seed", str(seed)]
    found: Found = json.loads(call([str(python), *script], FOREBAY_LOG="error").strip().splitlines()[-1])
    return found


def worker_lines(found: Found, amounts: Amounts) -> list[Line]:
    result = "{kills} kills, {batches:,} batches, {mismatches} differ, {lost} samples lost, {left} processes left"
    reached = found["ok"] and found["kills"] >= amounts.kills
    goal = f"{amounts.kills} kills, every sample once, digests unchanged, nothing left"
    return [Line("SIGKILL of workers of the user's own Python", goal, result.format(**found), reached)]


def counted(
    about: str,
    arguments: list[str],
    name: str,
    pattern: str,
    line: tuple[str, str],
    wanted: Callable[[Amounts], int],
    variable: str = "",
) -> Trial:
    """A trial that is one test, which prints a count; `line` is the table's test and goal.

    An environment variable tells the test the number of cases that are wanted.
    """

    def run(amounts: Amounts, _seed: int) -> Found:
        variables = {variable: str(wanted(amounts))} if variable else {}
        return {"count": test(arguments, name, pattern, **variables)}

    def lines(found: Found, amounts: Amounts) -> list[Line]:
        wants, [count] = wanted(amounts), found.values()
        return [Line(line[0], line[1].format(wants), f"{count:,}", count >= wants)]

    return Trial(about, run, lines)


def far(_amounts: Amounts, _seed: int) -> Found:
    """A position far from the start, which is reached without iterating up to it."""
    name = "places::the_middle_of_epoch_40_of_a_billion_samples_is_reached_at_once"
    return {"milliseconds": test(ORDER, name, r"(\d+) milliseconds to the first batch")}


def far_lines(found: Found, _amounts: Amounts) -> list[Line]:
    """From asking for a loader to its first batch."""
    milliseconds = found["milliseconds"]
    test = "to the middle of epoch 40 of a billion samples"
    return [Line(test, "< 1 s", f"{milliseconds / 1000:.2f} s to the first batch", milliseconds < 1000)]


def hostile(amounts: Amounts, seed: int) -> Found:
    """Clients that do what no client may, beside an honest one."""
    return program("forebay-test-hostile", str(amounts.operations), str(seed))


def hostile_lines(found: Found, amounts: Amounts) -> list[Line]:
    """What hostile clients came to; that the honest epochs are right, the program has checked."""
    left = found["descriptors_left"] + found["segments_left"]
    result = (
        f"{found['operations']:,} operations, {sum(found['cut_off'].values()):,} clients cut off, "
        f"{found['honest_epochs_unharmed']:,} epochs beside them unharmed, {left} descriptors and segments left"
    )
    reached = found["operations"] >= amounts.operations and found["honest_epochs_unharmed"] > 0 and left == 0
    goal = f"≥ {amounts.operations:,}, the other session's digest unchanged"
    return [Line("operations of hostile clients survived", goal, result, reached)]


def memory(amounts: Amounts, _seed: int) -> Found:
    """Daemons whose memory is hard to bound, against what `forebay check` has planned."""
    name = "memory::the_peak_of_ten_configurations_is_within_their_plans"
    output = test_output(ERRORS, name, FOREBAY_TEST_PICTURE_SIDE=str(amounts.picture_side))
    found = re.findall(r"^(.+): (\d+) of (\d+) MiB planned$", output, re.MULTILINE)
    return {what: [int(peak), int(planned)] for what, peak, planned in found}


def memory_lines(found: Found, _amounts: Amounts) -> list[Line]:
    """One of the ten needs a control group, which not every user may make."""
    within = sum(peak <= 1.1 * planned for peak, planned in found.values())
    each = ", ".join(f"{what} {peak} of {planned}" for what, (peak, planned) in found.items())
    goal = "10 configurations, each within its plan + 10 %"
    return [Line("peak memory of daemons that are hard to bound", goal, f"{within}; MiB: {each}", within == 10)]


def floods(amounts: Amounts, _seed: int) -> Found:
    """An honest client's rate beside one that sends a frame without end, and alone."""
    return program("forebay-test-flood", "measure", str(amounts.flood_seconds))


def flood_lines(found: Found, _amounts: Amounts) -> list[Line]:
    """The worst of all frames."""
    shares = {kind: rates["beside"] / rates["alone"] for kind, rates in found.items()}
    worst = min(shares, key=lambda kind: shares[kind])
    result = f"{len(shares)} floods; the least is left by `{worst}`: {100 * shares[worst]:.0f} %"
    goal = "≥ 90 % of its rate alone"
    return [Line("an honest client beside a flood of each frame", goal, result, shares[worst] >= 0.9)]


def fuzz_counts() -> dict[str, tuple[int, int, int]]:
    """By target: seconds, executions and crashes so far."""
    counts: dict[str, tuple[int, int, int]] = {}
    for file in FUZZ_COUNTS:
        for line in file.read_text().splitlines() if file.exists() else []:
            name, seconds, executions, _edges, crashes = line.split("\t")
            before = counts.get(name, (0, 0, 0))
            more = (int(seconds) if seconds.isdigit() else 0, int(executions), int(crashes))
            counts[name] = (before[0] + more[0], before[1] + more[1], before[2] + more[2])
    return counts


def fuzz(amounts: Amounts, _seed: int) -> Found:
    """Fuzzes each parser for what it lacks."""
    for name in call(["scripts/fuzz", "--list"]).split():
        lacks = amounts.fuzz_seconds - fuzz_counts().get(name, (0, 0, 0))[0]
        if lacks > 0:
            say(f"fuzzing {name} for {lacks} s")
            call(["scripts/fuzz", name, str(lacks)])
    return {name: list(counts) for name, counts in sorted(fuzz_counts().items())}


def fuzz_lines(found: Found, amounts: Amounts) -> list[Line]:
    """The sum over all targets, and the shortest of them."""
    executions, crashes = (sum(counts[place] for counts in found.values()) for place in (1, 2))
    least = min(counts[0] for counts in found.values())
    result = f"{executions:,} in {len(found)} targets, each {least} s or longer; {crashes} crashes"
    reached = executions >= amounts.fuzz_executions and crashes == 0 and least >= amounts.fuzz_seconds
    goal = f"≥ {amounts.fuzz_executions:,}, no crash"
    return [Line("executions of the fuzz targets", goal, result, reached)]


def passed(arguments: list[str], name: str) -> str:
    """Runs one test: passed, or why it cannot run here."""
    command = ["cargo", "test", "--quiet", *arguments, "--", "--nocapture", "--exact", name]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if ended.returncode != 0 or "1 passed" not in ended.stdout:
        raise Failed(f"`{' '.join(command)}` ended with {ended.returncode}\n{ended.stdout}{ended.stderr}")
    skipped = re.search(r"skipped: .*", ended.stderr)
    return skipped[0] if skipped else "passed"


def each(about: str, prefix: str, goal: str, tests: dict[str, tuple[list[str], str]]) -> Trial:
    """A trial of several tests, each alone, over real processes, with a line of its own."""

    def one(where: tuple[list[str], str]) -> str:
        try:
            return passed(*where)
        except Failed as error:
            # The others are tried all the same.
            say(f"FAILED: {error}")
            return "failed"

    def run(_amounts: Amounts, _seed: int) -> Found:
        return {what: one(where) for what, where in tests.items()}

    def lines(found: Found, _amounts: Amounts) -> list[Line]:
        # A test that was skipped proves nothing.
        return [Line(f"{prefix}: {what}", goal, result, result == "passed") for what, result in found.items()]

    return Trial(about, run, lines)


def outages(amounts: Amounts, _seed: int) -> Found:
    """A storage whose calls fail for a while, by each errno, and a root that is not there."""
    pattern = r"(\d+) outages ended with every batch as undisturbed"
    seconds = str(amounts.outage_seconds)
    return {when: test(ERRORS, name, pattern, FOREBAY_TEST_OUTAGE_SECONDS=seconds) for when, name in OUTAGES.items()}


def outage_lines(found: Found, amounts: Amounts) -> list[Line]:
    """At a restart the root is not there once more."""
    goal = f"each of {ERRNOS} errors, every batch as undisturbed"
    about = f"storage away for {amounts.outage_seconds} s"
    return [Line(f"{about} {when}", goal, f"{count} outages", count >= ERRNOS) for when, count in found.items()]


def soak(amounts: Amounts, _seed: int) -> Found:
    """A daemon under trainers that come and are killed."""
    return program("forebay-test-soak", str(amounts.soak_seconds))


def soak_lines(found: Found, amounts: Amounts) -> list[Line]:
    """Flat: late as early, to a tenth of the memory with as many threads and two descriptors."""
    memory, descriptors = found["resident_bytes_at_equal_threads"], found["descriptors"]
    result = (
        f"{found['trainers_killed']:,} trainers, two in three killed, {found['batches']:,} batches; between trainers, "
        f"early and late: anonymous memory {memory[0] / 2**20:.2f} and {memory[1] / 2**20:.2f} MiB with "
        f"{found['equal_threads']} threads, descriptors {descriptors[0]} and {descriptors[1]}, "
        f"threads {found['threads'][0]} and {found['threads'][1]}"
    )
    flat = memory[1] <= 1.1 * memory[0] and descriptors[1] <= descriptors[0] + 2
    reached = flat and found["seconds"] >= amounts.soak_seconds
    goal = f"{amounts.soak_seconds} s with kills, memory and descriptors flat"
    return [Line("soak at full speed", goal, result, reached)]


TRIALS: dict[str, Trial] = {
    "daemon": killed("daemon", "SIGKILL of the daemon at random instants", "every sample once, digests unchanged"),
    "trainer": killed(
        "trainer", "SIGKILL of the trainer, resumed from its last checkpoint", "the stream from there identical"
    ),
    "run": killed("run", "SIGKILL of `forebay run`", "the same"),
    "shared": killed("shared", "SIGKILL of the daemon that eight trainers share", "digests unchanged, nothing left"),
    "load": killed("load", "SIGKILL of random trainers of one load", "each trainer's digests unchanged, nothing left"),
    "all": killed("all", "SIGKILL of all processes at once", "the same"),
    "feeders": Trial("SIGKILL of feeders, and of who takes their rows", feeders, feeders_lines),
    "remote": Trial("SIGKILL of the server behind which the data lies, and of who reads it", remote, remote_lines),
    "workers": Trial("SIGKILL of workers of the user's own Python at random instants", workers, worker_lines),
    "schedules": counted(
        "the byte budget under random sizes, failures, holds and threads",
        ENGINE,
        "tests::schedules::no_schedule_deadlocks_the_byte_budget",
        r"(\d+) schedules ended",
        ("byte budget × sizes, failures, holds, threads", "no deadlock in {:,} schedules"),
        lambda amounts: amounts.schedules,
        "PROPTEST_CASES",
    ),
    "memory": Trial("ten configurations against their memory plans", memory, memory_lines),
    "worlds": counted(
        "resume at other world sizes",
        EXACTLY_ONCE,
        "worlds::an_epoch_is_whole_whatever_the_world_sizes_that_it_went_through",
        r"(\d+) epochs were whole",
        ("epochs through worlds of 1→2→3→8→1 ranks", "{:,}, every sample once"),
        lambda amounts: amounts.epochs,
        "FOREBAY_TEST_WORLD_CHANGES",
    ),
    "lives": counted(
        "whole lives of sessions",
        EXACTLY_ONCE,
        "states::whatever_befalls_a_session_each_batch_is_the_next_one_and_nothing_is_left",
        r"(\d+) lives went as the model says",
        (
            "lives of sessions: holds, drops, states, new loaders, daemons killed",
            "{:,}, each batch the next one, nothing left",
        ),
        lambda amounts: amounts.lives,
        "PROPTEST_CASES",
    ),
    "far": Trial("a far position", far, far_lines),
    "releases": counted(
        "digests and states of release 0.1",
        ORDER,
        "releases::ten_streams_give_what_release_0_1_gave_also_from_its_states_on",
        r"(\d+) streams gave what release 0.1 gave",
        ("digests of release 0.1, and those that follow its saved states", "equal for {:,} configurations"),
        lambda _amounts: 10,
    ),
    "hostile": Trial("hostile clients", hostile, hostile_lines),
    "floods": Trial("floods of every frame", floods, flood_lines),
    "corpus": counted(
        "broken files",
        ["--package", "forebay-tests", "--test", "errors"],
        "broken_files::the_whole_corpus_is_substituted_counted_and_listed_within_bounded_memory",
        r"(\d+) broken files were substituted",
        ("broken files, each refused with a reason, substituted and listed", "≥ {:,}, 0 panics"),
        lambda _amounts: 300,
    ),
    "corpora": CORPORA,
    "outages": Trial("storage that is away", outages, outage_lines),
    "differences": counted(
        "ranks that differ",
        EXACTLY_ONCE,
        "agreement::every_difference_between_ranks_is_refused_on_both_and_named",
        r"(\d+) differences were refused on both ranks",
        ("differences between two ranks", "{:,}, each refused on both and named"),
        lambda _amounts: 12,
    ),
    "launchers": counted(
        "launchers",
        EXACTLY_ONCE,
        "launchers::two_processes_of_every_launcher_share_an_epoch",
        r"(\d+) launchers: the ranks shared an epoch",
        ("launchers whose variables tell rank and world size", "{:,}, every sample once"),
        lambda _amounts: 10,
    ),
    "recovery": each("what a run survives", "recovery", "every batch as undisturbed", RECOVERY),
    "namespaces": each("other containers", "other containers", "refused with the reason", NAMESPACES),
    "jpeg-index": counted(
        "a JPEG index that is damaged at random",
        ["--package", "forebay-media", "--lib"],
        "jpeg::index_tests::damaged_records_change_no_pixel",
        r"(\d+) damages changed no pixel",
        ("damages of a JPEG index", "{:,}, every pixel as without it"),
        lambda amounts: amounts.index_damages,
        "FOREBAY_TEST_INDEX_DAMAGES",
    ),
    "jpeg-mutations": counted(
        "JPEG files that are changed at random",
        ["--package", "forebay-media", "--lib"],
        "jpeg::mutation_tests::the_quick_decoder_is_sure_of_no_damaged_file_that_the_library_reads_otherwise",
        r"(\d+) mutated files",
        (
            "mutated JPEG files, decoded by both decoders",
            "{:,}, none accepted with other pixels or that libjpeg-turbo refuses",
        ),
        lambda amounts: amounts.jpeg_mutations,
        "FOREBAY_TEST_JPEG_MUTATIONS",
    ),
    "fuzz": Trial("fuzzing", fuzz, fuzz_lines),
    "soak": Trial("the soak", soak, soak_lines),
}
