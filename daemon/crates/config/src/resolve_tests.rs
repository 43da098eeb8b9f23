//! Users' configurations and their resolved form.

use std::num::NonZeroU32;
use std::path::Path;

use forebay_protocol::tensor::DType;

use super::testing::{FOUR_LINES, read, read_with, set};
use super::{Concurrency, Config, ImageLayout, Last, Override, Shuffle, StageConfig};
use forebay_keys::{Located, Value};

fn operation_names(stage: &StageConfig) -> Vec<String> {
    let name = |operation: &Located| operation.get("op")?.value.as_text().map(str::to_owned);
    stage.operations.iter().filter_map(name).collect()
}

#[test]
fn three_lines_are_a_configuration() {
    let config = read(FOUR_LINES).unwrap();
    assert_eq!(config.name, "train");
    assert_eq!(config.dataset.format, "image-folder");
    assert_eq!(config.dataset.path, Path::new("/project/images"));
    assert_eq!(config.batch.size.get(), 64);
    assert_eq!(config.reads(), (16, 64));
    assert_eq!(config.stages.len(), 1);
    assert_eq!(
        operation_names(&config.stages[0]),
        ["decode-image", "random-resized-crop", "random-horizontal-flip"]
    );
    assert_eq!(config.output[0].field, "image");
    assert_eq!(config.output[0].dtype, Some(DType::U8));
    assert_eq!(config.output[0].layout, Some(ImageLayout::Nchw));
    // docs/reference/config*.md lists the other defaults; a test compares it with the tables.
    assert_eq!((config.ring.slots, config.ring.hold), (8, 6));
}

#[test]
fn eval_preset_reads_every_sample_once_in_order() {
    let config = read(&FOUR_LINES.replace("-train", "-eval")).unwrap();
    assert_eq!(config.order.shuffle, Shuffle::Off);
    assert_eq!(config.batch.last, Last::Short);
    assert_eq!(operation_names(&config.stages[0]), ["decode-image", "resize", "center-crop"]);
}

#[test]
fn keys_override_a_preset() {
    let config = read(&format!(
        "{FOUR_LINES}batch.last = \"pad\"\noutput.image.dtype = \"float32\"\n[[stage]]\nname = \"fetch\"\nconcurrency = 4\n[[stage]]\nname = \"preprocess\"\nconcurrency = 3\n"
    ))
    .unwrap();
    assert_eq!(config.batch.last, Last::Pad);
    assert_eq!(config.output[0].dtype, Some(DType::F32));
    assert_eq!(config.output[0].layout, Some(ImageLayout::Nchw));
    assert_eq!(config.reads(), (4, 4));
    let three = Concurrency::Threads(NonZeroU32::new(3).unwrap());
    assert_eq!(config.stages[0].concurrency, three);
    assert_eq!(config.stages[0].operations.len(), 3);
}

#[test]
fn stages_with_other_names_replace_a_presets() {
    let config = read(&format!(
        "{FOUR_LINES}[[stage]]\nname = \"decode\"\noperations = [{{ op = \"decode-image\" }}]\n[[stage]]\nname = \"crop\"\noperations = [{{ op = \"center-crop\", size = 8 }}]\n"
    ))
    .unwrap();
    let names: Vec<_> = config.stages.iter().map(|stage| &stage.name).collect();
    assert_eq!(names, ["decode", "crop"]);
}

#[test]
fn python_stages_follow_a_presets() {
    let config =
        read(&format!("{FOUR_LINES}[[stage]]\nname = \"mine\"\npython = \"a:b\"\n")).unwrap();
    let names: Vec<_> = config.stages.iter().map(|stage| &stage.name).collect();
    assert_eq!(names, ["preprocess", "mine"]);
    // A decoding function comes first: only the user's stages remain, in their order.
    let own = "[[stage]]\nname = \"mine\"\npython = \"a:b\"\n[[stage]]\nname = \"preprocess\"\noperations = []\n";
    let first = read(&format!("{FOUR_LINES}{own}")).unwrap();
    let names: Vec<_> = first.stages.iter().map(|stage| &stage.name).collect();
    assert_eq!(names, ["mine", "preprocess"]);
    assert!(config.is_of_preset(&["output", "image", "layout"]));
    let config = read(&format!("{FOUR_LINES}output.image.dtype = \"uint8\"\n")).unwrap();
    assert!(!config.is_of_preset(&["output", "image", "dtype"]));
}

