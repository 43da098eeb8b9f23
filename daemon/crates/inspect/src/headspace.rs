//! `forebay headspace`: estimates the step time without loading, measured on a running trainer from outside.

mod estimate;
mod ranks;
mod series;

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::output::print_line;
use anyhow::bail;
use clap::Args;
use forebay_protocol::observing::{ReplayRequest, ReplayState, SessionSteps};

use self::estimate::{Headspace, Remaining};
use self::ranks::{Rank, Ranks};
use self::series::Stretch;
use super::observer::the_socket;
use super::report::{ReportFile, headspace_page};
use forebay_host::sockets::find_sockets;

/// The minimum number of steps for a result without a replay.
const MIN_STEPS: u64 = 10;

/// Arguments of `forebay headspace`.
#[derive(Debug, Args)]
pub struct HeadspaceArguments {
    /// The daemons' sockets, one for each rank; default: FOREBAY_SOCKET, else the only daemon of this user.
    #[arg(value_name = "SOCKET")]
    sockets: Vec<PathBuf>,
    /// Use every daemon of this user on this machine.
    #[arg(long, conflicts_with = "sockets")]
    all: bool,
    /// The stream, if several are in use.
    #[arg(long, value_name = "NAME")]
    stream: Option<String>,
    /// Replay a few batches to the trainer for a while without loading. The trainer trains on them, which changes the
    /// model's weights; the epoch then continues without loss. Asks first.
    #[arg(long)]
    replay: bool,
    /// Replay without asking.
    #[arg(long, short, requires = "replay")]
    yes: bool,
    /// Steps to measure before the replay, and again after it.
    #[arg(long, value_name = "STEPS", default_value_t = 100, requires = "replay")]
    after: u64,
    /// Number of batches to replay; default: ring.slots - ring.hold, with several ranks ring.hold + 2.
    #[arg(long, value_name = "N", requires = "replay")]
    batches: Option<u16>,
    /// Steps to replay.
    #[arg(long, value_name = "STEPS", default_value_t = 200, requires = "replay")]
    steps: u64,
    /// Number of the first replayed batch in its session; default: after --after steps.
    #[arg(long, value_name = "BATCH", requires = "replay")]
    at_batch: Option<u64>,
    /// The job's other ranks run on other hosts; run this command there with the same --at-batch.
    #[arg(long, requires = "at_batch")]
    elsewhere: bool,
    /// How long to observe without --replay.
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, conflicts_with = "replay")]
    seconds: f64,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// Also write an HTML page: a step and its parts, and step times over the measurement.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

