//! `delay`: sleeps while it holds its work thread. For tests, and for learning what the metrics mean. May be used
//! several times.

use std::time::Duration;

use crate::arguments::Probability;
use crate::contract::{FieldTypes, Operation, Sample};
use forebay_dataset::Defect;
use forebay_keys::{ConfigError, Keys, Section};
use forebay_order::Draws;

/// The maximal delay: a day.
const MAX_MILLISECONDS: f64 = 86_400_000.0;

#[derive(Debug)]
struct Delay {
    duration: Duration,
    probability: f64,
}

forebay_keys::keys! {
    /// sleeps while it holds its thread; for tests, and for learning what the metrics mean
    pub(crate) struct Arguments = "delay" {
        /// how long
        pub milliseconds: f64, "ms", required;
        /// how often
        pub probability: Probability, "", default(1.0);
    }
}

pub(crate) fn compile(
    section: &mut Section,
    _fields: &mut FieldTypes,
) -> Result<Box<dyn Operation>, ConfigError> {
    let Arguments { milliseconds, probability } = Arguments::read(section)?;
    if !(0.0..=MAX_MILLISECONDS).contains(&milliseconds) {
        return Err(section.error(format!(
            "`{}` must lie between 0 and {MAX_MILLISECONDS}, not {milliseconds}",
            section.key_path("milliseconds")
        )));
    }
    Ok(Box::new(Delay { duration: Duration::from_secs_f64(milliseconds / 1000.0), probability }))
}

impl Operation for Delay {
    fn run(&self, _sample: &mut Sample<'_, '_>, draws: &mut Draws) -> Result<(), Defect> {
        if draws.uniform() < self.probability {
            std::thread::sleep(self.duration);
        }
        Ok(())
    }
}
