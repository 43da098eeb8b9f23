use std::fs;
use std::path::{Path, PathBuf};

use forebay_keys::Section;
use forebay_protocol::ids::SampleId;
use forebay_synth::tfrecord::{Values, entry, example, field, frame};

use crate::conformance::{self, Format};
use crate::testing::{
    CACHED_EVERYWHERE, EVERYWHERE, compress_files, config_for, names, own_keys, sample, write_aged,
};
use crate::{open, recognize};
use forebay_dataset::{DatasetError, FieldValue, OpenOptions, Opened};
use forebay_storage::location::SampleBytes;

fn record(number: usize) -> Vec<u8> {
    let image = [&[0xff, 0xd8, 0xff][..], &vec![u8::try_from(number).unwrap(); number]].concat();
    let (label, text) = (i64::try_from(number).unwrap(), format!("text {number}"));
    example(&[
        ("image/encoded", Values::Bytes(&[&image])),
        ("image/class/label", Values::Integers(&[-label])),
        ("text", Values::Bytes(&[text.as_bytes()])),
        ("line", Values::Floats(&[0.5, number as f32])),
        ("pair", Values::Integers(&[label, -label])),
    ])
}

fn files(root: &Path, count: usize) -> PathBuf {
    let records: Vec<_> = (0..count).map(record).collect();
    for (place, records) in records.chunks(count.div_ceil(3)).enumerate() {
        let bytes: Vec<u8> = records.iter().flat_map(|record| frame(record)).collect();
        write_aged(&root.join(format!("sub/train-{place:05}-of-00003")), &bytes);
    }
    root.to_owned()
}

#[test]
fn record_files_conform_on_disk_and_behind_urls() {
    for open in EVERYWHERE {
        let (has_names, refuses_cuts) = (true, true);
        conformance::run(&Format { open, name: "tfrecord", make: files, has_names, refuses_cuts });
    }
}

fn compressed(root: &Path, count: usize) -> PathBuf {
    files(root, count);
    compress_files(&root.join("sub"), "-of-00003", |name| format!("{name}.tfrecord.gz"));
    root.to_owned()
}

#[test]
fn compressed_record_files_conform_with_a_cache() {
    for open in CACHED_EVERYWHERE {
        let (name, make, has_names, refuses_cuts) = ("tfrecord", compressed as _, true, true);
        conformance::run(&Format { open, name, make, has_names, refuses_cuts });
    }
}

fn open_with(path: &Path, own: Section) -> Result<Opened, DatasetError> {
    let mut config = config_for("tfrecord", path);
    config.own = own;
    let data = path.ancestors().find(|folder| folder.ends_with("data")).unwrap();
    config.index = Some(data.with_extension("index"));
    let opened = open(&config, OpenOptions::default());
    let _ = fs::remove_file(config.index.unwrap());
    opened
}

fn own(fields: &str) -> Section {
    own_keys(&format!("[dataset.fields]\n{fields}"))
}

fn message(path: &Path, own: Section) -> String {
    open_with(path, own).map(|opened| names(&opened)).unwrap_err().to_string()
}

/// One file with these records.
fn file_of(records: &[Vec<u8>]) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data/a.tfrecord");
    write_aged(&path, &records.iter().flat_map(|record| frame(record)).collect::<Vec<u8>>());
    (folder, path)
}

#[test]
fn files_written_by_the_tfrecord_package_are_read() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/tfrecord");
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    for name in ["a.tfrecord", "b.tfrecord"] {
        write_aged(&data.join(name), &fs::read(fixtures.join(name)).unwrap());
    }
    let opened = open_with(&data, Section::default()).unwrap();
    let fields: Vec<_> = opened.dataset.fields().iter().map(|field| &field.name[..]).collect();
    assert_eq!(fields, ["boxes", "label", "image", "line", "raw", "score", "text"]);
    assert!(opened.report.warnings[0].contains("words; name them"), "{:?}", opened.report);
    for number in 0..7_u64 {
        let expected = [
            format!("I64 [{}]", 2 * number),
            format!("{}", -number.cast_signed()),
            format!("image {}", 3 + 5 + number),
            "F32 [3]".to_owned(),
            format!("{:?}", (0..number).collect::<Vec<_>>()),
            format!("{} F32", number as f64 / 4.0),
            format!("{:?}", "ü".repeat(usize::try_from(number).unwrap())),
        ];
        assert_eq!(sample(&opened, number).unwrap(), expected);
    }
    assert_eq!(names(&opened)[5], "b.tfrecord/1");
    let arrays = |id| {
        let (mut bytes, mut ends, mut values) = (Vec::new(), Vec::new(), Vec::new());
        let (mut locations, mut parts) = (Vec::new(), Vec::new());
        opened.dataset.locate(SampleId(id), &mut locations);
        let Opened { dataset, storage, .. } = &opened;
        storage.open_all(dataset.as_ref(), &locations, 1 << 20, &mut parts).unwrap();
        storage.read_all(dataset.as_ref(), &mut parts, &mut bytes, &mut ends).unwrap();
        let bytes = SampleBytes::new(&bytes, &ends);
        // The memory for unpacking: the numbers of the two lists.
        assert_eq!(dataset.unpacked_bytes(bytes), 16 * id + 12);
        dataset.read(SampleId(id), bytes, &mut values).unwrap();
        let elements = values.iter().filter_map(|value| match value {
            FieldValue::Array(array) => Some(array.bytes.to_vec()),
            _ => None,
        });
        elements.collect::<Vec<_>>()
    };
    let boxes: Vec<u8> = [3_i64, -3].repeat(3).iter().flat_map(|n| n.to_le_bytes()).collect();
    let score = 0.75_f32.to_le_bytes().to_vec();
    assert_eq!(arrays(3), [boxes, 3_f32.to_le_bytes().repeat(3), score]);
    let mut config = config_for("auto", &data);
    assert_eq!(recognize(&config, OpenOptions::default()).unwrap(), "tfrecord");
    config.path = data.join("a.tfrecord");
    assert_eq!(recognize(&config, OpenOptions::default()).unwrap(), "tfrecord");
}