#[test]
fn overrides_can_set_every_key() {
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
    assert_eq!(config.ring.memory, Some(4 << 30));
    assert_eq!(config.order.epochs, Some(3));
    assert_eq!(config.reads(), (2, 2));
    let operations = &config.stages[0].operations;
    let probability = &operations[2].get("probability").unwrap().value;
    assert_eq!(*probability, Value::Float(0.25));
    assert!(matches!(operations[1].get("size").unwrap().value, Value::Array(_)));
    assert_eq!(config.output[0].layout, Some(ImageLayout::Nhwc));
    assert_eq!(config.output[0].dtype, Some(DType::U8));

    let other = read_with(FOUR_LINES, &set(&["preset=imagenet-eval"])).unwrap();
    assert_eq!(other.order.shuffle, Shuffle::Off);
}

#[test]
fn dict_of_overrides_may_be_nested_and_remove_keys() {
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
fn override_makes_a_variable_unnecessary() {
    let text = FOUR_LINES.replace("\"images\"", "\"${NOWHERE}/x\"");
    assert!(read(&text).is_err());
    let config = read_with(&text, &set(&["dataset.path=${DATA}/y"])).unwrap();
    assert_eq!(config.dataset.path, Path::new("/data/y"));
}

#[test]
fn dict_replaces_a_file() {
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
fn messages_name_a_file_as_the_user_did() {
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
    assert!(error.contains("none.toml: cannot read the configuration"), "{error}");
}

#[test]
fn resolved_configuration_round_trips() {
    let full = "[dataset]\nformat = \"npz\"\npath = \"/a b\"\nclasses = \"c.txt\"\nids = \"$${x}\"\nlimit = 7\nindex = \"i\"\n[order]\nseed = 3\nshuffle = false\nepochs = 2\n[batch]\nsize = 3\nlast = \"pad\"\n[[stage]]\nname = \"fetch\"\nconcurrency = 3\n[[stage]]\nname = \"a\"\nconcurrency = 2\noperations = [{ op = \"delay\", milliseconds = 25, probability = 1.0, list = [1, 2.5, \"x\"] }]\n[[stage]]\nname = \"b\"\noperations = []\n[output]\nimage = { dtype = \"float16\", layout = \"NHWC\", mean = [0.5, 1e-7], std = [1, 2], on = \"gpu\" }\n\"a.b\" = { ragged = true, max_bytes = \"3MiB\", compact = true }\nplain = {}\n[ring]\nslots = 5\nhold = 4\nmemory = \"1500MB\"\n[errors]\non_bad_sample = \"substitute\"\nbudget = \"0.07%\"\n[cpu]\ncores = \"0,4-6\"\npolicy = \"batch\"\nnice = 3\n[listen]\nsocket = \"/run/x.sock\"\nallow_uids = [1000, 1001]\ngroup = 7\nmax_sessions = 2\nmetrics = \"0.0.0.0:1\"\nmetrics_from = \"anywhere\"\n";
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
        assert_eq!(config.output.first().map(|it| it.on), again.output.first().map(|it| it.on));
        assert_eq!(config.errors.on_bad_sample, again.errors.on_bad_sample);
        assert_eq!(config.cpu, again.cpu);
        assert_eq!(config.listen, again.listen);
        assert_eq!(config.ring.memory, again.ring.memory);
    }
    assert!(read(full).unwrap().resolved_toml().contains("budget = \"0.07%\""));
}
