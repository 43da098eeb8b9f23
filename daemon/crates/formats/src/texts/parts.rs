//! The files of tokens, each with Megatron's index, and what says that one is complete.
//!
//! ```text
//! STEM-000000.bin    the tokens, uint16 or int32
//! STEM-000000.idx    Megatron's index; each text is a document
//! STEM-000000.json   the counts and checksums; written last, so that a part with it is complete
//! texts.json         the counts of all parts; a folder with it is complete
//! ```
//! A part ends with the text that reaches its number of tokens ([`part_tokens`]) or of texts ([`PART_TEXTS`]), so parts
//! depend on the texts only, wherever the work was interrupted.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use forebay_protocol::tensor::DType;
use serde::{Deserialize, Serialize};

use super::made::{MadeTexts, NAMED};
use crate::made_files::{Look, Summed, checksum_of_file, unwritten, write_whole};
use crate::tokens::write_index;
use forebay_dataset::error::DatasetError;

/// The texts of a part, whose lengths are kept in memory.
const PART_TEXTS: usize = 1 << 20;

/// The tokens of a part: few at first and more later, so that an interruption loses a small share of the work, and a large
/// dataset has few files.
const fn part_tokens(part: u64) -> u64 {
    let doublings = if part < 6 { part } else { 6 };
    1 << (20 + doublings)
}

/// What was made.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Counts {
    pub(super) parts: u64,
    /// Including those that are left out.
    pub(super) texts: u64,
    pub(super) tokens: u64,
    pub(super) left_out: u64,
    /// The first ones that are left out, with the reasons.
    pub(super) named: Vec<String>,
}

impl Counts {
    fn add(&mut self, other: &Self) {
        self.parts += other.parts;
        self.texts += other.texts;
        self.tokens += other.tokens;
        self.left_out += other.left_out;
        let free = NAMED.saturating_sub(self.named.len());
        self.named.extend(other.named.iter().take(free).cloned());
    }

    /// A warning for the user, if texts are left out.
    pub(super) fn warning(&self) -> Option<String> {
        (self.left_out > 0).then(|| {
            format!(
                "{} of {} texts cannot be made tokens and are left out, such as {}",
                self.left_out,
                self.texts,
                self.named.join("; ")
            )
        })
    }
}

/// What a complete part's file says of it.
#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    #[serde(flatten)]
    counts: Counts,
    /// CRC-32C of the tokens, of the index, and of the counts as JSON.
    checksums: [u32; 3],
}

/// A part that is being written.
struct Part {
    path: PathBuf,
    file: Summed<BufWriter<File>>,
    lengths: Vec<u32>,
    counts: Counts,
}

impl Part {
    fn begin(path: PathBuf) -> Result<Self, DatasetError> {
        let file = File::create(&path).map_err(|error| unwritten(&path, error))?;
        let file = Summed::new(BufWriter::with_capacity(1 << 20, file));
        Ok(Self {
            path,
            file,
            lengths: Vec::new(),
            counts: Counts { parts: 1, ..Counts::default() },
        })
    }
}

/// The parts of a folder.
pub(super) struct Parts<'a> {
    folder: &'a Path,
    stem: &'a str,
    dtype: DType,
    part_tokens: fn(u64) -> u64,
    /// Of the complete parts.
    complete: Counts,
    part: Option<Part>,
    /// Of all texts so far.
    made: Counts,
}

impl<'a> Parts<'a> {
    /// Continues after the complete parts of a folder, of which all bytes are read.
    pub(super) fn resume(folder: &'a Path, stem: &'a str, dtype: DType) -> Self {
        Self::resume_with(folder, stem, dtype, part_tokens)
    }

    fn resume_with(
        folder: &'a Path,
        stem: &'a str,
        dtype: DType,
        part_tokens: fn(u64) -> u64,
    ) -> Self {
        let mut complete = Counts::default();
        while let Some(part) = complete_part(folder, stem, dtype, complete.parts, Look::Bytes) {
            complete.add(&part);
        }
        Self { folder, stem, dtype, part_tokens, made: complete.clone(), complete, part: None }
    }

    /// What was made so far.
    pub(super) const fn made(&self) -> &Counts {
        &self.made
    }

