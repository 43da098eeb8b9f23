//! Files that become something else while they are served: folders, pipes, nothing, and other files. Arrays that are as
//! expected are read past the dataset's own reader, so each format is tried.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_client::{Batch, Error, Loader};
use forebay_synth::ArrayContainer;
use forebay_tests::taken::{ids, take_epoch, until_error};
use forebay_tests::{Daemon, TestDir, data, program};
use nix::sys::signal::Signal;

const SAMPLES: u64 = 24;
const FORMATS: [&str; 3] = ["image-folder", "npy", "npz"];

/// A folder of files of a format, served in their order; the files by id.
fn serve(format: &str, keys: &str) -> (TestDir, Daemon, Vec<PathBuf>) {
    let dir = TestDir::new();
    let folder = dir.path("data");
    let mut operations = "";
    match format {
        "npy" => data::arrays(&folder, ArrayContainer::NpyFiles, SAMPLES),
        "npz" => data::arrays(&folder, ArrayContainer::NpzFiles, SAMPLES),
        _ => {
            data::images(&folder, SAMPLES, 2);
            operations = "{ op = \"decode-image\" }, { op = \"resize\", size = [8, 8] }";
        }
    }
    let text = format!(
        "dataset.path = {:?}\ndataset.format = \"{format}\"\norder = {{ epochs = 2, shuffle = false }}\n\
         batch = {{ size = 4, last = \"short\" }}\n{keys}\n\
         [[stage]]\nname = \"work\"\nconcurrency = 2\noperations = [{operations}]\n",
        folder.display()
    );
    let config = dir.config("train.toml", &text);
    // The index is known before anything changes.
    assert!(program::run(dir.forebay(&["index"]).arg(&config)).status.success());
    let daemon = Daemon::serve(&dir, &config);
    let mut files = files_in(&folder);
    // Ids are places in the sorted list.
    files.sort();
    assert_eq!(files.len() as u64, SAMPLES);
    (dir, daemon, files)
}

fn files_in(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let files = entries.flat_map(|path| if path.is_dir() { files_in(&path) } else { vec![path] });
    files.filter(|path| path.extension().is_some_and(|extension| extension.len() == 3)).collect()
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

#[test]
fn a_folder_or_a_pipe_in_a_files_place_is_a_bad_sample_that_is_listed() {
    for format in FORMATS {
        let keys =
            "errors = { on_bad_sample = \"substitute\", budget = 9, quarantine = \"bad.jsonl\" }";
        let (dir, daemon, files) = serve(format, keys);
        // The second is of the batch after the first one's; the first sample of all gives the schema.
        let (folder, pipe) = (&files[3], &files[6]);
        std::fs::remove_file(folder).unwrap();
        std::fs::create_dir(folder).unwrap();
        std::fs::remove_file(pipe).unwrap();
        nix::unistd::mkfifo(pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let ids = ids(&take_epoch(&mut attach(&daemon)));
        assert!(ids.len() as u64 == SAMPLES && !ids.contains(&3) && !ids.contains(&6), "{ids:?}");
        let list = dir.path("bad.jsonl");
        let named = daemon.stats(&dir)["streams"][0]["quarantine"]["path"].clone();
        assert_eq!(named, list.to_str().unwrap());
        let shown = program::run(dir.forebay(&["stats"]).arg(&daemon.socket)).stdout;
        assert!(shown.contains(list.to_str().unwrap()), "{shown}");
        assert!(daemon.end(Signal::SIGTERM).0.success());
        let listed = std::fs::read_to_string(list).unwrap();
        // The daemon is ahead, in the next epoch.
        let of_epoch = |line: &&str| line.contains("\"epoch\":0");
        assert_eq!(listed.lines().filter(of_epoch).count(), 2, "{listed}");
        for (path, what) in [(folder, "is a directory"), (pipe, "is a pipe")] {
            let line = listed.lines().find(|line| line.contains(path.to_str().unwrap()));
            assert!(line.is_some_and(|line| line.contains(what)), "{format}: {listed}");
        }
    }
}

#[test]
fn a_file_that_may_not_be_read_ends_the_run_by_name() {
    if nix::unistd::Uid::effective().is_root() {
        forebay_tests::skipped("nothing is unreadable for root");
        return;
    }
    for format in FORMATS {
        let (_place, daemon, files) = serve(format, "");
        std::fs::set_permissions(&files[6], std::fs::Permissions::from_mode(0o000)).unwrap();
        let (before, refused) = until_error(&mut attach(&daemon));
        assert_eq!(before.len(), 1);
        assert!(refused.to_string().contains(files[6].to_str().unwrap()), "{refused}");
    }
}

/// Also under `substitute`: whether a file is there depends on time.
#[test]
fn a_file_that_vanished_is_tried_again_and_then_ends_the_run_by_name() {
    for format in FORMATS {
        let keys = "errors.on_bad_sample = \"substitute\"\ndataset.outage_timeout = \"3s\"";
        let (dir, daemon, files) = serve(format, keys);
        let expected = take_epoch(&mut attach(&daemon));
        let (path, hidden) = (files[9].clone(), dir.path("hidden"));
        std::fs::rename(&path, &hidden).unwrap();
        let (before, error) = until_error(&mut attach(&daemon));
        assert_eq!(before, expected[..2]);
        let Error::Storage(told) = error else { panic!("{error:?}") };
        assert!(told.contains(path.to_str().unwrap()) && told.contains("vanished"), "{told}");
        // It comes back while it is tried again; retries go on for three seconds.
        let mut loader = attach(&daemon);
        let back = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(300));
            std::fs::rename(hidden, path).unwrap();
        });
        assert_eq!(take_epoch(&mut loader), expected, "{format}");
        back.join().unwrap();
        assert!(daemon.end(Signal::SIGTERM).1.contains("tried again"));
    }
}

