//! `tar`: archives as webdataset reads them. A sample is consecutive members `KEY.FIELD`, each field one member.
//!
//! The only picture of a sample is `jpg`, `png` and so on, and `label` is `cls`; another field is `NAME.EXTENSION`, unless its name is an
//! extension of its form already. Members are plain ustar headers without times and owners, with a PAX header before a
//! long name.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use forebay_dataset::Field;

use super::{Column, Layout, Shard, Stored, TableOf, distinct, file_of, misfit};
use crate::npy;
use crate::sample::{Sample, Value};

const BLOCK: usize = 512;
/// The longest name of a plain header.
const MAX_PLAIN_NAME: usize = 100;
/// The largest size in the 11 octal digits of a header.
const MAX_MEMBER_BYTES: u64 = 1 << 33;
/// The extensions of pictures, in the order of [`picture`].
const PICTURES: [&str; 6] = ["jpg", "png", "webp", "tif", "bmp", "gif"];
/// The extensions of sounds, in the order of [`sound`].
const SOUNDS: [&str; 8] = ["wav", "flac", "mp3", "ogg", "m4a", "aiff", "au", "caf"];

/// See the module's head.
#[derive(Debug)]
pub(super) struct Tar;

impl Layout for Tar {
    fn word(&self) -> &'static str {
        "tar"
    }

    fn format(&self) -> &'static str {
        "webdataset"
    }

    fn needs_keys(&self) -> bool {
        true
    }

    fn max_shard_bytes(&self) -> u64 {
        u64::MAX
    }

    fn columns(&self, fields: &[Field]) -> Result<Vec<Column>, String> {
        let stored = fields.iter().map(stored).collect::<Result<Vec<_>, _>>()?;
        let count = |form: fn(&Stored) -> bool| stored.iter().filter(|it| form(it)).count();
        let is_only_picture = count(|form| *form == Stored::Picture) == 1;
        let is_only_sound = count(|form| matches!(form, Stored::Sound(_))) == 1;
        let mut taken: Vec<String> = Vec::new();
        let mut columns = Vec::with_capacity(fields.len());
        for (field, stored) in fields.iter().zip(stored) {
            let (extensions, is_only): (&[&str], _) = match stored {
                Stored::Picture => (&PICTURES, is_only_picture),
                Stored::Sound(_) => (&SOUNDS, is_only_sound),
                Stored::Text => (&["txt"], false),
                Stored::Integer => (&["cls"], field.name == "label"),
                Stored::Float => (&["json"], false),
                Stored::Bytes => (&["bin"], false),
                _ => (&["npy"], false),
            };
            let name = member_name(&field.name);
            let from: Vec<String> = match is_only {
                true => extensions.iter().map(|extension| (*extension).to_owned()).collect(),
                false if is_usual(&name, stored) => vec![name],
                false => {
                    let stem = name.rsplit_once('.').filter(|(_, last)| extensions.contains(last));
                    let stem = stem.map_or(name.as_str(), |(stem, _)| stem);
                    extensions.iter().map(|extension| format!("{stem}.{extension}")).collect()
                }
            };
            let from: Vec<_> = from.into_iter().map(|name| distinct_member(name, &taken)).collect();
            taken.extend(from.iter().cloned());
            columns.push(Column { field: field.clone(), from, stored });
        }
        Ok(columns)
    }

    fn file_name(&self, shard: u64) -> String {
        format!("shard-{shard:06}.tar")
    }

    fn begin(&self, table: &TableOf, file: File, _path: &Path) -> io::Result<Box<dyn Shard>> {
        let file = BufWriter::with_capacity(1 << 20, file);
        Ok(Box::new(Archive { columns: table.columns.clone(), file, bytes: 0 }))
    }
}

/// The form of a field's member.
fn stored(field: &Field) -> Result<Stored, String> {
    Ok(match Stored::of(field)? {
        Stored::Pictures => {
            return Err(format!(
                "the field `{}` has lists of pictures, and a tar has single ones; use --to parquet, or leave the field out in \
                 dataset.fields",
                field.name
            ));
        }
        // The extension says that a member is an array.
        Stored::Array | Stored::Float32 | Stored::Bool => Stored::NumPy,
        other => other,
    })
}

/// A field's name in the characters of members: in lower case, as readers take them.
fn member_name(name: &str) -> String {
    let plain = |character: char| match character.to_ascii_lowercase() {
        character @ ('a'..='z' | '0'..='9' | '-' | '_' | '.') => character,
        _ => '_',
    };
    let name: String = name.chars().map(plain).collect();
    let name = name.trim_matches('.');
    if name.is_empty() { "field".to_owned() } else { name.to_owned() }
}