    /// Adds the next texts.
    pub(super) fn add(&mut self, made: MadeTexts) -> Result<(), DatasetError> {
        let size = usize::try_from(self.dtype.size_bytes()).unwrap_or(1);
        let mut rest = &made.ids[..];
        let mut left_out = made.left_out.into_iter().peekable();
        for (place, length) in made.lengths.into_iter().enumerate() {
            let (ids, after) = rest.split_at((length as usize * size).min(rest.len()));
            rest = after;
            let named = left_out.next_if(|(text, _)| *text == place).map(|(_, name)| name);
            let text = Counts {
                parts: 0,
                texts: 1,
                tokens: length.into(),
                left_out: named.is_some().into(),
                named: named.flatten().into_iter().collect(),
            };
            self.made.add(&text);
            let part = match &mut self.part {
                Some(part) => part,
                None => self.part.insert(Part::begin(path_of(
                    self.folder,
                    self.stem,
                    self.complete.parts,
                    "bin.tmp",
                ))?),
            };
            part.file.write_all(ids).map_err(|error| unwritten(&part.path, error))?;
            part.lengths.push(length);
            part.counts.add(&text);
            let is_full = part.counts.tokens >= (self.part_tokens)(self.complete.parts);
            if is_full || part.lengths.len() >= PART_TEXTS {
                self.close()?;
            }
        }
        Ok(())
    }

    /// Ends the last part, and returns the counts of all.
    pub(super) fn finish(mut self) -> Result<Counts, DatasetError> {
        self.close()?;
        Ok(self.complete)
    }

    /// Completes the current part.
    fn close(&mut self) -> Result<(), DatasetError> {
        let Some(Part { path: unfinished, file, lengths, counts }) = self.part.take() else {
            return Ok(());
        };
        let path = |ending| path_of(self.folder, self.stem, self.complete.parts, ending);
        let (data, index) = (path("bin"), path("idx"));
        let of_tokens = file.checksum();
        let synced = file.file.into_inner().map_err(io::IntoInnerError::into_error);
        let synced = synced.and_then(|file| file.sync_all());
        synced.map_err(|error| unwritten(&unfinished, error))?;
        // A file without tokens would be refused; its texts are counted all the same.
        let mut of_index = 0;
        if counts.tokens > 0 {
            write_whole(&index, |file| {
                let mut file = Summed::new(file);
                write_index(&mut file, self.dtype, &lengths)?;
                of_index = file.checksum();
                Ok(())
            })?;
            fs::rename(&unfinished, &data).map_err(|error| unwritten(&data, error))?;
        } else {
            fs::remove_file(&unfinished).map_err(|error| unwritten(&unfinished, error))?;
        }
        let checksums = [of_tokens, of_index, checksum_of(&counts)];
        let kept = Kept { counts, checksums };
        write_whole(&path("json"), |file| Ok(serde_json::to_writer(file, &kept)?))?;
        self.complete.add(&kept.counts);
        Ok(())
    }
}

/// Whether all parts of a summary exist.
pub(super) fn are_all_there(
    folder: &Path,
    stem: &str,
    dtype: DType,
    made: &Counts,
    look: Look,
) -> bool {
    let parts = (0..made.parts).map_while(|part| complete_part(folder, stem, dtype, part, look));
    let mut found = Counts::default();
    parts.for_each(|part| found.add(&part));
    found == *made
}

/// The counts of a complete part.
fn complete_part(folder: &Path, stem: &str, dtype: DType, part: u64, look: Look) -> Option<Counts> {
    let path = |ending| path_of(folder, stem, part, ending);
    let json = fs::read(path("json")).ok()?;
    let kept: Option<Kept> = serde_json::from_slice(&json).ok();
    let is_whole = kept.as_ref().is_some_and(|Kept { counts, checksums }| {
        let bytes = |ending| fs::metadata(path(ending)).ok().map(|file| file.len());
        let [of_tokens, of_index, of_counts] = *checksums;
        let is_sum =
            |ending, sum| look == Look::Sizes || checksum_of_file(&path(ending)) == Some(sum);
        let are_there = || {
            let expected = counts.tokens.checked_mul(dtype.size_bytes());
            bytes("bin") == expected && bytes("idx").is_some()
        };
        let are_files = || are_there() && is_sum("idx", of_index) && is_sum("bin", of_tokens);
        counts.parts == 1 && checksum_of(counts) == of_counts && (counts.tokens == 0 || are_files())
    });
    if !is_whole {
        tracing::warn!(
            "a part of the tokens at {} is damaged, so its texts and those after it are made tokens again",
            path("json").display()
        );
    }
    kept.filter(|_| is_whole).map(|kept| kept.counts)
}

/// The checksum of counts.
fn checksum_of(counts: &Counts) -> u32 {
    // Numbers and texts: serialization cannot fail.
    crc_fast::crc32_iscsi(&serde_json::to_vec(counts).unwrap_or_default())
}