/// `forebay headspace`.
pub fn headspace(arguments: &HeadspaceArguments) -> anyhow::Result<ExitCode> {
    let sockets = match (&arguments.sockets[..], arguments.all) {
        ([], false) => vec![the_socket(None)?],
        ([], true) => find_sockets(),
        (named, _) => named.to_vec(),
    };
    if sockets.is_empty() {
        bail!("no daemon of this user runs on this machine");
    }
    // Before the long run, so that an unwritable path fails early.
    let page = arguments.report.as_deref().map(ReportFile::create).transpose()?;
    let mut ranks = Ranks::find(&sockets, arguments.stream.as_deref())?;
    let found = if arguments.replay {
        replay(&mut ranks, arguments)?
    } else {
        watch(&mut ranks, arguments)?
    };
    if let Some(page) = page {
        page.finish(&headspace_page(serde_json::to_value(&found)?, &found.blocks))?;
    }
    if arguments.json {
        print_line(serde_json::to_string(&found)?)?;
    } else {
        print_line(found.describe())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Measures without a replay.
fn watch(ranks: &mut Ranks, arguments: &HeadspaceArguments) -> anyhow::Result<Headspace> {
    let wanted = Duration::try_from_secs_f64(arguments.seconds)
        .map_err(|error| anyhow::anyhow!("--seconds {}: {error}", arguments.seconds))?;
    ranks.poll()?;
    ranks.all.iter_mut().for_each(|rank| rank.begin = rank.now.taken);
    let begun = Instant::now();
    let progress = Progress::new("watching");
    let since = |rank: &Rank| rank.now.taken.saturating_sub(rank.begin + 1);
    let enough = |rank: &Rank| begun.elapsed() >= wanted && since(rank) >= MIN_STEPS;
    let shown = ranks.all[0].begin;
    ranks.poll_until(enough, |now| progress.show(now.taken.saturating_sub(shown), None))?;
    progress.end();
    let seen = over_ranks(ranks, |rank| rank.series.stretch(rank.begin + 1, u64::MAX));
    Ok(Headspace::of_watching(&seen, remaining(ranks.first())))
}

/// Measures with a replay of batches.
fn replay(ranks: &mut Ranks, arguments: &HeadspaceArguments) -> anyhow::Result<Headspace> {
    let job = ranks.first().clone();
    if !arguments.elsewhere {
        ranks.are_whole_job()?;
    }
    let (after, steps) = (arguments.after, arguments.steps);
    let usual = if job.world_size == 1 { job.slots - job.hold } else { job.hold + 2 };
    let batches = arguments.batches.unwrap_or(usual);
    let warm_up = |count: u64| (count / 5).max(u64::from(batches) + 2);
    for (name, count) in [("--after", after), ("--steps", steps)] {
        if count < warm_up(count) + MIN_STEPS {
            bail!(
                "{name} {count} is too small: {} are warm-up, at least {MIN_STEPS} more are needed",
                warm_up(count)
            );
        }
    }
    confirm(steps, batches, arguments.yes)?;
    let progress = Progress::new("checking that the trainer does not modify its batches");
    ranks.ask(|rank| ReplayRequest::Check { session: rank.now.session, batches })?;
    ranks.poll_until(
        |rank| !matches!(rank.now.replay, ReplayState::Checking { .. }),
        |now| progress.show(now.taken, None),
    )?;
    ranks.check_refusal()?;
    progress.end();

    arm(ranks, arguments, batches)?;
    let begin = ranks.all[0].begin;
    let progress = Progress::new("measuring with data");
    ranks.poll_until(
        |rank| !matches!(rank.now.replay, ReplayState::Armed { .. }),
        |now| progress.show(now.taken.saturating_sub(begin), Some(after)),
    )?;
    ranks.check_refusal()?;
    progress.end();
    let progress = Progress::new("replaying");
    let is_over = |rank: &Rank| match rank.now.replay {
        ReplayState::Done { first, replayed } => rank.now.taken >= first + replayed,
        // The replay was cancelled, or a restarted daemon lost it.
        ReplayState::Running { .. } => false,
        _ => true,
    };
    ranks.poll_until(is_over, |now| {
        if let ReplayState::Running { replayed, .. } = now.replay {
            progress.show(replayed, Some(steps));
        }
    })?;
    ranks.check_refusal()?;
    if ranks.all.iter().any(|rank| !matches!(rank.now.replay, ReplayState::Done { .. })) {
        bail!("the replay ended early");
    }
    progress.end();

    let progress = Progress::new("measuring with data again");
    let wanted = after - warm_up(after);
    let settled = |rank: &Rank| settled_at(rank, after, warm_up(after));
    let enough =
        |rank: &Rank| settled(rank).is_some_and(|settled| rank.now.taken >= settled + wanted);
    let ended = ranks.poll_until(enough, |now| progress.show(now.taken, None));
    progress.end();
    if let Err(error) = ended {
        // The run may have ended: the measurements up to then count.
        tracing::debug!(%error, "the measurement after the replay is not complete");
    }

    let before = over_ranks(ranks, |rank| rank.series.stretch(rank.begin + 1, rank.replay_at));
    let free = over_ranks(ranks, |rank| {
        let (first, last) = replayed_range(rank);
        rank.series.stretch(first + warm_up(steps), last)
    });
    let after = over_ranks(ranks, |rank| {
        settled(rank)
            .map_or_else(Stretch::default, |settled| rank.series.stretch(settled, settled + wanted))
    });
    if free.step_means.is_empty() || before.step_means.is_empty() {
        bail!(
            "too few steps were observed: the trainer is faster than the sampling; raise --after and --steps"
        );
    }
    Ok(Headspace::of_replay(&before, &free, &after, remaining(ranks.first())))
}

/// Explains the effect of a replay on the model, and asks on a terminal.
fn confirm(steps: u64, batches: u16, yes: bool) -> anyhow::Result<()> {
    eprintln!(
        "forebay: the trainer will train {steps} steps on {batches} repeated batches, which changes the model's weights \
         unless the script skips its updates while `loader.replaying`"
    );
    if yes {
        return Ok(());
    }
    if !(std::io::stdin().is_terminal() && std::io::stderr().is_terminal()) {
        bail!("a replay asks first, and there is no terminal to ask on; pass --yes to replay");
    }
    eprint!("Replay? [y/N] ");
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    if !matches!(answer.trim(), "y" | "Y" | "yes") {
        bail!("nothing was replayed");
    }
    Ok(())
}

/// How many batches were taken before the first replayed one, and up to the last.
fn replayed_range(rank: &Rank) -> (u64, u64) {
    match rank.now.replay {
        ReplayState::Done { first, replayed } => (first, first + replayed),
        _ => (0, 0),
    }
}

/// Arms the replay at the same position of the stream on every rank, then commits it.
fn arm(ranks: &mut Ranks, arguments: &HeadspaceArguments, batches: u16) -> anyhow::Result<()> {
    let job = ranks.first().clone();
    // The number of batches left in the epoch is comparable between ranks; the sessions' batch numbers are not.
    let left = ranks.all.iter().map(|rank| rank.now.batches_left).min().unwrap_or(0);
    if ranks.all.iter().any(|rank| rank.now.position.epoch != job.position.epoch) {
        bail!("the ranks are in different epochs; try again in a moment");
    }
    let ahead = arguments.after + u64::from(job.slots);
    let ahead = within_an_epoch(ahead, left, job.batches_per_epoch, batches.into()).ok_or_else(|| {
        anyhow::anyhow!(
            "an epoch has {} batches; the {batches} replayed ones must fit in one epoch; lower --batches",
            job.batches_per_epoch
        )
    })?;
    for rank in &mut ranks.all {
        let SessionSteps { published, batches_left, taken, .. } = rank.now;
        rank.begin = taken;
        rank.replay_at = arguments.at_batch.unwrap_or(published + ahead + batches_left - left);
    }
    // The rest of the epoch at the replay's start, computed from the rank's numbers.
    let place = |rank: &Rank| {
        let ahead = i128::from(rank.replay_at) - i128::from(rank.now.published);
        i128::from(rank.now.batches_left) - ahead
    };
    let places: Vec<i128> = ranks.all.iter().map(place).collect();
    if places.iter().any(|place| *place != places[0]) {
        bail!(
            "batch {} is at a different position on each rank, because the sessions did not start together; omit --at-batch",
            arguments.at_batch.unwrap_or(0)
        );
    }
    if arguments.elsewhere {
        eprintln!(
            "forebay: the replay starts {} batches before the end of epoch {}; the output on the other hosts must match",
            places[0], job.position.epoch
        );
    }
    let steps = arguments.steps;
    ranks.ask(|rank| ReplayRequest::Arm {
        session: rank.now.session,
        at: rank.replay_at,
        batches,
        steps,
    })?;
    // A single trainer gets data again as soon as this command ends; several ranks depend on each other.
    if job.world_size > 1 {
        let committed = ranks.ask(|rank| ReplayRequest::Commit { session: rank.now.session });
        if let Err(error) = committed {
            // A rank must not replay alone. A rank that is already past the position refuses; nothing more can be done.
            ranks.cancel();
            return Err(error);
        }
    }
    Ok(())
}

/// The distance to the first kept batch: `ahead`, or the distance to the next epoch's start if fewer than `kept`
/// batches are left there. `None` if an epoch is not long enough.
fn within_an_epoch(ahead: u64, left: u64, batches_per_epoch: u64, kept: u64) -> Option<u64> {
    if batches_per_epoch <= kept {
        return None;
    }
    let left_there = match ahead.checked_sub(left) {
        None => left - ahead,
        Some(past) => batches_per_epoch - past % batches_per_epoch,
    };
    Some(if left_there > kept { ahead } else { ahead + left_there })
}

/// How many batches were taken until the loader limited the trainer again as before the replay: the batches made during
/// the replay are used up, or the loader is faster than the trainer anyway. `None`: not yet.
#[expect(clippy::cast_precision_loss, reason = "a count of batches")]
fn settled_at(rank: &Rank, after: u64, warm_up: u64) -> Option<u64> {
    let (_, last) = replayed_range(rank);
    let usual = rank.series.mean_ready(rank.begin, rank.replay_at);
    let earliest = last + warm_up;
    (earliest..=rank.now.taken.min(earliest + 3 * after)).find(|take| {
        *take == earliest + 3 * after
            || rank.series.seen_at(*take).is_some_and(|ready| ready as f64 <= usual + 0.5)
    })
}

/// With collectives, the steps of all ranks take as long as the slowest rank's; of the waits, the longest counts.
fn over_ranks(ranks: &Ranks, stretch: impl Fn(&Rank) -> Stretch) -> Stretch {
    let stretches = ranks.all.iter().map(stretch);
    stretches
        .reduce(|one, other| if other.wait_seconds() > one.wait_seconds() { other } else { one })
        .unwrap_or_default()
}

fn remaining(now: &SessionSteps) -> Remaining {
    let whole = |epochs: u64| {
        let left = epochs.saturating_sub(now.position.epoch + 1);
        left * now.batches_per_epoch + now.batches_left
    };
    Remaining { steps: now.epochs.map(whole), steps_per_epoch: now.batches_per_epoch }
}

/// The current phase, on stderr: a line, and a counter after it if stderr is a terminal.
struct Progress {
    what: &'static str,
    counts: bool,
}

impl Progress {
    fn new(what: &'static str) -> Self {
        let counts = std::io::stderr().is_terminal();
        if !counts {
            eprintln!("forebay: {what}");
        }
        Self { what, counts }
    }

    fn show(&self, done: u64, of: Option<u64>) {
        if self.counts {
            let of = of.map_or_else(String::new, |of| format!(" of {of}"));
            eprint!("\r\x1b[Kforebay: {}: {done}{of}", self.what);
        }
    }

    fn end(&self) {
        if self.counts {
            eprintln!("\r\x1b[Kforebay: {}: done", self.what);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::within_an_epoch;

    #[test]
    fn kept_batches_are_within_one_epoch() {
        assert_eq!(within_an_epoch(10, 50, 100, 3), Some(10));
        assert_eq!(within_an_epoch(46, 50, 100, 3), Some(46));
        assert_eq!(within_an_epoch(47, 50, 100, 3), Some(50));
        assert_eq!(within_an_epoch(50, 50, 100, 3), Some(50));
        assert_eq!(within_an_epoch(148, 50, 100, 3), Some(150));
        assert_eq!(within_an_epoch(10, 2, 4, 3), Some(10));
        assert_eq!(within_an_epoch(11, 2, 4, 3), Some(14));
        assert_eq!(within_an_epoch(10, 2, 3, 3), None);
    }
}
