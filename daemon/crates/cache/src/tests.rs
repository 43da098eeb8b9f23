//! A storage with a cache: the suite, reads from the disk, and failing disks.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::folder::CacheFolder;
use super::space::Space;
use super::*;
use forebay_storage::conformance::{self, Fixture, Paths, part};
use forebay_storage::version::{FileStatus, ObjectIdentity};
use forebay_storage::{CacheScope, LocalFiles, Objects, Untagged};

const WHOLE: Location = Location::whole(FileId(0));

/// A local folder with a cache.
struct Folder(tempfile::TempDir);

impl Fixture for Folder {
    fn storage(&self) -> Arc<dyn Storage> {
        let root = self.0.path().join("root");
        fs::create_dir_all(&root).unwrap();
        let storage = Arc::new(LocalFiles::open(&root).unwrap());
        in_front_of(storage, &config(&self.0.path().join("cache"), None))
    }

    fn put(&self, path: &str, bytes: &[u8]) {
        let path = self.0.path().join("root").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let new = path.with_extension("new");
        fs::write(&new, bytes).unwrap();
        fs::rename(new, path).unwrap();
    }

    fn remove(&self, path: &str) {
        fs::remove_file(self.0.path().join("root").join(path)).unwrap();
    }

    fn forbid(&self, path: &str) -> bool {
        let path = self.0.path().join("root").join(path);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
        fs::File::open(path).is_err()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn config(path: &Path, size: Option<u64>) -> CacheConfig {
    CacheConfig { path: Some(path.to_owned()), size, keep_free: Some(0) }
}

/// Objects with stamps in the index; reads are counted.
#[derive(Debug)]
struct Bucket {
    objects: Objects,
    name: String,
    untagged: Untagged,
    /// Whether an object's status has a tag.
    has_tags: AtomicBool,
    reads: AtomicU64,
}

impl Bucket {
    fn new(name: &str) -> Arc<Self> {
        Arc::new(Self {
            objects: Objects::default(),
            name: name.to_owned(),
            untagged: Untagged::Status,
            has_tags: AtomicBool::new(true),
            reads: AtomicU64::new(0),
        })
    }

    fn immutable(name: &str) -> Arc<Self> {
        let bucket = Arc::into_inner(Self::new(name)).unwrap();
        Arc::new(Self { untagged: Untagged::Name, ..bucket })
    }

    fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }
}

impl Layer for Bucket {
    type Inner = Objects;

    fn inner(&self) -> &Self::Inner {
        &self.objects
    }

    fn status(&self, files: &dyn FileTable, file: FileId) -> Result<FileStatus, StorageError> {
        let mut status = self.objects.status(files, file)?;
        if !self.has_tags.load(Ordering::Relaxed) {
            status.identity = ObjectIdentity::Tag(String::new());
        }
        Ok(status)
    }

    fn cache_scope(&self) -> Option<CacheScope> {
        Some(CacheScope { name: self.name.clone(), untagged: self.untagged })
    }

    fn read_opened(
        &self,
        files: &dyn FileTable,
        opened: Opened,
        buffer: &mut Vec<u8>,
    ) -> Result<(), StorageError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.objects.read_opened(files, opened, buffer)
    }
}

/// One file with its stamp in the index.
struct Indexed(Mutex<ObjectStamp>);

impl Indexed {
    fn new(bytes: usize, tag: &str) -> Self {
        Self(Mutex::new(ObjectStamp::new(bytes as u64, Some(tag))))
    }
}

impl FileTable for Indexed {
    fn append_path(&self, _file: FileId, path: &mut Vec<u8>) {
        path.extend_from_slice(b"folder/object");
    }

    fn stamp(&self, _file: FileId) -> Option<ObjectStamp> {
        Some(*lock(&self.0))
    }
}

fn bytes_of(seed: usize, length: usize) -> Vec<u8> {
    (0..=250).cycle().skip(seed * 7).take(length).collect()
}

fn read(storage: &dyn Storage, files: &dyn FileTable, location: Location) -> Vec<u8> {
    let mut buffer = Vec::new();
    storage.read(files, location, u64::MAX, &mut buffer).unwrap();
    buffer
}

/// The files of a cache's entries.
fn entries(cache: &Path) -> Vec<PathBuf> {
    let folders = |path: PathBuf| -> Vec<PathBuf> {
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect()
    };
    let users = folders(cache.to_owned());
    let datasets = users.into_iter().flat_map(folders);
    let groups = datasets.filter(|path| path.is_dir()).flat_map(folders);
    groups.filter(|path| path.is_dir()).flat_map(folders).collect()
}

