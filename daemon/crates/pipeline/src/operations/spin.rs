//! `spin`, for tests: takes CPU time while it holds its work thread. `milliseconds` of it.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use crate::contract::{FieldTypes, Operation, Sample};
use forebay_config::{ConfigError, Keys, Section};
use forebay_order::Draws;
use forebay_source::dataset::Defect;

#[derive(Debug)]
struct Spin(Duration);

forebay_config::keys! {
    /// takes CPU time while it holds its thread; for tests
    pub(crate) struct Arguments = "spin" {
        /// how long
        pub milliseconds: f64, "ms", required;
    }
}

pub(crate) fn compile(
    section: &mut Section,
    _fields: &mut FieldTypes,
) -> Result<Box<dyn Operation>, ConfigError> {
    let Arguments { milliseconds } = Arguments::read(section)?;
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