#[test]
fn fields_follow_the_configured_table() {
    let record = |kind: &[u8], number: i64| {
        example(&[
            ("kind", Values::Bytes(&[kind])),
            ("number", Values::Integers(&[number])),
            ("digits", Values::Bytes(&[number.to_string().as_bytes()])),
        ])
    };
    let more = [example(&[("other", Values::Bytes(&[b"x"])), ("number", Values::Integers(&[]))])];
    let records = [record(b"dog", 1), record(b"cat", 0), record(b"cow", 2)];
    let (_folder, path) = file_of(&[&records[..], &more].concat());
    let opened = open_with(
        &path,
        own(r#"
        label  = { from = "kind", classes = ["cat", "dog"] }
        text   = { from = ["other", "kind"], as = "text" }
        float  = { from = "number", as = "float" }
        list   = { from = "number", as = "array" }
        digits = { from = "digits", as = "integer" }
        none   = { from = "other", as = "bytes", missing = "empty" }"#),
    );
    let opened = opened.unwrap();
    assert_eq!(opened.dataset.classes(), ["cat", "dog"]);
    assert_eq!(opened.dataset.description().classes.unwrap().to_string(), "2, cat to dog");
    assert_eq!(opened.report.classes, 2);
    assert!(opened.dataset.description().field_rules.contains("classes = [\"cat\", \"dog\"]"));
    let expected = ["1", "\"dog\"", "1 F32", "I64 [1]", "1", "[]"];
    assert_eq!(sample(&opened, 0).unwrap(), expected);
    assert!(sample(&opened, 2).unwrap_err().contains("`label` is none of its classes: \"cow\""));
    assert!(sample(&opened, 3).unwrap_err().contains("it has no kind for the field `label`"));
    let named =
        open_with(&path, own("n = { from = \"number\", classes = [\"a\", \"b\"] }")).unwrap();
    assert_eq!(sample(&named, 0).unwrap(), ["1"]);
    assert!(sample(&named, 2).unwrap_err().contains("`n` is 2, and its classes are 0 to 1"));
    assert!(sample(&named, 3).unwrap_err().contains("it has no number for the field `n`"));
    for (fields, reason) in [
        ("x = { from = \"lable\" }", "have no lable for dataset.fields.x; they have digits, kind"),
        ("x = { from = \"kind\", missing = \"skip\" }", "cannot be \"skip\": all records"),
        ("x = { from = \"kind\", classes = \"sorted\" }", "cannot be \"sorted\": all records"),
        ("x = { as = \"text\" }", "`dataset.fields.x.from` is required"),
    ] {
        let message = message(&path, own(fields));
        assert!(message.contains(reason), "{message}");
    }
    for (fields, reason) in [
        ("x = { from = \"number\", as = \"text\" }", "`x` is of integers; read it `as`"),
        ("x = { from = \"kind\", as = \"integer\" }", "`x` is no whole number: \"dog\""),
    ] {
        let opened = open_with(&path, own(fields)).unwrap();
        let defect = sample(&opened, 0).unwrap_err();
        assert!(defect.contains(reason), "{defect}");
    }
}

#[test]
fn lists_are_read_in_every_protocol_buffer_encoding() {
    // Not packed, packed in two runs, with unknown fields; of a key that occurs twice, the last one counts.
    let floats =
        field(2, &[&[0x0d][..], &1_f32.to_le_bytes(), &field(1, &2_f32.to_le_bytes())].concat());
    let minus_one = [&[0x08][..], &[0xff; 9], &[1]].concat();
    let integers = field(3, &[&minus_one[..], &field(1, &[5, 0xac, 2])].concat());
    let unknown = [&[0x4b_u8 ^ 2][..], &[7; 8]].concat();
    let other_kind = [field(1, &field(1, b"x")), integers.clone()].concat();
    let entries = [
        entry("b", &floats),
        entry("a", &[integers.clone(), unknown.clone()].concat()),
        entry("b", &other_kind),
        // The value before the key.
        field(1, &[field(2, &[floats.clone(), floats.clone()].concat()), field(1, b"c")].concat()),
        entry("none", &[]),
    ];
    // Features in two parts are one map.
    let record = [field(1, &entries[..2].concat()), unknown, field(1, &entries[2..].concat())];
    let (_folder, path) = file_of(&[record.concat()]);
    let opened = open_with(
        &path,
        own(
            "a = { from = \"a\" }\nb = { from = \"b\" }\nc = { from = \"c\" }\nnone = { from = \"none\", as = \"text\", missing = \"empty\" }",
        ),
    );
    let opened = opened.unwrap();
    assert_eq!(sample(&opened, 0).unwrap(), ["I64 [3]", "I64 [3]", "F32 [4]", "\"\""]);
    let mut read = Vec::new();
    let data = record.concat();
    crate::examples::features(&data, |key, feature| {
        let mut numbers = Vec::new();
        feature.integers(|number| numbers.push(number)).ok();
        let floats = feature.floats();
        let floats =
            floats.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()));
        let floats: Vec<_> =
            floats.filter(|_| feature.kind == Some(crate::examples::Kind::Floats)).collect();
        read.push((String::from_utf8_lossy(key).into_owned(), feature.count, numbers, floats));
    })
    .unwrap();
    assert_eq!(read[1].2, [-1, 5, 300]);
    assert_eq!((read[0].1, &read[0].3[..]), (2, &[1.0, 2.0][..]));
    assert_eq!((read[3].1, &read[3].3[..]), (4, &[1.0, 2.0, 1.0, 2.0][..]));
}