/// Repeats an action until it returns true. A thread counts the entries first, and nothing is added before.
fn until(mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "it does not happen");
    }
}

#[test]
fn local_files_with_a_cache_conform() {
    conformance::run(|| Folder(tempfile::tempdir().unwrap()));
    // Again, with cached entries.
    let folder = tempfile::tempdir().unwrap();
    let fixture = Folder(folder);
    fixture.put("file", &bytes_of(1, 100_000));
    for _ in 0..2 {
        let storage = fixture.storage();
        let files = Paths::new(["file"]);
        assert_eq!(read(&*storage, &files, part(5, Some(99))), bytes_of(1, 100_000)[5..104]);
    }
}

#[test]
fn cached_bytes_are_shared_by_processes_and_runs() {
    let folder = tempfile::tempdir().unwrap();
    let (bucket, bytes) = (Bucket::new("bucket"), bytes_of(1, 100_000));
    bucket.objects.put("folder/object", &bytes);
    let files = Indexed::new(bytes.len(), "one");
    let places = [WHOLE, part(777, Some(1234)), part(40_000, None)];
    let expected = [&bytes[..], &bytes[777..777 + 1234], &bytes[40_000..]];
    for run in 0..3 {
        let storage = in_front_of(bucket.clone(), &config(folder.path(), None));
        until(|| {
            for (place, expected) in places.iter().zip(expected) {
                assert_eq!(read(&*storage, &files, *place), expected);
            }
            run > 0 || entries(folder.path()).len() == places.len()
        });
        let before = bucket.reads();
        for (place, expected) in places.iter().zip(expected) {
            assert_eq!(read(&*storage, &files, *place), expected);
        }
        assert_eq!(bucket.reads(), before);
        assert!(storage.properties().cache.unwrap().report().num_hits >= 3);
    }
}

#[test]
fn changed_object_has_other_entries() {
    let folder = tempfile::tempdir().unwrap();
    let bucket = Bucket::new("bucket");
    let storage = in_front_of(bucket.clone(), &config(folder.path(), None));
    let files = Indexed::new(1000, "one");
    for (seed, tag) in [(1, "one"), (2, "two"), (1, "one")] {
        let bytes = bytes_of(seed, 1000);
        bucket.objects.put("folder/object", &bytes);
        *lock(&files.0) = ObjectStamp::new(1000, Some(tag));
        for _ in 0..20 {
            assert_eq!(read(&*storage, &files, WHOLE), bytes);
        }
    }
    assert!(entries(folder.path()).len() <= 2);
}

/// A file without a stamp in the index, or with a size only.
struct Unknown(Option<u64>);

impl FileTable for Unknown {
    fn append_path(&self, _file: FileId, path: &mut Vec<u8>) {
        path.extend_from_slice(b"folder/object");
    }

    fn stamp(&self, _file: FileId) -> Option<ObjectStamp> {
        self.0.map(|bytes| ObjectStamp::new(bytes, None))
    }
}

#[test]
fn files_without_a_tag_in_the_index_are_cached_by_status_or_not_at_all() {
    for known in [None, Some(1000)] {
        let folder = tempfile::tempdir().unwrap();
        let bucket = Bucket::new("bucket");
        let storage = in_front_of(bucket.clone(), &config(folder.path(), None));
        let files = Unknown(known);
        for seed in [1, 2, 3] {
            bucket.objects.put("folder/object", &bytes_of(seed, 1000));
            until(|| {
                let before = bucket.reads();
                assert_eq!(read(&*storage, &files, WHOLE), bytes_of(seed, 1000));
                assert_eq!(
                    read(&*storage, &files, part(10, Some(90))),
                    bytes_of(seed, 1000)[10..100]
                );
                bucket.reads() == before
            });
        }
        assert_eq!(entries(folder.path()).len(), 6);
        bucket.has_tags.store(false, Ordering::Relaxed);
        for seed in [4, 5] {
            bucket.objects.put("folder/object", &bytes_of(seed, 1000));
            for _ in 0..20 {
                assert_eq!(read(&*storage, &files, WHOLE), bytes_of(seed, 1000));
            }
        }
        assert_eq!(entries(folder.path()).len(), 6);
    }
}

