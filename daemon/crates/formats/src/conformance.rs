//! Conformance tests of [`Dataset`](forebay_dataset::Dataset): one suite, which [`run`] applies to each format, in
//! tests of this crate or, with the feature `testing`, of others.
//!
//! Each format's module tests its specifics, such as its layout and the data that it refuses.

use std::collections::HashMap;
use std::fs::File;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use forebay_config::DatasetConfig;
use forebay_protocol::ids::SampleId;

use crate::testing::{Opener, config_for};
use forebay_dataset::{
    DatasetError, Field, FieldKind, FieldValue, IndexBytes, OpenOptions, Opened,
};
use forebay_storage::RepeatingFolder;
use forebay_storage::location::{ByteRange, Location, SampleBytes, SharedBytes, Unit};

/// A format, and how a dataset of it is created.
pub struct Format {
    /// Its name in the registry.
    pub name: &'static str,
    /// Opens a dataset: [`crate::open`] for formats of this crate's registry.
    pub open: Opener,
    /// Creates a dataset of the given number of samples (at least 1) with different values in a folder; returns
    /// `dataset.path`.
    pub make: fn(&Path, usize) -> PathBuf,
    /// Whether samples have names, which `dataset.ids` can list.
    pub has_names: bool,
    /// Whether bytes that are truncated at any length are refused.
    pub refuses_cuts: bool,
}

const COUNT: usize = 37;

