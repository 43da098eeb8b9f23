//! Folders that `energon prepare` of megatron-energon 7.4.1 has prepared; the text of its files is as it wrote them.

use std::fs;
use std::path::{Path, PathBuf};

use forebay_synth::tar;

use crate::conformance::{self, Format};
use crate::open;
use crate::testing::{EVERYWHERE, config_for, names, own_keys, sample, write_aged};
use forebay_dataset::{OpenOptions, Opened};

const SPLIT: &str = "split_parts:\n  train:\n  - data-{000..001}.tar\n  val:\n  - data-002.tar\n  test: []\n\
    exclude:\n- data-000.tar/000001\n";
const FIELDS: &str = "sample_type:\n  __module__: megatron.energon\n  __class__: CaptioningSample\nfield_map:\n  \
    image: bin\n  caption: json[caption]\n";

/// Three archives of two samples, with these metadata.
fn prepared(root: &Path, split: &str, fields: &str) {
    for shard in 0..3 {
        let numbers = [2 * shard, 2 * shard + 1];
        let texts = numbers.map(|number| {
            let json = format!(
                "{{\"caption\": \"caption {number}\", \"score\": {number}.5, \"seen\": {number}, \"tags\": [1]}}"
            );
            (format!("{number:06}"), format!("picture {number}"), json)
        });
        let members: Vec<(String, &[u8])> = texts
            .iter()
            .flat_map(|(key, picture, json)| {
                [("bin", picture), ("json", json)]
                    .map(|(field, data)| (format!("{key}.{field}"), data.as_bytes()))
            })
            .collect();
        let members: Vec<_> = members.iter().map(|(name, data)| (&name[..], *data)).collect();
        write_aged(&root.join(format!("data-{shard:03}.tar")), &tar::archive(&members));
    }
    write_aged(&root.join(".nv-meta/split.yaml"), split.as_bytes());
    write_aged(&root.join(".nv-meta/dataset.yaml"), fields.as_bytes());
}

fn opened(root: &Path, keys: &str) -> Result<Opened, String> {
    opened_with(root, keys, None)
}

fn opened_with(root: &Path, keys: &str, limit: Option<u64>) -> Result<Opened, String> {
    let mut config = config_for("webdataset", root);
    config.limit = limit;
    config.own = own_keys(keys);
    let data = root.ancestors().find(|path| path.ends_with("data")).unwrap();
    config.index = Some(data.parent().unwrap().join("index"));
    open(&config, OpenOptions::default()).map_err(|error| error.to_string())
}

fn data() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("data");
    fs::create_dir(&root).unwrap();
    (folder, root)
}

#[test]
fn a_part_has_its_archives_in_their_order_without_what_is_excluded() {
    let (_folder, root) = data();
    prepared(&root, SPLIT, FIELDS);
    let train = opened(&root, "").unwrap();
    assert_eq!(
        names(&train),
        ["data-000.tar/000000", "data-001.tar/000002", "data-001.tar/000003"]
    );
    let warnings = train.report.warnings.join("\n");
    assert!(warnings.contains("the part \"train\" of .nv-meta/split.yaml is read"), "{warnings}");
    assert!(warnings.contains("left out: 1 sample that .nv-meta excludes"), "{warnings}");
    let bytes = format!("{:?}", b"picture 2");
    assert_eq!(sample(&train, 1).unwrap(), [bytes, "\"caption 2\"".to_owned()]);
    let fields: Vec<_> = train.dataset.fields().iter().map(|field| &field.name[..]).collect();
    assert_eq!(fields, ["image", "caption"]);
    let val = opened(&root, "dataset.part = \"val\"\n").unwrap();
    assert_eq!(names(&val), ["data-002.tar/000004", "data-002.tar/000005"]);
    assert!(val.report.warnings.is_empty(), "{:?}", val.report.warnings);
    // The order is that of the list.
    prepared(&root, &SPLIT.replace("{000..001}", "{002..001}"), FIELDS);
    assert_eq!(names(&opened(&root, "").unwrap())[0], "data-002.tar/000004");
}

#[test]
fn changed_metadata_are_noticed() {
    let (_folder, root) = data();
    prepared(&root, SPLIT, FIELDS);
    let before = opened(&root, "").unwrap();
    assert_eq!(before.dataset.sample_count(), 3);
    assert!(opened(&root, "").unwrap().report.reused);
    write_aged(
        &root.join(".nv-meta/split.yaml"),
        SPLIT.split("exclude").next().unwrap().as_bytes(),
    );
    assert_eq!(opened(&root, "").unwrap().dataset.sample_count(), 4);
    let fields = FIELDS.replace("json[caption]", "json[score]").replace("caption:", "score:");
    write_aged(&root.join(".nv-meta/dataset.yaml"), fields.as_bytes());
    let after = opened(&root, "").unwrap();
    assert_eq!(sample(&after, 0).unwrap()[1], "0.5");
    assert_ne!(after.dataset.fingerprint(), before.dataset.fingerprint());
    // A limit leaves the last files out of the index, and these are the first.
    let limited = || opened_with(&root, "", Some(1)).unwrap();
    assert_eq!(sample(&limited(), 0).unwrap()[1], "0.5");
    assert!(limited().report.reused);
    write_aged(&root.join(".nv-meta/dataset.yaml"), FIELDS.as_bytes());
    assert_eq!(sample(&limited(), 0).unwrap()[1], "\"caption 0\"");
}

