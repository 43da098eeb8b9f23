use std::fs;
use std::path::{Path, PathBuf};

use forebay_config::DatasetConfig;
use forebay_keys::{Located, Section, Value};

use crate::conformance::{self, Format};
use crate::open;
use crate::testing::{EVERYWHERE, config_for, npy_bytes, with_values};
use forebay_dataset::{DatasetError, Field, FieldValue, OpenOptions, Opened};

fn raw(tokens: impl IntoIterator<Item = u16>) -> Vec<u8> {
    tokens.into_iter().flat_map(u16::to_le_bytes).collect()
}

/// In llm.c's format.
fn llm_c(tokens: &[u16]) -> Vec<u8> {
    let mut header = [0_u32; 256];
    (header[0], header[1]) = (20_240_520, 1);
    header[2] = u32::try_from(tokens.len()).unwrap();
    header
        .iter()
        .flat_map(|number| number.to_le_bytes())
        .chain(raw(tokens.iter().copied()))
        .collect()
}

/// In Megatron's format: documents of sequences.
pub(super) fn megatron(documents: &[&[&[u16]]]) -> (Vec<u8>, Vec<u8>) {
    let sequences: Vec<&[u16]> =
        documents.iter().flat_map(|document| document.iter().copied()).collect();
    let mut index = b"MMIDIDX\0\0".to_vec();
    index.extend(1_u64.to_le_bytes());
    index.push(8);
    index.extend((sequences.len() as u64).to_le_bytes());
    index.extend((documents.len() as u64 + 1).to_le_bytes());
    for sequence in &sequences {
        index.extend(i32::try_from(sequence.len()).unwrap().to_le_bytes());
    }
    let mut pointer = 0_i64;
    for sequence in &sequences {
        index.extend(pointer.to_le_bytes());
        pointer += 2 * i64::try_from(sequence.len()).unwrap();
    }
    let mut first = 0_i64;
    for document in documents {
        index.extend(first.to_le_bytes());
        first += i64::try_from(document.len()).unwrap();
    }
    index.extend(first.to_le_bytes());
    (raw(sequences.concat()), index)
}

/// The keys of `[dataset.tokens]`.
fn own(keys: &[(&str, Value)]) -> Section {
    let entries =
        keys.iter().map(|(key, value)| ((*key).to_owned(), value.clone().into())).collect();
    let table = Value::Table(vec![("tokens".to_owned(), Value::Table(entries).into())]);
    Section::new("dataset", table.into(), Path::new("/")).unwrap()
}

fn text(text: &str) -> Value {
    Value::String(text.to_owned())
}

fn list(words: &[&str]) -> Value {
    Value::Array(words.iter().map(|word| Located::from(text(word))).collect())
}

const ALL_BOUNDARIES: [&str; 3] = ["cu_seqlens", "position_ids", "segment_ids"];

fn open_with(
    config: &DatasetConfig,
    options: OpenOptions<'_>,
    keys: &[(&str, Value)],
) -> Result<Opened, DatasetError> {
    let config = DatasetConfig { own: own(keys), ..config.clone() };
    open(&config, options)
}

/// Files with 5 tokens each: rows of 4 and the token of the last label.
fn make_files(folder: &Path, count: usize) -> PathBuf {
    for number in (0..count).map(|number| u16::try_from(number).unwrap()) {
        fs::write(folder.join(format!("{number:03}.bin")), raw(number..number + 5)).unwrap();
    }
    folder.to_owned()
}

fn make_npy(folder: &Path, count: usize) -> PathBuf {
    let path = folder.join("tokens.npy");
    let tokens = u16::try_from(4 * count + 3).unwrap();
    fs::write(&path, npy_bytes("<u2", false, &format!("({tokens},)"), &raw(0..tokens))).unwrap();
    path
}

fn make_megatron(folder: &Path, count: usize) -> PathBuf {
    let tokens: Vec<u16> = (0..u16::try_from(4 * count + 1).unwrap()).collect();
    let (data, index) = megatron(&[&[&tokens]]);
    fs::write(folder.join("tokens.idx"), index).unwrap();
    let path = folder.join("tokens.bin");
    fs::write(&path, data).unwrap();
    path
}