#[test]
fn immutable_files_are_cached_by_name() {
    for known in [None, Some(1000)] {
        let folder = tempfile::tempdir().unwrap();
        let bucket = Bucket::immutable("bucket");
        bucket.has_tags.store(false, Ordering::Relaxed);
        bucket.objects.put("folder/object", &bytes_of(1, 1000));
        let storage = in_front_of(bucket.clone(), &config(folder.path(), None));
        let files = Unknown(known);
        until(|| {
            let before = bucket.reads();
            assert_eq!(read(&*storage, &files, WHOLE), bytes_of(1, 1000));
            assert_eq!(read(&*storage, &files, part(10, Some(90))), bytes_of(1, 1000)[10..100]);
            bucket.reads() == before
        });
        // The storage is not read any more.
        bucket.objects.remove("folder/object");
        assert_eq!(read(&*storage, &files, WHOLE), bytes_of(1, 1000));
        assert_eq!(storage.properties().cache.unwrap().report().num_kept, 2);
    }
}

#[test]
fn damaged_entry_is_removed_and_fetched_again() {
    let folder = tempfile::tempdir().unwrap();
    let (bucket, bytes) = (Bucket::new("bucket"), bytes_of(1, 70_000));
    bucket.objects.put("folder/object", &bytes);
    let files = Indexed::new(bytes.len(), "one");
    let storage = in_front_of(bucket.clone(), &config(folder.path(), None));
    let keep = || {
        until(|| read(&*storage, &files, WHOLE) == bytes && !entries(folder.path()).is_empty());
        entries(folder.path()).pop().unwrap()
    };
    let whole = fs::read(keep()).unwrap();
    type Damage = Box<dyn Fn(Vec<u8>) -> Vec<u8>>;
    let damages: [Damage; 5] = [
        Box::new(|_| Vec::new()),
        Box::new(|file| vec![0; file.len()]),
        Box::new(|file| file[..file.len() - 1].to_vec()),
        Box::new(|file| [&file[..], b"more"].concat()),
        Box::new(|mut file| {
            file[40_000] ^= 4;
            file
        }),
    ];
    for (number, damage) in damages.iter().enumerate() {
        fs::write(keep(), damage(whole.clone())).unwrap();
        let before = bucket.reads();
        assert_eq!(read(&*storage, &files, WHOLE), bytes, "damage {number}");
        assert_eq!(bucket.reads(), before + 1, "damage {number}");
        assert_eq!(storage.properties().cache.unwrap().report().num_damaged, number as u64 + 1);
        assert_eq!(fs::read(keep()).unwrap(), whole, "damage {number}");
    }
    // Complete, but with another key.
    let other = entry::tail(&[9; 32], &bytes);
    fs::write(keep(), [&bytes[..], &other].concat()).unwrap();
    assert_eq!(read(&*storage, &files, WHOLE), bytes);
    assert_eq!(storage.properties().cache.unwrap().report().num_damaged, 6);
}

#[test]
fn full_cache_refuses_entries_and_unused_datasets_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    let limit = 4 * Space::cost(entry::file_bytes(100_000));
    let open =
        |bucket: &Arc<Bucket>| in_front_of(bucket.clone(), &config(folder.path(), Some(limit)));
    let fill = |bucket: &Arc<Bucket>, storage: &dyn Storage| {
        for number in 0..10 {
            let bytes = bytes_of(number, 100_000);
            bucket.objects.put("folder/object", &bytes);
            let files = Indexed::new(bytes.len(), &number.to_string());
            assert_eq!(read(storage, &files, WHOLE), bytes);
        }
    };
    let old = Bucket::new("old");
    let storage = open(&old);
    until(|| {
        fill(&old, &*storage);
        storage.properties().cache.unwrap().report().num_full > 0
    });
    assert_eq!(entries(folder.path()).len(), 4);
    drop(storage);
    let new = Bucket::new("new");
    let storage = open(&new);
    until(|| {
        fill(&new, &*storage);
        storage.properties().cache.unwrap().report().num_kept > 0
    });
    assert!(entries(folder.path()).len() <= 4);
    let names: Vec<_> = fs::read_dir(folder.path()).unwrap().flatten().collect();
    let datasets =
        fs::read_dir(names[0].path()).unwrap().flatten().filter(|entry| entry.path().is_dir());
    assert_eq!(datasets.count(), 1, "the old one is gone");
}

/// A process that frees space may remove a folder before its creator has locked it.
#[test]
fn dataset_that_is_removed_while_it_is_opened_is_created_again() {
    let folder = tempfile::tempdir().unwrap();
    let [opens, removes] = [(); 2].map(|()| CacheFolder::open(folder.path()).unwrap());
    let digest = [7; 32];
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                if let Ok(Some(gone)) = removes.take_away(&CacheFolder::dataset_name(&digest)) {
                    let _ = removes.remove(&gone, &mut |_| {});
                }
            }
        });
        let opened: Vec<_> = (0..500).map(|_| opens.dataset(&digest, "title").map(drop)).collect();
        is_over.store(true, Ordering::Relaxed);
        // If every attempt is removed, the dataset is busy.
        let failed = |opened: &&Result<(), Errno>| !matches!(opened, Ok(()) | Err(Errno::BUSY));
        assert_eq!(opened.iter().find(failed), None);
    });
}

