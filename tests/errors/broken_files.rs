//! The corpus of broken files under the real program: counted substitutes and a list under `substitute`, a name and a
//! reason under `fail`, and files that change while they are served.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_client::Error;
use forebay_tests::corpus::{self, Corpus};
use forebay_tests::taken::take_epoch;
use forebay_tests::{Daemon, TestDir, data, program};

use super::corpus::lay_out;

/// Good files for each broken one, so that one of the sixteen draws for a substitute finds one.
const GOOD_FILES_EACH: usize = 2;
/// What the program may hold at its peak: rings, threads and the reads under way, and none of the bombs.
const MOST_BYTES: u64 = 512 << 20;
/// What its address space is limited to: a bomb that were believed would meet this first.
const MOST_ADDRESSES_KIB: u64 = 3 << 20;

/// The configuration of a corpus laid out with good files; the broken names.
fn served(dir: &TestDir, corpus: &Corpus, errors: &str) -> std::path::PathBuf {
    let mut dict = lay_out(&dir.path(""), corpus);
    let class = dir.path(corpus.format).join("class");
    for number in 0..corpus.broken.len() * GOOD_FILES_EACH {
        std::fs::write(class.join(format!("0-{number:04}-{}", corpus.good.0)), &corpus.good.1)
            .unwrap();
    }
    let stages = dict["stage"].take();
    let text = format!(
        "order.epochs = 1\nbatch = {{ size = 16, last = \"short\" }}\nlimits.inflated_bytes = {}\n\
         dataset.path = {:?}\ndataset.format = {:?}\nring.memory = \"128MiB\"\n{errors}\n\
         [[stage]]\nname = \"work\"\nconcurrency = 2\noperations = {}\n",
        corpus::INFLATED_BYTES,
        dict["dataset"]["path"].as_str().unwrap(),
        corpus.format,
        stages[0]["operations"].to_string().replace("\":", "\" =")
    );
    dir.config("corpus.toml", &text)
}

#[test]
fn the_whole_corpus_is_substituted_counted_and_listed_within_bounded_memory() {
    let mut counted = 0;
    for corpus in corpus::all() {
        let dir = TestDir::new();
        let errors = "errors = { on_bad_sample = \"substitute\", budget = 100000, quarantine = \"bad.jsonl\" }";
        let config = served(&dir, &corpus, errors);
        // Twice: what is listed is listed once, and the stream is the same.
        let digests = [(); 2].map(|()| {
            let mut limited = dir.command(Path::new("sh"));
            limited.env("FOREBAY_LOG", "error");
            limited.args(["-c", &format!("ulimit -v {MOST_ADDRESSES_KIB}; exec \"$@\""), "sh"]);
            limited.arg(program::forebay()).args(["bench", "--json", "--digest"]).arg(&config);
            let outcome = program::run(&mut limited).json();
            let files = corpus.broken.len() * (1 + GOOD_FILES_EACH) + 1;
            assert_eq!(outcome["samples"].as_u64(), Some(files as u64), "{outcome}");
            let peak = outcome["peak_memory_bytes"].as_u64().unwrap();
            assert!(peak < MOST_BYTES, "{}: {peak} bytes", corpus.format);
            outcome["digest"].clone()
        });
        assert_eq!(digests[0], digests[1], "{}", corpus.format);
        let text = std::fs::read_to_string(dir.path("bad.jsonl")).unwrap();
        let mut listed = BTreeSet::new();
        for line in text.lines() {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            let path = Path::new(line["path"].as_str().unwrap()).to_owned();
            assert!(path.is_file() && line["reason"].as_str().unwrap().len() > 10, "{line}");
            assert!(line["substitute"].is_u64() && line["epoch"] == 0, "{line}");
            assert!(listed.insert(path), "listed twice: {line}");
        }
        let class = dir.path(corpus.format).join("class");
        let broken: BTreeSet<_> =
            corpus.broken.iter().map(|broken| class.join(&broken.name)).collect();
        assert_eq!(listed, broken, "{}", corpus.format);
        counted += listed.len();
    }
    println!("{counted} broken files were substituted and listed");
    assert!(counted >= 300, "{counted}");
}