#[test]
fn keys_of_json_have_the_types_of_the_first_sample() {
    let (_folder, root) = data();
    let fields =
        "field_map: {image: 'png,bin', seen: 'json[seen]', score: 'json[score]', all: json}\n";
    prepared(&root, SPLIT, fields);
    let opened = opened(&root, "").unwrap();
    let values = sample(&opened, 2).unwrap();
    assert_eq!(values[1..3], ["3", "3.5"]);
    assert!(values[3].contains("caption 3"), "{values:?}");
}

#[test]
fn a_split_of_json_and_code_for_fields_are_read_as_far_as_they_are_data() {
    let (_folder, root) = data();
    prepared(
        &root,
        SPLIT,
        "sample_loader: sample_loader.py:sample_loader\npart_filter: sample_loader.py:part_filter\n",
    );
    fs::remove_file(root.join(".nv-meta/split.yaml")).unwrap();
    let split = br#"{"split_parts": {"train": ["data-000.tar"]}, "exclude": []}"#;
    write_aged(&root.join(".nv-meta/split.json"), split);
    let opened = opened(&root, "").unwrap();
    assert_eq!(names(&opened), ["data-000.tar/000000", "data-000.tar/000001"]);
    let warnings = opened.report.warnings.join("\n");
    assert!(warnings.contains("(sample_loader), which is never run"), "{warnings}");
    let fields: Vec<_> = opened.dataset.fields().iter().map(|field| &field.name[..]).collect();
    assert_eq!(fields, ["bin", "json"]);
}

#[test]
fn metadata_that_cannot_be_followed_are_refused_with_the_reason() {
    for (split, fields, keys, reason) in [
        (
            SPLIT,
            FIELDS,
            "dataset.part = \"dev\"\n",
            "set dataset.part to one of \"train\", \"val\", \"test\"",
        ),
        (SPLIT, FIELDS, "dataset.part = \"test\"\n", "\"test\" has no archives"),
        ("split_parts:\n  train:\n  - ../a.tar\n", FIELDS, "", "no file below its folder"),
        ("split_parts:\n  train:\n  - a.zip\n", FIELDS, "", "does not end in .tar"),
        ("split_parts:\n  train:\n  - a{0..9999999}.tar\n", FIELDS, "", "more than 1000000 files"),
        ("exclude: []\n", FIELDS, "", "no map split_parts"),
        ("split_parts: &x\n", FIELDS, "", "anchors and tags"),
        (SPLIT, "field_map:\n  x: json[a][b]\n", "", "not one within another"),
        (SPLIT, "field_map:\n  tags: json[tags]\n", "", "a list or a map of JSON"),
        (SPLIT, "field_map:\n  x: pyd\n", "", "never run"),
        (SPLIT, "field_map:\n  index: bin\n", "", "cannot be a field"),
        (SPLIT, "field_map: {}\n", "", "its field_map is empty"),
    ] {
        let (_folder, root) = data();
        prepared(&root, split, fields);
        let message = opened(&root, keys).unwrap_err();
        assert!(message.contains(reason) && message.contains(".nv-meta"), "{message}");
    }
    let (_folder, root) = data();
    prepared(&root, SPLIT, FIELDS);
    let message =
        opened(&root.join("data-{000..001}.tar"), "dataset.part = \"val\"\n").unwrap_err();
    assert!(message.contains("set it to their folder"), "{message}");
    fs::remove_dir_all(root.join(".nv-meta")).unwrap();
    assert_eq!(opened(&root, "").unwrap().dataset.sample_count(), 6);
    let message = opened(&root, "dataset.part = \"val\"\n").unwrap_err();
    assert!(message.contains("run energon prepare"), "{message}");
}

/// The archives of the other tests, in one part.
fn conforming(root: &Path, count: usize) -> PathBuf {
    let path = super::tests::conforming(root, count);
    let archives = fs::read_dir(root).unwrap().count();
    let split =
        format!("split_parts:\n  train:\n  - shard-{{00..{:02}}}.tar\nexclude: []\n", archives - 1);
    write_aged(&root.join(".nv-meta/split.yaml"), split.as_bytes());
    path
}

#[test]
fn prepared_folders_conform_on_disk_and_behind_urls() {
    for open in EVERYWHERE {
        let (name, make, has_names, refuses_cuts) = ("webdataset", conforming as _, true, true);
        conformance::run(&Format { open, name, make, has_names, refuses_cuts });
    }
}

/// A folder that `fixtures/energon_folder.py` wrote, with what Energon's own loader reads of it.
#[test]
fn parts_are_what_energons_loader_reads() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/energon");
    let folder = tempfile::tempdir().unwrap();
    for part in ["train", "val"] {
        let mut config = config_for("webdataset", &root);
        config.own = own_keys(&format!("dataset.part = \"{part}\"\n"));
        config.index = Some(folder.path().join(part));
        let opened = open(&config, OpenOptions::default()).unwrap();
        let names = names(&opened);
        let read: Vec<_> = (0..opened.dataset.sample_count())
            .map(|id| {
                let key = names[usize::try_from(id).unwrap()].split_once('/').unwrap().1.to_owned();
                [vec![key], sample(&opened, id).unwrap()].concat()
            })
            .collect();
        let theirs = fs::read_to_string(root.join(format!("{part}.txt"))).unwrap();
        let theirs: Vec<_> = theirs
            .lines()
            .map(|line| {
                let mut texts = line.split('\t');
                let key = texts.next().unwrap().to_owned();
                let image = format!("{:?}", texts.next().unwrap().as_bytes());
                vec![key, image, format!("{:?}", texts.next().unwrap())]
            })
            .collect();
        assert_eq!(read, theirs, "{part}");
        assert!(!read.is_empty());
    }
}