fn path_of(folder: &Path, stem: &str, part: u64, ending: &str) -> PathBuf {
    folder.join(format!("{stem}-{part:06}.{ending}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(lengths: &[u32]) -> MadeTexts {
        let mut made = MadeTexts::default();
        for length in lengths {
            let ids: Vec<_> = (0..*length).map(|id| id + length).collect();
            made.add(&ids, DType::U16).unwrap();
        }
        made
    }

    fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
        let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
        let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let mut files: Vec<_> = paths.map(|path| (name(&path), fs::read(&path).unwrap())).collect();
        files.retain(|(name, _)| !name.ends_with(".tmp"));
        files.sort();
        files
    }

    #[test]
    fn parts_do_not_depend_on_pieces_and_interruptions() {
        let lengths: Vec<u32> = (0..40).map(|number| number * 7 % 11).collect();
        let part_tokens = |part: u64| 10 << part.min(2);
        let whole = tempfile::tempdir().unwrap();
        let mut parts = Parts::resume_with(whole.path(), "a", DType::U16, part_tokens);
        parts.add(texts(&lengths)).unwrap();
        let counts = parts.finish().unwrap();
        assert_eq!(
            (counts.texts, counts.tokens),
            (40, lengths.iter().copied().map(u64::from).sum())
        );
        let are_all_there = |look| are_all_there(whole.path(), "a", DType::U16, &counts, look);
        assert!(counts.parts > 3 && are_all_there(Look::Bytes));
        for interrupted in 0..lengths.len() {
            let folder = tempfile::tempdir().unwrap();
            let mut parts = Parts::resume_with(folder.path(), "a", DType::U16, part_tokens);
            for length in &lengths[..interrupted] {
                parts.add(texts(&[*length])).unwrap();
            }
            drop(parts);
            let mut parts = Parts::resume_with(folder.path(), "a", DType::U16, part_tokens);
            let from = usize::try_from(parts.made().texts).unwrap();
            assert!(from <= interrupted);
            for lengths in lengths[from..].chunks(3) {
                parts.add(texts(lengths)).unwrap();
            }
            assert_eq!(parts.finish().unwrap(), counts);
            assert!(files(folder.path()) == files(whole.path()), "after {interrupted} texts");
        }
        let data = whole.path().join("a-000000.bin");
        let bytes = fs::read(&data).unwrap();
        fs::write(&data, &bytes[1..]).unwrap();
        assert!(!are_all_there(Look::Sizes), "a file is cut short");
        fs::write(&data, &bytes).unwrap();
        assert!(are_all_there(Look::Sizes));
        fs::remove_file(whole.path().join("a-000001.idx")).unwrap();
        assert!(!are_all_there(Look::Sizes));
    }

    type Damage = fn(&mut Vec<u8>);

    #[test]
    fn damaged_parts_are_made_again() {
        let lengths = [9, 3, 8, 4, 7, 6];
        let folder = tempfile::tempdir().unwrap();
        let make = || {
            let mut parts = Parts::resume_with(folder.path(), "a", DType::U16, |_| 10);
            let from = usize::try_from(parts.made().texts).unwrap();
            parts.add(texts(&lengths[from..])).unwrap();
            (from, parts.finish().unwrap())
        };
        let (_, counts) = make();
        let whole = files(folder.path());
        let damage: [(&str, Damage); 4] = [
            ("a-000001.bin", |bytes| bytes.fill(0)),
            ("a-000001.idx", |bytes| bytes[40] ^= 1),
            ("a-000001.json", |bytes| {
                *bytes =
                    String::from_utf8_lossy(bytes).replace("\"texts\":2", "\"texts\":3").into();
            }),
            ("a-000001.json", |bytes| bytes.fill(0)),
        ];
        for (name, damage) in damage {
            assert!(are_all_there(folder.path(), "a", DType::U16, &counts, Look::Bytes));
            let path = folder.path().join(name);
            let mut bytes = fs::read(&path).unwrap();
            let before = bytes.clone();
            damage(&mut bytes);
            assert!(bytes != before, "{name}");
            fs::write(&path, &bytes).unwrap();
            assert!(!are_all_there(folder.path(), "a", DType::U16, &counts, Look::Bytes), "{name}");
            assert_eq!(make(), (2, counts.clone()), "{name}");
            assert!(files(folder.path()) == whole, "{name}");
        }
    }

    #[test]
    fn texts_without_tokens_make_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let mut parts = Parts::resume(folder.path(), "a", DType::U16);
        let mut made = texts(&[0]);
        made.leave_out(|| "x: bad".to_owned());
        parts.add(made).unwrap();
        let counts = parts.finish().unwrap();
        assert_eq!((counts.texts, counts.tokens, counts.left_out), (2, 0, 1));
        assert!(counts.warning().unwrap().contains("1 of 2 texts"));
        let names: Vec<_> = files(folder.path()).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["a-000000.json"]);
    }
}