#[test]
fn under_fail_the_first_broken_file_of_each_format_is_named_with_its_reason() {
    for corpus in corpus::all() {
        for way in ["bomb", "cut-in-half", "empty", "is-a-web-page"] {
            let broken: Vec<_> = corpus
                .broken
                .iter()
                .filter(|file| file.name.contains(way))
                .take(1)
                .cloned()
                .collect();
            assert_eq!(broken.len(), 1, "{} {way}", corpus.format);
            let one = Corpus { format: corpus.format, good: corpus.good.clone(), broken };
            let dir = TestDir::new();
            let config = served(&dir, &one, "errors.on_bad_sample = \"fail\"");
            let outcome = program::run(dir.forebay(&["bench"]).arg(&config));
            assert_eq!(outcome.status.code(), Some(1), "{outcome:?}");
            let name = &one.broken[0].name;
            assert!(
                outcome.stderr.contains(name) && outcome.stderr.contains("bad sample"),
                "{outcome:?}"
            );
        }
    }
}

#[test]
fn what_is_no_file_any_more_is_a_bad_sample_that_is_listed_with_what_it_is() {
    let dir = TestDir::new();
    let images = dir.path("images");
    data::images(&images, 24, 2);
    let keys = "order = { epochs = 1, shuffle = false }\nbatch.last = \"short\"\n\
                errors = { on_bad_sample = \"substitute\", budget = 9, quarantine = \"bad.jsonl\" }";
    let config = dir.config("train.toml", &data::image_config(&images, keys));
    // The index is known; then a file becomes a folder, another a pipe, a third a link to itself.
    assert!(program::run(dir.forebay(&["index"]).arg(&config)).status.success());
    let daemon = Daemon::serve(&dir, &config);
    let file = |number: u32| images.join(format!("class-000/{:08}.jpg", number * 2));
    for number in [1, 2] {
        std::fs::remove_file(file(number)).unwrap();
    }
    std::fs::create_dir(file(1)).unwrap();
    nix::unistd::mkfifo(&file(2), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let batches = take_epoch(&mut daemon.loader(0, 1).attach().unwrap());
    assert_eq!(forebay_tests::taken::ids(&batches).len(), 24);
    let stats = daemon.stats(&dir);
    let quarantine = dir.path("bad.jsonl");
    assert_eq!(stats["streams"][0]["quarantine"]["path"], quarantine.to_str().unwrap());
    let shown = program::run(dir.forebay(&["stats"]).arg(&daemon.socket)).stdout;
    assert!(shown.contains(quarantine.to_str().unwrap()), "{shown}");
    assert!(daemon.end(nix::sys::signal::Signal::SIGTERM).0.success());
    let text = std::fs::read_to_string(quarantine).unwrap();
    assert_eq!(text.lines().count(), 2, "{text}");
    assert!(text.contains("is a directory") && text.contains("is a pipe"), "{text}");
}

#[test]
fn a_file_that_is_rewritten_while_it_is_served_ends_in_a_batch_or_in_an_error_that_names_it() {
    let dir = TestDir::new();
    let images = dir.path("images");
    data::images(&images, 24, 2);
    let keys = "order.epochs = 3\nerrors = { on_bad_sample = \"substitute\", budget = 99 }";
    let config = dir.config("train.toml", &data::image_config(&images, keys));
    let path = images.join("class-000/00000002.jpg");
    let whole = std::fs::read(&path).unwrap();
    let daemon = Daemon::serve(&dir, &config);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // In place, as no one should: shorter, longer, whole.
            while !stop.load(Ordering::Relaxed) {
                for bytes in [&whole[..whole.len() / 3], &[&whole[..], &whole[..]].concat(), &whole]
                {
                    std::fs::write(&path, bytes).unwrap();
                }
            }
        });
        for _ in 0..3 {
            let mut loader = daemon.loader(0, 1).attach().unwrap();
            loop {
                match loader.next_batch() {
                    Ok(_) => {}
                    Err(Error::EpochsFinished { .. }) => break,
                    Err(Error::Storage(message)) => {
                        assert!(message.contains(path.to_str().unwrap()), "{message}");
                        break;
                    }
                    Err(other) => panic!("{other:?}"),
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    std::fs::write(&path, &whole).unwrap();
    assert_eq!(
        forebay_tests::taken::ids(&take_epoch(&mut daemon.loader(0, 1).attach().unwrap())).len(),
        24
    );
}
