//! The saved index: reused while it is up to date, otherwise rebuilt, shared between daemons, and optional.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_protocol::ids::SampleId;

use crate::testing::{age_directories, config_for, make_files};
use forebay_config::DatasetConfig;
use forebay_dataset::{DatasetError, IndexReport, OpenOptions, ScanProgress, no_progress};
use forebay_index::folder::cache::{IndexPlace, Turn};
use forebay_index::folder::index::{FolderIndex, IndexBytes};
use forebay_index::folder::open_folder;
use forebay_index::folder::scan::{FolderFormat, LooseFiles};
use forebay_observe::Clock;
use forebay_storage::{LocalFiles, Patience, PatientStorage};

const FORMAT: FolderFormat =
    FolderFormat { name: "image-folder", extensions: &[".jpg"], loose: LooseFiles::LeftOut };

struct Fixture {
    folder: tempfile::TempDir,
    root: PathBuf,
    config: DatasetConfig,
}

/// Two classes, one with an empty folder; all directories are an hour old.
fn fixture() -> Fixture {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("images");
    make_files(&root, &["a/1.jpg", "a/2.jpg", "b/0.jpg", "b/deep/3.jpg"], b"x");
    fs::create_dir(root.join("b/empty")).unwrap();
    age_directories(&root);
    let config = config_for(FORMAT.name, &root);
    Fixture { folder, root, config }
}

impl Fixture {
    fn open(&self) -> (FolderIndex, IndexReport) {
        open_folder(&self.config, &self.files(), FORMAT, OpenOptions::default()).unwrap()
    }

    fn open_over(&self, index: &File) -> Result<(FolderIndex, IndexReport), DatasetError> {
        let options = OpenOptions { previous_index: Some(index), ..OpenOptions::default() };
        open_folder(&self.config, &self.files(), FORMAT, options)
    }

    fn files(&self) -> LocalFiles {
        LocalFiles::open(&self.config.path).unwrap()
    }

    fn reused(&self) -> bool {
        self.open().1.reused
    }

    fn failure(&self) -> DatasetError {
        open_folder(&self.config, &self.files(), FORMAT, OpenOptions::default()).unwrap_err()
    }

    fn index_path(&self) -> PathBuf {
        self.config.index.clone().unwrap()
    }
}

#[test]
fn saved_index_is_mapped_and_reused() {
    let fixture = fixture();
    let (first, report) = fixture.open();
    assert!(!report.reused && first.is_mapped());
    assert_eq!(report.path, Some(fixture.index_path()));
    assert_eq!(
        (report.samples, report.classes, report.bytes),
        (4, 2, first.file().bytes().len() as u64)
    );
    let (second, report) = fixture.open();
    assert!(report.reused && second.is_mapped() && report.warnings.is_empty());
    assert_eq!(second.file().bytes()[..], first.file().bytes()[..]);
    let mut path = Vec::new();
    second.append_path(SampleId(3), &mut path);
    assert_eq!(path, b"b/deep/3.jpg");
    let left: Vec<_> = fs::read_dir(fixture.folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != "images" && name != "images.index")
        .collect();
    assert!(left.is_empty(), "left behind: {left:?}");
}

#[test]
fn any_change_of_a_directory_invalidates_the_index() {
    let changes: [fn(&Fixture); 5] = [
        |fixture| fs::write(fixture.root.join("a/0.jpg"), b"x").unwrap(),
        |fixture| fs::remove_file(fixture.root.join("a/1.jpg")).unwrap(),
        |fixture| fs::write(fixture.root.join("b/empty/4.jpg"), b"x").unwrap(),
        |fixture| fs::rename(fixture.root.join("b"), fixture.root.join("c")).unwrap(),
        |fixture| {
            fs::rename(fixture.root.join("b/deep/3.jpg"), fixture.root.join("b/deep/5.jpg"))
                .unwrap()
        },
    ];
    for change in changes {
        let fixture = fixture();
        let before = fixture.open().0.file().fingerprint();
        assert!(fixture.reused());
        change(&fixture);
        let (index, report) = fixture.open();
        assert!(!report.reused);
        assert_ne!(index.file().fingerprint(), before);
    }
}

#[test]
fn file_rewritten_in_place_does_not_invalidate_the_index() {
    let fixture = fixture();
    fixture.open();
    fs::write(fixture.root.join("a/1.jpg"), b"other bytes").unwrap();
    assert!(fixture.reused());
}

#[test]
fn directory_changed_just_before_the_scan_is_scanned_again() {
    let fixture = fixture();
    fs::File::open(fixture.root.join("a"))
        .unwrap()
        .set_modified(std::time::SystemTime::now())
        .unwrap();
    fixture.open();
    assert!(!fixture.reused());
    age_directories(&fixture.root);
    fixture.open();
    assert!(fixture.reused());
}

