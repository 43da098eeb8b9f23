//! A storage with a cache in front: the suite, what is answered from the disk, and disks that fail.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::folder::CacheFolder;
use super::space::Space;
use super::*;
use crate::storage::conformance::{self, Fixture, Paths, part};
use crate::storage::listing::{Directories, DirectoryStamp, EntryKind};
use crate::storage::{CacheScope, LocalFiles, Objects, Untagged};

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

/// Objects whose stamps the index knows; reads are counted.
#[derive(Debug)]
struct Bucket {
    objects: Objects,
    name: String,
    untagged: Untagged,
    /// Whether objects have a tag when they are asked for.
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

impl Directories for Bucket {
    fn list(
        &self,
        directory: &[u8],
        visit: &mut dyn FnMut(&[u8], EntryKind),
    ) -> Result<DirectoryStamp, StorageError> {
        self.objects.list(directory, visit)
    }

    fn stamp(&self, directory: &[u8]) -> Result<DirectoryStamp, StorageError> {
        self.objects.stamp(directory)
    }
}

impl Storage for Bucket {
    fn full_path(&self, relative: &[u8]) -> PathBuf {
        self.objects.full_path(relative)
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

    fn open(&self, files: &dyn FileTable, location: Location) -> Result<Opened, StorageError> {
        self.objects.open(files, location)
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

/// One file and what the index knows of it.
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

/// The entries' files below a cache.
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

/// Does something until it is so. Nothing is kept before what lies there is counted, which a thread does.
fn until(mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "it does not happen");
    }
}

#[test]
fn local_files_with_a_cache_conform() {
    conformance::run(|| Folder(tempfile::tempdir().unwrap()));
    // Again, from what is kept by now.
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
fn what_was_read_once_comes_from_the_disk_for_every_process_and_run() {
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
        assert!(storage.cache().unwrap().report().num_hits >= 3);
    }
}

#[test]
fn an_object_that_changes_has_other_entries() {
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

/// A file of which the index knows nothing, or a size.
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
fn what_the_index_has_no_tag_of_is_asked_for_it_and_without_one_is_not_kept() {
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
fn what_never_changes_under_its_name_is_kept_by_it() {
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
        // Nobody is asked any more.
        bucket.objects.remove("folder/object");
        assert_eq!(read(&*storage, &files, WHOLE), bytes_of(1, 1000));
        assert_eq!(storage.cache().unwrap().report().num_kept, 2);
    }
}

#[test]
fn a_damaged_entry_is_removed_and_fetched_again() {
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
        assert_eq!(storage.cache().unwrap().report().num_damaged, number as u64 + 1);
        assert_eq!(fs::read(keep()).unwrap(), whole, "damage {number}");
    }
    // Whole, but another's.
    let other = entry::tail(&[9; 32], &bytes);
    fs::write(keep(), [&bytes[..], &other].concat()).unwrap();
    assert_eq!(read(&*storage, &files, WHOLE), bytes);
    assert_eq!(storage.cache().unwrap().report().num_damaged, 6);
}

#[test]
fn a_full_cache_keeps_no_more_and_a_dataset_that_nobody_uses_makes_room() {
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
        storage.cache().unwrap().report().num_full > 0
    });
    assert_eq!(entries(folder.path()).len(), 4);
    drop(storage);
    let new = Bucket::new("new");
    let storage = open(&new);
    until(|| {
        fill(&new, &*storage);
        storage.cache().unwrap().report().num_kept > 0
    });
    assert!(entries(folder.path()).len() <= 4);
    let names: Vec<_> = fs::read_dir(folder.path()).unwrap().flatten().collect();
    let datasets =
        fs::read_dir(names[0].path()).unwrap().flatten().filter(|entry| entry.path().is_dir());
    assert_eq!(datasets.count(), 1, "the old one is gone");
}

/// A process that makes room may take a folder away before the one that makes it has said that it uses it.
#[test]
fn a_dataset_that_is_taken_away_while_it_is_opened_is_made_again() {
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
        // One that is taken away as often as it is made is busy.
        let failed = |opened: &&Result<(), Errno>| !matches!(opened, Ok(()) | Err(Errno::BUSY));
        assert_eq!(opened.iter().find(failed), None);
    });
}

#[test]
fn a_folder_that_others_may_write_to_is_not_used() {
    let folder = tempfile::tempdir().unwrap();
    let bucket = Bucket::new("bucket");
    drop(in_front_of(bucket.clone(), &config(folder.path(), None)));
    let own = fs::read_dir(folder.path()).unwrap().flatten().next().unwrap().path();
    fs::set_permissions(&own, fs::Permissions::from_mode(0o770)).unwrap();
    assert!(in_front_of(bucket.clone(), &config(folder.path(), None)).cache().is_none());
    fs::set_permissions(&own, fs::Permissions::from_mode(0o700)).unwrap();
    assert!(in_front_of(bucket.clone(), &config(folder.path(), None)).cache().is_some());
    fs::remove_dir_all(&own).unwrap();
    std::os::unix::fs::symlink(folder.path(), &own).unwrap();
    assert!(in_front_of(bucket.clone(), &config(folder.path(), None)).cache().is_none());
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    assert!(in_front_of(bucket, &config(&file, None)).cache().is_none());
}

#[test]
fn a_disk_that_vanishes_is_gone_round() {
    let folder = tempfile::tempdir().unwrap();
    let (bucket, bytes) = (Bucket::new("bucket"), bytes_of(1, 70_000));
    bucket.objects.put("folder/object", &bytes);
    let files = Indexed::new(bytes.len(), "one");
    let cache = folder.path().join("cache");
    let storage = in_front_of(bucket.clone(), &config(&cache, None));
    until(|| read(&*storage, &files, WHOLE) == bytes && !entries(&cache).is_empty());
    fs::remove_dir_all(&cache).unwrap();
    for _ in 0..3 {
        assert_eq!(read(&*storage, &files, WHOLE), bytes);
    }
    assert!(storage.cache().unwrap().report().num_faults > 0);
}

#[test]
fn the_keeper_shows_verifies_and_trims() {
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
    let keeper = CacheKeeper::open(&configured).unwrap();
    open.remove(0);
    let own: [Arc<dyn Storage>; 1] = [buckets[1].clone()];
    let shown = keeper.datasets(&own).unwrap();
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
        keeper
            .verify(&mut |_| {
                seen += 1;
                true
            })
            .unwrap()
    };
    assert_eq!(verify().damaged, 0);
    let damaged = entries(folder.path()).pop().unwrap();
    fs::write(&damaged, "x").unwrap();
    assert_eq!((verify().damaged, damaged.exists()), (1, false));
    assert_eq!(seen, 4);
    open.clear();
    let left = entries(folder.path()).len();
    assert!(keeper.trim(&own).unwrap() <= cost);
    assert!(entries(folder.path()).len() <= left);
    keeper.trim(&[]).unwrap();
    assert_eq!(entries(folder.path()).len(), 0);
}
