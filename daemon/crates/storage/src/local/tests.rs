//! Local files: the suite, and paths that are not regular files.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::Arc;

use rustix::io::Errno;

use super::{LocalFiles, Storage, StorageError};
use crate::conformance::{self, Fixture, Paths, part};
use crate::location::{FileId, Location};

const WHOLE: Location = Location::whole(FileId(0));

struct Folder(tempfile::TempDir);

fn folder_with(name: &str, bytes: &[u8]) -> (Folder, Arc<dyn Storage>) {
    let folder = Folder(tempfile::tempdir().unwrap());
    folder.put(name, bytes);
    let storage = folder.storage();
    (folder, storage)
}

impl Fixture for Folder {
    fn storage(&self) -> Arc<dyn Storage> {
        Arc::new(LocalFiles::open(self.0.path()).unwrap())
    }

    fn put(&self, path: &str, bytes: &[u8]) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let new = path.with_extension("new");
        fs::write(&new, bytes).unwrap();
        fs::rename(new, path).unwrap();
    }

    fn remove(&self, path: &str) {
        fs::remove_file(self.0.path().join(path)).unwrap();
    }

    fn forbid(&self, path: &str) -> bool {
        let path = self.0.path().join(path);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
        fs::File::open(path).is_err()
    }
}

#[test]
fn local_files_conform() {
    conformance::run(|| Folder(tempfile::tempdir().unwrap()));
}

#[test]
fn file_that_changes_length_while_it_is_read_is_named_and_retried() {
    let (folder, storage) = folder_with("file", b"0123456789");
    let (path, files) = (folder.0.path().join("file"), Paths::new(["file"]));
    // The last buffer had a larger sample before: the bytes by which the file grew fit.
    for (contents, found, room) in
        [(&b"0123"[..], "fewer", 0), (b"0123456789ab", "more", 0), (&[7; 64], "more", 32)]
    {
        fs::write(&path, b"0123456789").unwrap();
        let opened = storage.open(&files, WHOLE).unwrap();
        fs::write(&path, contents).unwrap();
        let mut buffer = Vec::with_capacity(room);
        let error = storage.read_opened(&files, opened, &mut buffer).unwrap_err();
        assert!(matches!(&error, StorageError::Changed { found: f, .. } if *f == found), "{error}");
        assert!(error.is_transient() && !error.is_bad_sample());
    }
}

#[test]
fn parts_share_a_descriptor_and_whole_files_are_closed() {
    let (_folder, storage) = folder_with("file", b"0123456789");
    let files = Paths::new(["file"]);
    let open_files = || {
        fs::read_dir("/proc/self/fd")
            .unwrap()
            .flatten()
            .filter(|entry| {
                fs::read_link(entry.path()).is_ok_and(|path| path == storage.full_path(b"file"))
            })
            .count()
    };
    let mut buffer = Vec::new();
    storage.read(&files, WHOLE, 10, &mut buffer).unwrap();
    assert_eq!(open_files(), 0);
    for offset in 0..9 {
        storage.read(&files, part(offset, Some(1)), 1, &mut buffer).unwrap();
        assert_eq!(open_files(), 1);
    }
}