/// Whether readers take a member of this name for the form.
fn is_usual(name: &str, stored: Stored) -> bool {
    let usual: &[&str] = match stored {
        Stored::Text => &["txt", "text", "transcript", "html", "json", "jsn"],
        Stored::Integer => &["cls", "cls2", "class", "count", "index", "inx", "id"],
        Stored::NumPy => &["npy"],
        _ => &[],
    };
    name.rsplit('.').next().is_some_and(|last| usual.contains(&last))
}

/// The name, with a number before its extension if it is taken.
fn distinct_member(name: String, taken: &[String]) -> String {
    let (stem, extension) = match name.rsplit_once('.') {
        Some((stem, extension)) => (stem.to_owned(), format!(".{extension}")),
        None => ("other".to_owned(), format!(".{name}")),
    };
    if !taken.contains(&name) {
        return name;
    }
    let stem = distinct(stem, |stem| taken.contains(&format!("{stem}{extension}")));
    format!("{stem}{extension}")
}

/// A place in [`PICTURES`], by a file's first bytes; an unknown file gets the first.
fn picture(file: &[u8]) -> usize {
    let begins = |magic: &[u8]| file.starts_with(magic);
    match file {
        _ if begins(b"\x89PNG") => 1,
        _ if begins(b"RIFF") => 2,
        _ if begins(b"II*\0") || begins(b"MM\0*") => 3,
        _ if begins(b"BM") => 4,
        _ if begins(b"GIF8") => 5,
        _ => 0,
    }
}

/// A place in [`SOUNDS`].
fn sound(file: &[u8]) -> usize {
    match file {
        [b'f', b'L', b'a', b'C', ..] => 1,
        [b'O', b'g', b'g', b'S', ..] => 3,
        [_, _, _, _, b'f', b't', b'y', b'p', ..] => 4,
        [b'I', b'D', b'3', ..] | [0xff, ..] => 2,
        [b'F', b'O', b'R', b'M', ..] => 5,
        [b'.', b's', b'n', b'd', ..] => 6,
        [b'c', b'a', b'f', b'f', ..] => 7,
        _ => 0,
    }
}

/// An archive.
struct Archive {
    columns: Vec<Column>,
    file: BufWriter<File>,
    bytes: u64,
}

impl Archive {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.bytes += bytes.len() as u64;
        self.file.write_all(bytes)
    }

    /// Writes a member, up to the next block.
    fn member(&mut self, name: &str, data: &[u8]) -> io::Result<()> {
        if name.len() > MAX_PLAIN_NAME {
            let record = pax_record("path", name);
            self.entry("pax", b'x', record.as_bytes())?;
        }
        // A reader takes the name of the PAX header; others see the end of the name.
        self.entry(name, b'0', data)
    }

    fn entry(&mut self, name: &str, kind: u8, data: &[u8]) -> io::Result<()> {
        if data.len() as u64 >= MAX_MEMBER_BYTES {
            return Err(io::Error::other(format!("a member of {} bytes is too large", data.len())));
        }
        self.write(&header(name.as_bytes(), kind, data.len()))?;
        self.write(data)?;
        let padding = data.len().next_multiple_of(BLOCK) - data.len();
        self.write(&[0; BLOCK][..padding])
    }
}

