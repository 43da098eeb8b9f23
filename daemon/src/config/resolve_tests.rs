//! Configurations as users write them: what they become, and what the mistakes in them say.

use std::ffi::OsString;
use std::num::NonZeroU32;

use forebay_protocol::tensor::DType;

use super::*;
use crate::config::{Concurrency, ImageLayout};

fn environment(name: &str) -> Option<OsString> {
    (name == "DATA").then(|| OsString::from("/data"))
}

fn read_with(text: &str, overrides: &[Override]) -> Result<Config, ConfigError> {
    let origin = Origin {
        name: "train".into(),
        source: "train.toml".into(),
        folder: Path::new("/project"),
    };
    let tree = parse_toml("train.toml", text)?;
    resolve(origin, tree, overrides, &environment)
}

fn read(text: &str) -> Result<Config, ConfigError> {
    read_with(text, &[])
}

fn set(arguments: &[&str]) -> Vec<Override> {
    arguments
        .iter()
        .map(|argument| Override::from_argument(argument).unwrap())
        .collect()
}

const FOUR_LINES: &str =
    "preset = \"imagenet-train\"\ndataset.path = \"images\"\nbatch.size = 64\n";

const NUMPY: &str = "[dataset]\nformat = \"npy\"\npath = \"/arrays\"\n[batch]\nsize = 8\n[[stage]]\nname = \"none\"\noperations = []\n";

/// `NUMPY` with a valid stage name and more lines.
fn numpy(more: &str) -> String {
    format!("{}{more}", NUMPY.replace("\"none\"", "\"copy\""))
}

fn operation_names(stage: &crate::config::StageConfig) -> Vec<String> {
    stage
        .operations
        .iter()
        .map(
            |operation| match &table_entry(operation, "op").unwrap().value {
                Value::String(name) => name.clone(),
                other => panic!("{other:?}"),
            },
        )
        .collect()
}

#[test]
fn three_lines_are_a_configuration() {
    let config = read(FOUR_LINES).unwrap();
    assert_eq!(config.name, "train");
    assert_eq!(config.dataset.format, "image-folder");
    assert_eq!(config.dataset.path, Path::new("/project/images"));
    assert_eq!(config.batch.size.get(), 64);
    assert_eq!(config.batch.last, Last::Drop);
    assert!(config.order.shuffle);
    assert_eq!((config.order.seed, config.order.epochs), (0, None));
    assert_eq!(config.fetch.concurrency.get(), 16);
    assert_eq!(config.stages.len(), 1);
    assert_eq!(config.stages[0].concurrency, Concurrency::Auto);
    assert_eq!(
        operation_names(&config.stages[0]),
        [
            "decode-image",
            "random-resized-crop",
            "random-horizontal-flip"
        ]
    );
    assert_eq!(config.output[0].field, "image");
    assert_eq!(config.output[0].dtype, Some(DType::U8));
    assert_eq!(config.output[0].layout, Some(ImageLayout::Nchw));
    assert_eq!((config.ring.slots, config.ring.hold), (8, 6));
    assert_eq!(config.ring.memory_bytes, 2 << 30);
    assert_eq!(config.errors.on_bad_sample, OnBadSample::Fail);
    assert_eq!(config.errors.budget, BadSampleBudget::Share(0.001));
    assert_eq!(config.cpu.policy, CpuPolicy::Idle);
    assert_eq!(config.listen.linger, Duration::from_secs(5));
    assert_eq!(config.listen.max_sessions, 4);
}

#[test]
fn the_eval_preset_reads_everything_once_in_order() {
    let config = read(&FOUR_LINES.replace("-train", "-eval")).unwrap();
    assert!(!config.order.shuffle);
    assert_eq!(config.batch.last, Last::Short);
    assert_eq!(
        operation_names(&config.stages[0]),
        ["decode-image", "resize", "center-crop"]
    );
}

