//! Megatron's `.idx`: the lengths of sequences, and the documents that they form.
//!
//! Little endian, without padding (NVIDIA/Megatron-LM, `megatron/core/datasets/indexed_dataset.py`):
//!
//! ```text
//! magic "MMIDIDX\0\0" [9]   version u64 = 1   type u8   sequences u64   document ends u64
//! length i32 [sequences]    pointer i64 [sequences]: byte offset in the .bin
//! document i64 [document ends]: the first sequence of each document, and the number of sequences
//! mode i8 [sequences], in multimodal datasets only
//! ```
//! The table is read in parts, never as a whole: first its size is compared with the file's size.

use std::io::{self, Write};

use forebay_protocol::tensor::DType;

const MAGIC: &[u8; 9] = b"MMIDIDX\0\0";
/// The format of fairseq, from which Megatron's format derives.
const OLD_MAGIC: &[u8] = b"TNTIDX\0\0";
const HEADER_BYTES: u64 = 34;

/// The header of an index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct IndexHeader {
    pub(super) dtype: DType,
    pub(super) sequences: u64,
    /// The number of documents plus one.
    pub(super) document_ends: u64,
}

impl IndexHeader {
    /// Parses the start of an index file with a size of `file_bytes`.
    ///
    /// # Errors
    /// It is not an index, or its size does not match its header.
    pub(super) fn parse(head: &[u8], file_bytes: u64) -> Result<Self, String> {
        if head.starts_with(OLD_MAGIC) {
            return Err("it is an index of fairseq or of an old Megatron (TNTIDX); make it again with Megatron's \
                        tools/preprocess_data.py"
                .to_owned());
        }
        if !head.starts_with(MAGIC) {
            return Err("it is no index of Megatron: it does not begin with MMIDIDX; move it away if the .bin is raw tokens"
                .to_owned());
        }
        let number = |start: usize| {
            head.get(start..)
                .and_then(|bytes| bytes.first_chunk())
                .map(|bytes| u64::from_le_bytes(*bytes))
        };
        let cut = || format!("cut short: {file_bytes} bytes end within the header");
        let version = number(9).ok_or_else(cut)?;
        if version != 1 {
            return Err(format!("version {version} of Megatron's index is unknown; 1 is read"));
        }
        let code = *head.get(17).ok_or_else(cut)?;
        let dtype = match code {
            1 => DType::U8,
            2 => DType::I8,
            3 => DType::I16,
            4 => DType::I32,
            5 => DType::I64,
            8 => DType::U16,
            6 | 7 => {
                return Err(format!(
                    "its elements are floats (code {code}), and tokens are integers"
                ));
            }
            _ => return Err(format!("the code {code} of its elements' type is unknown")),
        };
        let sequences = number(18).ok_or_else(cut)?;
        let document_ends = number(26).ok_or_else(cut)?;
        let header = Self { dtype, sequences, document_ends };
        let expected = header.bytes().ok_or_else(|| {
            format!("its header announces {sequences} sequences and {document_ends} documents: more than a file can hold")
        })?;
        if file_bytes != expected && Some(file_bytes) != expected.checked_add(sequences) {
            return Err(format!(
                "its header announces {sequences} sequences and {document_ends} documents' ends, which makes {expected} \
                 bytes, and the file has {file_bytes}: it was cut short, or the header is wrong"
            ));
        }
        if sequences == 0 || document_ends < 2 {
            return Err("it has no documents".to_owned());
        }
        Ok(header)
    }

    /// The offset and size of the lengths of `count` sequences from `first` on.
    pub(super) const fn lengths(&self, first: u64, count: u64) -> (u64, u64) {
        (HEADER_BYTES + 4 * first, 4 * count)
    }

    /// As [`lengths`](Self::lengths), for the pointers.
    pub(super) const fn pointers(&self, first: u64, count: u64) -> (u64, u64) {
        (HEADER_BYTES + 4 * self.sequences + 8 * first, 8 * count)
    }

    /// As [`lengths`](Self::lengths), for the documents' first sequences.
    pub(super) const fn documents(&self, first: u64, count: u64) -> (u64, u64) {
        (HEADER_BYTES + 12 * self.sequences + 8 * first, 8 * count)
    }

    fn bytes(&self) -> Option<u64> {
        let sequences = self.sequences.checked_mul(12)?;
        let documents = self.document_ends.checked_mul(8)?;
        HEADER_BYTES.checked_add(sequences)?.checked_add(documents)
    }
}

/// Writes an index of documents of one sequence each, for a `.bin` of `dtype`: uint16 or int32.
pub(crate) fn write_index(file: &mut dyn Write, dtype: DType, lengths: &[u32]) -> io::Result<()> {
    let count = lengths.len() as u64;
    file.write_all(MAGIC)?;
    file.write_all(&1_u64.to_le_bytes())?;
    file.write_all(&[if dtype == DType::U16 { 8 } else { 4 }])?;
    file.write_all(&count.to_le_bytes())?;
    file.write_all(&(count + 1).to_le_bytes())?;
    lengths.iter().try_for_each(|length| file.write_all(&length.to_le_bytes()))?;
    let mut pointer = 0_u64;
    for length in lengths {
        file.write_all(&pointer.to_le_bytes())?;
        pointer += u64::from(*length) * dtype.size_bytes();
    }
    (0..=count).try_for_each(|document| file.write_all(&document.to_le_bytes()))
}
