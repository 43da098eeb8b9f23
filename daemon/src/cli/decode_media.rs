//! The hidden command that decodes videos for a daemon, in a process of its own.

use std::process::ExitCode;

use anyhow::Context as _;
use forebay_affinity::PoolOptions;
use forebay_config::CpuPolicy;
use forebay_workers::WorkerClass;

use super::harden::unblock_signals;

/// `forebay decode-media`.
pub(super) fn decode_media() -> anyhow::Result<ExitCode> {
    unblock_signals();
    let lower = |class: WorkerClass| {
        let (policy, nice) = match class {
            WorkerClass::Idle => (CpuPolicy::Idle, 0),
            WorkerClass::Batch(nice) => (CpuPolicy::Batch, nice),
            WorkerClass::Normal(nice) => (CpuPolicy::Normal, nice),
        };
        forebay_affinity::lower(&PoolOptions {
            threads: 1,
            max_threads: 1,
            fallback_threads: 0,
            policy,
            nice,
            granted_cores: 1.0,
            spare_cores: None,
            limit_cores: None,
            cores: Vec::new(),
            refused_cores: Vec::new(),
            ring_cores: Vec::new(),
        });
    };
    forebay_transform::serve_decoders(lower).context("decoding for a daemon")
}
