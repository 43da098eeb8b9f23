//! `tokens`: training rows of a language model, cut from files of token numbers.
//!
//! `files` finds the files and reads their headers, `documents` finds the boundaries of documents, `rows`, `index` and
//! `pack` determine the tokens of each row, `values` builds its fields. Tokens are read directly from the files,
//! without conversion before the row is written. Windows depend on the lengths of the files only; rows of documents
//! need an index, which `opening` builds once and saves.

mod documents;
mod files;
pub(super) mod fuzzing;
mod index;
mod keys;
mod megatron;
mod opening;
mod pack;
mod rows;
mod values;
mod width;

use std::borrow::Cow;
use std::sync::Arc;

use forebay_config::DatasetConfig;
use forebay_protocol::ids::SampleId;
use forebay_protocol::tensor::DType;
use forebay_storage::version::ObjectStamp;

use self::files::TokenFiles;
use self::index::{RowShape, TokenIndex};
use self::keys::{Cut, Labels};
pub(super) use self::keys::{FORMAT, OwnKeys, TABLE, TokenKeys, is_integer};
pub(super) use self::megatron::write_index;
use self::rows::{Row, Windows};
use self::values::{Ends, RowValues};
pub(super) use self::width::{Width, given as given_dtype, settle as settle_width};
use crate::draft::{Draft, Epochs, Seen};
use forebay_dataset::error::DatasetError;
use forebay_dataset::opening::{IndexReport, OpenOptions, OpenedFormat};
use forebay_dataset::{Dataset, Defect, Description, Field, FieldValue, IndexBytes};
use forebay_storage::Storage;
use forebay_storage::location::{FileId, FileTable, Location, SampleBytes};

/// Opens a folder of files, or one file.
pub(super) fn open(
    config: &DatasetConfig,
    storage: &dyn Storage,
    options: OpenOptions<'_>,
) -> OpenedFormat {
    let keys = TokenKeys::of(config)?;
    let files = TokenFiles::find(config, &keys, storage, options)?;
    let mut report = IndexReport::default();
    let rows = match keys.cut {
        Cut::Windows => Rows::Windows(Windows::new(&files, keys.length, keys.looks_ahead())),
        Cut::Concatenate | Cut::Pack => {
            let opening = opening::Opening { config, keys: &keys, files: &files, storage, options };
            let (index, made) = opening.index()?;
            report = made;
            Rows::Documents(index)
        }
    };
    let all = rows.count();
    let samples = config.limit.map_or(all, |limit| limit.min(all));
    if samples == 0 {
        let ahead = if keys.looks_ahead() { " and the one that its last label is" } else { "" };
        let reason = match all {
            0 => {
                let joined = match keys.cut {
                    Cut::Windows => {
                        ", which a window has of one file; or set dataset.tokens.cut to \"concatenate\""
                    }
                    Cut::Concatenate | Cut::Pack => "",
                };
                let length = keys.length;
                format!(
                    "there are not the {length} tokens of a row{ahead}{joined}; make dataset.tokens.length smaller"
                )
            }
            _ => "dataset.limit is 0; leave it out or raise it".to_owned(),
        };
        return Err(DatasetError::NoSamples { path: config.path.clone(), reason });
    }
    let fingerprint = fingerprint(&files, &keys, &rows, samples);
    let values = RowValues::new(keys.clone(), files.dtype);
    let fields = values.fields();
    report.samples = samples;
    let dataset = Tokens { files, keys, rows, samples, fields, values, fingerprint };
    Ok((Arc::new(dataset), report))
}

/// Does not change the rows; lists the available options.
pub(super) fn draft(seen: &Seen) -> Draft {
    let dtype = match &seen.width {
        Some(Width { dtype, reason }) => {
            format!("dtype = \"{}\"        # guessed from the data: {reason}", dtype.name())
        }
        None => match seen.given_dtype {
            Some(dtype) => format!("dtype = \"{}\"", dtype.name()),
            None => "# dtype = \"uint16\"      # of raw .bin files; these files say their own"
                .to_owned(),
        },
    };
    let tables = format!(
        "\
[dataset.tokens]
length = 2048           # tokens of a row
cut = \"windows\"         # a fixed part of a file; \"concatenate\" mixes documents, \"pack\" keeps them whole
{dtype}
# end = 50256           # the token that ends each document (this is GPT-2's): for concatenate, pack and boundaries
labels = \"shifted\"      # the next token at each position; \"same\" for models that shift them; \"none\"
boundaries = []         # such as [\"cu_seqlens\", \"position_ids\"]: where documents end in a row

[[stage]]
name = \"copy\"
operations = []         # operations are for images; tokens come as they are

[output]                # tokens and labels are int64; PyTorch's embeddings and JAX take int32 as well
# tokens = {{ dtype = \"int32\" }}
"
    );
    Draft { tables, epochs: Epochs::One, ..Draft::default() }
}

/// The tokens of each row.
#[derive(Debug)]
enum Rows {
    Windows(Windows),
    Documents(TokenIndex),
}

impl Rows {
    const fn count(&self) -> u64 {
        match self {
            Self::Windows(windows) => windows.rows,
            Self::Documents(index) => index.rows,
        }
    }
}

/// The dataset; see the module's documentation.
#[derive(Debug)]
struct Tokens {
    files: TokenFiles,
    keys: TokenKeys,
    rows: Rows,
    samples: u64,
    fields: Vec<Field>,
    values: RowValues,
    fingerprint: [u8; 32],
}