#[test]
fn different_lists_and_limits_have_different_indexes() {
    let mut fixture = fixture();
    fixture.open();
    fixture.config.limit = Some(2);
    let (index, report) = fixture.open();
    assert!(!report.reused && index.sample_count() == 2);
    assert!(fixture.reused());
    let ids = fixture.folder.path().join("ids.txt");
    fs::write(&ids, "a/1.jpg\n").unwrap();
    fixture.config.ids = Some(ids.clone());
    assert!(!fixture.reused());
    assert!(fixture.reused());
    fs::write(&ids, "a/2.jpg\n").unwrap();
    assert!(!fixture.reused());
}

#[test]
fn damaged_index_or_one_of_another_version_is_rebuilt() {
    let fixture = fixture();
    fixture.open();
    for place in [8, 40, 300] {
        let mut bytes = fs::read(fixture.index_path()).unwrap();
        bytes[place] ^= 1;
        // As an editor does: another file with the same name.
        fs::remove_file(fixture.index_path()).unwrap();
        fs::write(fixture.index_path(), bytes).unwrap();
        assert!(!fixture.reused(), "byte {place}");
        assert!(fixture.reused());
    }
}

#[test]
fn configured_index_path_with_other_content_is_not_overwritten() {
    let mut fixture = fixture();
    fs::write(fixture.index_path(), b"a letter to a friend").unwrap();
    let message = fixture.failure().to_string();
    assert!(message.contains("is no index of forebay, and is not overwritten"), "{message}");
    assert_eq!(fs::read(fixture.index_path()).unwrap(), b"a letter to a friend");

    fs::remove_file(fixture.index_path()).unwrap();
    fixture.open();
    let other = fixture.folder.path().join("other");
    make_files(&other, &["a/1.jpg"], b"x");
    fixture.config.path = other;
    let message = fixture.failure().to_string();
    assert!(message.contains("is the index of another dataset"), "{message}");
}

#[test]
fn index_inside_the_dataset_is_refused() {
    let mut fixture = fixture();
    fixture.config.index = Some(fixture.root.join("my.index"));
    assert!(matches!(fixture.failure(), DatasetError::IndexInside { .. }));
}

#[test]
fn unwritable_index_stays_in_memory_with_a_warning() {
    let mut fixture = fixture();
    // A file in place of a folder also stops the superuser.
    fs::write(fixture.folder.path().join("file"), b"").unwrap();
    fixture.config.index = Some(fixture.folder.path().join("file/below/my.index"));
    let (index, report) = fixture.open();
    assert_eq!((index.sample_count(), index.is_mapped(), report.path), (4, false, None));
    assert!(report.warnings[0].contains("stays in memory"), "{:?}", report.warnings);
    assert!(report.warnings[0].contains("dataset.index"));
}

#[test]
fn full_disk_keeps_the_index_in_memory_without_leftover_files() {
    let fixture = fixture();
    let mut temporary = fixture.index_path().into_os_string();
    temporary.push(format!(".{}.tmp", std::process::id()));
    std::os::unix::fs::symlink("/dev/full", &temporary).unwrap();
    let (index, report) = fixture.open();
    assert_eq!((index.sample_count(), index.is_mapped(), report.path), (4, false, None));
    assert!(report.warnings[0].contains("No space left on device"), "{:?}", report.warnings);
    assert!(fs::symlink_metadata(&temporary).is_err());
    assert!(!fixture.index_path().exists());
}

#[test]
fn next_scan_removes_temporary_files_of_killed_daemons() {
    let fixture = fixture();
    let beside = |suffix: &str| {
        let mut path = fixture.index_path().into_os_string();
        path.push(suffix);
        std::path::PathBuf::from(path)
    };
    let (left, other) = (beside(".99999999.tmp"), beside(".mine.tmp"));
    for path in [&left, &other] {
        fs::write(path, "").unwrap();
    }
    let (index, _) = fixture.open();
    assert!(index.is_mapped() && !left.exists() && other.exists());
}

#[test]
fn concurrent_daemons_scan_once_and_map_the_same_index() {
    let fixture = fixture();
    let held = IndexPlace { path: fixture.index_path(), is_configured: true, private_folder: None };
    let Turn::Own(lock) = held.take_turn(&no_progress).unwrap().unwrap() else { panic!("free") };
    let waiting = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let openers: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let progress = |progress: ScanProgress| {
                        waiting.fetch_or(progress.waiting_for_another, Ordering::Relaxed);
                        no_progress(progress)
                    };
                    let options = OpenOptions { progress: &progress, ..OpenOptions::default() };
                    open_folder(&fixture.config, &fixture.files(), FORMAT, options).unwrap()
                })
            })
            .collect();
        while !waiting.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        drop(lock);
        let opened: Vec<_> = openers.into_iter().map(|opener| opener.join().unwrap()).collect();
        assert_eq!(opened.iter().filter(|(_, report)| !report.reused).count(), 1);
        let bytes = |index: &FolderIndex| index.file().bytes().to_vec();
        assert!(opened.iter().all(|(index, _)| bytes(index) == bytes(&opened[0].0)));
    });
}

