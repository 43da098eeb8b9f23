//! Writes the samples into shards, in the order of ids.

use std::fs::File;
use std::io;
use std::path::PathBuf;

use forebay_formats::in_order::{Give, Pass, starts};

use crate::Clock;
use crate::error::PackError;
use crate::folder::Unfinished;
use crate::layout::{Layout, Shard, TableOf};
use crate::reading::Reading;
use crate::sample::{Digest, Sample, Samples};

/// The most samples of a shard, whose places and digests are in memory.
const SHARD_SAMPLES: usize = 1 << 20;
/// The most shards: names of files have six digits, so that their order is that of the shards.
const MAX_SHARDS: u64 = 1_000_000;

/// A shard in the making.
struct Current {
    shard: Box<dyn Shard>,
    path: PathBuf,
    digests: Vec<Digest>,
}

/// Why a sample is not written.
enum Unwritten {
    /// The layout cannot store it.
    Sample(String),
    /// The shard cannot be written.
    Shard(PackError),
}

impl From<PackError> for Unwritten {
    fn from(error: PackError) -> Self {
        Self::Shard(error)
    }
}

struct Writer<'a> {
    layout: &'static dyn Layout,
    table: &'a TableOf,
    folder: &'a mut Unfinished,
    shard_bytes: u64,
    current: Option<Current>,
    written: u64,
}

/// Writes all samples that are not in complete shards.
pub(crate) fn write(
    reading: &Reading<'_>,
    table: &TableOf,
    folder: &mut Unfinished,
    clock: &Clock<'_>,
) -> Result<(), PackError> {
    let request = reading.request;
    let dataset = request.source.dataset.as_ref();
    let all = dataset.kept_count();
    let mut done = folder.samples();
    let pass = Pass { starts: starts(dataset, done), threads: request.threads };
    let (layout, shard_bytes) = (request.layout.0, request.shard_bytes);
    let written = folder.bytes();
    let mut writer = Writer { layout, table, folder, shard_bytes, current: None, written };
    let worker = || {
        let mut thread = reading.thread();
        move |samples, give: Give<'_, Samples>| thread.run(samples, give)
    };
    let report = |writer: &Writer<'_>, done| match clock.report(done, writer.bytes()).is_break() {
        true => Err(writer.interrupted(all)),
        false => Ok(()),
    };
    pass.run(worker, &mut |made: Option<Samples>| {
        for (sample, digest) in made.into_iter().flat_map(|made| made.0) {
            let added = writer.add(&sample, digest);
            added.map_err(|error| match error {
                Unwritten::Sample(reason) => reading.bad(dataset.kept_at(done), reason),
                Unwritten::Shard(error) => error,
            })?;
            done += 1;
            report(&writer, done)?;
        }
        report(&writer, done)
    })?;
    writer.close()
}

impl Writer<'_> {
    fn bytes(&self) -> u64 {
        self.written + self.current.as_ref().map_or(0, |current| current.shard.bytes())
    }

    fn interrupted(&self, all: u64) -> PackError {
        let folder = self.folder.path().to_owned();
        PackError::Interrupted { done: self.folder.samples(), all, folder }
    }

    fn file_name(&self) -> String {
        self.layout.file_name(self.folder.shards.len() as u64)
    }

    fn add(&mut self, sample: &Sample, digest: Digest) -> Result<(), Unwritten> {
        if self.current.is_none() {
            self.current = Some(self.begin()?);
        }
        let Some(current) = &mut self.current else { return Ok(()) };
        current.shard.add(sample).map_err(|error| match error.kind() {
            // The layouts' own, by `io::Error::other`; the system's have other kinds.
            io::ErrorKind::Other => Unwritten::Sample(error.to_string()),
            _ => Unwritten::Shard(PackError::write(&current.path)(error)),
        })?;
        current.digests.push(digest);
        let is_full = current.shard.bytes() >= self.shard_bytes;
        if is_full || current.digests.len() >= SHARD_SAMPLES {
            self.close()?;
        }
        Ok(())
    }

    fn begin(&self) -> Result<Current, PackError> {
        if self.folder.shards.len() as u64 >= MAX_SHARDS {
            return Err(PackError::Refused(format!(
                "the result has more than {MAX_SHARDS} shards; set a larger --shard-bytes"
            )));
        }
        let (file, path) = self.folder.begin(&self.file_name())?;
        let shard = self.layout.begin(self.table, file, &path);
        let shard = shard.map_err(PackError::write(&path))?;
        Ok(Current { shard, path, digests: Vec::new() })
    }

    /// Completes the current shard.
    fn close(&mut self) -> Result<(), PackError> {
        let Some(Current { shard, path, digests }) = self.current.take() else { return Ok(()) };
        let file: File = shard.close().map_err(PackError::write(&path))?;
        let name = self.file_name();
        self.folder.complete(&file, &path, name, &digests)?;
        self.written = self.folder.bytes();
        Ok(())
    }
}
