//! Streams of Apache Arrow: batches of an image and a label, as Hugging Face's `save_to_disk` writes them.
//!
//! A message's metadata is a FlatBuffer: tables with references to later ones.

use std::fs;
use std::io;
use std::path::Path;

use serde_json::json;

/// Arrow's number for the version of messages that pyarrow writes.
const V5: i16 = 4;

/// A table's field: its number, and its bytes; references are set later.
type Field<'a> = (u16, &'a [u8]);

/// A reference that is set later.
const REFERENCE: [u8; 4] = [0; 4];

/// A FlatBuffer being built.
#[derive(Default)]
struct Builder {
    bytes: Vec<u8>,
}

impl Builder {
    fn align(&mut self, to: usize) {
        self.bytes.resize(self.bytes.len().next_multiple_of(to), 0);
    }

    /// Appends a table; returns its offset and its fields' offsets.
    fn table(&mut self, fields: &[Field<'_>]) -> (usize, Vec<usize>) {
        let count = fields.iter().map(|(number, _)| number + 1).max().unwrap_or(0);
        let head = 4 + 2 * usize::from(count);
        // The list of fields ends at the table's start, which is aligned.
        let start = (self.bytes.len() + head).next_multiple_of(8);
        self.bytes.resize(start - head, 0);
        let (mut offsets, mut end) = (vec![0; usize::from(count)], 4_usize);
        let mut places = Vec::new();
        for (number, value) in fields {
            end = end.next_multiple_of(value.len());
            offsets[usize::from(*number)] = end;
            places.push(start + end);
            end += value.len();
        }
        for number in [head, end].into_iter().chain(offsets) {
            self.bytes.extend(u16::try_from(number).unwrap_or(u16::MAX).to_le_bytes());
        }
        self.bytes.extend(narrow(head));
        for ((_, value), place) in fields.iter().zip(&places) {
            self.bytes.resize(*place, 0);
            self.bytes.extend_from_slice(value);
        }
        (start, places)
    }

    /// Sets a reference.
    fn lead(&mut self, reference: usize, to: usize) {
        self.bytes[reference..reference + 4].copy_from_slice(&narrow(to - reference));
    }

    /// Appends a vector and sets the reference to it; returns the offset of its elements.
    fn vector(&mut self, reference: usize, count: usize, elements: &[u8]) -> usize {
        // Structs of numbers of 8 bytes are aligned.
        self.bytes.resize((self.bytes.len() + 4).next_multiple_of(8) - 4, 0);
        self.lead(reference, self.bytes.len());
        self.bytes.extend(narrow(count));
        self.bytes.extend_from_slice(elements);
        self.bytes.len() - elements.len()
    }

    /// A message's table, and the offset of its header's reference.
    fn message(kind: u8, body_bytes: usize) -> (Self, usize) {
        let mut builder = Self { bytes: vec![0; 4] };
        let body = (body_bytes as u64).to_le_bytes();
        let fields: [Field<'_>; 4] =
            [(3, &body), (2, &REFERENCE), (0, &V5.to_le_bytes()), (1, &[kind])];
        let (start, places) = builder.table(&fields);
        builder.lead(0, start);
        (builder, places[1])
    }

    /// The message with its frame, and its body.
    fn finish(mut self, body: &[u8]) -> Vec<u8> {
        self.align(8);
        [&[0xff; 4][..], &narrow(self.bytes.len()), &self.bytes, body].concat()
    }
}

fn narrow(number: usize) -> [u8; 4] {
    u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes()
}

/// `image`, bytes, and `label`, an int64; both without nulls.
fn schema() -> Vec<u8> {
    let (mut builder, header) = Builder::message(1, 0);
    let (start, places) = builder.table(&[(1, &REFERENCE), (0, &0_i16.to_le_bytes())]);
    builder.lead(header, start);
    let fields = builder.vector(places[0], 2, &[0; 8]);
    for (place, (name, kind)) in [("image", 4_u8), ("label", 2)].into_iter().enumerate() {
        let own: [Field<'_>; 5] =
            [(0, &REFERENCE), (3, &REFERENCE), (5, &REFERENCE), (1, &[0]), (2, &[kind])];
        let (start, references) = builder.table(&own);
        builder.lead(fields + 4 * place, start);
        builder.vector(references[0], name.len(), &[name.as_bytes(), &[0]].concat());
        let (kind, _) = match kind {
            2 => builder.table(&[(0, &64_i32.to_le_bytes()), (1, &[1])]),
            _ => builder.table(&[]),
        };
        builder.lead(references[1], kind);
        builder.vector(references[2], 0, &[]);
    }
    builder.finish(&[])
}

/// A batch of these rows.
fn batch(rows: &[(usize, Vec<u8>)]) -> Vec<u8> {
    let mut ends = vec![narrow(0)];
    let (mut images, mut labels) = (Vec::new(), Vec::new());
    for (label, image) in rows {
        images.extend_from_slice(image);
        ends.push(narrow(images.len()));
        labels.extend((*label as u64).to_le_bytes());
    }
    // Each column's validity buffer is empty, since all values are valid.
    let (mut body, mut buffers) = (Vec::new(), Vec::new());
    for buffer in [&[], ends.as_flattened(), &images, &[], &labels] {
        for number in [body.len(), buffer.len()] {
            buffers.extend((number as u64).to_le_bytes());
        }
        body.extend_from_slice(buffer);
        body.resize(body.len().next_multiple_of(8), 0);
    }
    let nodes: Vec<u8> =
        [rows.len(), 0, rows.len(), 0].iter().flat_map(|n| (*n as u64).to_le_bytes()).collect();
    let (mut builder, header) = Builder::message(3, body.len());
    let length = (rows.len() as u64).to_le_bytes();
    let (start, places) = builder.table(&[(0, &length), (1, &REFERENCE), (2, &REFERENCE)]);
    builder.lead(header, start);
    builder.vector(places[1], 2, &nodes);
    builder.vector(places[2], 5, &buffers);
    builder.finish(&body)
}

/// Packs a folder of class folders into streams of `rows_each` rows, in batches of ten: `image`, and `label`, the
/// class's number.
///
/// # Errors
/// A system error.
pub fn pack_classes(folder: &Path, target: &Path, rows_each: usize) -> io::Result<()> {
    fs::create_dir_all(target)?;
    let files = crate::class_folders::files(folder)?;
    let mut listed = Vec::new();
    for (number, files) in files.chunks(rows_each.max(1)).enumerate() {
        let mut bytes = schema();
        for files in files.chunks(10) {
            let rows = files.iter().map(|(label, name)| Ok((*label, fs::read(folder.join(name))?)));
            bytes.extend(batch(&rows.collect::<io::Result<Vec<_>>>()?));
        }
        bytes.extend([0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
        let name = format!("data-{number:05}.arrow");
        fs::write(target.join(&name), bytes)?;
        listed.push(json!({ "filename": name }));
    }
    fs::write(target.join("state.json"), json!({ "_data_files": listed }).to_string())
}