#[test]
fn errors_name_broken_and_compressed_files() {
    let records: Vec<_> = (0..3).map(record).collect();
    let (folder, path) = file_of(&records);
    let whole = fs::read(&path).unwrap();
    let with = |bytes: &[u8]| {
        write_aged(&path, bytes);
        message(&path, Section::default())
    };
    let flip = |place: usize| {
        let mut bytes = whole.clone();
        bytes[place] ^= 0x40;
        bytes
    };
    for (bytes, reason) in [
        (flip(0), "at byte 0: it is no TFRecord file"),
        (flip(9), "at byte 0: it is no TFRecord file"),
        (flip(20), "its record 0: the checksum of its data is another one's"),
        (b"id,label\n1,2\n3,4\n".to_vec(), "at byte 0: it is no TFRecord file"),
        (b"short".to_vec(), "at byte 0: the file is cut off within a record's head"),
        (Vec::new(), "its first records have no features"),
        (b"\x1f\x8b\x08\0\0\0\0\0\0\0\0\0\0".to_vec(), "it is compressed (GZIP)"),
        (b"\x1f\x8b\x08\0".to_vec(), "gzip -dc < 'a.tfrecord' > 'plain/a.tfrecord'"),
        (b"\x78\x9c\0\0\0\0\0\0\0\0\0\0\0".to_vec(), "python3 -c 'import sys, zlib;"),
        (frame(b"no protocol buffer"), "its record 0: it is no tf.train.Example"),
        (
            frame(&[example(&[("a", Values::Integers(&[1]))]), field(2, &field(1, b""))].concat()),
            "its record 0: it is a tf.train.SequenceExample, and tf.train.Example is read",
        ),
        (frame(&field(1, &entry("", &[0x1a, 2, 8, 0x80]))), "no tf.train.Example"),
    ] {
        let message = with(&bytes);
        assert!(message.contains("data") && message.contains(reason), "{reason}: {message}");
    }
    let second = frame(&records[0]).len();
    let message_of = with(&flip(second + 3));
    assert!(
        message_of.contains(&format!("at byte {second}: the checksum of a record's length")),
        "{message_of}"
    );
    let ends = [second, second + frame(&records[1]).len()];
    for length in (1..whole.len()).filter(|length| !ends.contains(length)) {
        let message = with(&whole[..length]);
        assert!(message.contains("cut off"), "{length}: {message}");
    }
    // A record that is damaged or was replaced since is a bad sample, and never returns another record's bytes.
    write_aged(&path, &whole);
    let opened = open_with(&path, Section::default()).unwrap();
    let mut damaged = whole.clone();
    let last = damaged.len() - 6;
    damaged[last] ^= 1;
    damaged[second..second + 8].copy_from_slice(&7_u64.to_le_bytes());
    fs::write(&path, &damaged).unwrap();
    assert_eq!(sample(&opened, 0).unwrap()[1], "image 3");
    assert!(sample(&opened, 1).unwrap_err().contains("there is no record of this length any more"));
    assert!(sample(&opened, 2).unwrap_err().contains("the checksum of its data"));
    // A folder with compressed files only, and a compressed file by its name.
    fs::rename(&path, folder.path().join("data/a.tfrecord.gz")).unwrap();
    write_aged(&folder.path().join("data/a.tfrecord.gz"), b"\x1f\x8b\x08\0\0\0\0\0\0\0\0\0\0");
    for path in ["data", "data/a.tfrecord.gz"] {
        let message = message(&folder.path().join(path), Section::default());
        assert!(message.contains("gzip -dc < 'a.tfrecord.gz' > 'a.tfrecord'"), "{message}");
    }
}