#[test]
fn keys_lie_over_a_preset() {
    let config = read(&format!(
        "{FOUR_LINES}batch.last = \"pad\"\noutput.image.dtype = \"float32\"\n[[stage]]\nname = \"fetch\"\nconcurrency = 4\n[[stage]]\nname = \"preprocess\"\nconcurrency = 3\n"
    ))
    .unwrap();
    assert_eq!(config.batch.last, Last::Pad);
    assert_eq!(config.output[0].dtype, Some(DType::F32));
    assert_eq!(config.output[0].layout, Some(ImageLayout::Nchw));
    assert_eq!(config.fetch.concurrency.get(), 4);
    let three = Concurrency::Threads(NonZeroU32::new(3).unwrap());
    assert_eq!(config.stages[0].concurrency, three);
    assert_eq!(config.stages[0].operations.len(), 3);
}

#[test]
fn stages_of_other_names_replace_a_presets() {
    let config = read(&format!(
        "{FOUR_LINES}[[stage]]\nname = \"decode\"\noperations = [{{ op = \"decode-image\" }}]\n[[stage]]\nname = \"crop\"\noperations = [{{ op = \"center-crop\", size = 8 }}]\n"
    ))
    .unwrap();
    let names: Vec<_> = config.stages.iter().map(|stage| &stage.name).collect();
    assert_eq!(names, ["decode", "crop"]);
}

#[test]
fn overrides_reach_every_key() {
    let config = read_with(
        FOUR_LINES,
        &set(&[
            "batch.size=128",
            "batch.last=short",
            "ring.memory=4GiB",
            "order.epochs = 3",
            "stage.fetch.concurrency=2",
            "stage.preprocess.concurrency=7",
            "stage.preprocess.operations.random-resized-crop.size=[96, 128]",
            "stage.preprocess.operations.2.probability=0.25",
            "output.image={ layout = \"NHWC\" }",
        ]),
    )
    .unwrap();
    assert_eq!(config.batch.size.get(), 128);
    assert_eq!(config.batch.last, Last::Short);
    assert_eq!(config.ring.memory_bytes, 4 << 30);
    assert_eq!(config.order.epochs, Some(3));
    assert_eq!(config.fetch.concurrency.get(), 2);
    let operations = &config.stages[0].operations;
    let probability = &table_entry(&operations[2], "probability").unwrap().value;
    assert_eq!(*probability, Value::Float(0.25));
    assert!(matches!(
        table_entry(&operations[1], "size").unwrap().value,
        Value::Array(_)
    ));
    assert_eq!(config.output[0].layout, Some(ImageLayout::Nhwc));
    assert_eq!(config.output[0].dtype, Some(DType::U8));

    let other = read_with(FOUR_LINES, &set(&["preset=imagenet-eval"])).unwrap();
    assert!(!other.order.shuffle);
}

#[test]
fn a_dict_of_overrides_may_be_nested_and_take_keys_away() {
    let overrides = Override::from_json(&serde_json::json!({
        "batch.size": 128,
        "ring": { "slots": 4 },
        "order.epochs": null,
        "stage": { "preprocess": { "concurrency": 2 } },
        "output": { "a.b": { "dtype": "float32" } },
    }))
    .unwrap();
    let config = read_with(&format!("{FOUR_LINES}order.epochs = 9\n"), &overrides).unwrap();
    assert_eq!((config.batch.size.get(), config.ring.slots), (128, 4));
    assert_eq!(config.order.epochs, None);
    assert_eq!(config.output[1].field, "a.b");
}

#[test]
fn an_override_makes_a_variable_unneeded() {
    let text = FOUR_LINES.replace("\"images\"", "\"${NOWHERE}/x\"");
    assert!(read(&text).is_err());
    let config = read_with(&text, &set(&["dataset.path=${DATA}/y"])).unwrap();
    assert_eq!(config.dataset.path, Path::new("/data/y"));
}

