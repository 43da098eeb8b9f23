//! What the calls of the user's own Python cost, and where in it the time goes.

use serde::{Deserialize, Serialize};

use super::units::{duration, percent};

/// A function that worker processes run: a stage, or an operation on complete batches. Times are in seconds, sums over all
/// workers, or over all threads of the daemon.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PythonReport {
    /// The stage's name, or the operation's place in the configuration.
    pub place: String,
    /// `module:function`.
    pub function: String,
    /// The most of its worker processes.
    pub workers: u32,
    /// The threads of the daemon that copy for them, or wait for one, at most.
    pub threads: u32,
    /// Samples, or batches, that workers were called with and have answered.
    pub num_calls: u64,
    /// The function's time for one of them, in the mean.
    pub ave_time: f64,
    /// The function's time for all of them.
    pub function_seconds: f64,
    /// What workers did beside the function: copying, seeding.
    pub beside_seconds: f64,
    /// Threads waited until a worker was free.
    pub wait_seconds: f64,
    /// Threads wrote inputs and read results.
    pub copy_seconds: f64,
    /// Workers that were started.
    pub num_starts: u64,
    /// From a worker's start until it was ready: the interpreter, and the imports.
    pub start_seconds: f64,
    /// User and system time of its workers since they were started, what they import included.
    pub cpu_seconds: f64,
    /// Where in the function the time goes; none where too little was seen.
    pub hot_spot: Option<HotSpotReport>,
}

/// Where in a function the time goes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct HotSpotReport {
    /// The innermost call that takes most of it, `package.Class` or `package.function`; the function itself, where none of
    /// what it calls does.
    pub name: String,
    /// Its share of the function's time.
    pub share: f64,
}

impl PythonReport {
    /// The workers' time with calls.
    #[must_use]
    pub fn worker_seconds(&self) -> f64 {
        self.function_seconds + self.beside_seconds
    }

    /// Where in the function the time goes, unless that is the function itself.
    #[must_use]
    pub fn hot_callee(&self) -> Option<&HotSpotReport> {
        let (module, function) = self.function.split_once(':')?;
        let package = module.split('.').next().unwrap_or(module);
        self.hot_spot.as_ref().filter(|spot| {
            // A script runs under another name in a worker.
            let is_own = |(of, name): (&str, &str)| {
                name == function && (of == package || package == "__main__")
            };
            !spot.name.split_once('.').is_some_and(is_own)
        })
    }

    /// The same in words: `62 % in albumentations.Blur`.
    #[must_use]
    pub fn hot_words(&self) -> Option<String> {
        self.hot_callee().map(|spot| format!("{} in {}", percent(spot.share), spot.name))
    }

    /// All of it, for a person.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "metrics")]
    pub fn line(&self) -> String {
        let each = |seconds: f64| duration(seconds / self.num_calls.max(1) as f64);
        let hot = self.hot_words().map_or_else(String::new, |words| format!(" ({words})"));
        format!(
            "`{}`: {} in the function{hot} and {} beside it, in {} workers; threads waited {} for a worker and copied for {}; \
             {} workers started, {} each; {:.1} s of CPU time of workers in all",
            self.function,
            duration(self.ave_time),
            each(self.beside_seconds),
            self.workers,
            each(self.wait_seconds),
            each(self.copy_seconds),
            self.num_starts,
            duration(self.start_seconds / self.num_starts.max(1) as f64),
            self.cpu_seconds,
        )
    }

    #[expect(clippy::cast_precision_loss, reason = "metrics")]
    pub(super) fn since(&self, earlier: &Self) -> Self {
        let seconds = |now: f64, before: f64| (now - before).max(0.0);
        let num_calls = self.num_calls.saturating_sub(earlier.num_calls);
        let function_seconds = seconds(self.function_seconds, earlier.function_seconds);
        Self {
            num_calls,
            ave_time: if num_calls == 0 { 0.0 } else { function_seconds / num_calls as f64 },
            function_seconds,
            beside_seconds: seconds(self.beside_seconds, earlier.beside_seconds),
            wait_seconds: seconds(self.wait_seconds, earlier.wait_seconds),
            copy_seconds: seconds(self.copy_seconds, earlier.copy_seconds),
            num_starts: self.num_starts.saturating_sub(earlier.num_starts),
            start_seconds: seconds(self.start_seconds, earlier.start_seconds),
            cpu_seconds: seconds(self.cpu_seconds, earlier.cpu_seconds),
            ..self.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(function: &str, hot_spot: &str) -> PythonReport {
        PythonReport {
            place: "augment".to_owned(),
            function: function.to_owned(),
            workers: 2,
            threads: 3,
            num_calls: 100,
            ave_time: 0.004,
            function_seconds: 0.4,
            beside_seconds: 0.01,
            wait_seconds: 0.2,
            copy_seconds: 0.02,
            num_starts: 2,
            start_seconds: 1.5,
            cpu_seconds: 2.25,
            hot_spot: Some(HotSpotReport { name: hot_spot.to_owned(), share: 0.62 }),
        }
    }

    #[test]
    fn the_line_names_the_callee_that_takes_most_and_never_the_function_itself() {
        assert_eq!(
            report("mydata.transforms:augment", "albumentations.Blur").line(),
            "`mydata.transforms:augment`: 4.00 ms in the function (62 % in albumentations.Blur) and 0.10 ms beside it, in 2 \
             workers; threads waited 2.00 ms for a worker and copied for 0.20 ms; 2 workers started, 750.00 ms each; 2.2 s of CPU time of workers in all"
        );
        for (function, own) in [
            ("mydata.transforms:augment", "mydata.augment"),
            ("stages:Augment", "stages.Augment"),
            ("__main__:augment", "__mp_main__.augment"),
        ] {
            assert_eq!(report(function, own).hot_words(), None, "{function}");
        }
        let same_name = report("mydata:augment", "other.augment");
        assert_eq!(same_name.hot_words().unwrap(), "62 % in other.augment");
    }

    #[test]
    fn a_window_holds_what_came_between_two_reports() {
        let before = report("a:f", "a.X");
        let now = PythonReport {
            num_calls: 150,
            function_seconds: 0.9,
            beside_seconds: 0.03,
            num_starts: 3,
            cpu_seconds: 3.0,
            hot_spot: None,
            ..before.clone()
        };
        let window = now.since(&before);
        assert_eq!((window.num_calls, window.num_starts, window.start_seconds), (50, 1, 0.0));
        assert!((window.ave_time - 0.01).abs() < 1e-9, "{window:?}");
        assert!((window.worker_seconds() - 0.52).abs() < 1e-9, "{window:?}");
        assert!((window.cpu_seconds - 0.75).abs() < 1e-9, "{window:?}");
        assert_eq!(before.since(&before).ave_time, 0.0);
    }
}