/// The description of a check, and its function.
type Check = (&'static str, fn(&Format));

/// Runs the suite.
///
/// # Panics
/// The format fails a check.
pub fn run(format: &Format) {
    run_permuted(format);
    println!("{}: samples are found in their order", format.name);
    order(format);
}

/// Runs the suite for a format whose samples are not in the order of the files.
///
/// # Panics
/// The format fails a check.
pub fn run_permuted(format: &Format) {
    let checks: [Check; 13] = [
        ("samples have the fields that are declared, each time the same", samples),
        ("samples are found by any thread", threads),
        (
            "samples that share a block give one location, and read their own part of it",
            shared_units,
        ),
        ("the fingerprint is of the samples, not of an opening", fingerprint),
        ("the saved index gives the same dataset", index),
        ("a listing that gives each name twice gives each sample once", repeated_names),
        ("a limit keeps the first samples", limit),
        ("listed ids select in the dataset's order", ids),
        ("a selection keeps the ids and the rows of the whole", selection),
        ("parts of a split are disjoint, and stay when samples are added", split),
        ("an array that is read directly is the array that is read by call", direct_read),
        ("what is no dataset is named", refusals),
        ("broken bytes are a defect on one line, and never a panic", hostile_bytes),
    ];
    for (name, check) in checks {
        println!("{}: {name}", format.name);
        check(format);
    }
}

struct Made {
    folder: tempfile::TempDir,
    config: DatasetConfig,
    opener: Opener,
}

impl Format {
    fn made(&self, count: usize) -> Made {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        std::fs::create_dir(&data).unwrap();
        let mut config = config_for(self.name, &(self.make)(&data, count));
        config.index = Some(folder.path().join("saved.index"));
        crate::testing::age_directories(&data);
        Made { folder, config, opener: self.open }
    }
}

impl Made {
    fn open(&self) -> Opened {
        self.open_with(OpenOptions::default()).unwrap()
    }

    fn failure(&self) -> DatasetError {
        self.open_with(OpenOptions::default()).unwrap_err()
    }

    fn open_with(&self, options: OpenOptions<'_>) -> Result<Opened, DatasetError> {
        (self.opener)(&self.config, options)
    }
}

fn locations(opened: &Opened, id: u64) -> Vec<Location> {
    let mut locations = Vec::new();
    opened.dataset.locate(SampleId(id), &mut locations);
    assert!(!locations.is_empty());
    locations
}

/// A sample's bytes, read as the engine does.
fn fetch(opened: &Opened, id: u64) -> (Vec<u8>, Vec<usize>) {
    let Opened { dataset, storage, .. } = opened;
    let (locations, mut parts) = (locations(opened, id), Vec::new());
    let (mut bytes, mut ends) = (Vec::new(), Vec::new());
    storage.open_all(dataset.as_ref(), &locations, 1 << 20, &mut parts).unwrap();
    storage.read_all(dataset.as_ref(), &mut parts, &mut bytes, &mut ends).unwrap();
    (bytes, ends)
}

/// A sample's values as text, checked against the fields.
fn sample(opened: &Opened, id: u64) -> String {
    let (bytes, ends) = fetch(opened, id);
    let mut values = Vec::new();
    let bytes = SampleBytes::new(&bytes, &ends);
    opened.dataset.read(SampleId(id), bytes, &mut values).unwrap();
    check(opened.dataset.fields(), &values);
    format!("{values:?}")
}

fn all(opened: &Opened) -> Vec<String> {
    (0..opened.dataset.sample_count()).map(|id| sample(opened, id)).collect()
}

fn check(fields: &[Field], values: &[FieldValue<'_>]) {
    assert_eq!(fields.len(), values.len());
    for (field, value) in fields.iter().zip(values) {
        let is_declared = match (&field.kind, value) {
            (FieldKind::EncodedImage, FieldValue::EncodedImage(_))
            | (FieldKind::EncodedImages, FieldValue::EncodedImages(_))
            | (FieldKind::Bytes, FieldValue::Bytes(_))
            | (FieldKind::Text, FieldValue::Text(_))
            | (FieldKind::Sound { .. }, FieldValue::Sound(_))
            | (FieldKind::Video { .. }, FieldValue::Video(_))
            | (FieldKind::Integer, FieldValue::Integer(_))
            | (FieldKind::Float, FieldValue::Float(_)) => true,
            (FieldKind::Array { dtype, shape }, FieldValue::Array(array)) => {
                let elements: u64 = shape.iter().product();
                array.dtype == *dtype
                    && array.shape[..] == shape[..]
                    && array.bytes.len() as u64 == elements * dtype.size_bytes()
            }
            (FieldKind::RaggedArray { dtype, row_shape }, FieldValue::Array(array)) => {
                let elements: u64 = array.shape.iter().product();
                array.dtype == *dtype
                    && array.shape.get(1..) == Some(row_shape)
                    && array.bytes.len() as u64 == elements * dtype.size_bytes()
            }
            _ => false,
        };
        assert!(is_declared, "{field:?} has the value {value:?}");
    }
}

fn samples(format: &Format) {
    let made = format.made(COUNT);
    let opened = made.open();
    assert_eq!(opened.dataset.sample_count(), COUNT as u64);
    assert_eq!(opened.report.samples, COUNT as u64);
    let fields = opened.dataset.fields();
    let mut names: Vec<_> = fields.iter().map(|field| field.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    assert!(names.len() == fields.len() && !names.is_empty() && !names.contains(&""));
    let (classes, summary) = (opened.dataset.classes().len(), opened.dataset.description().classes);
    assert_eq!(summary.map_or(0, |summary| summary.count), classes, "classes are summed up");
    assert_eq!(opened.report.classes, classes as u64);
    let first = all(&opened);
    assert_eq!(all(&opened), first);
    assert_eq!(all(&made.open()), first);
}

fn order(format: &Format) {
    let made = format.made(COUNT);
    let opened = made.open();
    let place = |id| {
        let first = locations(&opened, id)[0];
        (opened.dataset.path(first.file), first.range.offset)
    };
    let places: Vec<_> = (0..opened.dataset.sample_count()).map(place).collect();
    assert!(places.is_sorted(), "{places:?}");
}

fn threads(format: &Format) {
    let made = format.made(COUNT);
    let opened = made.open();
    let expected = all(&opened);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert_eq!(all(&opened), expected));
        }
    });
}