#[test]
fn a_dict_stands_for_a_file() {
    let dict = serde_json::json!({
        "preset": "imagenet-eval",
        "dataset": { "path": "images" },
        "batch": { "size": 4 },
        "order": { "epochs": null },
    });
    let config = Config::from_json("", Path::new("/base"), &dict, &[]).unwrap();
    assert_eq!(config.name, "stream");
    assert_eq!(config.dataset.path, Path::new("/base/images"));
    let error = Config::from_json("", Path::new("/base"), &serde_json::json!([]), &[]);
    assert!(error.is_err());
    let wrong = serde_json::json!({ "batch": { "size": "x" } });
    let error = Config::from_json("", Path::new("/"), &wrong, &[]).unwrap_err();
    assert!(error.to_string().starts_with("the dict: "), "{error}");
}

#[test]
fn a_file_is_named_as_the_user_named_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("val.toml");
    std::fs::write(&path, FOUR_LINES).unwrap();
    let config = Config::from_file(&path, &[]).unwrap();
    assert_eq!(config.name, "val");
    assert_eq!(config.dataset.path, folder.path().join("images"));
    std::fs::write(&path, "\nbatch.size = 0\ndataset.path = \"x\"\n").unwrap();
    let error = Config::from_file(&path, &[]).unwrap_err().to_string();
    let prefix = format!("{}:", path.display());
    assert!(error.starts_with(&prefix), "{error}");
    std::fs::write(&path, b"\xff\xfe").unwrap();
    assert!(Config::from_file(&path, &[]).is_err());
    let missing = folder.path().join("none.toml");
    let error = Config::from_file(&missing, &[]).unwrap_err().to_string();
    assert!(
        error.contains("none.toml: cannot read the configuration"),
        "{error}"
    );
}

