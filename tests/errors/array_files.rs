//! Files of arrays that become something else while they are served: folders, pipes, nothing, and other files. They are
//! read past the dataset's own reader where they are as expected, so what holds for images is shown for them too.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_client::{Batch, Error, Loader};
use forebay_synth::ArrayContainer;
use forebay_tests::taken::{ids, take_epoch};
use forebay_tests::{Daemon, TestDir, data, program};

const SAMPLES: u64 = 24;

/// A folder of files of a format, served in their order; the files by id.
fn serve(container: ArrayContainer, keys: &str) -> (TestDir, Daemon, Vec<PathBuf>) {
    let dir = TestDir::new();
    let (folder, format) = match container {
        ArrayContainer::NpzFiles => (dir.path("npz-data"), "npz"),
        _ => (dir.path("npy-data"), "npy"),
    };
    data::arrays(&folder, container, SAMPLES);
    let mut files = files_in(&folder, format);
    // Ids are places in the sorted list.
    files.sort();
    assert_eq!(files.len() as u64, SAMPLES);
    let text = format!(
        "dataset.path = {:?}\ndataset.format = \"{format}\"\norder = {{ epochs = 2, shuffle = false }}\n\
         batch = {{ size = 4, last = \"short\" }}\n{keys}\n\
         [[stage]]\nname = \"copy\"\nconcurrency = 2\noperations = []\n",
        folder.display()
    );
    let config = dir.config("train.toml", &text);
    // The index is known before anything changes.
    assert!(program::run(dir.forebay(&["index"]).arg(&config)).status.success());
    let daemon = Daemon::serve(&dir, &config);
    (dir, daemon, files)
}

fn files_in(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| match path.is_dir() {
            true => files_in(&path, extension),
            false => vec![path],
        })
        .filter(|path| path.extension().is_some_and(|found| found == extension))
        .collect()
}

/// The bytes of each row, by the id in it.
fn rows(batch: &Batch) -> Vec<(i64, Vec<u8>)> {
    let ids = batch.require("index").unwrap().as_slice::<i64>().unwrap().to_vec();
    let mut rows: Vec<(i64, Vec<u8>)> = ids.into_iter().map(|id| (id, Vec::new())).collect();
    let count = rows.len();
    for tensor in batch.tensors() {
        let bytes = tensor.bytes();
        for (row, part) in rows.iter_mut().zip(bytes.chunks(bytes.len() / count)) {
            row.1.extend(part);
        }
    }
    rows
}

fn attach(daemon: &Daemon) -> Loader {
    daemon.loader(0, 1).attach().unwrap()
}

const BOTH: [ArrayContainer; 2] = [ArrayContainer::NpyFiles, ArrayContainer::NpzFiles];

