//! The thresholds of the rules in [`super`]; shares of the time unless the comment says otherwise.

/// Below this share of the time spent waiting, loading is not the trainer's limit, and a faster loader is not worth the work
/// (SPDL's optimization guide). `forebay headspace` and `forebay.headspace` have the same bound.
pub const WAIT_SHARE_THAT_MATTERS: f64 = 0.05;
/// Below this share there is clearly no wait.
pub(super) const CLEARLY_NO_WAIT: f64 = 0.025;
/// A shorter time, or fewer batches, gives little certainty.
pub(super) const FEW_SECONDS: f64 = 10.0;
pub(super) const FEW_BATCHES: u64 = 10;
/// The CPU budget is the limit when work threads are throttled for this share.
pub(super) const HELD_BACK_THAT_MATTERS: f64 = 0.1;
/// Threads that are busy for this share are saturated.
pub(super) const ALL_BUSY: f64 = 0.85;
/// A stage that is busy for this share is limited by its threads, whatever else is short.
pub(super) const SURELY_ALL_BUSY: f64 = 0.95;
/// Rows wait in a queue that is occupied for this share.
pub(super) const ROWS_WAIT: f64 = 0.5;
/// Fetch lanes take several rows at a time, so half of them may idle while storage is the limit.
pub(super) const READS_BUSY: f64 = 0.4;
/// A ring that is full for this share ...
pub(super) const FULL_THAT_MATTERS: f64 = 0.1;
/// ... and for this part of the client's wait is too small to even out bursts.
pub(super) const FULL_OF_WAIT: f64 = 0.25;
/// Slow samples, or tasks without a core, explain the wait when their sum is this part of it.
pub(super) const EXPLAINS_WAIT: f64 = 0.25;
/// Tasks that were ready without a core for this share of their time were kept off the cores.
pub(super) const KEPT_OFF: f64 = 0.15;
/// A task that sleeps for this share of its time needs threads rather than cores.
pub(super) const MOSTLY_ASLEEP: f64 = 0.5;
/// A slow sample takes more than this multiple of the median ...
pub(super) const SLOW: f64 = 5.0;
/// ... and this multiple of the mean.
pub(super) const SLOWER_THAN_MEAN: f64 = 2.0;
/// A larger part of the samples is not a tail.
pub(super) const FEW: f64 = 0.1;
/// From this part of the granted cores on, the daemon's own threads compete with each other.
pub(super) const OWN_SHARE: f64 = 0.7;
/// Starts of workers that take this part of the workers' time explain why few are busy.
pub(super) const STARTS_THAT_MATTER: f64 = 0.1;
/// Slow samples that take this part of a stage's time are mentioned.
pub(super) const TAIL_WORTH_A_WORD: f64 = 0.3;
/// From this share of refused requests on, the server's rate is the limit.
pub(super) const REFUSED_THAT_MATTERS: f64 = 0.01;
/// A read that waits this share of its time for the first byte is limited by latency, any other by bandwidth.
pub(super) const LATENCY_SHARE: f64 = 0.5;