fn shared_units(format: &Format) {
    let made = format.made(COUNT);
    let opened = made.open();
    let mut samples_of = HashMap::<Location, Vec<u64>>::new();
    for id in 0..opened.dataset.sample_count() {
        for location in locations(&opened, id) {
            samples_of.entry(location).or_default().push(id);
        }
    }
    for (location, samples) in &samples_of {
        let is_block = matches!(location.unit, Unit::Block(_));
        assert!(is_block || samples.len() == 1, "{location:?} is of {samples:?}");
        assert!(opened.dataset.shares_units() || !is_block, "{location:?}");
        // Two different blocks with overlapping bytes would be read and counted twice.
        let overlapping = samples_of.keys().find(|other| {
            *other != location
                && is_block
                && other.file == location.file
                && overlap(other, location)
        });
        assert_eq!(overlapping, None, "{location:?}");
    }
    assert_eq!(opened.dataset.shares_units(), samples_of.values().any(|samples| samples.len() > 1));
    // The parts of a sample in separate buffers, as the engine holds shared blocks.
    for id in 0..opened.dataset.sample_count() {
        let read = |location| {
            let mut bytes = Vec::new();
            let Opened { dataset, storage, .. } = &opened;
            storage.read(dataset.as_ref(), location, u64::MAX, &mut bytes).unwrap();
            SharedBytes::new(bytes)
        };
        let parts: Vec<_> = locations(&opened, id).into_iter().map(read).collect();
        let mut values = Vec::new();
        opened.dataset.read(SampleId(id), SampleBytes::shared(&parts), &mut values).unwrap();
        assert_eq!(format!("{values:?}"), sample(&opened, id));
    }
}

fn overlap(one: &Location, other: &Location) -> bool {
    let end = |range: ByteRange| range.length.map_or(u64::MAX, |length| range.offset + length);
    one.range.offset < end(other.range) && other.range.offset < end(one.range)
}

fn fingerprint(format: &Format) {
    let made = format.made(COUNT);
    let print = |made: &Made| made.open().dataset.fingerprint();
    let first = print(&made);
    assert_ne!(first, [0; 32]);
    assert_eq!(print(&made), first);
    // The same data in another folder.
    assert_eq!(print(&format.made(COUNT)), first);
    assert_ne!(print(&format.made(COUNT + 1)), first);
}

fn index(format: &Format) {
    let made = format.made(COUNT);
    let first = made.open();
    let expected = (all(&first), first.dataset.fingerprint());
    let again = |opened: Opened| assert_eq!((all(&opened), opened.dataset.fingerprint()), expected);
    let Some(path) = &first.report.path else {
        again(made.open());
        return;
    };
    let second = made.open();
    assert!(second.report.reused, "{:?}", second.report);
    again(second);
    std::fs::remove_file(path).unwrap();
    let third = made.open();
    assert!(!third.report.reused);
    let Some(IndexBytes::Mapped(mapped)) = third.dataset.index() else {
        panic!("the index was saved");
    };
    let previous: &File = mapped.file();
    let options = OpenOptions { previous_index: Some(previous), ..OpenOptions::default() };
    again(made.open_with(options).unwrap());
    // With any byte changed, the index is rebuilt without a panic.
    for place in [0, 40, 300] {
        let mut bytes = std::fs::read(path).unwrap();
        if let Some(byte) = bytes.get_mut(place.max(16)) {
            *byte ^= 0x41;
        }
        std::fs::remove_file(path).unwrap();
        std::fs::write(path, bytes).unwrap();
        again(made.open());
    }
    again(third);
}

fn repeated_names(format: &Format) {
    let mut made = format.made(COUNT);
    let usual = made.open();
    // The real path, because listings resolve links.
    let folder = std::fs::canonicalize(made.folder.path()).unwrap();
    made.config.index = Some(folder.join("repeated.index"));
    let _repeating = [made.folder.path(), &folder].map(|path| RepeatingFolder::new(path.into()));
    let repeated = made.open();
    assert_eq!(all(&repeated), all(&usual));
    assert_eq!(repeated.dataset.fingerprint(), usual.dataset.fingerprint());
}

fn limit(format: &Format) {
    let mut made = format.made(COUNT);
    let whole = made.open();
    made.config.limit = Some(5);
    let few = made.open();
    assert_eq!(all(&few), all(&whole)[..5]);
    assert_ne!(few.dataset.fingerprint(), whole.dataset.fingerprint());
    made.config.limit = Some(1_000_000);
    let all_of_them = made.open();
    assert_eq!(all_of_them.dataset.sample_count(), COUNT as u64);
    assert_eq!(all_of_them.dataset.fingerprint(), whole.dataset.fingerprint());
    made.config.limit = Some(0);
    assert!(matches!(made.failure(), DatasetError::NoSamples { .. }));
}