/// Removes a folder in which a cache's own thread may still make files: its count of what is
/// stored runs beside the reads and outlives the storage.
fn remove_folder(folder: &Path) {
    until(|| match fs::remove_dir_all(folder) {
        Ok(()) => true,
        Err(error) if error.kind() == std::io::ErrorKind::DirectoryNotEmpty => false,
        Err(error) => panic!("{}: {error}", folder.display()),
    });
}

#[test]
fn folder_writable_by_others_is_not_used() {
    let folder = tempfile::tempdir().unwrap();
    let bucket = Bucket::new("bucket");
    drop(in_front_of(bucket.clone(), &config(folder.path(), None)));
    let own = fs::read_dir(folder.path()).unwrap().flatten().next().unwrap().path();
    fs::set_permissions(&own, fs::Permissions::from_mode(0o770)).unwrap();
    assert!(in_front_of(bucket.clone(), &config(folder.path(), None)).properties().cache.is_none());
    fs::set_permissions(&own, fs::Permissions::from_mode(0o700)).unwrap();
    assert!(in_front_of(bucket.clone(), &config(folder.path(), None)).properties().cache.is_some());
    remove_folder(&own);
    std::os::unix::fs::symlink(folder.path(), &own).unwrap();
    assert!(in_front_of(bucket.clone(), &config(folder.path(), None)).properties().cache.is_none());
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    assert!(in_front_of(bucket, &config(&file, None)).properties().cache.is_none());
}

#[test]
fn reads_go_to_the_storage_if_the_disk_vanishes() {
    let folder = tempfile::tempdir().unwrap();
    let (bucket, bytes) = (Bucket::new("bucket"), bytes_of(1, 70_000));
    bucket.objects.put("folder/object", &bytes);
    let files = Indexed::new(bytes.len(), "one");
    let cache = folder.path().join("cache");
    let storage = in_front_of(bucket.clone(), &config(&cache, None));
    until(|| read(&*storage, &files, WHOLE) == bytes && !entries(&cache).is_empty());
    remove_folder(&cache);
    for _ in 0..3 {
        assert_eq!(read(&*storage, &files, WHOLE), bytes);
    }
    assert!(storage.properties().cache.unwrap().report().num_faults > 0);
}

#[test]
fn admin_lists_verifies_and_trims() {
    let folder = tempfile::tempdir().unwrap();
    let buckets = ["one", "other"].map(Bucket::new);
    let configured = config(folder.path(), None);
    let bytes = bytes_of(1, 70_000);
    let mut open = Vec::new();
    for (number, bucket) in buckets.iter().enumerate() {
        bucket.objects.put("folder/object", &bytes);
        let storage = in_front_of(bucket.clone(), &configured);
        let files = Indexed::new(bytes.len(), "tag");
        until(|| read(&*storage, &files, WHOLE) == bytes && entries(folder.path()).len() > number);
        open.push(storage);
    }
    let admin = CacheAdmin::open(&configured).unwrap();
    open.remove(0);
    let own: [Arc<dyn Storage>; 1] = [buckets[1].clone()];
    let shown = admin.datasets(&own).unwrap();
    let cost = Space::cost(entry::file_bytes(70_000));
    let dataset = |title: &str, is_used| CachedDataset {
        title: title.to_owned(),
        entries: 1,
        bytes: cost,
        is_used,
        is_own: title == "other",
    };
    assert_eq!(
        {
            let mut shown = shown;
            shown.sort_by_key(|one| one.is_own);
            shown
        },
        [dataset("one", false), dataset("other", true)]
    );
    let mut seen = 0;
    let mut verify = || {
        admin
            .verify(&mut |_| {
                seen += 1;
                true
            })
            .unwrap()
    };
    assert_eq!(verify().damaged, 0);
    let damaged = entries(folder.path()).pop().unwrap();
    // Foreign files in the cache's folder are ignored.
    for entry in entries(folder.path()) {
        fs::create_dir(entry.parent().unwrap().join("0-folder")).unwrap();
        fs::create_dir(entry.parent().unwrap().join("z-folder")).unwrap();
    }
    fs::write(&damaged, "x").unwrap();
    assert_eq!((verify().damaged, damaged.exists()), (1, false));
    assert_eq!(seen, 4);
    open.clear();
    let left = entries(folder.path()).len();
    assert!(admin.trim(&own).unwrap() <= cost);
    assert!(entries(folder.path()).len() <= left);
    admin.trim(&[]).unwrap();
    assert_eq!(entries(folder.path()).len(), 0);
}

