//! Users' mistakes and the messages about them.

use proptest::prelude::*;

use super::config::TABLES;
use super::testing::{FOUR_LINES, NUMPY, numpy, read, read_with, set};
use super::{Config, Override};
use forebay_keys::ConfigError;

/// Lines after the eight of `numpy`, separated by ` | `; then the line, the message's start, and its other parts.
const MISTAKES: &str = r#"
[order] | sede = 1
    => 10: unknown key `order.sede` … did you mean `order.seed`?
[ordr]
    => 9: unknown key `ordr` … did you mean `order`?
[listen] | metric = "x"
    => 10: unknown key `listen.metric` … did you mean `listen.metrics`?
[order] | seed = -1
    => 10: `order.seed` must be a whole number … not -1
[order] | shuffle = 1
    => 10: `order.shuffle` must be true, false or "blocks", not 1
[order] | shuffle = "block"
    => 10: `order.shuffle` must be true, false or "blocks", not "block"
[order] | seed = 1 | blocks = 4
    => 11: `order.blocks` has no effect with `order.shuffle = true`; set that to "blocks"
[order] | shuffle = "blocks" | blocks = 0
    => 11: `order.blocks` must be a whole number from 1
[order] | epochs = 0
    => 10: `order.epochs` must be a whole number from 1, not 0
[ring] | slots = 2
    => 10: `ring.slots` must be a whole number from 3 to 65535, not 2
[ring] | slots = 4 | hold = 4
    => 11: `ring.hold` must be 1 to 3 … which is 4 … raise `ring.slots`
[ring] | hold = 0
    => 10: `ring.hold` must be 1 to 7
[ring] | memory = "2 gigs"
    => 10: `ring.memory` must be a size such as … "2 gigs"
[ring] | memory = 0
    => 10: `ring.memory` must be above 0
[errors] | budget = 0.1
    => 10: `errors.budget` must be a share … "0.1%" … not 0.1
[errors] | on_bad_sample = "skip"
    => 10: `errors.on_bad_sample` must be "fail" or "substitute" … "skip"
[cpu] | cores = "8-"
    => 10: `cpu.cores` must be "auto", or cores
[cpu] | nice = 5
    => 10: `cpu.nice` has no effect with policy = "idle" … cpu.policy
[cpu] | policy = "batch" | nice = 20
    => 11: `cpu.nice` must be a whole number from 0 to 19
[listen] | metrics = "localhost"
    => 10: `listen.metrics` must be an IP address and a port such as "127.0.0.1:9464" … not "localhost"
[listen] | metrics = "0.0.0.0:9464"
    => 10: `listen.metrics` is 0.0.0.0:9464, which other machines may reach … set it to "127.0.0.1:9464" … `listen.metrics_from` to "anywhere"
[listen] | metrics = "[::]:1" | metrics_from = "loopback"
    => 10: `listen.metrics` is [::]:1, which other machines may reach
[listen] | metrics_from = "all"
    => 10: `listen.metrics_from` must be "loopback" or "anywhere"
[listen] | max_sessions = 0
    => 10: `listen.max_sessions` must be a whole number from 1
[listen] | group = "no such group"
    => 10: `listen.group`: this machine has no group
[[stage]] | name = "copy" | operations = []
    => 9: two stages are called `copy` … train.toml:6
[[stage]] | name = "fetch" | operations = []
    => 11: `stage.fetch.operations` … takes only `concurrency`
[[stage]] | name = "fetch" | concurency = 2
    => 11: unknown key `stage.fetch.concurency` … did you mean `stage.fetch.concurrency`?
[[stage]] | name = "fetch" | concurrency = "all"
    => 11: `stage.fetch.concurrency` must be "auto" or a whole number from 1
[[stage]] | operations = []
    => 9: `stage.name` is required
[[stage]]
    => 9: `stage.name` is required: 1 to 32 letters
[[operations]]
    => 9: unknown key `operations`; operations on samples belong to a stage … `[[batch.operations]]`
[[operations]] | op = "resize"
    => 9: unknown key `operations`; operations on samples belong to a stage
[[stage]] | name = "b" | [stage.operations]
    => 11: `stage.b.operations` must be an array of tables such as … or [] for none, not a table
[[stage]] | name = "b"
    => 9: `stage.b.operations` is required: an array of tables
[[stage]] | name = "b" | operation = []
    => 11: unknown key `stage.b.operation` … did you mean `stage.b.operations`?
[[stage]] | name = "b" | operations = ["resize"]
    => 11: `stage.b.operations` must be an array of tables
[[stage]] | name = "ring" | operations = []
    => 10: `stage.name`: the verdict uses `ring`
[[stage]] | name = "two words"
    => 10: `stage.name` must be
