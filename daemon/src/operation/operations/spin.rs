//! `spin`, for tests: takes CPU time while it holds its work thread. `milliseconds` of it.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use crate::config::{ConfigError, Section};
use crate::dataset::Defect;
use crate::operation::contract::{FieldTypes, Operation, Sample};
use crate::order::Draws;

#[derive(Debug)]
struct Spin(Duration);

pub(in crate::operation) fn compile(
    arguments: &mut Section,
    _fields: &mut FieldTypes,
) -> Result<Box<dyn Operation>, ConfigError> {
    let milliseconds: f64 = arguments.require("milliseconds")?;
    Ok(Box::new(Spin(Duration::from_secs_f64(milliseconds / 1000.0))))
}

impl Operation for Spin {
    fn run(&self, _sample: &mut Sample<'_, '_>, _draws: &mut Draws) -> Result<(), Defect> {
        let used = || {
            clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::MAX, Duration::from)
        };
        let end = used() + self.0;
        while used() < end {
            std::hint::spin_loop();
        }
        Ok(())
    }
}
