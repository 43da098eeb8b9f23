//! `output.FIELD.on`: what a client finishes is what the daemon would have written, to the bit, and the stream is the same.

use std::path::Path;

use forebay_client::finish::{FinishPlan, Mix, finish_rows, mix_rows};
use forebay_client::{Batch, Builder, DType, Error, Loader};
use forebay_tests::test_dir::loader;
use forebay_tests::{TestDir, data, program};

/// Means and deviations that single precision does not hold exactly.
const NORMALIZED: &str = ", mean = [0.485, 0.456, 0.406], std = [0.229, 0.224, 0.225]";

/// A configuration of one epoch whose images are centred on larger black ones, and so have padding of zeros.
fn config(dir: &TestDir, keys: &str) -> std::path::PathBuf {
    let text = data::image_config(
        &dir.path("images"),
        &format!("order.epochs = 1\noutput.image = {{ {keys} }}"),
    );
    dir.config(
        "train.toml",
        &text.replace("\"random-resized-crop\", size = 32", "\"center-crop\", size = [44, 50]"),
    )
}

fn built(config: &Path, on: &str) -> Builder {
    loader(config, 0, 1).override_key("output.image.on", format!("{on:?}")).unfinished(on == "gpu")
}

/// A batch, with its image finished if that was left to be done.
#[derive(PartialEq, Eq)]
struct Content {
    dtype: DType,
    shape: Vec<u64>,
    image: Vec<u8>,
    /// The bytes of all other tensors.
    others: Vec<Vec<u8>>,
}

fn content(batch: &Batch) -> Content {
    let image = batch.require("image").unwrap();
    let others = batch.tensors().filter(|tensor| tensor.name() != "image");
    let others = others.map(|tensor| tensor.bytes().to_vec()).collect();
    let (dtype, shape) = (image.dtype(), image.shape().to_vec());
    let Some(plan) = FinishPlan::of(image.spec()).unwrap() else {
        return Content { dtype, shape, image: image.bytes().to_vec(), others };
    };
    assert_eq!((dtype, shape), (DType::U8, vec![batch.rows(), 44, 50, 3]));
    let rows = usize::try_from(batch.rows()).unwrap();
    let mut finished = vec![0xee; rows * usize::try_from(plan.finished_row_bytes()).unwrap()];
    finish_rows(&plan, image.bytes(), rows, &mut finished).unwrap();
    let spec = plan.finished();
    mix_rows(spec, &image.mixes().unwrap(), rows, &mut finished).unwrap();
    let shape = [&[batch.rows()], spec.row_shape.as_slice()].concat();
    Content { dtype: spec.dtype, shape, image: finished, others }
}

fn rest(loader: &mut Loader) -> Vec<Content> {
    std::iter::from_fn(|| loader.next_batch().unwrap().map(|batch| content(&batch))).collect()
}

#[test]
fn what_a_client_finishes_is_what_the_daemon_writes_to_the_bit() {
    let dir = TestDir::new();
    data::images(&dir.path("images"), 21, 3);
    let mut streams = vec![("dtype = \"uint8\"".to_owned(), DType::U8)];
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for layout in ["NCHW", "NHWC"] {
            for normalized in ["", NORMALIZED] {
                let name = dtype.name();
                let keys = format!("dtype = \"{name}\", layout = \"{layout}\"{normalized}");
                streams.push((keys, dtype));
            }
        }
    }
    for (keys, dtype) in streams {
        let config = config(&dir, &keys);
        let [on_cpu, on_gpu] =
            ["cpu", "gpu"].map(|on| rest(&mut built(&config, on).attach().unwrap()));
        assert_eq!((on_cpu.len(), on_cpu[0].dtype), (2, dtype), "{keys}");
        assert!(on_cpu == on_gpu, "{keys}");
    }
}

const MIXUP: &str = "{ op = \"mixup\", alpha = 0.7 }";
const CUTMIX: &str = "{ op = \"cutmix\", alpha = 0.9 }";

/// As [`config`], with these operations on batches.
fn mixed(dir: &TestDir, keys: &str, operations: &str) -> std::path::PathBuf {
    let path = config(dir, keys);
    let text = std::fs::read_to_string(&path).unwrap();
    let operations = format!("order.epochs = 1\nbatch.operations = [{operations}]");
    std::fs::write(&path, text.replace("order.epochs = 1", &operations)).unwrap();
    path
}

/// Seven rows, so that one stays, and three in the last batch.
fn built_for_mixes(config: &Path, on: &str) -> Builder {
    built(config, on).override_key("batch.size", "7").override_key("batch.last", "\"short\"")
}

