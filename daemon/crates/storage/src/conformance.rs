//! Conformance suite of [`Storage`], run with [`run`] for each implementation, from tests of this crate or, with the
//! feature `testing`, of others.
//!
//! Behaviour of a single storage is tested in that storage's file.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::listing::EntryKind;
use super::{BodySink, Handle, Lent, Opened, RetryClass, Storage, StorageError};
use crate::location::{ByteRange, FileId, FileTable, Location, Unit};

/// A separate folder or bucket in which files can be changed without the storage's knowledge.
pub trait Fixture {
    /// Opens the storage for present and future files.
    fn storage(&self) -> Arc<dyn Storage>;

    /// Creates or replaces a file below the root.
    fn put(&self, path: &str, bytes: &[u8]);

    /// Removes a file.
    fn remove(&self, path: &str);

    /// Removes the permission to read a file. False: not possible here.
    fn forbid(&self, path: &str) -> bool;

    /// Makes listings repeat names, as servers do whose pages overlap. False: not possible for this storage.
    fn repeat_names(&self) -> bool {
        false
    }

    /// Whether folders exist independently of files: a file in a missing folder is not missing itself.
    fn has_folders(&self) -> bool {
        true
    }
}

/// Paths by number.
#[derive(Debug)]
pub struct Paths(pub Vec<String>);

impl Paths {
    /// A table of these paths.
    pub fn new<P: Into<String>>(paths: impl IntoIterator<Item = P>) -> Self {
        Self(paths.into_iter().map(Into::into).collect())
    }
}

impl FileTable for Paths {
    fn append_path(&self, file: FileId, path: &mut Vec<u8>) {
        path.extend_from_slice(self.0[usize::try_from(file.0).unwrap()].as_bytes());
    }
}

/// A part of the first file of a table.
#[must_use]
pub const fn part(offset: u64, length: Option<u64>) -> Location {
    Location { file: FileId(0), range: ByteRange { offset, length }, unit: Unit::Sample }
}

const WHOLE: Location = Location::whole(FileId(0));