#[test]
fn every_mistake_names_place_key_and_remedy() {
    // (more lines after the valid eight of `numpy`, how the message starts, what it also says)
    let cases: &[(&str, &str, &[&str])] = &[
        (
            "[order]\nsede = 1\n",
            "train.toml:10: unknown key `order.sede`",
            &["did you mean `order.seed`?"],
        ),
        (
            "[ordr]\n",
            "train.toml:9: unknown key `ordr`",
            &["did you mean `order`?"],
        ),
        (
            "[listen]\nmetrics = \"x\"\n",
            "train.toml:10: unknown key `listen.metrics`",
            &["valid keys: socket"],
        ),
        (
            "[order]\nseed = -1\n",
            "train.toml:10: `order.seed` must be a whole number",
            &["not -1"],
        ),
        (
            "[order]\nshuffle = 1\n",
            "train.toml:10: `order.shuffle` must be true or false, not 1",
            &[],
        ),
        (
            "[order]\nepochs = 0\n",
            "train.toml:10: `order.epochs` must be a whole number from 1, not 0",
            &[],
        ),
        (
            "[ring]\nslots = 2\n",
            "train.toml:10: `ring.slots` must be at least 3, not 2",
            &[],
        ),
        (
            "[ring]\nslots = 4\nhold = 4\n",
            "train.toml:11: `ring.hold` must be 1 to 3",
            &["which is 4", "raise `ring.slots`"],
        ),
        (
            "[ring]\nhold = 0\n",
            "train.toml:10: `ring.hold` must be 1 to 7",
            &[],
        ),
        (
            "[ring]\nmemory = \"2 gigs\"\n",
            "train.toml:10: `ring.memory` must be a size such as",
            &["\"2 gigs\""],
        ),
        (
            "[ring]\nmemory = 0\n",
            "train.toml:10: `ring.memory` must be above 0",
            &[],
        ),
        (
            "[errors]\nbudget = 0.1\n",
            "train.toml:10: `errors.budget` must be a share",
            &["\"0.1%\"", "not 0.1"],
        ),
        (
            "[errors]\non_bad_sample = \"skip\"\n",
            "train.toml:10: `errors.on_bad_sample` must be \"fail\" or \"substitute\"",
            &["\"skip\""],
        ),
        (
            "[cpu]\ncores = \"8-\"\n",
            "train.toml:10: `cpu.cores` must be \"auto\", or cores",
            &[],
        ),
        (
            "[cpu]\nnice = 5\n",
            "train.toml:10: `cpu.nice` has no effect with policy = \"idle\"",
            &["cpu.policy"],
        ),
        (
            "[cpu]\npolicy = \"batch\"\nnice = 20\n",
            "train.toml:11: `cpu.nice` must be a whole number from 0 to 19",
            &[],
        ),
        (
            "[listen]\nlinger = 5\n",
            "train.toml:10: `listen.linger` must be a time such as \"30s\"",
            &["not 5"],
        ),
        (
            "[listen]\nmax_sessions = 0\n",
            "train.toml:10: `listen.max_sessions` must be a whole number from 1",
            &[],
        ),
        (
            "[listen]\ngroup = \"no such group\"\n",
            "train.toml:10: `listen.group`: this machine has no group",
            &[],
        ),
        (
            "[[stage]]\nname = \"copy\"\noperations = []\n",
            "train.toml:9: two stages are called `copy`",
            &["train.toml:6"],
        ),
        (
            "[[stage]]\nname = \"fetch\"\noperations = []\n",
            "train.toml:11: `stage.fetch.operations`",
            &["`concurrency` alone"],
        ),
        (
            "[[stage]]\nname = \"fetch\"\nconcurency = 2\n",
            "train.toml:11: unknown key `stage.fetch.concurency`",
            &["did you mean `stage.fetch.concurrency`?"],
        ),
        (
            "[[stage]]\nname = \"fetch\"\nconcurrency = \"auto\"\n",
            "train.toml:11: `stage.fetch.concurrency` must be a whole number from 1",
            &[],
        ),
        (
            "[[stage]]\noperations = []\n",
            "train.toml:9: `stage.name` is required",
            &[],
        ),
        (
            "[[stage]]\nname = \"b\"\n",
            "train.toml:9: `stage.b.operations` is required: an array of tables",
            &[],
        ),
        (
            "[[stage]]\nname = \"b\"\noperation = []\n",
            "train.toml:11: unknown key `stage.b.operation`",
            &["did you mean `stage.b.operations`?"],
        ),
        (
            "[[stage]]\nname = \"b\"\noperations = [\"resize\"]\n",
            "train.toml:11: `stage.b.operations` must be an array of tables",
            &[],
        ),
        (
            "[[stage]]\nname = \"ring\"\noperations = []\n",
            "train.toml:10: `stage.name`: the verdict uses `ring`",
            &[],
        ),
        (
            "[[stage]]\nname = \"two words\"\n",
            "train.toml:10: `stage.name` must be",
            &[],
        ),
        (
            "[output]\nindex = {}\n",
            "train.toml:10: `output.index`: the field `index` is made by Forebay",
            &[],
        ),
        (
            "[output]\na = { dtype = \"float\" }\n",
            "train.toml:10: `output.a.dtype` must be a type: uint8",
            &["float32", "\"float\""],
        ),
        (
            "[output]\na = 3\n",
            "train.toml:10: `output.a` must be a table",
            &[],
        ),
        (
            "[output]\na = { mean = [0.5] }\n",
            "train.toml:10: `output.a`: mean stands without std",
            &["both or none"],
        ),
        (
            "[output]\na = { std = [0.5] }\n",
            "train.toml:10: `output.a`: std stands without mean",
            &[],
        ),
        (
            "[output]\na = { mean = [0.5, 0.5], std = [1.0] }\n",
            "train.toml:10: `output.a`: mean has 2 values and std has 1",
            &[],
        ),
        (
            "[output]\na = { mean = [0.5], std = [0] }\n",
            "train.toml:10: `output.a.std` must be above 0",
            &[],
        ),
        (
            "[output]\na = { mean = [0.5], std = [1], dtype = \"uint8\" }\n",
            "train.toml:10: `output.a`: mean and std need a float dtype",
            &[],
        ),
        (
            "[output]\na = { ragged = true }\n",
            "train.toml:10: `output.a`: a ragged field needs `max_bytes`",
            &["4MiB"],
        ),
        (
            "[output]\na = { max_bytes = 5 }\n",
            "train.toml:10: `output.a`: `max_bytes` and `compact` are for ragged",
            &["`ragged = true`"],
        ),
        (
            "[output]\na = { ragged = true, max_bytes = 5, layout = \"NCHW\" }\n",
            "train.toml:10: `output.a`: layout, mean and std are for images",
            &[],
        ),
        (
            "preset = 3\n",
            "train.toml:9: unknown key `stage.copy.preset`",
            &[],
        ),
    ];
    for (more, start, parts) in cases {
        let error = read(&numpy(more)).expect_err(more).to_string();
        assert!(
            error.starts_with(start),
            "{more}\n  gives: {error}\n  not:   {start}"
        );
        for part in *parts {
            assert!(error.contains(part), "{part} is not in: {error}");
        }
        assert!(!error.contains('\n'), "{error}");
    }
}

