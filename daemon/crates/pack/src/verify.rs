//! Reads the result through Forebay's own reader, and compares each sample with what was read of the source.

use forebay_dataset::{Field, FieldKind, OpenOptions, Opened};
use forebay_formats::in_order::{Give, Pass, Piece, starts};
use forebay_formats::sample_reader::SampleReader;
use forebay_protocol::ids::SampleId;

use crate::error::PackError;
use crate::folder::Unfinished;
use crate::layout::TableOf;
use crate::names::KEY;
use crate::reading::Reading;
use crate::sample::{Digest, Sample, Value};
use crate::{Clock, config_file, differs};

/// The digests of consecutive samples, or why one cannot be read.
struct Digests(Vec<Result<Digest, String>>);

impl Piece for Digests {
    fn bytes(&self) -> usize {
        self.0.len() * size_of::<Result<Digest, String>>()
    }
}

/// Compares the result with the digests of the source.
///
/// # Errors
/// The first difference.
pub(crate) fn verify(
    reading: &Reading<'_>,
    table: &TableOf,
    folder: &Unfinished,
    clock: &Clock<'_>,
) -> Result<(), PackError> {
    let request = reading.request;
    let source = request.source.dataset.as_ref();
    let config = config_file::for_verifying(request, table, folder)?;
    let Opened { dataset, storage, .. } = forebay_formats::open(&config, OpenOptions::default())?;
    let (found, all) = (dataset.sample_count(), source.kept_count());
    if found != all {
        return Err(differs(folder, format!("it has {found} samples, and the source {all}")));
    }
    let fields = source.fields();
    if let Some(reason) = fields.iter().zip(dataset.fields()).find_map(|(a, b)| misfit(a, b)) {
        return Err(differs(folder, reason));
    }
    let needs_keys = request.layout.0.needs_keys();
    let count = fields.len();
    let worker = || {
        let limit = config.limits.sample_bytes.max(request.shard_bytes);
        let mut reader = SampleReader::new(dataset.as_ref(), storage.as_ref(), limit);
        let dataset = &dataset;
        move |samples: std::ops::Range<u64>, give: Give<'_, Digests>| {
            let mut made = Vec::new();
            for id in samples.map(SampleId) {
                let sample = reader.read(id, |values| {
                    let mut taken = values.iter().map(Value::of).collect::<Result<Vec<_>, _>>()?;
                    let key = match taken.split_off(count.min(taken.len())).pop() {
                        Some(Value::Text(name)) => name,
                        _ if !needs_keys => String::new(),
                        _ => {
                            let mut name = Vec::new();
                            dataset.append_name(id, &mut name);
                            let name = String::from_utf8_lossy(&name).into_owned();
                            // Behind the name of the archive.
                            name.split_once('/').map_or(String::new(), |(_, key)| key.to_owned())
                        }
                    };
                    Ok(Sample { key, values: taken }.digest())
                })?;
                made.push(sample);
            }
            // The pass ends in any case.
            let _ = give(Digests(made));
            Ok(())
        }
    };
    let pass = Pass { starts: starts(dataset.as_ref(), 0), threads: request.threads };
    let (mut done, mut expected) = (0, Expected { folder, shard: 0, left: Vec::new().into_iter() });
    pass.run(worker, &mut |made: Option<Digests>| {
        for digest in made.into_iter().flat_map(|made| made.0) {
            let same = expected.next()?;
            let reason = match digest {
                Ok(digest) if Some(digest) == same => None,
                Ok(_) => {
                    Some("its bytes or its key differ from what was read of the source".to_owned())
                }
                Err(reason) => Some(reason),
            };
            if let Some(reason) = reason {
                let path = dataset.full_name(storage.as_ref(), SampleId(done));
                return Err(differs(
                    folder,
                    format!("sample {done}, {}: {reason}", path.display()),
                ));
            }
            done += 1;
        }
        match clock.report(done, folder.bytes()).is_break() {
            true => {
                let folder = folder.path().to_owned();
                Err(PackError::Interrupted { done: all, all, folder })
            }
            false => Ok(()),
        }
    })?;
    match done == all {
        true => Ok(()),
        false => Err(differs(folder, format!("{done} of {all} samples were read back"))),
    }
}

/// Why a field of the result does not give the rows of the source's.
fn misfit(source: &Field, result: &Field) -> Option<String> {
    let is_same = match (&source.kind, &result.kind) {
        // Its rows differ in length, which the written configuration says.
        (FieldKind::RaggedArray { dtype, .. }, FieldKind::Array { dtype: found, .. }) => {
            dtype == found
        }
        (source, result) => source == result,
    };
    let is_same = is_same && source.name == result.name;
    (!is_same).then(|| {
        format!(
            "its field `{}` is {:?}, and the source's {:?}",
            result.name, result.kind, source.kind
        )
    })
}

/// The digests of all shards, in order.
struct Expected<'a> {
    folder: &'a Unfinished,
    /// The next one to read.
    shard: u64,
    left: std::vec::IntoIter<Digest>,
}

impl Expected<'_> {
    fn next(&mut self) -> Result<Option<Digest>, PackError> {
        while self.left.as_slice().is_empty() && self.shard < self.folder.shards.len() as u64 {
            self.left = self.folder.digests(self.shard)?.into_iter();
            self.shard += 1;
        }
        Ok(self.left.next())
    }
}

/// The field of names that is read besides the others.
pub(crate) fn name_field(table: &TableOf) -> Option<String> {
    table.has_names.then(|| format!("{KEY} = {{ from = \"{KEY}\", as = \"text\" }}\n"))
}