/// A check's name and function.
type Check = (&'static str, fn(&dyn Fixture));

/// Runs the suite; each check has a separate fixture.
///
/// # Panics
/// When the storage fails a check.
pub fn run<F: Fixture>(make: impl Fn() -> F) {
    let checks: [Check; 12] = [
        ("files and parts of files are read into new and used buffers", reads),
        ("several locations follow each other in one buffer", several_locations),
        ("of many files of a sample few are held open, and a change is noticed", many_files),
        ("a range past the end is a bad sample", beyond_the_end),
        ("a missing file is named, and distinguished from a missing folder", missing),
        ("a file that may not be read is named", forbidden),
        ("no more is read than allowed", limit),
        ("a replaced file is read from then on", replaced),
        ("a length that changes between opening and reading is detected", changed),
        ("directories are listed with their entries' kinds", lists),
        ("a name that is listed twice is one entry", lists_once),
        ("many threads read many files at once", many_threads),
    ];
    for (name, check) in checks {
        println!("{name}");
        check(&make());
    }
}

fn read(storage: &dyn Storage, files: &Paths, location: Location) -> Result<Vec<u8>, StorageError> {
    let mut buffer = Vec::new();
    storage.read(files, location, u64::MAX, &mut buffer).map(|()| buffer)
}

fn reads(fixture: &dyn Fixture) {
    let bytes: Vec<u8> = (0..100_000_u32).flat_map(u32::to_le_bytes).collect();
    fixture.put("folder/file", &bytes);
    fixture.put("empty", b"");
    let storage = fixture.storage();
    let files = Paths::new(["folder/file", "empty"]);
    let mut used = Vec::new();
    for (location, expected) in [
        (WHOLE, &bytes[..]),
        (part(777, Some(1234)), &bytes[777..777 + 1234]),
        (part(399_990, None), &bytes[399_990..]),
        (part(399_990, Some(10)), &bytes[399_990..]),
        (part(400_000, None), &[]),
        (part(5, Some(0)), &[]),
        (Location::whole(FileId(1)), &[]),
    ] {
        let opened = storage.open(&files, location).unwrap();
        assert_eq!(opened.length_bytes, expected.len() as u64, "{location:?}");
        storage.read(&files, location, expected.len() as u64, &mut used).unwrap();
        assert_eq!(used, expected, "{location:?}");
        assert_eq!(read(&*storage, &files, location).unwrap(), expected, "{location:?}");
        assert_eq!(storage.status(&files, location.file).unwrap().bytes % 400_000, 0);
        let mut pieces = Vec::new();
        let mut take = |piece: &[u8]| {
            pieces.extend_from_slice(piece);
            true
        };
        let opened = storage.open(&files, location).unwrap();
        assert_eq!(storage.read_in_pieces(&files, opened, &mut take), Ok(true), "{location:?}");
        assert_eq!(pieces, expected, "{location:?}");
        let mut lender = Lender { header: Vec::new(), place: vec![0; expected.len()], at: 0 };
        let opened = storage.open(&files, location).unwrap();
        assert_eq!(storage.read_in_pieces(&files, opened, &mut lender), Ok(true), "{location:?}");
        assert_eq!([&lender.header[..], &lender.place[..lender.at]].concat(), expected);
        let opened = storage.open(&files, location).unwrap();
        let is_whole = storage.read_in_pieces(&files, opened, &mut |_: &[u8]| false);
        assert_eq!(is_whole, Ok(expected.is_empty()), "{location:?}");
        let mut elements = vec![0; expected.len()];
        if let Some(file) = storage.open_direct(&files, location)
            && file.read(b"", &mut elements, &mut Vec::new())
        {
            assert_eq!(elements, expected, "{location:?}");
        }
    }
}

/// Takes some bytes as pieces and lends memory for the others.
struct Lender {
    header: Vec<u8>,
    place: Vec<u8>,
    at: usize,
}

impl BodySink for Lender {
    fn take(&mut self, piece: &[u8]) -> bool {
        self.header.extend_from_slice(piece);
        true
    }

    fn lend(&mut self, read: &mut dyn FnMut(&mut [u8]) -> std::io::Result<usize>) -> Lent {
        if self.header.is_empty() {
            return Lent::NoBuffer;
        }
        // Reads of varying lengths.
        let end = self.place.len().min(self.at + 1 + self.at % 70_000);
        let read = read(&mut self.place[self.at..end]);
        self.at += *read.as_ref().unwrap_or(&0);
        Lent::Read(read)
    }
}

fn several_locations(fixture: &dyn Fixture) {
    fixture.put("a", b"0123456789");
    fixture.put("b", b"abc");
    let storage = fixture.storage();
    let files = Paths::new(["a", "b"]);
    let locations = [part(2, Some(3)), Location::whole(FileId(1)), part(9, None)];
    let (mut opened, mut buffer, mut ends): (Vec<Opened>, _, _) = (vec![], vec![7; 99], vec![3]);
    let length = storage.open_all(&files, &locations, 7, &mut opened).unwrap();
    assert_eq!(length, 7);
    storage.read_all(&files, &mut opened, &mut buffer, &mut ends).unwrap();
    assert_eq!((buffer.as_slice(), ends.as_slice()), (&b"234abc9"[..], &[3, 6, 7][..]));
    let error = storage.open_all(&files, &locations, 6, &mut opened).unwrap_err();
    assert!(matches!(error, StorageError::TooLarge { length_bytes: 7, limit_bytes: 6, .. }));
}

fn many_files(fixture: &dyn Fixture) {
    let names: Vec<String> = (0..9).map(|number| format!("file-{number}")).collect();
    for (number, name) in names.iter().enumerate() {
        fixture.put(name, &vec![b'0' + u8::try_from(number).unwrap(); number]);
    }
    let (storage, files) = (fixture.storage(), Paths::new(names));
    let locations: Vec<_> = (0..9).map(|number| Location::whole(FileId(number))).collect();
    let (mut opened, mut buffer, mut ends) = (vec![], vec![], vec![]);
    let mut read = |change: &dyn Fn()| {
        assert_eq!(storage.open_all(&files, &locations, 36, &mut opened)?, 36);
        let is_deferred = |opened: &&Opened| matches!(opened.handle, Handle::Deferred);
        assert_eq!(opened.iter().filter(is_deferred).count(), 5);
        change();
        storage.read_all(&files, &mut opened, &mut buffer, &mut ends)?;
        assert_eq!(ends, [0, 1, 3, 6, 10, 15, 21, 28, 36]);
        Ok::<_, StorageError>(buffer.clone())
    };
    let expected: Vec<u8> = (1..9).flat_map(|n| vec![b'0' + n; usize::from(n)]).collect();
    assert_eq!(read(&|| ()).unwrap(), expected);
    for (bytes, expected) in [(&b"seven"[..], "fewer"), (b"more than seven", "more")] {
        let error = read(&|| fixture.put("file-7", bytes)).unwrap_err();
        assert!(
            matches!(&error, StorageError::Changed { path, found, expected_bytes: 7 }
                if *found == expected && path.ends_with("file-7")),
            "{error}"
        );
        fixture.put("file-7", b"7777777");
    }
    let error = read(&|| fixture.remove("file-8")).unwrap_err();
    assert_eq!((error.class(), error.path().ends_with("file-8")), (RetryClass::File, true));
    // The size of all of them counts.
    fixture.put("file-8", b"88888888");
    let error = storage.open_all(&files, &locations, 35, &mut Vec::new()).unwrap_err();
    assert!(matches!(error, StorageError::TooLarge { length_bytes: 36, limit_bytes: 35, .. }));
}

fn beyond_the_end(fixture: &dyn Fixture) {
    fixture.put("file", b"0123456789");
    let (storage, files) = (fixture.storage(), Paths::new(["file"]));
    for location in [part(8, Some(3)), part(11, None), part(u64::MAX, Some(2))] {
        let error = read(&*storage, &files, location).unwrap_err();
        assert!(matches!(error, StorageError::OutOfRange { length_bytes: 10, .. }), "{error}");
        assert!(error.is_bad_sample() && !error.is_transient());
    }
}

fn missing(fixture: &dyn Fixture) {
    fixture.put("file", b"x");
    let (storage, files) = (fixture.storage(), Paths::new(["gone", "folder/gone", "file/below"]));
    for number in 0..3 {
        for range in [ByteRange::WHOLE, ByteRange { offset: 0, length: Some(1) }] {
            let location = Location { range, ..Location::whole(FileId(number)) };
            let error = read(&*storage, &files, location).unwrap_err();
            let is_outage = number == 1 && fixture.has_folders();
            let class = if is_outage { RetryClass::Outage } else { RetryClass::File };
            assert_eq!(error.class(), class, "{error}");
            assert!(error.is_transient() && !error.is_bad_sample());
            let path = &files.0[usize::try_from(number).unwrap()];
            assert!(error.to_string().contains(path.as_str()), "{error}");
            assert!(storage.open_direct(&files, location).is_none());
        }
        assert!(storage.status(&files, FileId(number)).is_err());
    }
    fixture.put("gone", b"back");
    assert_eq!(read(&*storage, &files, WHOLE).unwrap(), b"back");
}

fn forbidden(fixture: &dyn Fixture) {
    fixture.put("file", b"x");
    if !fixture.forbid("file") {
        println!("skipped: this user may read everything");
        return;
    }
    let error = read(&*fixture.storage(), &Paths::new(["file"]), WHOLE).unwrap_err();
    assert!(matches!(error, StorageError::Permission { .. }), "{error}");
    assert!(!error.is_transient() && !error.is_bad_sample());
}

fn limit(fixture: &dyn Fixture) {
    fixture.put("file", b"0123456789");
    let (storage, files) = (fixture.storage(), Paths::new(["file"]));
    let mut buffer = Vec::new();
    storage.read(&files, WHOLE, 10, &mut buffer).unwrap();
    let error = storage.read(&files, WHOLE, 9, &mut buffer).unwrap_err();
    assert!(matches!(error, StorageError::TooLarge { length_bytes: 10, limit_bytes: 9, .. }));
}

fn replaced(fixture: &dyn Fixture) {
    fixture.put("file", b"first bytes");
    let (storage, files) = (fixture.storage(), Paths::new(["file"]));
    let two = part(0, Some(5));
    let identity = || storage.status(&files, FileId(0)).unwrap().identity;
    let before = identity();
    assert_eq!(read(&*storage, &files, two).unwrap(), b"first");
    assert_eq!(identity(), before);
    fixture.put("file", b"other bytes");
    assert_ne!(identity(), before);
    assert_eq!(read(&*storage, &files, two).unwrap(), b"other");
    assert_eq!(read(&*storage, &files, WHOLE).unwrap(), b"other bytes");
    let mut elements = [0; 5];
    if let Some(file) = storage.open_direct(&files, two)
        && file.read(b"", &mut elements, &mut Vec::new())
    {
        assert_eq!(&elements, b"other");
    }
    fixture.put("file", b"cut");
    assert!(read(&*storage, &files, two).unwrap_err().is_bad_sample());
    fixture.put("other", b"x");
    fixture.remove("file");
    assert!(matches!(read(&*storage, &files, two), Err(StorageError::Vanished { .. })));
}

fn changed(fixture: &dyn Fixture) {
    fixture.put("file", b"0123456789");
    let (storage, files) = (fixture.storage(), Paths::new(["file"]));
    for bytes in [&b"0123"[..], b"0123456789ab"] {
        fixture.put("file", b"0123456789");
        let opened = storage.open(&files, WHOLE).unwrap();
        fixture.put("file", bytes);
        // Either the object that was opened, or an error: never a part, never a mixture.
        let mut buffer = Vec::new();
        match storage.read_opened(&files, opened, &mut buffer) {
            Ok(()) => assert_eq!(buffer, b"0123456789"),
            Err(error) => assert!(error.is_transient() && !error.is_bad_sample(), "{error}"),
        }
    }
}

fn lists(fixture: &dyn Fixture) {
    for path in ["b/2", "b/1", "a/deep/3", "file", "b/odd \u{e4} name"] {
        fixture.put(path, b"x");
    }
    let storage = fixture.storage();
    let list = |directory: &str| {
        let mut found = BTreeSet::new();
        let stamp = storage
            .list(directory.as_bytes(), &mut |name, kind| {
                let name = String::from_utf8(name.to_vec()).unwrap();
                assert!(found.insert((name, kind == EntryKind::Directory)), "listed twice");
            })
            .unwrap();
        assert_eq!(storage.stamp(directory.as_bytes()).unwrap(), stamp);
        found.into_iter().collect::<Vec<_>>()
    };
    let entries = |names: &[(&str, bool)]| -> Vec<_> {
        names.iter().map(|(name, is_directory)| ((*name).to_owned(), *is_directory)).collect()
    };
    assert_eq!(list(""), entries(&[("a", true), ("b", true), ("file", false)]));
    assert_eq!(list("b"), entries(&[("1", false), ("2", false), ("odd \u{e4} name", false)]));
    assert_eq!(list("a"), entries(&[("deep", true)]));
    assert!(storage.list(b"absent", &mut |_, _| {}).is_err());
}

fn lists_once(fixture: &dyn Fixture) {
    let names: Vec<String> = (0..40).map(|number| format!("{number:02}")).collect();
    for name in &names {
        fixture.put(&format!("files/{name}"), b"x");
        fixture.put(&format!("folders/{name}/file"), b"x");
    }
    if !fixture.repeat_names() {
        println!("skipped: its listings do not repeat names");
        return;
    }
    let storage = fixture.storage();
    for folder in ["files", "folders"] {
        let mut found = Vec::new();
        storage.list(folder.as_bytes(), &mut |name, _| found.push(name.to_vec())).unwrap();
        found.sort();
        assert!(found.iter().eq(names.iter().map(String::as_bytes)), "{found:?}");
    }
}

/// More files than can be kept open at once.
fn many_threads(fixture: &dyn Fixture) {
    const FILES: u64 = 300;
    let files = Paths::new((0..FILES).map(|number| format!("{}/{number}", number % 7)));
    let byte = |number: u64, at: u64| u8::try_from((number * 31 + at) % 251).unwrap();
    for (number, path) in (0..).zip(&files.0) {
        let bytes: Vec<u8> = (0..64).map(|at| byte(number, at)).collect();
        fixture.put(path, &bytes);
    }
    let storage = fixture.storage();
    std::thread::scope(|scope| {
        for thread in 0..8_u64 {
            let (storage, files) = (&storage, &files);
            scope.spawn(move || {
                let mut buffer = Vec::new();
                for step in 0..2000_u64 {
                    let number = (step * 37 + thread * 101) % FILES;
                    let at = step % 60;
                    let location = Location { file: FileId(number), ..part(at, Some(4)) };
                    storage.read(files, location, 4, &mut buffer).unwrap();
                    let expected: Vec<u8> = (at..at + 4).map(|at| byte(number, at)).collect();
                    assert_eq!(buffer, expected);
                }
            });
        }
    });
}
