//! Reading local files: whole, in part, and everything that may stand in a file's place.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use rustix::io::Errno;

use super::{ByteRange, LocalFiles, StorageError};

const WHOLE: ByteRange = ByteRange { offset: 0, length: None };

fn folder_with(name: &str, bytes: &[u8]) -> (tempfile::TempDir, LocalFiles) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
    let files = LocalFiles::open(folder.path()).unwrap();
    (folder, files)
}

#[test]
fn whole_files_and_parts_are_read_into_new_and_used_buffers() {
    let bytes: Vec<u8> = (0..100_000_u32).flat_map(u32::to_le_bytes).collect();
    let (_folder, files) = folder_with("class/file", &bytes);
    let mut buffer = Vec::new();
    files.read(b"class/file", WHOLE, u64::MAX, &mut buffer).unwrap();
    assert_eq!(buffer, bytes);
    let part = ByteRange { offset: 777, length: Some(1234) };
    files.read(b"class/file", part, u64::MAX, &mut buffer).unwrap();
    assert_eq!(buffer, &bytes[777..777 + 1234]);
    let rest = ByteRange { offset: 399_990, length: None };
    files.read(b"class/file", rest, u64::MAX, &mut buffer).unwrap();
    assert_eq!(buffer, &bytes[399_990..]);
    let mut fresh = Vec::new();
    files.read(b"class/file", part, u64::MAX, &mut fresh).unwrap();
    assert_eq!(fresh, &bytes[777..777 + 1234]);
}

#[test]
fn an_empty_file_is_read_as_no_bytes() {
    let (_folder, files) = folder_with("empty", b"");
    let mut buffer = vec![1, 2, 3];
    files.read(b"empty", WHOLE, 0, &mut buffer).unwrap();
    assert!(buffer.is_empty());
}

#[test]
fn the_length_is_known_before_the_bytes_are_read() {
    let (_folder, files) = folder_with("file", b"0123456789");
    assert_eq!(files.open_file(b"file", WHOLE).unwrap().length(), 10);
    let part = ByteRange { offset: 3, length: Some(4) };
    let file = files.open_file(b"file", part).unwrap();
    assert_eq!(file.length(), 4);
    let mut buffer = Vec::new();
    file.read_into(&mut buffer).unwrap();
    assert_eq!(buffer, b"3456");
}

#[test]
fn a_file_that_changes_length_while_it_is_read_is_named_and_tried_again() {
    let (folder, files) = folder_with("file", b"0123456789");
    for (contents, found) in [(&b"0123"[..], "fewer"), (b"0123456789ab", "more")] {
        fs::write(folder.path().join("file"), b"0123456789").unwrap();
        let file = files.open_file(b"file", WHOLE).unwrap();
        fs::write(folder.path().join("file"), contents).unwrap();
        let error = file.read_into(&mut Vec::new()).unwrap_err();
        assert!(matches!(&error, StorageError::Changed { found: f, .. } if *f == found), "{error}");
        assert!(error.is_transient() && !error.is_bad_sample());
    }
}

/// It held a larger sample before: what the file grew by fits.
#[test]
fn a_file_that_grew_is_noticed_in_a_buffer_with_room_for_all_of_it() {
    let (folder, files) = folder_with("file", b"0123456789");
    let file = files.open_file(b"file", WHOLE).unwrap();
    fs::write(folder.path().join("file"), [7; 64]).unwrap();
    let mut buffer = Vec::with_capacity(32);
    let error = file.read_into(&mut buffer).unwrap_err();
    assert!(matches!(&error, StorageError::Changed { found: "more", .. }), "{error}");
}

#[test]
fn a_range_beyond_the_end_is_a_bad_sample() {
    let (_folder, files) = folder_with("file", b"0123456789");
    for range in [
        ByteRange { offset: 8, length: Some(3) },
        ByteRange { offset: 11, length: None },
        ByteRange { offset: u64::MAX, length: Some(2) },
    ] {
        let error = files.open_file(b"file", range).unwrap_err();
        assert!(matches!(error, StorageError::OutOfRange { length_bytes: 10, .. }), "{error}");
        assert!(error.is_bad_sample() && !error.is_transient());
    }
}

#[test]
fn what_is_no_regular_file_is_refused_at_once() {
    let (folder, files) = folder_with("class/file", b"x");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        folder.path().join("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    for (path, kind) in [("class", "a directory"), ("pipe", "a pipe")] {
        let error = files.open_file(path.as_bytes(), WHOLE).unwrap_err();
        assert!(matches!(&error, StorageError::NotAFile { kind: k, .. } if *k == kind), "{error}");
        assert!(error.to_string().contains(path) && error.is_bad_sample());
    }
}