#[test]
fn paths_other_than_regular_files_are_refused_at_once() {
    let (folder, storage) = folder_with("class/file", b"x");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        folder.0.path().join("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(folder.0.path().join("socket")).unwrap();
    let others = [("class", "a directory"), ("pipe", "a pipe"), ("socket", "a socket or a device")];
    for (path, kind) in others {
        for location in [WHOLE, part(0, Some(1))] {
            let error = storage.open(&Paths::new([path]), location).unwrap_err();
            assert!(
                matches!(&error, StorageError::NotAFile { kind: k, .. } if *k == kind),
                "{error}"
            );
            assert!(error.to_string().contains(path) && error.is_bad_sample());
        }
    }
}

#[test]
fn missing_folder_is_distinguished_from_a_missing_file() {
    let (folder, storage) = folder_with("class/file", b"x");
    let files = Paths::new(["class/gone", "away/gone"]);
    let error = |number| storage.open(&files, Location::whole(FileId(number))).unwrap_err();
    assert!(matches!(error(0), StorageError::Vanished { .. }), "{}", error(0));
    let missing = folder.0.path().join("away");
    let told = error(1);
    assert!(matches!(&told, StorageError::Away { missing: m, .. } if *m == missing), "{told}");
    assert_eq!(told.class(), crate::RetryClass::Outage);
}

#[test]
fn dangling_links_are_transient() {
    let (folder, storage) = folder_with("file", b"x");
    symlink("nowhere", folder.0.path().join("link")).unwrap();
    let error = storage.open(&Paths::new(["link"]), WHOLE).unwrap_err();
    assert!(matches!(error, StorageError::Dangling { .. }) && error.is_transient(), "{error}");
}

#[test]
fn system_errors_are_classified_as_transient_or_not() {
    let failing = |errno| StorageError::from_errno("file".into(), "reading", errno);
    assert!(failing(Errno::IO).is_transient());
    assert!(failing(Errno::TIMEDOUT).is_transient());
    assert!(!failing(Errno::NAMETOOLONG).is_transient());
    // The superuser may read everything: nothing more can be tested then.
    let forbidden = failing(Errno::ACCESS);
    assert!(matches!(forbidden, StorageError::Permission { .. }));
    assert!(!forbidden.is_transient() && !forbidden.is_bad_sample());
}

#[test]
fn root_may_be_a_file_and_paths_are_relative_to_its_folder() {
    let (folder, _) = folder_with("array.npy", b"contents");
    let storage = LocalFiles::open(&folder.0.path().join("array.npy")).unwrap();
    let mut buffer = Vec::new();
    storage.read(&Paths::new(["array.npy"]), WHOLE, u64::MAX, &mut buffer).unwrap();
    assert_eq!(buffer, b"contents");
}

#[test]
fn elements_are_read_directly_only_from_the_expected_file() {
    let (folder, storage) = folder_with("file", b"head12345678");
    let file = fs::File::open(folder.0.path().join("file")).unwrap();
    let mut bytes = [0; 4];
    let mut probe = [std::io::IoSliceMut::new(&mut bytes)];
    let nowait = rustix::io::ReadWriteFlags::NOWAIT;
    let is_silent = rustix::io::preadv2(&file, &mut probe, 0, nowait) == Err(Errno::OPNOTSUPP);
    if is_silent && !crate::descriptor::lies_in_memory(&file) {
        // Bypasses the test runner, which hides the output of a passing test.
        let why = "the file system of the temporary folder cannot report that a read would wait";
        let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("skipped: {why}\n"));
        return;
    }
    let mut scratch = Vec::new();
    let mut read = |name: &str, location: Location, before: &[u8], count: usize| {
        let mut elements = vec![0; count];
        let file = storage.open_direct(&Paths::new([name]), location)?;
        file.read(before, &mut elements, &mut scratch).then_some(elements)
    };
    assert_eq!(read("file", WHOLE, b"head", 8).as_deref(), Some(b"12345678".as_slice()));
    assert_eq!(read("file", WHOLE, b"", 12).as_deref(), Some(b"head12345678".as_slice()));
    assert_eq!(read("file", WHOLE, b"Head", 8), None, "begins otherwise");
    assert_eq!(read("file", WHOLE, b"head", 7), None, "is longer");
    assert_eq!(read("file", WHOLE, b"head", 9), None, "is shorter");
    assert_eq!(read("file", part(2, Some(4)), b"", 4).as_deref(), Some(b"ad12".as_slice()));
    assert_eq!(read("file", part(2, Some(4)), b"", 5), None, "length differs from the row's");
    assert_eq!(read("file", part(9, Some(4)), b"", 4), None, "ends past the end of the file");
    fs::create_dir(folder.0.path().join("folder")).unwrap();
    for name in ["folder", "/dev/zero"] {
        assert_eq!(read(name, WHOLE, &[0; 4], 8), None);
    }
}

/// Such a read stops at the end of the cached part, which looks like the end of the file.
#[test]
fn end_of_the_cached_part_is_not_taken_for_the_end_of_the_file() {
    const EXPECTED: usize = 8192;
    let (folder, storage) = folder_with("file", &[7; 3 * EXPECTED]);
    let file = fs::File::open(folder.0.path().join("file")).unwrap();
    file.sync_all().unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).unwrap();
    rustix::io::pread(&file, &mut vec![0; EXPECTED], 0).unwrap();
    let mut byte = [0];
    let mut probe = [std::io::IoSliceMut::new(&mut byte)];
    let nowait = rustix::io::ReadWriteFlags::NOWAIT;
    if rustix::io::preadv2(&file, &mut probe, EXPECTED as u64, nowait) != Err(Errno::AGAIN) {
        let why = "the kernel caches the whole file, or does not report what it caches";
        let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("skipped: {why}\n"));
        return;
    }
    let direct = storage.open_direct(&Paths::new(["file"]), WHOLE).unwrap();
    assert!(!direct.read(b"", &mut vec![0; EXPECTED], &mut Vec::new()), "the file goes on");
}

#[test]
fn recreated_root_is_read_again() {
    let (folder, _) = folder_with("data/class/file", b"old");
    let root = folder.0.path().join("data");
    let storage = LocalFiles::open(&root).unwrap();
    let files = Paths::new(["class/file", "class/other"]);
    let read = |number| {
        let mut buffer = Vec::new();
        let location = Location::whole(FileId(number));
        storage.read(&files, location, u64::MAX, &mut buffer).map(|()| buffer)
    };
    assert_eq!(read(0).unwrap(), b"old");
    fs::rename(&root, folder.0.path().join("old")).unwrap();
    let error = read(1).unwrap_err();
    assert!(matches!(&error, StorageError::Away { missing, .. } if *missing == root), "{error}");
    folder.put("data/class/other", b"new");
    // The first failure resolved the path before the new folder existed. This one resolves it again.
    assert_eq!(read(1).map_err(|error| error.to_string()).ok(), None);
    assert_eq!(read(1).unwrap(), b"new");
}
