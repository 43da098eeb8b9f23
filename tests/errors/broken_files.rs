//! The corpus of broken files through the program: each is refused with a reason, counted and listed, within bounded
//! memory.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use forebay_tests::corpus::{self, Corpus, INFLATED_BYTES};
use forebay_tests::{TestDir, program};

/// Good files for each broken one, so that one of the sixteen draws for a substitute finds one.
const GOOD_FILES_EACH: usize = 2;
/// What the program may hold at its peak: rings, threads and the reads under way, and none of the bombs.
const MOST_BYTES: u64 = 512 << 20;
/// What its address space is limited to: a bomb that were believed would meet this first.
const MOST_ADDRESSES_KIB: u64 = 3 << 20;

/// A corpus's files in a folder, the good ones first, and the configuration that reads them.
fn lay_out(dir: &TestDir, corpus: &Corpus) -> PathBuf {
    let class = dir.path(corpus.format).join("class");
    std::fs::create_dir_all(&class).unwrap();
    // Ids are places in the sorted list, and the first sample gives the schema: names that come first.
    for number in 0..=corpus.broken.len() * GOOD_FILES_EACH {
        let name = format!("0-{number:04}-{}", corpus.good.0);
        std::fs::write(class.join(name), &corpus.good.1).unwrap();
    }
    for broken in &corpus.broken {
        std::fs::write(class.join(&broken.name), &broken.bytes).unwrap();
    }
    let operations = match corpus.format {
        "image-folder" => "{ op = \"decode-image\" }, { op = \"resize\", size = [8, 8] }",
        _ => "",
    };
    let text = format!(
        "order.epochs = 1\nbatch = {{ size = 16, last = \"short\" }}\nlimits.inflated_bytes = {INFLATED_BYTES}\n\
         dataset.path = {:?}\ndataset.format = {:?}\nring.memory = \"128MiB\"\n\
         errors = {{ on_bad_sample = \"substitute\", budget = 100000, quarantine = \"bad.jsonl\" }}\n\
         [[stage]]\nname = \"work\"\nconcurrency = 2\noperations = [{operations}]\n",
        dir.path(corpus.format).display(),
        corpus.format,
    );
    dir.config("corpus.toml", &text)
}

#[test]
fn the_whole_corpus_is_substituted_counted_and_listed_within_bounded_memory() {
    let mut counted = 0;
    for corpus in corpus::all() {
        let dir = TestDir::new();
        let config = lay_out(&dir, &corpus);
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
            let reason = line["reason"].as_str().unwrap();
            assert!(path.is_file() && reason.len() > 10 && !reason.contains('\n'), "{line}");
            assert!(line["substitute"].is_u64() && line["epoch"] == 0, "{line}");
            assert!(listed.insert(path), "listed twice: {line}");
        }
        let class = dir.path(corpus.format).join("class");
        let broken: BTreeSet<_> =
            corpus.broken.iter().map(|broken| class.join(&broken.name)).collect();
        let differ: Vec<_> = listed.symmetric_difference(&broken).collect();
        assert!(differ.is_empty(), "{}: {differ:?}", corpus.format);
        counted += listed.len();
    }
    println!("{counted} broken files were substituted and listed");
    assert!(counted >= 300, "{counted}");
}