[output] | index = {}
    => 10: `output.index`: the field `index` is made by Forebay
[output] | a = { dtype = "float" }
    => 10: `output.a.dtype` must be a type: uint8 … float32 … "float"
[output.a] | dtype = "float32" | on = "cuda"
    => 11: `output.a.on` must be "cpu" or "gpu", not "cuda"
[output.a] | ragged = true | max_bytes = "1KiB" | on = "gpu"
    => 12: `output.a.on`: only images are finished on the GPU … leave `on` out
[output] | a = 3
    => 10: `output.a` must be a table
[output] | a = { mean = [0.5, "x"] }
    => 10: `output.a.mean` must be an array of numbers, not [0.5, "x"]
[[stage]] | name = "fetch" | threads = 2
    => 11: unknown key `stage.fetch.threads`; valid keys: name, concurrency
[output] | a = { mean = [0.5] }
    => 10: `output.a`: mean is given without std … both or none
[output] | a = { std = [0.5] }
    => 10: `output.a`: std is given without mean
[output] | a = { mean = [0.5, 0.5], std = [1.0] }
    => 10: `output.a`: mean has 2 values and std has 1
[output] | a = { mean = [0.5], std = [0] }
    => 10: `output.a.std` must be above 0
[output] | a = { mean = [0.5], std = [1], dtype = "uint8" }
    => 10: `output.a`: mean and std need a float dtype
[output] | a = { max_bytes = 5 }
    => 10: `output.a`: `max_bytes` and `compact` are for ragged … `ragged = true`
[output] | a = { ragged = true, max_bytes = 5, layout = "NCHW" }
    => 10: `output.a`: layout, mean and std are for images
preset = 3
    => 9: unknown key `stage.copy.preset`
"#;

/// Whole files in the same form.
const MISSING: &str = r#"
[dataset] | format = "npy"
    => 1: `dataset.path` is required
dataset.path = "x"
    => 1: `batch.size` is required
[dataset] | path = "x" | format = "npy"
    => 1: `batch.size` is required: a whole number from 1
[dataset] | path = "x" | format = "npy" |  | [batch]
    => 5: `batch.size` is required
[dataset] | path = "x" | format = "npy" | [batch] | sze = 3
    => 5: unknown key `batch.sze`; did you mean `batch.size`?
