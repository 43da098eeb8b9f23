//! The corpus of broken files, in the test's own process: each is refused with a reason, within bounded memory.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use forebay_config::Config;
use forebay_order::DrawKey;
use forebay_pipeline::{Row, SamplePlan, SampleTask, WorkerScratch};
use forebay_protocol::ids::SampleId;
use forebay_source::dataset::{self, Dataset};
use forebay_source::location::FileId;
use forebay_tests::corpus::{self, Corpus, INFLATED_BYTES};

/// What the whole corpus may take beside what the process had: far more than a broken file needs, far less than any of
/// the bombs.
const MOST_BYTES: u64 = 256 << 20;

struct Rows(Vec<Vec<u8>>);

impl Row for Rows {
    fn dense(&mut self, tensor: usize) -> &mut [u8] {
        &mut self.0[tensor]
    }

    fn ragged(&mut self, _tensor: usize, _bytes: u64) -> Option<&mut [u8]> {
        None
    }
}

/// The corpus's files in a folder, the good one first, and the configuration that reads them.
pub(crate) fn lay_out(folder: &Path, corpus: &Corpus) -> serde_json::Value {
    let data = folder.join(corpus.format);
    let class = data.join("class");
    std::fs::create_dir_all(&class).unwrap();
    // Ids are places in the sorted list: a name that comes first.
    std::fs::write(class.join(format!("00-{}", corpus.good.0)), &corpus.good.1).unwrap();
    for broken in &corpus.broken {
        std::fs::write(class.join(&broken.name), &broken.bytes).unwrap();
    }
    let operations = match corpus.format {
        "image-folder" => serde_json::json!([
            { "op": "decode-image" }, { "op": "resize", "size": [8, 8] },
        ]),
        _ => serde_json::json!([]),
    };
    serde_json::json!({
        "dataset": { "path": data, "format": corpus.format, "index": folder.join("index") },
        "limits": { "inflated_bytes": INFLATED_BYTES },
        "batch": { "size": 1 },
        "stage": [{ "name": "work", "operations": operations }],
    })
}

fn peak_bytes() -> u64 {
    forebay_observe::ProcessMetrics::now().peak_bytes
}

#[test]
fn every_broken_file_is_refused_with_a_reason_and_without_a_panic_or_its_bombs_memory() {
    let before = peak_bytes();
    let (mut refused, mut accepted) = (0, Vec::new());
    for corpus in corpus::all() {
        let folder = tempfile::tempdir().unwrap();
        let dict = lay_out(folder.path(), &corpus);
        let config = Config::from_json("corpus", folder.path(), &dict, &[]).unwrap();
        let dataset =
            dataset::open(&config.dataset, dataset::OpenOptions::default()).unwrap().dataset;
        assert_eq!(dataset.sample_count(), corpus.broken.len() as u64 + 1);
        let plan = SamplePlan::compile(&config, dataset.as_ref()).unwrap();
        let mut scratch = WorkerScratch::default();
        let mut run = |id: u64| run_one(&plan, dataset.as_ref(), &mut scratch, folder.path(), id);
        assert_eq!(run(0), Ok(()), "the good file");
        for id in 1..dataset.sample_count() {
            let path = String::from_utf8_lossy(&dataset.path(FileId(id))).into_owned();
            match run(id) {
                Ok(()) => accepted.push(path),
                Err(reason) => {
                    assert!(reason.len() > 10 && !reason.contains('\n'), "{path}: {reason:?}");
                    refused += 1;
                }
            }
            // What a file has left behind does not spoil the next.
            if id % 16 == 0 {
                assert_eq!(run(0), Ok(()), "the good file after sample {id}");
            }
        }
    }
    let grown = peak_bytes().saturating_sub(before);
    println!("{refused} broken files are refused; the peak of memory grew by {} MiB", grown >> 20);
    assert!(accepted.is_empty(), "read in spite of what is broken: {accepted:#?}");
    assert!(refused >= 300, "{refused}");
    assert!(grown < MOST_BYTES, "{grown} bytes");
}

fn run_one(
    plan: &SamplePlan,
    dataset: &dyn Dataset,
    scratch: &mut WorkerScratch,
    folder: &Path,
    id: u64,
) -> Result<(), String> {
    let path = String::from_utf8(dataset.path(FileId(id))).unwrap();
    // The dataset's folder is the only folder of `folder`.
    let root = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let bytes = root.map(|root| root.join(&path)).find_map(|file| std::fs::read(file).ok());
    let key = DrawKey { seed: 0, epoch: 0, sample: id };
    let mut task = SampleTask::new(SampleId(id), key, bytes.unwrap());
    let pitch = |tensor: &forebay_protocol::tensor::TensorSpec| tensor.row_pitch_bytes().unwrap();
    let rows = plan.tensors().iter().map(|tensor| vec![0; usize::try_from(pitch(tensor)).unwrap()]);
    let mut rows = Rows(rows.collect());
    let run = || plan.run(0, &mut task, dataset, &mut rows, scratch);
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(outcome) => outcome.map_err(|defect| defect.0),
        Err(_) => panic!("{path} makes a decoder panic"),
    }
}
