//! Everything in `configs/` runs, on data of the kind that it asks for.

#![forbid(unsafe_code)]

mod completions;
mod init;

use std::collections::BTreeSet;
use std::path::Path;

use forebay_synth::ArrayContainer;
use forebay_tests::{TestDir, data, program, test_dir};

/// The data that the examples name.
fn lay_data_out(root: &Path) {
    for folder in ["imagenet/train", "imagenet/val", "photos", "crawled"] {
        data::images(&root.join(folder), 40, 4);
    }
    data::arrays(&root.join("arrays"), ArrayContainer::NpyFiles, 40);
    data::arrays(&root.join("records"), ArrayContainer::NpzFiles, 40);
    data::stack(&root.join("stack"), 40);
    std::fs::rename(root.join("stack/samples.npy"), root.join("samples.npy")).unwrap();
    data::sentences(&root.join("sentences"), 40);
    // In an order of one's own; a comment is no name.
    let classes = "class-003\nclass-001\nclass-000\nclass-002\n";
    std::fs::write(root.join("classes.txt"), classes).unwrap();
    let subset: String =
        (0..32).map(|number| format!("class-{:03}/{number:08}.jpg\n", number % 4)).collect();
    std::fs::write(root.join("subset.txt"), subset).unwrap();
    let broken = root.join("crawled/class-002/00000010.jpg");
    std::fs::write(&broken, &std::fs::read(&broken).unwrap()[..500]).unwrap();
}

#[test]
fn every_example_runs() {
    let dir = TestDir::new();
    lay_data_out(&dir.path("data"));
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs");
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        // `deploy/` has none.
        if path.is_dir() {
            continue;
        }
        assert_eq!(path.extension().unwrap(), "toml", "{}", path.display());
        names.insert(path);
    }
    assert!(names.len() >= 10, "{names:?}");
    for path in names {
        let is_by_length = std::fs::read_to_string(&path).unwrap().contains("max_rows");
        let size = if is_by_length { "batch.max_rows=4" } else { "batch.size=4" };
        let mut check = dir.forebay(&["check", "--set", size]);
        let plan = program::run(check.arg(&path).env("FOREBAY_DATA", dir.path("data")));
        assert!(plan.status.success(), "{}: {plan:?}", path.display());
        let mut bench = dir.forebay(&["bench", "--json", "--digest", "--batches", "2"]);
        bench.arg(&path).args(["--set", size, "--set", "cpu.policy=normal"]);
        let finished = program::run(bench.env("FOREBAY_DATA", dir.path("data")));
        assert!(finished.status.success(), "{}: {finished:?}", path.display());
        let report = finished.json();
        assert_eq!((&report["batches"], &report["samples"]), (&2.into(), &8.into()), "{report}");
        for figure in [
            "seconds",
            "samples_per_second",
            "cpu_seconds_per_1000_samples",
            "time_to_first_batch_seconds",
            "peak_memory_bytes",
        ] {
            assert!(report[figure].as_f64().unwrap() > 0.0, "{figure}: {report}");
        }
        for share in ["p50", "p99"] {
            assert!(report["wait_seconds"][share].is_number(), "{report}");
        }
        assert_eq!(report["stages"][0]["name"], "fetch");
        assert!(report["verdict"]["sentence"].is_string() && report["digest"].is_string());
    }
}

/// Boxes of `[n, 4]`, as detection data has them: some samples have none.
#[test]
fn ragged_rows_keep_their_other_dimensions() {
    let dir = TestDir::new();
    data::boxes(&dir.path("boxes"), 30);
    for compact in [false, true] {
        let text = format!(
            "dataset.path = {:?}\ndataset.format = \"npz\"\nbatch.size = 4\norder.epochs = 1\n\
             batch.last = \"short\"\nstage = [{{ name = \"unpack\", operations = [] }}]\n\
             output.boxes = {{ ragged = true, max_bytes = \"1KiB\", dtype = \"float64\", compact = {compact} }}\n",
            dir.path("boxes").display()
        );
        let config = dir.config("train.toml", &text);
        let mut loader = test_dir::loader(config.as_path(), 0, 1).attach().unwrap();
        let mut seen = BTreeSet::new();
        while let Some(batch) = loader.next_batch().unwrap() {
            let ids = batch.require("index").unwrap().as_slice::<i64>().unwrap();
            let boxes = batch.require("boxes").unwrap().ragged().unwrap();
            assert_eq!(boxes.row_shape(), [4]);
            for (row, id) in ids.iter().enumerate() {
                let count = usize::try_from(id % 5).unwrap();
                assert_eq!(boxes.row_len(row), Some(count));
                let expected = vec![*id as f64; 4 * count];
                assert_eq!(boxes.row::<f64>(row).unwrap(), expected);
                seen.insert(*id);
            }
            assert_eq!(boxes.row_len(ids.len()), None);
        }
        assert_eq!(seen.len(), 30);
    }
}

#[test]
fn index_saves_what_later_starts_use() {
    let dir = TestDir::new();
    let config = dir.image_stream(20, 4, "");
    let made = program::run(dir.forebay(&["index"]).arg(&config));
    assert!(made.status.success(), "{made:?}");
    for part in ["20 samples", "4 classes", "train.index"] {
        assert!(made.stdout.contains(part), "{}", made.stdout);
    }
    assert!(dir.path("train.index").is_file());
    let plan = program::run(dir.forebay(&["check"]).arg(&config));
    assert!(plan.status.success() && plan.stdout.contains("20 an epoch"), "{plan:?}");
}

#[test]
fn the_demo_runs_to_its_end() {
    let dir = TestDir::new();
    let mut demo = dir.forebay(&["demo", "--images", "130", "--classes", "4", "--data"]);
    let finished = program::run(demo.arg(dir.path("photos")));
    assert!(finished.status.success(), "{finished:?}");
    for part in ["digest", "samples/s", "Use it from Python"] {
        assert!(finished.stdout.contains(part), "{}", finished.stdout);
    }
}