[dataset] | path = "x" | format = "npy" | [batch] | size = 3
    => 1: `stage` is required: … or a `preset` … stage = [{ name = "preprocess", operations = [{ op = "decode-image" }
preset = "imagenet_train"
    => 1: `preset`: unknown preset `imagenet_train`; did you mean `imagenet-train`?
preset = "coco"
    => 1: `preset`: unknown preset `coco`; there are `imagenet-train`, `imagenet-train-strong`, `imagenet-eval`, `detection`, `segmentation`, `dino`, `clip`
preset = 3
    => 1: `preset` must be one of
dataset = 3
    => 1: `dataset` must be a table, not a whole number
[dataset] | path = "ftp://host/x"
    => 2: `dataset.path` must be a local path … or a URL: s3://bucket/prefix
[dataset] | path = "https://me:password@host/x"
    => 2: `dataset.path` is a URL with a user or a password
[dataset] | path = "~/x"
    => 2: `dataset.path` must be a local path
[dataset] | path = "${NOWHERE}"
    => 2: `dataset.path`: the environment variable NOWHERE is not set
stage = 3 | dataset.path = "x" | dataset.format = "npy" | batch.size = 2
    => 1: `stage` must be an array of tables
    "#;

/// Overrides in the same form.
const OVERRIDES: &str = r#"
batch.sise=3
    => unknown key `batch.sise`; did you mean `batch.size`?
batch.size=many
    => `batch.size` must be a whole number from 1
batch.size.x=3
    => `batch.size.x`: `batch.size` is a whole number
stage.decode.concurrency=3
    => `stage.decode.concurrency`: `stage` has no element `decode`; it has `preprocess`
rnig.slots=4
    => unknown key `rnig`; did you mean `ring`?
preset=x
    => `preset`: unknown preset `x`
    "#;

/// Checks the message of each mistake of a table: its start after `place`, its other parts, and that it is a single
/// line.
fn assert_messages(table: &str, place: &str, read: impl Fn(&str) -> Result<Config, ConfigError>) {
    let mut lines = table.trim().lines();
    while let (Some(mistake), Some(expected)) = (lines.next(), lines.next()) {
        let text = format!("{}\n", mistake.replace(" | ", "\n"));
        let error = read(&text).expect_err(mistake).to_string();
        let mut parts = expected.trim_start_matches("    => ").split(" … ");
        let start = format!("{place}{}", parts.next().unwrap());
        assert!(error.starts_with(&start), "{mistake}\n  gives: {error}\n  not:   {start}");
        for part in parts {
            assert!(error.contains(part), "{part} is not in: {error}");
        }
        assert!(!error.contains('\n'), "{error}");
    }
}

#[test]
fn every_mistake_names_place_key_and_remedy() {
    assert_messages(MISTAKES, "train.toml:", |more| read(&numpy(more)));
}

#[test]
fn missing_required_keys_are_reported() {
    assert_messages(MISSING, "train.toml:", read);
    let error = read("").unwrap_err().to_string();
    assert!(error.starts_with("train.toml:1: `dataset.path` is required: a local path"), "{error}");
    assert!(read(NUMPY).is_err(), "`none` is a word of the verdict");
}

#[test]
fn mistakes_in_overrides_name_the_override() {
    assert_messages(OVERRIDES, "--set: ", |argument| read_with(FOUR_LINES, &set(&[argument])));
    for argument in ["batch.size", "=3", "a..b=3", "batch.size=[1", "a\"b=3"] {
        assert!(Override::from_argument(argument).is_err(), "{argument}");
    }
    assert!(Override::from_json(&serde_json::json!(3)).is_err());
}

#[test]
fn too_long_socket_path_is_refused_with_its_length() {
    let long = format!("[listen]\nsocket = \"/{}\"\n", "s".repeat(107));
    let error = read(&numpy(&long)).unwrap_err().to_string();
    assert!(error.starts_with("train.toml:10: `listen.socket` has 108 bytes"), "{error}");
    let fits = format!("[listen]\nsocket = \"/{}\"\n", "s".repeat(106));
    assert!(read(&numpy(&fits)).is_ok());
}

const ALPHABET: &[u8] = b"[]{}=.\"'#, \n0-9eE$:+abstru\xc3\xa4\x00";

proptest! {
    /// Any file gives a configuration or a message of one line.
    #[test]
    fn arbitrary_files_do_not_panic(
        edits in prop::collection::vec((any::<prop::sample::Index>(), 0usize..4, 0usize..ALPHABET.len()), 1..12),
    ) {
        let mut text = format!("{}[output]\na = {{ ragged = true, max_bytes = \"5KiB\" }}\n[cpu]\ncores = \"1-3\"\n", numpy(""))
            .into_bytes();
        for (at, length, with) in edits {
            let at = at.index(text.len());
            let end = (at + length).min(text.len());
            text.splice(at..end, [ALPHABET[with]]);
        }
        let text = String::from_utf8_lossy(&text);
        match read(&text) {
            Ok(config) => prop_assert!(read(&config.resolved_toml()).is_ok()),
            Err(error) => prop_assert!(error.to_string().starts_with("train.toml:"), "{error}"),
        }
    }
}

/// Every key with values of every kind, including edge cases: the result is a message that names the key, or a
/// configuration that can be printed.
#[test]
fn every_key_takes_or_refuses_every_kind_of_value() {
    let tables = [
        "dataset",
        "order",
        "batch",
        "stage",
        "stage.copy",
        "stage.fetch",
        "output",
        "output.a",
        "ring",
        "cpu",
    ];
    let keys = TABLES.iter().flat_map(|table| {
        let path = table.path.replace("output.FIELD", "output.a").replace("stage", "stage.copy");
        let path = path.replace("stage.copy.fetch", "stage.fetch");
        table
            .keys
            .iter()
            .map(move |key| format!("{path}.{}", key.name).trim_start_matches('.').to_owned())
    });
    let keys: Vec<String> = keys.chain(tables.map(str::to_owned)).collect();
    assert!(keys.len() > 50, "{keys:?}");
    let values = "0 1 -1 3 65535 65536 4294967295 4294967296 9223372036854775807 -9223372036854775808 0.0 0.5 -0.5 \
        1e308 inf nan true false \"\" \"auto\" \"x\" \"1%\" \"0-8191\" \"1s\" \"18446744073709551615B\" \
        \"18446744073709551616B\" \"99999999999999999999h\" \"${\" [] [1] [[]] [{}] {} {x=1} {name=\"copy\"}";
    for key in &keys {
        for value in values.split_whitespace() {
            let arguments = Override::from_toml(key, value).unwrap();
            match read_with(&numpy(""), &[arguments]) {
                Ok(config) => {
                    let printed = config.resolved_toml();
                    let again = read(&printed).unwrap_or_else(|error| panic!("{error}\n{printed}"));
                    assert_eq!(again.resolved_toml(), printed, "{key}={value}");
                }
                Err(error) => {
                    let table = key.split('.').next().unwrap_or(key);
                    let message = error.to_string();
                    assert!(message.contains(table), "{key}={value}: {message}");
                }
            }
        }
    }
}
