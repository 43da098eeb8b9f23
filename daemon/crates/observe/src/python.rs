//! The cost of calls of the user's Python functions, and their hot spots.

use serde::{Deserialize, Serialize};

use super::units::{duration, percent};

/// A function that worker processes run: a stage, or an operation on complete batches. Times are in seconds, summed
/// over all workers or over all threads of the daemon.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PythonReport {
    /// The stage's name, or the operation's position in the configuration.
    pub place: String,
    /// `module:function`.
    pub function: String,
    /// The maximum number of its worker processes.
    pub workers: u32,
    /// The maximum number of daemon threads that copy for the workers or wait for one.
    pub threads: u32,
    /// Samples, or batches, for which a worker was called and has returned.
    pub num_calls: u64,
    /// The mean time of the function per call.
    pub ave_time: f64,
    /// The total time of the function.
    pub function_seconds: f64,
    /// The workers' time outside of the function: copying, seeding.
    pub beside_seconds: f64,
    /// The time in which threads waited for a free worker.
    pub wait_seconds: f64,
    /// The time in which threads wrote inputs and read results.
    pub copy_seconds: f64,
    /// The number of calls that exceeded the timeout.
    pub num_timeouts: u64,
    /// The time of these calls, which is in none of the times above.
    pub timeout_seconds: f64,
    /// The number of worker starts.
    pub num_starts: u64,
    /// The time from the start of a worker until it is ready: the interpreter and the imports.
    pub start_seconds: f64,
    /// User and system time of the workers since their start, including imports.
    pub cpu_seconds: f64,
    /// The hot spot of the function; `None` with too few observations.
    pub hot_spot: Option<HotSpotReport>,
}

/// The hot spot of a function.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct HotSpotReport {
    /// The innermost call with most of the time, as `package.Class` or `package.function`; the function itself if no
    /// callee has most of it.
    pub name: String,
    /// Its share of the function's time.
    pub share: f64,
}

impl PythonReport {
    /// The workers' time for calls, in seconds.
    #[must_use]
    pub fn worker_seconds(&self) -> f64 {
        self.function_seconds + self.beside_seconds
    }

    /// The hot spot, unless it is the function itself.
    #[must_use]
    pub fn hot_callee(&self) -> Option<&HotSpotReport> {
        let (module, function) = self.function.split_once(':')?;
        let package = module.split('.').next().unwrap_or(module);
        self.hot_spot.as_ref().filter(|spot| {
            // A script has another module name in a worker.
            let is_own = |(of, name): (&str, &str)| {
                name == function && (of == package || package == "__main__")
            };
            !spot.name.split_once('.').is_some_and(is_own)
        })
    }

    /// The same as text: `62 % in albumentations.Blur`.
    #[must_use]
    pub fn hot_words(&self) -> Option<String> {
        self.hot_callee().map(|spot| format!("{} in {}", percent(spot.share), spot.name))
    }

    /// All metrics as text.
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
            num_timeouts: self.num_timeouts.saturating_sub(earlier.num_timeouts),
            timeout_seconds: seconds(self.timeout_seconds, earlier.timeout_seconds),
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
            num_timeouts: 0,
            timeout_seconds: 0.0,
            num_starts: 2,
            start_seconds: 1.5,
            cpu_seconds: 2.25,
            hot_spot: Some(HotSpotReport { name: hot_spot.to_owned(), share: 0.62 }),
        }
    }

    #[test]
    fn line_names_the_hottest_callee_but_not_the_function_itself() {
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
    fn window_of_python_metrics_is_the_difference_of_two_reports() {
        let before = report("a:f", "a.X");
        let now = PythonReport {
            num_calls: 150,
            function_seconds: 0.9,
            beside_seconds: 0.03,
            num_timeouts: 2,
            timeout_seconds: 5.0,
            num_starts: 3,
            cpu_seconds: 3.0,
            hot_spot: None,
            ..before.clone()
        };
        let window = now.since(&before);
        assert_eq!((window.num_calls, window.num_starts, window.start_seconds), (50, 1, 0.0));
        assert!((window.ave_time - 0.01).abs() < 1e-9, "{window:?}");
        assert!((window.worker_seconds() - 0.52).abs() < 1e-9, "{window:?}");
        assert_eq!((window.num_timeouts, window.timeout_seconds), (2, 5.0));
        assert!((window.cpu_seconds - 0.75).abs() < 1e-9, "{window:?}");
        assert_eq!(before.since(&before).ave_time, 0.0);
    }
}