/// BLAKE3 of the files' names and lengths, the keys that determine the tokens of a row, and the index of documents.
fn fingerprint(files: &TokenFiles, keys: &TokenKeys, rows: &Rows, samples: u64) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(b"forebay tokens 1\0");
    for (place, file) in (0..).zip(&files.files) {
        hasher.update(&files.names().path(FileId(place)));
        hasher.update(b"\0");
        hasher.update(&file.tokens.to_le_bytes());
    }
    keys.digest(&mut hasher, files.dtype);
    hasher.update(&samples.to_le_bytes());
    if let Rows::Documents(index) = rows {
        hasher.update(&index.file().fingerprint());
    }
    *hasher.finalize().as_bytes()
}

impl Tokens {
    fn document_row(&self, index: &TokenIndex, id: SampleId) -> Row {
        index.row(id.0, RowShape::of(&self.keys))
    }
}

impl FileTable for Tokens {
    fn append_path(&self, file: FileId, path: &mut Vec<u8>) {
        self.files.names().append_path(file, path);
    }

    fn stamp(&self, file: FileId) -> Option<ObjectStamp> {
        self.files.names().stamp(file)
    }
}

impl Dataset for Tokens {
    fn sample_count(&self) -> u64 {
        self.samples
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn rows_differ(&self, _field: usize) -> Option<bool> {
        Some(false)
    }

    fn locate(&self, id: SampleId, locations: &mut Vec<Location>) {
        let Self { samples, .. } = self;
        assert!(id.0 < *samples, "sample {} does not exist: the dataset has {samples}", id.0);
        match &self.rows {
            Rows::Windows(windows) => locations.push(windows.location(&self.files, id.0)),
            Rows::Documents(index) => {
                self.document_row(index, id).locate(&self.files, locations);
            }
        }
    }

    fn read<'a>(
        &'a self,
        id: SampleId,
        bytes: SampleBytes<'a>,
        values: &mut Vec<FieldValue<'a>>,
    ) -> Result<(), Defect> {
        let Rows::Documents(index) = &self.rows else {
            let tokens = self.keys.length + u64::from(self.keys.looks_ahead());
            let bytes = gather(bytes, tokens * self.files.token_bytes())?;
            if !self.keys.has_segments() {
                self.values.of_stream(bytes, values);
                return Ok(());
            }
            let mut ends = Vec::new();
            let goes_on = self.values.find_ends(&bytes, &mut ends);
            self.values.of_segments(Ends { ends: &ends, goes_on }, bytes, values);
            return Ok(());
        };
        let row = self.document_row(index, id);
        let bytes = gather(bytes, row.read_tokens() * self.files.token_bytes())?;
        if !self.keys.has_segments() {
            self.values.of_stream(bytes, values);
            return Ok(());
        }
        let mut end = 0;
        let ends: Vec<usize> = row
            .segments
            .iter()
            .map(|segment| {
                end += usize::try_from(segment.tokens).unwrap_or(0);
                end
            })
            .collect();
        let goes_on = row.ahead.is_some();
        self.values.of_segments(Ends { ends: &ends, goes_on }, bytes, values);
        Ok(())
    }

    fn output_dtype(&self, field: usize) -> Option<DType> {
        (field <= usize::from(self.keys.labels != Labels::None)).then_some(DType::I64)
    }

    fn description(&self) -> Description {
        let (tokens, dtype) = (self.files.tokens(), self.files.dtype.name());
        let rest = match &self.rows {
            Rows::Windows(windows) => {
                format!(", {} at the ends of files fill no row", windows.left_out)
            }
            Rows::Documents(index) => format!(" in {} documents", index.documents),
        };
        let mut notes = vec![("tokens", format!("{tokens} of {dtype}{rest}"))];
        if let Rows::Documents(index) = &self.rows {
            notes.push(("index", format!("{} bytes", index.file().bytes().len())));
            if self.keys.cut == Cut::Pack {
                let positions = index.rows.saturating_mul(self.keys.length).max(1);
                #[expect(clippy::cast_precision_loss, reason = "a percentage")]
                let percent = index.labelled as f64 / positions as f64 * 100.0;
                let text =
                    format!("{percent:.2} % of the positions of {} rows have labels", index.rows);
                notes.push(("packing", text));
            }
        }
        Description { notes, ..Description::default() }
    }

    fn fingerprint(&self) -> [u8; 32] {
        self.fingerprint
    }

    fn index(&self) -> Option<&IndexBytes> {
        match &self.rows {
            Rows::Windows(_) => None,
            Rows::Documents(index) => Some(index.file().bytes()),
        }
    }
}

/// Concatenates the parts of a row; copies only if the parts are in separate buffers.
fn gather(bytes: SampleBytes<'_>, expected: u64) -> Result<Cow<'_, [u8]>, Defect> {
    let all = bytes.all();
    if all.len() as u64 == expected {
        return Ok(all.into());
    }
    let parts = (0..).map_while(|part| bytes.part(part));
    let together = parts.collect::<Vec<_>>().concat();
    match together.len() as u64 == expected {
        true => Ok(together.into()),
        false => Err(Defect(format!(
            "a row's tokens take {expected} bytes, and {} were read",
            together.len()
        ))),
    }
}

#[cfg(test)]
mod tests;