/// A file that is gone, and a link to nothing: time decides, so this is a choice of its own.
#[test]
fn an_unreadable_file_is_substituted_where_that_is_asked_for_and_counted_apart() {
    for format in FORMATS {
        let keys = "errors = { on_unreadable = \"substitute\", budget = 2, quarantine = \"bad.jsonl\" }\n\
                    dataset.outage_timeout = \"1s\"";
        let (dir, daemon, files) = serve(format, keys);
        let expected = take_epoch(&mut attach(&daemon));
        let (gone, hidden) = (files[9].clone(), dir.path("hidden"));
        std::fs::rename(&gone, &hidden).unwrap();
        std::fs::remove_file(&files[17]).unwrap();
        std::os::unix::fs::symlink("nowhere", &files[17]).unwrap();
        let mut loader = attach(&daemon);
        let found = take_epoch(&mut loader);
        let changed: Vec<_> =
            ids(&expected).into_iter().zip(ids(&found)).filter(|(was, is)| was != is).collect();
        assert_eq!(changed.iter().map(|(was, _)| *was).collect::<Vec<_>>(), [9, 17], "{format}");
        let session = &daemon.stats(&dir)["sessions"][0];
        // Batches of the next epoch may be published already.
        assert!(session["samples_unreadable"].as_u64() >= Some(2), "{session}");
        assert_eq!(session["samples_substituted"], session["samples_unreadable"], "{session}");
        let listed = session["substituted"].as_array().unwrap();
        assert!(listed.iter().all(|one| one["unreadable"] == true), "{listed:?}");
        let reasons = format!("{} {}", listed[0]["reason"], listed[1]["reason"]);
        assert!(
            reasons.contains("vanished") && reasons.contains("is a link to nowhere"),
            "{reasons}"
        );
        drop(loader);
        // The same substitutes in another run, and the sample itself once its file is back.
        assert_eq!(take_epoch(&mut attach(&daemon)), found, "{format}");
        std::fs::rename(&hidden, &gone).unwrap();
        let mut third = attach(&daemon);
        assert_eq!(ids(&take_epoch(&mut third))[9], 9);
        let log = daemon.end(Signal::SIGTERM).1;
        assert!(log.contains("unreadable sample substituted"), "{log}");
        let lines = std::fs::read_to_string(dir.path("bad.jsonl")).unwrap();
        let first = lines.lines().filter(|line| line.contains("\"epoch\":0"));
        let unreadable = first.filter(|line| line.contains("\"unreadable\":true"));
        assert_eq!(unreadable.count(), 2, "{lines}");
    }
}

#[test]
fn defects_and_unreadable_files_are_chosen_for_apart() {
    let keys = "errors.on_unreadable = \"substitute\"\ndataset.outage_timeout = \"1s\"";
    let (_dir, daemon, files) = serve("image-folder", keys);
    std::fs::write(&files[6], "no image").unwrap();
    let (before, error) = until_error(&mut attach(&daemon));
    assert!(matches!(&error, Error::BadSample(_)), "{error:?}");
    assert_eq!(before.len(), 1);
}

/// Ends a thread that looks at it.
struct StopsWhenDropped<'a>(&'a AtomicBool);

impl Drop for StopsWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn while_a_file_is_rewritten_in_place_no_batch_has_other_bytes_than_its_ids_say() {
    for format in FORMATS {
        let keys = "errors = { on_bad_sample = \"substitute\", budget = 99 }";
        let (_place, daemon, files) = serve(format, keys);
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
            // A panic here would wait for the writer, and the test would never fail.
            let _stops = StopsWhenDropped(&stop);
            for _ in 0..10 {
                let mut loader = attach(&daemon);
                let error = loop {
                    match loader.next_batch() {
                        Ok(batch) => {
                            for (id, bytes) in batch.iter().flat_map(rows) {
                                assert_eq!(&bytes, &expected[&id], "{format}: sample {id}");
                            }
                        }
                        Err(error) => break error,
                    }
                };
                match error {
                    Error::EpochsFinished { .. } => {}
                    Error::Storage(told) if told.contains(files[5].to_str().unwrap()) => {}
                    other => panic!("{other:?}"),
                }
            }
        });
        std::fs::write(&files[5], &whole).unwrap();
        assert_eq!(ids(&take_epoch(&mut attach(&daemon))), (0..24).collect::<Vec<_>>());
    }
}