/// Rows of 4 tokens, on disk or from a URL.
fn open_at<const PLACE: usize>(
    config: &DatasetConfig,
    options: OpenOptions<'_>,
) -> Result<Opened, DatasetError> {
    let config = DatasetConfig { own: own(&[length(4)]), ..config.clone() };
    EVERYWHERE[PLACE](&config, options)
}

#[test]
fn windows_conform() {
    for open in [open_at::<0>, open_at::<1>, open_at::<2>] {
        type Make = fn(&Path, usize) -> PathBuf;
        let makes: [(Make, bool); 3] =
            [(make_files, true), (make_npy, false), (make_megatron, false)];
        for (make, has_names) in makes {
            conformance::run(&Format { name: "tokens", open, make, has_names, refuses_cuts: true });
        }
    }
    conformance::run(&Format {
        name: "tokens",
        open: |config, options| {
            let keys =
                [length(4), ("end", Value::Integer(2)), ("boundaries", list(&ALL_BOUNDARIES))];
            open_with(config, options, &keys)
        },
        make: make_npy,
        has_names: false,
        refuses_cuts: true,
    });
}

/// A folder of files, and a configuration for it.
struct Fixture {
    _folder: tempfile::TempDir,
    config: DatasetConfig,
}

impl Fixture {
    fn new(files: &[(&str, Vec<u8>)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        fs::create_dir(&data).unwrap();
        for (name, bytes) in files {
            fs::write(data.join(name), bytes).unwrap();
        }
        Self { config: config_for("tokens", &data), _folder: folder }
    }

    fn open(&self, keys: &[(&str, Value)]) -> Opened {
        open_with(&self.config, OpenOptions::default(), keys).unwrap()
    }

    fn failure(&self, keys: &[(&str, Value)]) -> String {
        open_with(&self.config, OpenOptions::default(), keys).unwrap_err().to_string()
    }
}

/// The fields of a row as numbers, by name.
fn row(opened: &Opened, id: u64) -> Vec<(String, Vec<i64>)> {
    let named = |(field, value): (&Field, &FieldValue<'_>)| {
        let FieldValue::Array(array) = value else { panic!("{value:?}") };
        let size = usize::try_from(array.dtype.size_bytes()).unwrap();
        let number = |bytes: &[u8]| {
            let is_negative = size > 2 && bytes[size - 1] & 0x80 != 0;
            let mut wide = [if is_negative { 0xFF } else { 0 }; 8];
            wide[..size].copy_from_slice(bytes);
            i64::from_le_bytes(wide)
        };
        (field.name.clone(), array.bytes.chunks_exact(size).map(number).collect())
    };
    let fields = opened.dataset.fields();
    with_values(opened, id, |values| fields.iter().zip(values).map(named).collect()).unwrap()
}

fn field(opened: &Opened, id: u64, name: &str) -> Vec<i64> {
    row(opened, id).into_iter().find(|(field, _)| field == name).unwrap().1
}

fn length(tokens: i64) -> (&'static str, Value) {
    ("length", Value::Integer(tokens))
}

#[test]
fn windows_are_cut_in_each_file_and_labels_are_the_next_token() {
    let files =
        [("a.bin", raw(0..9)), ("b.bin", llm_c(&[100, 101, 102, 103])), ("c.bin", raw(200..208))];
    let fixture = Fixture::new(&files);
    let opened = fixture.open(&[length(4)]);
    let rows: Vec<_> = (0..opened.dataset.sample_count())
        .map(|id| (field(&opened, id, "tokens"), field(&opened, id, "labels")))
        .collect();
    // The last file has no token after its second window.
    let expected = [
        (vec![0, 1, 2, 3], vec![1, 2, 3, 4]),
        (vec![4, 5, 6, 7], vec![5, 6, 7, 8]),
        (vec![200, 201, 202, 203], vec![201, 202, 203, 204]),
    ];
    assert_eq!(rows, expected);
    assert_eq!(
        opened.dataset.description().notes[0].1,
        "21 of uint16, 9 at the ends of files fill no row"
    );
    let same = fixture.open(&[length(4), ("labels", text("same"))]);
    assert_eq!(same.dataset.sample_count(), 5);
    assert_eq!(field(&same, 2, "labels"), [100, 101, 102, 103]);
    let none = fixture.open(&[length(4), ("labels", text("none"))]);
    assert_eq!(row(&none, 4), [("tokens".to_owned(), vec![204, 205, 206, 207])]);
}

#[test]
fn windows_split_documents_at_the_end_token() {
    let fixture = Fixture::new(&[("a.bin", raw([1, 9, 2, 3, 4, 5, 9, 9, 6, 7, 8, 9, 1]))]);
    let keys = [length(6), ("end", Value::Integer(9)), ("boundaries", list(&ALL_BOUNDARIES))];
    let opened = fixture.open(&keys);
    let numbers = |id| row(&opened, id).into_iter().map(|(_, numbers)| numbers).collect::<Vec<_>>();
    assert_eq!(
        numbers(0),
        [
            vec![1, 9, 2, 3, 4, 5],
            vec![9, -100, 3, 4, 5, 9],
            vec![0, 2, 6, 6, 6, 6, 6],
            vec![0, 1, 0, 1, 2, 3],
            vec![1, 1, 2, 2, 2, 2],
        ]
    );
    assert_eq!(
        numbers(1),
        [
            vec![9, 9, 6, 7, 8, 9],
            vec![-100, -100, 7, 8, 9, -100],
            vec![0, 1, 2, 6, 6, 6, 6],
            vec![0, 0, 0, 1, 2, 3],
            vec![1, 2, 3, 3, 3, 3],
        ]
    );
    let mut keys = keys.to_vec();
    keys.push(("labels", text("same")));
    assert_eq!(field(&fixture.open(&keys), 0, "labels"), [-100, 9, -100, 3, 4, 5]);
}

#[test]
fn all_file_formats_have_the_same_rows() {
    let tokens: Vec<u16> = (0..33).map(|token| token * 1999).collect();
    let (data, index) = megatron(&[&[&tokens[..5], &tokens[5..9]], &[], &[&tokens[9..]]]);
    let npy = npy_bytes("<u2", false, "(33,)", &raw(tokens.iter().copied()));
    let wide: Vec<u8> = tokens.iter().flat_map(|token| u32::from(*token).to_le_bytes()).collect();
    let all = |fixture: &Fixture, keys: &[(&str, Value)]| {
        let opened = fixture.open(keys);
        (0..opened.dataset.sample_count()).map(|id| row(&opened, id)).collect::<Vec<_>>()
    };
    let keys = [length(8)];
    let expected = all(&Fixture::new(&[("a.bin", raw(tokens.iter().copied()))]), &keys);
    assert_eq!(expected.len(), 4);
    assert_eq!(all(&Fixture::new(&[("a.bin", llm_c(&tokens))]), &keys), expected);
    assert_eq!(all(&Fixture::new(&[("a.npy", npy)]), &keys), expected);
    assert_eq!(all(&Fixture::new(&[("a.bin", data), ("a.idx", index)]), &keys), expected);
    let keys = [length(8), ("dtype", text("uint32"))];
    assert_eq!(all(&Fixture::new(&[("a.bin", wide)]), &keys), expected);
}

#[test]
fn errors_name_files_that_are_not_tokens() {
    let header = |place: usize, byte: u8| {
        let mut bytes = llm_c(&[1, 2, 3, 4, 5, 6]);
        bytes[place] = byte;
        bytes
    };
    let index = |change: fn(&mut Vec<u8>)| {
        let (_, mut index) = megatron(&[&[&[1, 2, 3]], &[&[4, 5, 6]]]);
        change(&mut index);
        index
    };
    let npy = |descr: &str, shape: &str, bytes| npy_bytes(descr, false, shape, &vec![0; bytes]);
    let bins = [
        (Vec::new(), "the file is empty"),
        (vec![1; 7], "7 bytes are no whole number of uint16 tokens"),
        (header(4, 2), "whose version is 1, and not 2"),
        (
            header(8, 7),
            "announces 7 tokens of uint16, which makes 1038 bytes, and the file has 1036",
        ),
        (llm_c(&[]), "announces 0 tokens"),
        (llm_c(&[1; 4])[..500].to_vec(), "the file has 500: it was cut short"),
    ];
    let indexes = [
        (index(|index| index.truncate(20)), "20 bytes end within the header"),
        (index(|index| index.truncate(40)), "and the file has 40: it was cut short"),
        (index(|index| index[0] = b'X'), "does not begin with MMIDIDX"),
        (index(|index| index[..8].copy_from_slice(b"TNTIDX\0\0")), "fairseq"),
        (index(|index| index[9] = 2), "version 2 of Megatron's index is unknown"),
        (index(|index| index[17] = 7), "its elements are floats (code 7)"),
        (index(|index| index[17] = 77), "the code 77"),
        (index(|index| index[18..26].fill(0xFF)), "more than a file can hold"),
        (index(|index| index[22] = 1), "announces 4294967298 sequences"),
        (index(|index| index.fill(0)), "does not begin with MMIDIDX"),
        (
            index(|index| index[17] = 5),
            "describes int64 tokens, and the .bin beside it has 12 bytes",
        ),
    ];
    let arrays = [
        (npy("<f4", "(4,)", 16), "its elements are float32"),
        (npy(">u2", "(4,)", 8), "in big endian"),
        (npy("<u2", "(2, 2)", 8), "its shape is [2, 2]"),
        (npy("<u2", "(5,)", 8), "cut short"),
        (npy("<u2", "(0,)", 0), "it has no tokens"),
        (b"no array".to_vec(), "not a .npy file"),
    ];
    let data = raw(1..7);
    let cases = bins
        .into_iter()
        .map(|(bytes, message)| (vec![("a.bin", bytes)], message, "a.bin"))
        .chain(indexes.into_iter().map(|(bytes, message)| {
            (vec![("a.bin", data.clone()), ("a.idx", bytes)], message, "a.idx")
        }))
        .chain(
            arrays.into_iter().map(|(bytes, message)| (vec![("a.npy", bytes)], message, "a.npy")),
        );
    for (files, expected, file) in cases {
        let message = Fixture::new(&files).failure(&[length(2)]);
        assert!(message.contains(expected) && message.contains(file), "{message}");
    }
    for (files, expected) in [
        (vec![("a.txt", vec![1])], "there is no .bin or .npy file"),
        (vec![("a.bin", raw(1..4))], "there are not the 4 tokens of a row and the one"),
        (
            vec![("a.bin", raw(1..9)), ("b.npy", npy("<u4", "(4,)", 16))],
            "its tokens are uint32, and uint16 in",
        ),
        (vec![("train.bin", raw(1..9)), ("val.bin", raw(1..9))], "several splits"),
    ] {
        let message = Fixture::new(&files).failure(&[length(4)]);
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn inconsistent_keys_are_refused() {
    let fixture = Fixture::new(&[("a.bin", raw(0..90))]);
    for (keys, expected) in [
        (vec![("length", Value::Integer(0))], "`dataset.tokens.length` must be"),
        (vec![("length", Value::Integer(1 << 25))], "`dataset.tokens.length` must be at most"),
        (vec![("dtype", text("float32"))], "`dataset.tokens.dtype` must be an integer type"),
        (vec![("cut", text("window"))], "must be \"windows\", \"concatenate\" or \"pack\""),
        (vec![("ends", Value::Integer(1))], "unknown key `dataset.tokens.ends`; did you mean"),
        (vec![("boundaries", list(&["cu_seqlens"]))], "set it, or leave them out"),
        (vec![("boundaries", list(&["cu_seqlens", "cu_seqlens"]))], "names `cu_seqlens` twice"),
        (vec![("end", Value::Integer(65_536))], "dataset.tokens.end is larger than a token"),
    ] {
        let message = fixture.failure(&keys);
        assert!(message.contains(expected), "{message}");
    }
}

mod chunks;
mod documents;

#[test]
fn error_names_the_kind_of_other_llm_c_files() {
    for (magic, what) in [(20_240_326_u32, "a model's weights"), (20_240_999, "something else")] {
        let mut bytes = llm_c(&[1, 2, 3, 4]);
        bytes[..4].copy_from_slice(&magic.to_le_bytes());
        let message = Fixture::new(&[("a.bin", bytes)]).failure(&[length(2)]);
        assert!(
            message.contains(&format!("magic number {magic}, which is that of {what}")),
            "{message}"
        );
    }
}