#[test]
fn vanished_files_and_dangling_links_are_transient_and_named() {
    let (folder, files) = folder_with("file", b"x");
    symlink("nowhere", folder.path().join("link")).unwrap();
    for path in ["gone", "link", "file/below"] {
        let error = files.open_file(path.as_bytes(), WHOLE).unwrap_err();
        assert!(matches!(error, StorageError::Vanished { .. }), "{error}");
        assert!(error.is_transient() && error.to_string().contains(path));
    }
}

#[test]
fn a_file_larger_than_the_callers_limit_is_not_read() {
    let (_folder, files) = folder_with("file", b"0123456789");
    let mut buffer = Vec::new();
    files.read(b"file", WHOLE, 10, &mut buffer).unwrap();
    let error = files.read(b"file", WHOLE, 9, &mut buffer).unwrap_err();
    assert!(matches!(error, StorageError::TooLarge { length_bytes: 10, limit_bytes: 9, .. }));
}

#[test]
fn a_missing_permission_is_permanent() {
    let (folder, files) = folder_with("file", b"x");
    let path = folder.path().join("file");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
    // The superuser may read everything: there the mapping of the system's error is checked alone.
    let error = match files.open_file(b"file", WHOLE) {
        Err(error) => error,
        Ok(_) => StorageError::from_errno(path, "opening", Errno::ACCESS),
    };
    assert!(matches!(error, StorageError::Permission { .. }));
    assert!(!error.is_transient() && !error.is_bad_sample());
}

#[test]
fn an_input_output_error_is_transient() {
    let failing = |errno| StorageError::from_errno("file".into(), "reading", errno);
    assert!(failing(Errno::IO).is_transient());
    assert!(failing(Errno::TIMEDOUT).is_transient());
    assert!(!failing(Errno::NAMETOOLONG).is_transient());
}

#[test]
fn the_root_may_be_a_file_and_then_paths_count_from_its_folder() {
    let (folder, _files) = folder_with("array.npy", b"contents");
    let files = LocalFiles::open(&folder.path().join("array.npy")).unwrap();
    let mut buffer = Vec::new();
    files.read(b"array.npy", WHOLE, u64::MAX, &mut buffer).unwrap();
    assert_eq!(buffer, b"contents");
}

#[test]
fn elements_are_read_straight_only_from_a_file_that_is_as_expected() {
    let (folder, files) = folder_with("file", b"head12345678");
    let file = fs::File::open(folder.path().join("file")).unwrap();
    let mut bytes = [0; 4];
    let mut probe = [std::io::IoSliceMut::new(&mut bytes)];
    let nowait = rustix::io::ReadWriteFlags::NOWAIT;
    let is_silent = rustix::io::preadv2(&file, &mut probe, 0, nowait) == Err(Errno::OPNOTSUPP);
    if is_silent && !super::lies_in_memory(&file) {
        println!(
            "skipped: the file system of the temporary folder cannot say that a read would wait"
        );
        return;
    }
    let mut scratch = Vec::new();
    let mut read = |name: &[u8], range: ByteRange, before: &[u8], count: usize| {
        let mut elements = vec![0; count];
        let file = files.open_straight(name)?;
        file.read(range, before, &mut elements, &mut scratch).then_some(elements)
    };
    assert_eq!(read(b"file", WHOLE, b"head", 8).as_deref(), Some(b"12345678".as_slice()));
    assert_eq!(read(b"file", WHOLE, b"", 12).as_deref(), Some(b"head12345678".as_slice()));
    assert_eq!(read(b"file", WHOLE, b"Head", 8), None, "begins otherwise");
    assert_eq!(read(b"file", WHOLE, b"head", 7), None, "is longer");
    assert_eq!(read(b"file", WHOLE, b"head", 9), None, "is shorter");
    assert_eq!(read(b"absent", WHOLE, b"head", 8), None);
    let part = |offset, length| ByteRange { offset, length: Some(length) };
    assert_eq!(read(b"file", part(2, 4), b"", 4).as_deref(), Some(b"ad12".as_slice()));
    assert_eq!(read(b"file", part(2, 4), b"", 5), None, "another length than the row's");
    assert_eq!(read(b"file", part(9, 4), b"", 4), None, "ends behind the file");
    fs::create_dir(folder.path().join("folder")).unwrap();
    for name in [b"folder".as_slice(), b"/dev/zero"] {
        assert_eq!(read(name, WHOLE, &[0; 4], 8), None);
    }
}
