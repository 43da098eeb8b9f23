//! Plans the scan of archives, and describes its results.

use std::collections::HashSet;

use super::members::Members;
use super::names::{self, Name};
use super::scan::{Column, Counts};
use super::{MAX_COLUMNS, WebDataset};
use crate::fields::{FieldRule, IMAGES, Missing, infer_rules};
use crate::indexed::Opening;
use forebay_dataset::error::DatasetError;
use forebay_index::saved_index::open_file;
use forebay_index::window::WindowSize;
use forebay_protocol::counted::counted;

/// The number of samples that fields are inferred from, as in Hugging Face's reader.
const INFERRED_FROM: usize = 5;

/// The inputs of a scan.
pub(crate) struct TarScan {
    /// One per field.
    pub(super) rules: Vec<FieldRule>,
    pub(super) columns: Vec<Column>,
    /// Samples that are left out, as `ARCHIVE/KEY`.
    pub(super) excluded: HashSet<Vec<u8>>,
}

/// Infers the fields from the first samples.
pub(super) fn infer(
    opening: &Opening<'_, WebDataset>,
    shards: &[Vec<u8>],
    warnings: &mut Vec<String>,
) -> Result<Vec<FieldRule>, DatasetError> {
    let (mut members, mut has_several) = (Vec::<String>::new(), false);
    let (mut key, mut samples, mut images) = (Vec::new(), 0, 0);
    for path in shards {
        let archive = open_file(opening.storage, path)?;
        let window = WindowSize::for_storage(opening.storage);
        let mut walk = Members::new(&archive, window);
        while let Some(member) = walk.next()? {
            let Name::Field { key: next, field } = names::split(member.name) else { continue };
            if key != next {
                (samples, images) = (samples + 1, 0);
                key = next.to_vec();
            }
            if samples > INFERRED_FROM {
                break;
            }
            let field = String::from_utf8_lossy(field).to_lowercase();
            images += u64::from(IMAGES.contains(&field.as_str()));
            has_several |= images > 1;
            if !field.is_empty() && !members.contains(&field) && members.len() < MAX_COLUMNS {
                members.push(field);
            }
        }
        if samples > 0 {
            break;
        }
    }
    let (rules, left_out) = infer_rules(&members, has_several);
    if !left_out.is_empty() {
        warnings.push(format!(
            "members that no field was made of: {}. Pickles and code in data are never run; other members can be named \
             in dataset.fields",
            left_out.join(", ")
        ));
    }
    if rules.is_empty() {
        let reason = "its first samples have no members that can be read";
        return Err(opening.request.no_samples(reason));
    }
    Ok(rules)
}

/// The columns of the rules: fields with the same members share one.
pub(super) fn columns(rules: &[FieldRule]) -> Vec<Column> {
    let mut columns: Vec<Column> = Vec::new();
    for rule in rules {
        let skips = rule.missing == Missing::Skip;
        match columns.iter_mut().find(|column| column.from == rule.from) {
            Some(column) => column.skips |= skips,
            None => columns.push(Column { from: rule.from.clone(), skips }),
        }
    }
    columns
}

impl TarScan {
    /// Warnings about a scan, one sentence each.
    pub(super) fn sentences(&self, counts: &Counts) -> Vec<String> {
        let mut sentences = Vec::new();
        let mut tell = |count: u64, before: &str, noun: &str, words: &str| {
            if count > 0 {
                sentences.push(format!("{before}{}{words}", counted(count, noun)));
            }
        };
        let left_out = "left out: ";
        tell(counts.hidden, left_out, "hidden member", ", such as macOS adds");
        tell(
            counts.skipped,
            left_out,
            "sample",
            " without a member that dataset.fields has as missing = \"skip\"",
        );
        tell(counts.excluded, left_out, "sample", " that .nv-meta excludes");
        tell(counts.foreign, left_out, "sample", " without any member that dataset.fields names");
        if let Some(first) = counts.distrusted.first() {
            tell(
                counts.distrusted.len() as u64,
                "read through: ",
                "archive",
                &format!(
                    " with an .idx that is not used; {first}. Make it again with DALI's wds2idx, or remove it"
                ),
            );
        }
        tell(
            counts.links,
            left_out,
            "member",
            " that a hard link without data stands for: tar stores equal files so once they are linked. Make the \
             archive again with tar --hard-dereference",
        );
        tell(
            counts.unmarked,
            "",
            "archive",
            " without the blocks that mark an archive's end, which may have been cut off: compare the size with that of the \
             original",
        );
        for (column, missing) in self.columns.iter().zip(&counts.missing) {
            let is_error =
                |rule: &&FieldRule| rule.from == column.from && rule.missing == Missing::Error;
            let rule = self.rules.iter().find(is_error);
            sentences.extend(rule.and_then(|rule| rule.lacking_warning(*missing, "sample")));
        }
        sentences
    }
}