fn ids(format: &Format) {
    let mut made = format.made(COUNT);
    let whole = made.open();
    let list = made.folder.path().join("ids.txt");
    let name = |id: u64| {
        let mut name = Vec::new();
        whole.dataset.append_name(SampleId(id), &mut name);
        String::from_utf8(name).unwrap()
    };
    let (last, first) = (name(30), name(3));
    made.config.ids = Some(list.clone());
    let listed = |text: String| {
        std::fs::write(&list, text).unwrap();
        made.open_with(OpenOptions::default())
    };
    if !format.has_names {
        let message = listed(first).unwrap_err().to_string();
        assert!(message.contains("dataset.ids") || message.contains("ids.txt:1: "), "{message}");
        return;
    }
    let some = listed(format!("{last}\r\n\n./{first}\n")).unwrap();
    assert_eq!(all(&some), [sample(&whole, 3), sample(&whole, 30)]);
    assert_ne!(some.dataset.fingerprint(), whole.dataset.fingerprint());
    // The same with the paths of messages and `loader.paths()`.
    let path = |id| whole.dataset.full_name(whole.storage.as_ref(), SampleId(id));
    let paths = listed(format!("{}\n{}\n", path(30).display(), path(3).display())).unwrap();
    assert_eq!(all(&paths), all(&some));
    for (text, expected) in [
        (format!("{first}\n{first}x\n"), "ids.txt:2: "),
        (format!("{first}\n\n{first}\n"), "ids.txt:3: "),
        ("\n".to_owned(), "ids.txt lists none"),
    ] {
        let message = listed(text).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    }
}

fn selection(format: &Format) {
    let mut made = format.made(COUNT);
    let whole = made.open();
    if !format.has_names {
        return;
    }
    let quoted = |id: u64| {
        let mut name = Vec::new();
        whole.dataset.append_name(SampleId(id), &mut name);
        format!("'{}'", String::from_utf8(name).unwrap().replace('\'', "''"))
    };
    let (first, last) = (3, COUNT as u64 - 1);
    made.config.condition = Some(format!("name in ({}, {})", quoted(last), quoted(first)));
    let some = made.open();
    let kept = some.dataset.kept().unwrap();
    assert_eq!(kept.ids().collect::<Vec<_>>(), [first, last]);
    assert_eq!((some.dataset.sample_count(), some.dataset.kept_count()), (COUNT as u64, 2));
    assert_eq!([0, 1].map(|number| some.dataset.kept_at(number).0), [first, last]);
    assert_eq!(
        [first, last].map(|id| sample(&some, id)),
        [first, last].map(|id| sample(&whole, id))
    );
    assert_eq!(some.dataset.fields(), whole.dataset.fields());
    assert_ne!(some.dataset.fingerprint(), whole.dataset.fingerprint());
    let counted = format!("kept 2 of {COUNT} samples by dataset.where");
    assert_eq!(some.report.selected, Some(counted));
    made.config.condition = Some("size >= 0 and name is not null".to_owned());
    match made.open_with(OpenOptions::default()) {
        Ok(all) => assert_eq!(all.dataset.kept_count(), COUNT as u64),
        Err(error) => assert!(error.to_string().contains("share blocks"), "{error}"),
    }
    made.config.condition = Some("name == 'absent'".to_owned());
    let message = made.failure().to_string();
    assert!(message.contains(&format!("keeps none of {COUNT}")), "{message}");
    made.config.condition = Some("nam == 'x'".to_owned());
    let message = made.failure().to_string();
    assert!(message.contains("did you mean `name`?") && message.ends_with("    ^^^"), "{message}");
}

fn split(format: &Format) {
    let fractions = vec![("train".to_owned(), 0.5), ("val".to_owned(), 0.5)];
    let keys = |part: &str| {
        let (part, fractions) = (part.to_owned(), fractions.clone());
        Some(forebay_config::SplitKeys { part, fractions, seed: 0, by: None })
    };
    // By name: another folder may have other ids.
    let names = |count: usize, part: &str| {
        let mut made = format.made(count);
        made.config.split = keys(part);
        let opened = made.open_with(OpenOptions::default())?;
        let ids = opened.dataset.kept().unwrap().ids();
        Ok::<_, DatasetError>(
            ids.map(|id| {
                let mut key = Vec::new();
                assert!(opened.dataset.append_key(SampleId(id), &mut key));
                key
            })
            .collect::<Vec<_>>(),
        )
    };
    let train = match names(COUNT, "train") {
        Ok(train) => train,
        Err(error) => {
            let message = error.to_string();
            let is_refused =
                ["set `by`", "`dataset.split` selects rows"].map(|said| message.contains(said));
            assert!(is_refused.contains(&true), "{message}");
            return;
        }
    };
    let val = names(COUNT, "val").unwrap();
    assert_eq!(train.len() + val.len(), COUNT);
    assert!(train.iter().all(|name| !val.contains(name)));
    // Of more samples, those with the same name are in the same part.
    let [more, others] = ["train", "val"].map(|part| names(COUNT + 20, part).unwrap());
    assert!(train.iter().any(|name| more.contains(name)));
    assert!(!train.iter().any(|name| others.contains(name)));
    assert!(!val.iter().any(|name| more.contains(name)));
}