#[test]
fn what_must_be_there_is_asked_for() {
    for (text, start) in [
        ("", "train.toml:1: `dataset.path` is required: a local path"),
        (
            "[dataset]\nformat = \"npy\"\n",
            "train.toml:1: `dataset.path` is required",
        ),
        (
            "dataset.path = \"x\"\n",
            "train.toml:1: `dataset.format` is required",
        ),
        (
            "[dataset]\npath = \"x\"\nformat = \"npy\"\n",
            "train.toml:1: `batch.size` is required: a whole number from 1",
        ),
        (
            "[dataset]\npath = \"x\"\nformat = \"npy\"\n\n[batch]\n",
            "train.toml:5: `batch.size` is required",
        ),
        (
            "[dataset]\npath = \"x\"\nformat = \"npy\"\n[batch]\nsze = 3\n",
            "train.toml:5: unknown key `batch.sze`; did you mean `batch.size`?",
        ),
        (
            "[dataset]\npath = \"x\"\nformat = \"npy\"\n[batch]\nsize = 3\n",
            "train.toml:1: `stage` is required: a `[[stage]]`",
        ),
        (
            "preset = \"imagenet_train\"\n",
            "train.toml:1: `preset`: unknown preset `imagenet_train`; did you mean `imagenet-train`?",
        ),
        (
            "preset = \"coco\"\n",
            "train.toml:1: `preset`: unknown preset `coco`; there are `imagenet-train`, `imagenet-eval`",
        ),
        ("preset = 3\n", "train.toml:1: `preset` must be one of"),
        (
            "dataset = 3\n",
            "train.toml:1: `dataset` must be a table, not a whole number",
        ),
        (
            "[dataset]\npath = \"s3://bucket/x\"\n",
            "train.toml:2: `dataset.path` must be a local path (no URL",
        ),
        (
            "[dataset]\npath = \"~/x\"\n",
            "train.toml:2: `dataset.path` must be a local path",
        ),
        (
            "[dataset]\npath = \"${NOWHERE}\"\n",
            "train.toml:2: `dataset.path`: the environment variable NOWHERE is not set",
        ),
        (
            "stage = 3\ndataset.path = \"x\"\ndataset.format = \"npy\"\nbatch.size = 2\n",
            "train.toml:1: `stage` must be an array of tables",
        ),
    ] {
        let error = read(text).expect_err(text).to_string();
        assert!(
            error.starts_with(start),
            "{text}\n  gives: {error}\n  not:   {start}"
        );
    }
    assert!(read(NUMPY).is_err(), "`none` is a word of the verdict");
}

