//! Selections of tables, manifests and folders, with their mistakes. That every format keeps the ids and the rows of the whole
//! is in the conformance suite.

use std::fs;
use std::path::Path;

use forebay_config::{DatasetConfig, SplitKeys};
use forebay_dataset::{OpenOptions, Opened};

use crate::open;
use crate::testing::{config_for, own_keys, write_aged};

/// The rows of the fixtures `select`, as columns.py writes them.
const ROWS: u64 = 60;

fn table(folder: &Path, name: &str) -> DatasetConfig {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/columns");
    let path = folder.join(name);
    write_aged(&path, &fs::read(fixtures.join(name)).unwrap());
    let mut config = config_for(name.rsplit('.').next().unwrap(), &path);
    config.index = Some(folder.join("index"));
    config
}

fn opened(config: &DatasetConfig) -> Result<Opened, String> {
    open(config, OpenOptions::default()).map_err(|error| error.to_string())
}

fn kept(config: &DatasetConfig) -> Result<Vec<u64>, String> {
    let opened = opened(config)?;
    Ok(opened.dataset.kept().unwrap().ids().collect())
}

fn kept_where(config: &DatasetConfig, condition: &str) -> Result<Vec<u64>, String> {
    kept(&DatasetConfig { condition: Some(condition.to_owned()), ..config.clone() })
}

fn split(part: &str, by: Option<&str>) -> Option<SplitKeys> {
    let fractions = [("test", 0.25), ("train", 0.5), ("val", 0.25)];
    let fractions = fractions.map(|(name, fraction)| (name.to_owned(), fraction)).to_vec();
    Some(SplitKeys { part: part.to_owned(), fractions, seed: 0, by: by.map(str::to_owned) })
}

/// The samples of each part, which are none in a part without a group.
fn parts(config: &DatasetConfig, by: Option<&str>) -> Result<[Vec<u64>; 3], String> {
    let of = |part| match kept(&DatasetConfig { split: split(part, by), ..config.clone() }) {
        Err(error) if error.contains("keeps none of") => Ok(Vec::new()),
        found => found,
    };
    Ok([of("test")?, of("train")?, of("val")?])
}

fn ids(is_kept: impl Fn(u64) -> bool) -> Vec<u64> {
    (0..ROWS).filter(|id| is_kept(*id)).collect()
}

const TABLES: [&str; 3] = ["select-plain.parquet", "select-packed.parquet", "select.arrow"];

#[test]
fn rows_of_tables_are_selected_by_any_column() {
    for name in TABLES {
        let folder = tempfile::tempdir().unwrap();
        let mut config = table(folder.path(), name);
        // Only one column is a field.
        config.own = own_keys("dataset.fields = { n = { from = \"count\" } }");
        let scored = |id: u64| id % 7 != 3;
        for (condition, expected) in [
            ("count >= 58", ids(|id| id >= 58)),
            ("score > 0.5", ids(|id| scored(id) && id > 30)),
            ("score > 0.5 or score is null", ids(|id| !scored(id) || id > 30)),
            ("not score > 0.5", ids(|id| scored(id) && id <= 30)),
            ("good", ids(|id| id % 11 != 5 && id % 3 == 0)),
            ("good is null", ids(|id| id % 11 == 5)),
            ("split == 'train' and speaker in ('speaker 0', 'speaker 3')", vec![0, 3, 12, 15]),
            ("split is null and count < 9", vec![2, 5, 8]),
            ("text like '4_ long%' and text like '%long '", vec![41, 42, 43, 44, 46, 47, 48, 49]),
            ("count between 3 and 5 and not split != 'val'", vec![4]),
            ("name like '%:7'", vec![7]),
            ("size >= 0 and count == 1", vec![1]),
        ] {
            assert_eq!(kept_where(&config, condition), Ok(expected), "{name}: {condition}");
        }
    }
}

#[test]
fn groups_are_in_one_part_and_parts_stay_when_rows_are_left_out() {
    for name in TABLES {
        let folder = tempfile::tempdir().unwrap();
        let config = table(folder.path(), name);
        let found = parts(&config, Some("speaker")).unwrap();
        let mut all = found.concat();
        all.sort_unstable();
        assert_eq!(all, ids(|_| true));
        for part in &found {
            assert!(
                part.iter().all(|id| (id / 4 * 4..id / 4 * 4 + 4).all(|of| part.contains(&of)))
            );
        }
        // The condition decides first; the parts of the others do not change.
        let some = DatasetConfig { condition: Some("good".to_owned()), ..config.clone() };
        for (part, of) in found.iter().zip(parts(&some, Some("speaker")).unwrap()) {
            assert_eq!(of, ids(|id| part.contains(&id) && id % 11 != 5 && id % 3 == 0));
        }
        let error = parts(&config, None).unwrap_err();
        assert!(error.contains("set `by`") && error.contains("speaker"), "{error}");
        let error = parts(&config, Some("score")).unwrap_err();
        assert!(error.contains(":3 is null") && error.contains("score is not null"), "{error}");
        let error = parts(&config, Some("speeker")).unwrap_err();
        assert!(error.contains("did you mean `speaker`?"), "{error}");
        let error = parts(&config, Some("boxes")).unwrap_err();
        assert!(
            error.contains("`boxes`: its values are arrays") || error.contains("lists"),
            "{error}"
        );
    }
}