#[test]
fn error_names_an_unreadable_class_folder() {
    let fixture = fixture();
    let folder = fixture.root.join("b/deep");
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o000)).unwrap();
    // The superuser may read everything.
    if fs::read_dir(&folder).is_err() {
        let error = fixture.failure();
        assert!(matches!(error, DatasetError::Permission { .. }), "{error}");
        assert!(error.to_string().contains("b/deep"), "{error}");
    }
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn default_index_name_depends_on_path_and_options() {
    let place = |identity, options| IndexPlace::choose(None, &[identity; 32], &[options; 32]);
    assert_eq!(place(1, 2), place(1, 2));
    assert_ne!(place(1, 2), place(1, 3));
    assert_ne!(place(1, 2), place(2, 2));
    assert!(place(1, 2).path.parent().unwrap().ends_with("forebay/index"));
}

#[test]
fn private_folder_that_is_accessible_to_others_or_a_link_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let private = folder.path().join("private");
    let place = IndexPlace {
        path: private.join("forebay/index/my.index"),
        is_configured: false,
        private_folder: Some(private.clone()),
    };
    place.make_folder().unwrap();
    place.make_folder().unwrap();
    fs::set_permissions(&private, fs::Permissions::from_mode(0o755)).unwrap();
    assert!(place.make_folder().is_err());
    fs::set_permissions(&private, fs::Permissions::from_mode(0o700)).unwrap();
    fs::rename(&private, folder.path().join("elsewhere")).unwrap();
    std::os::unix::fs::symlink("elsewhere", &private).unwrap();
    assert!(place.make_folder().is_err());
}

#[test]
fn inherited_index_is_used_even_if_folders_changed() {
    let fixture = fixture();
    let (first, _) = fixture.open();
    let IndexBytes::Mapped(mapped) = first.file().bytes() else { panic!("it was saved") };
    make_files(&fixture.root, &["a/0.jpg", "c/9.jpg"], b"x");
    fs::remove_file(fixture.index_path()).unwrap();
    let (second, report) = fixture.open_over(mapped.file()).unwrap();
    assert!(report.reused);
    assert_eq!(second.file().bytes()[..], first.file().bytes()[..]);
    assert!(!fixture.index_path().exists());
}

#[test]
fn invalid_inherited_index_is_ignored_and_that_of_another_dataset_is_refused() {
    let fixture = fixture();
    let (first, _) = fixture.open();
    for bytes in ["", "no index"] {
        let text = fixture.folder.path().join("text");
        fs::write(&text, bytes).unwrap();
        let (index, report) = fixture.open_over(&File::open(&text).unwrap()).unwrap();
        assert_eq!(index.sample_count(), first.sample_count());
        assert!(report.warnings[0].contains("looked at anew"), "{:?}", report.warnings);
    }
    let other = self::fixture();
    let (index, _) = other.open();
    let IndexBytes::Mapped(mapped) = index.file().bytes() else { panic!("it was saved") };
    let failure = fixture.open_over(mapped.file()).unwrap_err();
    assert!(matches!(failure, DatasetError::KeptIndex { .. }));
}

#[test]
fn removed_class_folder_is_reported_by_name_and_not_an_outage() {
    let fixture = fixture();
    // So many directories that several threads check them.
    for number in 0..600 {
        fs::create_dir_all(fixture.root.join(format!("c/{number}"))).unwrap();
    }
    make_files(&fixture.root, &["c/0.jpg", "c/7/0.jpg", "d/1.jpg"], b"x");
    age_directories(&fixture.root);
    let open = |patience: &Patience| {
        let source = fixture.files();
        let source = PatientStorage { storage: &source, patience };
        let options = OpenOptions { patience: Some(patience), ..OpenOptions::default() };
        open_folder(&fixture.config, &source, FORMAT, options).unwrap()
    };
    let timeout = std::time::Duration::from_secs(3);
    let patience = Patience::at_first_start("train", timeout, Clock::system());
    assert_eq!(open(&patience).1.samples, 7);
    fs::remove_dir_all(fixture.root.join("c")).unwrap();
    let (_, report) = open(&patience);
    assert!(!patience.is_exhausted(), "it waited for a folder");
    assert_eq!((report.samples, report.reused), (5, false));
    let told = report.warnings.iter().find(|warning| warning.contains("gone")).unwrap();
    assert!(told.contains("2 samples") && told.contains("`c`"), "{told}");
}

#[test]
fn pauses_for_the_index_lock_grow() {
    let mut waited = std::time::Duration::ZERO;
    let mut looks = 0;
    while waited.as_secs() < 600 {
        waited += forebay_index::folder::cache::lock_pause(waited);
        looks += 1;
    }
    assert!(looks < 600, "{looks} looks in ten minutes");
}
