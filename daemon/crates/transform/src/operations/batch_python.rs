//! `python`, on complete batches: the user's function.

use crate::batch::{BatchEntry, BatchFunction};
use forebay_config::{Concurrency, KeywordArguments, PythonTarget, WorkerDefaults};
use forebay_keys::{ByteSize, ConfigError, Keys, Section, TimeSpan};

forebay_keys::keys! {
    /// the user's own function or class, which is called with each batch; see [Complete
    /// batches](../guide/python.md#complete-batches)
    pub(crate) struct Arguments = "python" {
        /// `"module:name"`
        pub call: PythonTarget, "", required;
        /// keyword arguments of the class, or of each call of the function
        pub arguments: KeywordArguments, "", absent("none");
        /// worker processes; `"auto"`: one for each core, and no more than `ring.slots`
        pub workers: Concurrency, "processes", default(Concurrency::Auto);
        /// how long one call may run before its worker is replaced
        pub timeout: TimeSpan, "", absent("`\"60s\"`");
        /// the memory that a worker may allocate before it is replaced; not part of `ring.memory`
        pub memory: ByteSize, "", absent("`\"2GiB\"`");
    }
}

pub(crate) fn compile(section: &mut Section) -> Result<BatchEntry, ConfigError> {
    let Arguments { call, arguments, workers, timeout, memory } = Arguments::read(section)?;
    Ok(BatchEntry::Function(BatchFunction {
        path: section.path().to_owned(),
        location: section.location().clone(),
        target: call,
        arguments: arguments.unwrap_or_default(),
        workers,
        timeout: timeout.unwrap_or(WorkerDefaults::TIMEOUT),
        memory_bytes: memory.unwrap_or(WorkerDefaults::MEMORY_BYTES),
    }))
}