#[test]
fn entry_is_written_without_proc() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = CacheFolder::open(folder.path()).unwrap().dataset(&[1; 32], "title").unwrap();
    assert_eq!(dataset.write_by("/proc/absent/fd", &[2; 32], b"bytes"), Ok(true));
    let mut buffer = Vec::new();
    assert_eq!(dataset.read(&[2; 32], 5, &mut buffer), Ok(Some(true)));
    assert_eq!(buffer, b"bytes");
    assert_eq!(entries(folder.path()).len(), 1);
}

/// Writes a file with times of an hour ago.
fn write_aged(path: &Path, bytes: &[u8]) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
    let then = SystemTime::now() - Duration::from_secs(3600);
    fs::File::options().write(true).open(path).unwrap().set_modified(then).unwrap();
}

/// Replaces a file's bytes by others of the same length, and restores its modification time.
fn rewrite_in_secret(path: &Path, bytes: &[u8]) {
    let before = fs::metadata(path).unwrap();
    // Until the file system's clock has advanced: it differs from the processor's.
    until(|| {
        fs::write(path, bytes).unwrap();
        let file = fs::File::options().write(true).open(path).unwrap();
        file.set_modified(before.modified().unwrap()).unwrap();
        let now = fs::metadata(path).unwrap();
        (now.ctime(), now.ctime_nsec()) != (before.ctime(), before.ctime_nsec())
    });
}

#[test]
fn changed_file_with_equal_size_and_time_is_read_again() {
    let folder = Folder(tempfile::tempdir().unwrap());
    let path = folder.0.path().join("root/file");
    write_aged(&path, &bytes_of(1, 1000));
    let storage = folder.storage();
    let files = Paths::new(["file"]);
    until(|| {
        assert_eq!(read(&*storage, &files, WHOLE), bytes_of(1, 1000));
        storage.properties().cache.unwrap().report().num_hits > 0
    });
    rewrite_in_secret(&path, &bytes_of(2, 1000));
    assert_eq!(read(&*storage, &files, WHOLE), bytes_of(2, 1000));
}

#[test]
fn recently_changed_file_is_not_cached() {
    let folder = Folder(tempfile::tempdir().unwrap());
    let path = folder.0.path().join("root/file");
    // Another file shows that the cache is ready.
    write_aged(&folder.0.path().join("root/old"), b"old");
    let storage = folder.storage();
    let files = Paths::new(["old", "file"]);
    until(|| {
        read(&*storage, &files, WHOLE);
        storage.properties().cache.unwrap().report().num_hits > 0
    });
    for seed in 0..20 {
        let now = SystemTime::now();
        fs::write(&path, bytes_of(seed, 1000)).unwrap();
        fs::File::options().write(true).open(&path).unwrap().set_modified(now).unwrap();
        let file = Location { file: FileId(1), ..WHOLE };
        assert_eq!(read(&*storage, &files, file), bytes_of(seed, 1000));
        let part = Location { file: FileId(1), ..part(0, None) };
        assert_eq!(read(&*storage, &files, part), bytes_of(seed, 1000));
    }
    assert_eq!(entries(&folder.0.path().join("cache")).len(), 1);
}

#[test]
fn frame_with_a_large_window_is_reported_with_a_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("root/shard.tar.zst");
    // A frame of one empty block whose window is 128 MiB: RFC 8878, 3.1.1.1.
    write_aged(&path, &[0x28, 0xB5, 0x2F, 0xFD, 0x00, 17 << 3, 0x01, 0x00, 0x00]);
    let storage: Arc<dyn Storage> =
        Arc::new(LocalFiles::open(&folder.path().join("root")).unwrap());
    let unpacked =
        UnpackedFiles::open(storage.as_ref(), &config(&folder.path().join("cache"), None));
    let storage = UnpackedStorage::new(storage, unpacked.unwrap());
    let mut buffer = Vec::new();
    let error =
        storage.read(&Paths::new(["shard.tar.zst"]), WHOLE, u64::MAX, &mut buffer).unwrap_err();
    assert!(
        matches!(error, StorageError::Window { window_bytes, .. } if window_bytes == 128 << 20)
    );
    assert!(error.to_string().contains("window of 128 MiB"), "{error}");
    assert!(error.to_string().contains("--long=23"), "{error}");
}