#[test]
fn what_a_client_mixes_is_what_the_daemon_mixes_to_the_bit() {
    let dir = TestDir::new();
    data::images(&dir.path("images"), 45, 3);
    let choice = format!("{{ op = \"choice\", operations = [{MIXUP}, {CUTMIX}] }}");
    let soft = |operation: &str| operation.replace(" }", ", classes = 3 }");
    let (mut streams, mut seen) = (Vec::new(), [0; 3]);
    for dtype in ["float32", "float16", "bfloat16"] {
        for (layout, operations) in [("NCHW", MIXUP), ("NHWC", CUTMIX), ("NCHW", &*choice)] {
            let keys = format!("dtype = \"{dtype}\", layout = \"{layout}\"{NORMALIZED}");
            streams.push((keys, operations.to_owned()));
        }
    }
    streams.push(("dtype = \"uint8\"".to_owned(), MIXUP.to_owned()));
    streams.push(("dtype = \"float32\"".to_owned(), soft(MIXUP)));
    for (keys, operations) in streams {
        let config = mixed(&dir, &keys, &operations);
        let on_cpu = rest(&mut built_for_mixes(&config, "cpu").attach().unwrap());
        let mut loader = built_for_mixes(&config, "gpu").attach().unwrap();
        let mut on_gpu = Vec::new();
        while let Some(batch) = loader.next_batch().unwrap() {
            for mix in batch.require("image").unwrap().mixes().unwrap() {
                seen[match mix {
                    Mix::Nothing => 0,
                    Mix::Sum { .. } => 1,
                    Mix::Part { .. } => 2,
                }] += 1;
            }
            on_gpu.push(content(&batch));
        }
        assert_eq!((on_cpu.len(), on_cpu[6].shape[0]), (7, 3), "{keys}");
        assert!(on_cpu == on_gpu, "{keys} {operations}");
    }
    assert!(seen[0] == 0 && seen[1] > 30 && seen[2] > 25, "{seen:?}");
}

/// The daemon that takes a dead one's place is given the plan as text.
#[test]
fn a_restarted_daemon_still_leaves_the_finish_to_the_client() {
    let dir = TestDir::new();
    data::images(&dir.path("images"), 33, 3);
    let config = config(&dir, "dtype = \"float32\"");
    let expected = rest(&mut built(&config, "cpu").attach().unwrap());
    let mut loader = built(&config, "gpu").attach().unwrap();
    let mut taken = vec![content(&loader.next_batch().unwrap().unwrap())];
    let daemon = loader.private_process().unwrap();
    assert!(forebay_tests::signal(daemon, nix::sys::signal::SIGKILL));
    taken.extend(rest(&mut loader));
    assert!(taken == expected);
}

#[test]
fn a_client_without_a_gpu_is_refused_with_the_remedy_and_its_override_helps() {
    let dir = TestDir::new();
    data::images(&dir.path("images"), 8, 2);
    let config = config(&dir, "dtype = \"float32\", on = \"gpu\"");
    let Err(Error::Config(message)) = loader(&*config, 0, 1).attach() else {
        panic!("bytes would be handed out where the configuration says float32");
    };
    for part in [
        "leaves `image` to a GPU",
        "float32 [3, 44, 50] of its uint8 [44, 50, 3]",
        "give it a GPU device",
        "`output.image.on = \"cpu\"`",
    ] {
        assert!(message.contains(part), "{part} is not in: {message}");
    }
    let mut loader = built(&config, "cpu").attach().unwrap();
    let batch = loader.next_batch().unwrap().unwrap();
    assert_eq!(batch.require("image").unwrap().dtype(), DType::F32);
}

#[test]
fn check_shows_both_forms_and_bench_measures_what_lies_in_the_ring() {
    let dir = TestDir::new();
    data::images(&dir.path("images"), 8, 2);
    for (dtype, percent) in [("float32", 25), ("bfloat16", 50), ("uint8", 100)] {
        let config = config(&dir, &format!("dtype = {dtype:?}, on = \"gpu\""));
        let plan = program::run(dir.forebay(&["check"]).arg(&config)).stdout;
        let line = format!(
            "uint8 [8, 44, 50, 3], finished on the GPU to {dtype} [8, 3, 44, 50]; 51.6 KiB a batch over the bus, \
             {percent} % of the finished bytes"
        );
        assert!(plan.contains(&line), "{plan}");
        assert!(plan.contains("on = \"gpu\""), "{plan}");
        let report = program::run(dir.forebay(&["bench", "--json"]).arg(&config)).json();
        assert_eq!(report["samples"], 8, "{report}");
    }
}
