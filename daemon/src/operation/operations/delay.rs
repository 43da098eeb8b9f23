//! `delay`: sleeps while it holds its work thread. For tests, and for learning what the figures mean.
//!
//! `milliseconds`, `probability` (1.0 by default). May stand several times.

use std::time::Duration;

use crate::config::{ConfigError, Section};
use crate::dataset::Defect;
use crate::operation::arguments::Probability;
use crate::operation::contract::{FieldTypes, Operation, Sample};
use crate::order::Draws;

/// The longest delay: a day.
const MAX_MILLISECONDS: f64 = 86_400_000.0;

#[derive(Debug)]
struct Delay {
    duration: Duration,
    probability: f64,
}

pub(in crate::operation) fn compile(
    arguments: &mut Section,
    _fields: &mut FieldTypes,
) -> Result<Box<dyn Operation>, ConfigError> {
    let milliseconds: f64 = arguments.require("milliseconds")?;
    if !(0.0..=MAX_MILLISECONDS).contains(&milliseconds) {
        return Err(arguments.error(format!(
            "`{}` must lie between 0 and {MAX_MILLISECONDS}, not {milliseconds}",
            arguments.key_path("milliseconds")
        )));
    }
    let Probability(probability) = arguments.take_or("probability", Probability(1.0))?;
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
