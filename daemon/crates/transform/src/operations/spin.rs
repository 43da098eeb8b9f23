//! For tests: `spin` uses `milliseconds` of CPU time while it holds its work thread; `takes` declares that it needs a
//! multiple of the sample's bytes of memory.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use crate::contract::{FieldTypes, Operation, Sample};
use crate::needs::Reckoning;
use forebay_dataset::Defect;
use forebay_keys::{ConfigError, Keys, Section};
use forebay_order::Draws;

#[derive(Debug)]
struct Spin(Duration);

forebay_keys::keys! {
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

#[derive(Debug)]
struct TakesBytes(u64);

forebay_keys::keys! {
    /// says that it takes memory; for tests
    pub(crate) struct Takes = "takes" {
        /// of the sample's bytes
        pub times: u64, "", required;
    }
}

pub(crate) fn compile_takes(
    section: &mut Section,
    _fields: &mut FieldTypes,
) -> Result<Box<dyn Operation>, ConfigError> {
    let Takes { times } = Takes::read(section)?;
    Ok(Box::new(TakesBytes(times)))
}

impl Operation for TakesBytes {
    fn run(&self, _sample: &mut Sample<'_, '_>, _draws: &mut Draws) -> Result<(), Defect> {
        Ok(())
    }

    fn reckon(&self, reckoning: &mut Reckoning<'_>) {
        reckoning.scratch_bytes += self.0 * reckoning.sample_bytes;
    }
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