#[test]
fn a_folder_or_a_pipe_in_an_array_files_place_is_a_bad_sample_that_is_listed() {
    for container in BOTH {
        let keys =
            "errors = { on_bad_sample = \"substitute\", budget = 9, quarantine = \"bad.jsonl\" }";
        let (dir, daemon, files) = serve(container, keys);
        // The second is of the batch after the first one's; the first sample of all gives the schema.
        let (folder, pipe) = (&files[3], &files[6]);
        std::fs::remove_file(folder).unwrap();
        std::fs::create_dir(folder).unwrap();
        std::fs::remove_file(pipe).unwrap();
        nix::unistd::mkfifo(pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let batches = take_epoch(&mut attach(&daemon));
        let ids = ids(&batches);
        assert!(ids.len() as u64 == SAMPLES && !ids.contains(&3) && !ids.contains(&6), "{ids:?}");
        assert!(daemon.end(nix::sys::signal::Signal::SIGTERM).0.success());
        let listed = std::fs::read_to_string(dir.path("bad.jsonl")).unwrap();
        for (path, what) in [(folder, "is a directory"), (pipe, "is a pipe")] {
            let line = listed.lines().find(|line| line.contains(path.to_str().unwrap()));
            assert!(line.is_some_and(|line| line.contains(what)), "{container:?}: {listed}");
        }
    }
}

#[test]
fn an_array_file_that_may_not_be_read_ends_the_run_by_name() {
    if nix::unistd::Uid::effective().is_root() {
        // Nothing is unreadable for root.
        return;
    }
    for container in BOTH {
        let (_place, daemon, files) = serve(container, "");
        std::fs::set_permissions(&files[6], std::fs::Permissions::from_mode(0o000)).unwrap();
        let mut loader = attach(&daemon);
        assert!(loader.next_batch().unwrap().is_some());
        let refused = loader.next_batch().unwrap_err().to_string();
        assert!(refused.contains(files[6].to_str().unwrap()), "{refused}");
    }
}

#[test]
fn an_array_file_that_vanished_ends_the_run_by_name_after_all_before_it_and_may_come_back() {
    for container in BOTH {
        let (dir, daemon, files) = serve(container, "errors.on_bad_sample = \"substitute\"");
        let expected = take_epoch(&mut attach(&daemon));
        let hidden = dir.path("hidden");
        std::fs::rename(&files[9], &hidden).unwrap();
        let mut loader = attach(&daemon);
        for expected in &expected[..2] {
            let batch = loader.next_batch().unwrap().unwrap();
            assert_eq!(&forebay_tests::Taken::of(&batch), expected);
        }
        let Err(Error::Storage(told)) = loader.next_batch() else { panic!("the file is gone") };
        assert!(told.contains(files[9].to_str().unwrap()) && told.contains("vanished"), "{told}");
        drop(loader);
        std::fs::rename(&hidden, &files[9]).unwrap();
        assert_eq!(take_epoch(&mut attach(&daemon)), expected, "{container:?}");
    }
}

/// Ends a thread that looks at it.
struct StopsWhenDropped<'a>(&'a AtomicBool);

impl Drop for StopsWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn while_an_array_file_is_rewritten_in_place_no_batch_has_other_bytes_than_its_ids_say() {
    for container in BOTH {
        let keys = "errors = { on_bad_sample = \"substitute\", budget = 99 }";
        let (_place, daemon, files) = serve(container, keys);
        let mut expected = BTreeMap::new();
        let mut loader = attach(&daemon);
        while let Some(batch) = loader.next_batch().unwrap() {
            expected.extend(rows(&batch));
        }
        drop(loader);
        assert_eq!(expected.len() as u64, SAMPLES);
        let whole = std::fs::read(&files[5]).unwrap();
        let shorter = whole[..whole.len() - 5].to_vec();
        let longer = [&whole[..], &whole[..]].concat();
        // As long as it was, and something else.
        let mut other = whole.clone();
        other[..8].fill(0);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    for bytes in [&shorter, &longer, &other, &whole] {
                        std::fs::write(&files[5], bytes).unwrap();
                    }
                }
            });
            // A panic here would wait for the writer, and nobody would hear of it.
            let _stops = StopsWhenDropped(&stop);
            for _ in 0..10 {
                let mut loader = attach(&daemon);
                loop {
                    match loader.next_batch() {
                        Ok(None) => {}
                        Ok(Some(batch)) => {
                            for (id, bytes) in rows(&batch) {
                                assert_eq!(&bytes, &expected[&id], "{container:?}: sample {id}");
                            }
                        }
                        Err(Error::EpochsFinished { .. }) => break,
                        Err(Error::Storage(told)) => {
                            assert!(told.contains(files[5].to_str().unwrap()), "{told}");
                            break;
                        }
                        Err(other) => panic!("{other:?}"),
                    }
                }
            }
        });
        std::fs::write(&files[5], &whole).unwrap();
        assert_eq!(ids(&take_epoch(&mut attach(&daemon))), (0..24).collect::<Vec<_>>());
    }
}