#[test]
fn mistakes_point_into_the_condition() {
    let folder = tempfile::tempdir().unwrap();
    let config = table(folder.path(), TABLES[0]);
    for (condition, parts) in [
        ("scroe > 0.5", ["did you mean `score`?", "\n    scroe > 0.5\n    ^^^^^"]),
        ("missing == 1", ["count, score, good, split, speaker, text, name, size", "\n    ^^^^^^^"]),
        ("count > 1 and score > 'a'", ["a number and text", "\n                  ^^^^^^^^^^^"]),
        ("boxes is null", ["`boxes` cannot be used: ", "\n    ^^^^^"]),
        ("class == 'a'", ["no column `class`", "\n    ^^^^^"]),
        ("count > 100", ["keeps none of 60 samples", ""]),
    ] {
        let error = kept_where(&config, condition).unwrap_err();
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    }
}

/// A manifest of pictures, whose names do not depend on their line.
fn manifest(folder: &Path, name: &str, rows: std::ops::Range<u64>) -> DatasetConfig {
    let lines = rows.map(|row| {
        fs::write(folder.join(format!("{row}.bin")), [u8::try_from(row).unwrap()]).unwrap();
        let score = if row % 5 == 2 { String::new() } else { format!("{}", row as f64 / 10.0) };
        let split = ["train", "val"][usize::try_from(row % 2).unwrap()];
        match name.ends_with("csv") {
            true => format!("{row}.bin,{score},{split},{}\n", row % 3 == 0),
            false => {
                let score = if score.is_empty() { "null".to_owned() } else { score };
                format!("{{\"file\": \"{row}.bin\", \"score\": {score}, \"split\": \"{split}\", \"good\": {}}}\n", row % 3 == 0)
            }
        }
    });
    let head = if name.ends_with("csv") { "file,score,split,good\n" } else { "" };
    write_aged(&folder.join(name), (head.to_owned() + &lines.collect::<String>()).as_bytes());
    let mut config = config_for("manifest", &folder.join(name));
    config.own = own_keys("dataset.fields = { data = { from = \"file\", as = \"bytes\" } }");
    config
}

#[test]
fn rows_of_manifests_are_selected_by_what_is_written() {
    for name in ["list.csv", "list.jsonl"] {
        let folder = tempfile::tempdir().unwrap();
        let config = manifest(folder.path(), name, 0..30);
        let few =
            |is_kept: fn(u64) -> bool| (0..30).filter(|id| is_kept(*id)).collect::<Vec<u64>>();
        for (condition, expected) in [
            ("score >= 2 and split == 'train'", few(|id| id >= 20 && id % 2 == 0 && id % 5 != 2)),
            ("score is null", few(|id| id % 5 == 2)),
            ("good and score < 1", few(|id| id % 3 == 0 && id < 10 && id % 5 != 2)),
            ("file in ('3.bin', '11.bin')", vec![3, 11]),
            ("size == 1 and score == 0.4", vec![4]),
        ] {
            assert_eq!(kept_where(&config, condition), Ok(expected), "{name}: {condition}");
        }
        let error = kept_where(&config, "score > 1 and split > 3").unwrap_err();
        assert!(error.contains("is \"train\", not a number") && error.contains("^^^^^"), "{error}");
        // Parts are by the files' names, whatever the lines are.
        let found = parts(&config, None).unwrap();
        let other = tempfile::tempdir().unwrap();
        let later = parts(&manifest(other.path(), name, 7..40), None).unwrap();
        for (part, later) in found.iter().zip(&later) {
            let of = |ids: &[u64], shift: u64| -> Vec<u64> {
                ids.iter().map(|id| id + shift).filter(|row| (7..30).contains(row)).collect()
            };
            assert_eq!(of(part, 0), of(later, 7));
        }
    }
}

#[test]
fn classes_of_folders_are_selected_without_reading_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("data");
    for class in ["cat", "dog", "owl"] {
        fs::create_dir_all(root.join(class)).unwrap();
        for number in 0..4 {
            // Not pictures: nobody reads them.
            fs::write(root.join(class).join(format!("{number}.jpg")), vec![0; number + 1]).unwrap();
        }
    }
    crate::testing::age_directories(&root);
    let config = config_for("image-folder", &root);
    assert_eq!(kept_where(&config, "class == 'dog'"), Ok((4..8).collect()));
    assert_eq!(kept_where(&config, "label != 1 and name like '%/3.jpg'"), Ok(vec![3, 11]));
    assert_eq!(kept_where(&config, "size <= 1"), Ok(vec![0, 4, 8]));
    let found = parts(&config, Some("class")).unwrap();
    assert!(found.iter().all(|part| part.len() % 4 == 0));
    assert_eq!(found.concat().len(), 12);
    let error = kept_where(&config, "image is null").unwrap_err();
    assert!(error.contains("its values are pictures"), "{error}");
    let condition = Some("class != 'cat' and name != 'owl/0.jpg'".to_owned());
    let some = DatasetConfig { condition, ..config.clone() };
    let classes = |config| opened(config).unwrap().dataset.description().classes.unwrap();
    assert_eq!(classes(&config).to_string(), "3, cat to owl, of 4 samples each");
    assert_eq!(classes(&some).to_string(), "3, cat to owl, of 0 (cat) to 4 (dog) samples");
}