fn direct_read(format: &Format) {
    let made = format.made(COUNT);
    let opened = made.open();
    let Opened { dataset, storage, .. } = &opened;
    let Some(direct) = dataset.direct_read() else {
        return;
    };
    for id in (0..dataset.sample_count()).map(SampleId) {
        let [location] = locations(&opened, id.0)[..] else {
            panic!("an array that is read directly lies at one place");
        };
        let mut elements = vec![0; usize::try_from(direct.elements_bytes).unwrap()];
        let file = storage.open_direct(dataset.as_ref(), location);
        if !file.is_some_and(|file| file.read(&direct.before, &mut elements, &mut Vec::new())) {
            println!("skipped: this storage does not read directly here");
            return;
        }
        let (bytes, ends) = fetch(&opened, id.0);
        let (mut values, mut in_place) = (Vec::new(), Vec::new());
        dataset.read(id, SampleBytes::new(&bytes, &ends), &mut values).unwrap();
        dataset.read_in_place(id, &mut in_place);
        let FieldValue::Array(array) = &values[direct.field] else {
            panic!("{values:?}");
        };
        assert_eq!(array.bytes[..], elements[..]);
        values[direct.field] = FieldValue::InPlace;
        assert_eq!(format!("{values:?}"), format!("{in_place:?}"));
    }
}

fn refusals(format: &Format) {
    let mut made = format.made(COUNT);
    let cancel = |_| ControlFlow::Break(());
    let options = OpenOptions { progress: &cancel, ..OpenOptions::default() };
    // A dataset may be open before the first progress report.
    if let Err(error) = made.open_with(options) {
        assert!(matches!(error, DatasetError::Cancelled), "{error}");
    }
    // The previous opening may have saved its index.
    made.config.index = Some(made.folder.path().join("other.index"));
    made.config.path = made.folder.path().join("absent");
    let error = made.failure();
    assert!(matches!(error, DatasetError::Missing { .. }), "{error}");
    assert!(error.to_string().contains("absent"), "{error}");
    made.config.path = made.folder.path().join("file.txt");
    std::fs::write(&made.config.path, b"x").unwrap();
    let error = made.failure();
    assert!(matches!(error, DatasetError::WrongKind { .. }), "{error}");
}

fn hostile_bytes(format: &Format) {
    let made = format.made(1);
    let opened = made.open();
    let (whole, ends) = fetch(&opened, 0);
    let read = |bytes: &[u8]| -> Result<(), String> {
        let ends: Vec<_> = ends.iter().map(|end| (*end).min(bytes.len())).collect();
        let mut values = Vec::new();
        opened
            .dataset
            .read(SampleId(0), SampleBytes::new(bytes, &ends), &mut values)
            .map_err(|defect| defect.to_string())
    };
    let refused = |bytes: &[u8]| {
        let reason = read(bytes).unwrap_err();
        assert!(reason.len() > 10 && !reason.contains('\n'), "{reason:?}");
    };
    read(&whole).unwrap();
    refused(b"");
    if format.refuses_cuts {
        for length in 0..whole.len() {
            refused(&whole[..length]);
        }
    }
    // SplitMix64's increment as a source of positions and values.
    let mut noise = 0_u64;
    for _ in 0..3000 {
        let mut bytes = whole.clone();
        for _ in 0..4 {
            noise = noise.wrapping_add(0x9E37_79B9_7F4A_7C15).rotate_left(29);
            let place = usize::try_from(noise >> 8).unwrap_or(0) % bytes.len();
            bytes[place] = noise.to_le_bytes()[0];
        }
        let _ = read(&bytes);
    }
}