#[test]
fn mistakes_in_overrides_say_that_they_are_there() {
    for (argument, start) in [
        (
            "batch.sise=3",
            "--set: unknown key `batch.sise`; did you mean `batch.size`?",
        ),
        (
            "batch.size=many",
            "--set: `batch.size` must be a whole number from 1",
        ),
        (
            "batch.size.x=3",
            "--set: `batch.size.x`: `batch.size` is a whole number",
        ),
        (
            "stage.decode.concurrency=3",
            "--set: `stage.decode.concurrency`: `stage` has no element `decode`; it has `preprocess`",
        ),
        (
            "rnig.slots=4",
            "--set: unknown key `rnig`; did you mean `ring`?",
        ),
        ("preset=x", "--set: `preset`: unknown preset `x`"),
    ] {
        let error = read_with(FOUR_LINES, &set(&[argument]))
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with(start),
            "{argument}\n  gives: {error}\n  not:   {start}"
        );
    }
    for argument in ["batch.size", "=3", "a..b=3", "batch.size=[1", "a\"b=3"] {
        assert!(Override::from_argument(argument).is_err(), "{argument}");
    }
    assert!(Override::from_json(&serde_json::json!(3)).is_err());
}

#[test]
fn a_socket_path_that_is_too_long_is_refused_with_its_length() {
    let long = format!("[listen]\nsocket = \"/{}\"\n", "s".repeat(107));
    let error = read(&numpy(&long)).unwrap_err().to_string();
    assert!(
        error.starts_with("train.toml:10: `listen.socket` has 108 bytes"),
        "{error}"
    );
    let fits = format!("[listen]\nsocket = \"/{}\"\n", "s".repeat(106));
    assert!(read(&numpy(&fits)).is_ok());
}

#[test]
fn the_resolved_configuration_reads_as_itself() {
    let full = "[dataset]\nformat = \"npz\"\npath = \"/a b\"\nclasses = \"c.txt\"\nids = \"$${x}\"\nlimit = 7\nindex = \"i\"\n[order]\nseed = 3\nshuffle = false\nepochs = 2\n[batch]\nsize = 3\nlast = \"pad\"\n[[stage]]\nname = \"fetch\"\nconcurrency = 3\n[[stage]]\nname = \"a\"\nconcurrency = 2\noperations = [{ op = \"delay\", milliseconds = 25, probability = 1.0, list = [1, 2.5, \"x\"] }]\n[[stage]]\nname = \"b\"\noperations = []\n[output]\nimage = { dtype = \"float16\", layout = \"NHWC\", mean = [0.5, 1e-7], std = [1, 2] }\n\"a.b\" = { ragged = true, max_bytes = \"3MiB\", compact = true }\nplain = {}\n[ring]\nslots = 5\nhold = 4\nmemory = \"1500MB\"\n[errors]\non_bad_sample = \"substitute\"\nbudget = \"0.07%\"\n[cpu]\ncores = \"0,4-6\"\npolicy = \"batch\"\nnice = 3\n[listen]\nsocket = \"/run/x.sock\"\nallow_uids = [1000, 1001]\ngroup = 7\nlinger = \"1500ms\"\nmax_sessions = 2\n";
    let train = format!("{FOUR_LINES}errors.budget = 3\n");
    let eval = FOUR_LINES.replace("-train", "-eval");
    for text in [full, &train, &eval] {
        let config = read(text).unwrap();
        let printed = config.resolved_toml();
        let again = read(&printed).unwrap_or_else(|error| panic!("{error}\n{printed}"));
        assert_eq!(printed, again.resolved_toml());
        assert_eq!(config.dataset.path, again.dataset.path);
        assert_eq!(config.dataset.ids, again.dataset.ids);
        assert_eq!(config.order, again.order);
        assert_eq!(config.errors.on_bad_sample, again.errors.on_bad_sample);
        assert_eq!(config.cpu, again.cpu);
        assert_eq!(config.listen, again.listen);
        assert_eq!(config.ring.memory_bytes, again.ring.memory_bytes);
    }
    assert!(
        read(full)
            .unwrap()
            .resolved_toml()
            .contains("budget = \"0.07%\"")
    );
}