#[test]
fn fields_of_samples_are_read_for_a_condition() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("data");
    fs::create_dir(&root).unwrap();
    // More samples than a thread takes at once.
    for number in 0..600_i64 {
        let bytes = crate::testing::npy_bytes("<i8", false, "()", &number.to_le_bytes());
        fs::write(root.join(format!("{number:03}.npy")), bytes).unwrap();
    }
    crate::testing::age_directories(&root);
    let config = config_for("npy", &root);
    let fields = opened(&config).unwrap().dataset.fields()[0].name.clone();
    let condition = format!("{fields} between 255 and 257 or {fields} == 599");
    assert_eq!(kept_where(&config, &condition), Ok(vec![255, 256, 257, 599]));
}

#[test]
fn numbers_above_int64_are_refused_where_they_are_used() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("data");
    fs::create_dir(&root).unwrap();
    for number in 0..4_u64 {
        let value = if number == 2 { u64::MAX } else { number };
        let bytes = crate::testing::npy_bytes("<u8", false, "()", &value.to_le_bytes());
        fs::write(root.join(format!("{number}.npy")), bytes).unwrap();
    }
    crate::testing::age_directories(&root);
    let config = config_for("npy", &root);
    let field = opened(&config).unwrap().dataset.fields()[0].name.clone();
    let error = kept_where(&config, &format!("{field} != 1")).unwrap_err();
    let why = format!("2.npy are not known: `{field}` is larger than an int64 can be");
    assert!(error.contains(&why), "{error}");
    assert_eq!(kept_where(&config, "name != '1.npy'"), Ok(vec![0, 2, 3]));
}

#[test]
fn rows_without_a_file_need_a_condition_or_a_group() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a.bin", "b.bin"] {
        fs::write(folder.path().join(name), name).unwrap();
    }
    // The first row and a later one name no file.
    let rows = "file,who\n,x\na.bin,x\n,y\nb.bin,y\n";
    write_aged(&folder.path().join("list.csv"), rows.as_bytes());
    let mut config = config_for("manifest", &folder.path().join("list.csv"));
    config.own = own_keys("dataset.fields = { data = { from = \"file\", as = \"bytes\" } }");
    let error = parts(&config, None).unwrap_err();
    assert!(error.contains("list.csv:2 names none") && error.contains("set `by`"), "{error}");
    let named = DatasetConfig { condition: Some("file is not null".to_owned()), ..config.clone() };
    let mut found = parts(&named, None).unwrap().concat();
    found.sort_unstable();
    assert_eq!(found, [1, 3]);
    assert_eq!(parts(&config, Some("who")).unwrap().concat().len(), 4);
}

/// Opens with the index of a daemon before, which is used as it is.
fn opened_again(config: &DatasetConfig, index: &Path) -> Result<Opened, String> {
    let index = fs::File::open(index).unwrap();
    let options = OpenOptions { previous_index: Some(&index), ..OpenOptions::default() };
    open(config, options).map_err(|error| error.to_string())
}

#[test]
fn changed_files_are_refused_by_name_and_a_saved_selection_reads_none() {
    for (name, condition) in
        [(TABLES[0], "count >= 58"), ("list.csv", "score >= 2.8"), ("list.jsonl", "score >= 2.8")]
    {
        let folder = tempfile::tempdir().unwrap();
        let mut config = match name.starts_with("list") {
            true => manifest(folder.path(), name, 0..30),
            false => table(folder.path(), name),
        };
        let saved = tempfile::tempdir().unwrap();
        let index = saved.path().join("index");
        config.index = Some(index.clone());
        config.condition = Some(condition.to_owned());
        let expected = kept(&config).unwrap();
        // Another time, and the same size.
        let path = folder.path().join(name);
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, &bytes).unwrap();
        let other =
            DatasetConfig { condition: Some(format!("{condition} or not true")), ..config.clone() };
        let error = opened_again(&other, &index).err().unwrap();
        assert!(error.contains(name) && error.contains("run `forebay index`"), "{error}");
        fs::remove_file(&path).unwrap();
        let again = opened_again(&config, &index).unwrap();
        assert_eq!(again.dataset.kept().unwrap().ids().collect::<Vec<_>>(), expected, "{name}");
    }
}