impl Shard for Archive {
    fn add(&mut self, sample: &Sample) -> io::Result<()> {
        let columns = std::mem::take(&mut self.columns);
        for (column, value) in columns.iter().zip(&sample.values) {
            let (place, data): (_, Cow<'_, [u8]>) = match (column.stored, value) {
                (Stored::Integer, Value::Integer(value)) => {
                    (0, value.to_string().into_bytes().into())
                }
                (Stored::Float, Value::Float(value)) if !value.is_finite() => {
                    return Err(io::Error::other(format!(
                        "`{}` is {value}, which JSON does not have (--to mds and --to parquet store it)",
                        column.field.name
                    )));
                }
                // The shortest digits that give the same number.
                (Stored::Float, Value::Float(value)) => (0, value.to_string().into_bytes().into()),
                (Stored::Picture, Value::File(file)) => (picture(file), file.as_slice().into()),
                (Stored::Sound(_), Value::File(file)) => (sound(file), file.as_slice().into()),
                (Stored::NumPy, Value::Array(array)) => {
                    (0, npy::file(array).map_err(io::Error::other)?.into())
                }
                _ => (0, file_of(column, value)?),
            };
            let extension = column.from.get(place).or(column.from.first());
            let extension = extension.ok_or_else(|| misfit(column))?;
            self.member(&format!("{}.{extension}", sample.key), &data)?;
        }
        self.columns = columns;
        Ok(())
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn close(mut self: Box<Self>) -> io::Result<File> {
        self.write(&[0; 2 * BLOCK])?;
        self.file.into_inner().map_err(io::IntoInnerError::into_error)
    }
}

/// A ustar header without time and owner. Of a name that is too long, the end is kept.
fn header(name: &[u8], kind: u8, size: usize) -> [u8; BLOCK] {
    let mut header = [0; BLOCK];
    let mut put = |place: usize, bytes: &[u8]| {
        header[place..place + bytes.len()].copy_from_slice(bytes);
    };
    put(0, &name[name.len().saturating_sub(MAX_PLAIN_NAME)..]);
    put(100, b"0000644\0");
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    put(124, format!("{size:011o}\0").as_bytes());
    put(136, b"00000000000\0");
    put(148, b"        ");
    put(156, &[kind]);
    put(257, b"ustar\x0000");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header
}

/// A record of a PAX header; its length counts its own digits.
fn pax_record(key: &str, value: &str) -> String {
    let rest = format!(" {key}={value}\n");
    let mut length = rest.len();
    loop {
        let whole = length.to_string().len() + rest.len();
        if whole == length {
            return format!("{length}{rest}");
        }
        length = whole;
    }
}

#[cfg(test)]
mod tests {
    use forebay_dataset::FieldKind;
    use forebay_protocol::tensor::DType;

    use super::*;

    #[test]
    fn a_sound_has_the_extension_of_its_container() {
        for (file, extension) in [
            (&b"RIFF\0\0\0\0WAVE"[..], "wav"),
            (b"fLaC", "flac"),
            (b"ID3\x04", "mp3"),
            (b"\xff\xfb", "mp3"),
            (b"OggS", "ogg"),
            (b"\0\0\0\x20ftypM4A ", "m4a"),
            (b"FORM\0\0\0\0AIFF", "aiff"),
            (b".snd", "au"),
            (b"caff", "caf"),
        ] {
            assert_eq!(SOUNDS[sound(file)], extension);
        }
    }

    fn names(fields: &[(&str, FieldKind)]) -> Vec<Vec<String>> {
        let field = |(name, kind): &(&str, FieldKind)| Field {
            name: (*name).to_owned(),
            kind: kind.clone(),
        };
        let fields: Vec<_> = fields.iter().map(field).collect();
        let columns = Tar.columns(&fields).unwrap();
        columns.into_iter().map(|column| column.from).collect()
    }

    #[test]
    fn members_have_the_names_that_webdataset_decodes() {
        let array = FieldKind::Array { dtype: DType::F32, shape: vec![2] };
        let found = names(&[
            ("image", FieldKind::EncodedImage),
            ("label", FieldKind::Integer),
            ("Caption: en", FieldKind::Text),
            ("json", FieldKind::Text),
            ("score", FieldKind::Float),
            ("vector", array),
            ("id", FieldKind::Bytes),
            ("jpg", FieldKind::Bytes),
        ]);
        assert_eq!(found[0], PICTURES);
        let rest: Vec<_> = found[1..].iter().map(|from| from.join(" ")).collect();
        let expected =
            ["cls", "caption__en.txt", "json", "score.json", "vector.npy", "id.bin", "jpg.bin"];
        assert_eq!(rest, expected);
        let two = names(&[
            ("left.png", FieldKind::EncodedImage),
            ("left", FieldKind::EncodedImage),
            ("label", FieldKind::Integer),
            ("CLS", FieldKind::Integer),
        ]);
        assert_eq!((two[0][0].as_str(), two[1][0].as_str()), ("left.jpg", "left_2.jpg"));
        assert_eq!((two[2][0].as_str(), two[3][0].as_str()), ("cls", "other.cls"));
    }

    #[test]
    fn lengths_of_pax_records_count_themselves() {
        for length in 1..1200 {
            let record = pax_record("path", &"a".repeat(length));
            assert!(record.starts_with(&format!("{} path=", record.len())), "{length}");
        }
    }

    #[test]
    fn header_has_the_sum_of_its_bytes() {
        let header = header(b"a.jpg", b'0', 8);
        let stored = std::str::from_utf8(&header[148..154]).unwrap();
        let mut blank = header;
        blank[148..156].fill(b' ');
        let sum: u32 = blank.iter().map(|byte| u32::from(*byte)).sum();
        assert_eq!(u32::from_str_radix(stored, 8), Ok(sum));
    }
}
