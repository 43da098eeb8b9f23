//! Lists of paths of pictures.

use super::*;
use forebay_config::DatasetConfig;
use forebay_dataset::DatasetError;
use forebay_storage::location::Location;

const IMAGES: &str = "[dataset.fields]\nimages = { from = [\"images\", \"image\"], as = \"images\", missing = \"empty\" }\n";

fn open_at<const PLACE: usize>(
    config: &DatasetConfig,
    options: OpenOptions<'_>,
) -> Result<Opened, DatasetError> {
    let mut config = config.clone();
    let more = "number = { from = \"number\", as = \"integer\" }\nmask = { from = \"mask\", as = \"image\" }\n";
    config.own = own_keys(&format!("{IMAGES}{more}"));
    EVERYWHERE[PLACE](&config, options)
}

/// Rows of one to six pictures, some twice in a row, and a mask.
fn conforming_lists(root: &Path, count: usize) -> PathBuf {
    let mut text = String::new();
    for number in 0..count {
        let name = |place: usize| format!("images/{number:03}-{place}.jpg");
        let places: Vec<usize> = (0..=number % 6).map(|place| place % 5).collect();
        for place in &places {
            let byte = u8::try_from(number + place).unwrap();
            write_aged(&root.join(name(*place)), &vec![byte; 20 + number]);
        }
        let names: Vec<_> = places.into_iter().map(|place| format!("{:?}", name(place))).collect();
        let images = match &names[..] {
            [one] => format!("\"image\": {one}"),
            several => format!("\"images\": [{}]", several.join(", ")),
        };
        text += &format!("{{{images}, \"number\": {number}, \"mask\": {}}}\n", names[0]);
    }
    let path = root.join("train.jsonl");
    write_aged(&path, text.as_bytes());
    path
}

#[test]
fn lists_of_pictures_conform_on_disk_and_from_urls() {
    for open in [open_at::<0>, open_at::<1>, open_at::<2>] {
        let (has_names, refuses_cuts) = (true, false);
        let (name, make) = ("manifest", conforming_lists);
        conformance::run(&Format { open, name, make, has_names, refuses_cuts });
    }
}

/// Four pictures, and rows of a manifest that name them.
fn pictured(name: &str, rows: &str) -> Fixture {
    let made = Fixture::new(&[
        (name, rows),
        ("a/1.jpg", "1"),
        ("b/2.png", "22"),
        ("b/3.png", "333"),
        ("c.jpg", "4444"),
    ]);
    made.with(IMAGES)
}

const ROWS: &str = r#"{"images": ["a/1.jpg", "b/2.png"]}
{"image": "c.jpg"}
{"images": []}
{"images": null, "image": "b/3.png"}
{"text": "no picture"}
{"images": ["b/2.png", "./b/../c.jpg", "b/2.png"], "image": "c.jpg"}
{"images": ["a/1.jpg", null]}
{"images": ["a/1.jpg", "gone.jpg"]}
{"images": ["c.jpg", "b/3.png", "b/2.png", "a/1.jpg", "c.jpg", "b/3.png"]}
"#;

#[test]
fn lists_and_single_paths_are_pictures_in_their_order() {
    let made = pictured("train.jsonl", ROWS);
    for is_again in [false, true] {
        let opened = made.open_path("data/train.jsonl").unwrap();
        assert_eq!(opened.report.reused, is_again);
        assert_eq!(fields(&opened), ["images"]);
        for (id, expected) in [
            (0, "images 1:49 2:100"),
            (1, "images 4:208"),
            (2, "images"),
            (3, "images 3:153"),
            (4, "images"),
            (5, "images 2:100 4:208 2:100"),
            (8, "images 4:208 3:153 2:100 1:49 4:208 3:153"),
        ] {
            assert_eq!(sample(&opened, id).unwrap(), [expected], "{id}");
        }
        let null = sample(&opened, 6).unwrap_err();
        assert_eq!(null, "image 2 of `images` is null or has no path");
        let missing = sample(&opened, 7).unwrap_err();
        assert!(missing.contains("data/gone.jpg has vanished"), "{missing}");
        let notes = opened.dataset.description().notes;
        assert!(
            notes.contains(&("files", "named by images|image (up to 6 a row)".to_owned())),
            "{notes:?}"
        );
        assert!(opened.report.warnings.is_empty(), "{:?}", opened.report);
        let mut key = Vec::new();
        assert!(!opened.dataset.append_key(SampleId(2), &mut key));
        assert!(opened.dataset.append_key(SampleId(5), &mut key));
        assert_eq!(key, b"b/2.png");
    }
    // A file of the list that is empty.
    write_aged(&made.folder.path().join("data/b/3.png"), b"");
    let opened = made.open_path("data/train.jsonl").unwrap();
    let empty = sample(&opened, 8).unwrap_err();
    assert_eq!(empty, "image 2 of `images` is empty: b/3.png");
}

#[test]
fn a_row_without_pictures_is_a_bad_sample_or_left_out_unless_it_may_be_empty() {
    let own = |missing: &str| {
        let field = format!("images = {{ from = \"images\", as = \"images\"{missing} }}");
        pictured("train.jsonl", ROWS).with(&format!("[dataset.fields]\n{field}"))
    };
    let opened = own("").open_path("data/train.jsonl").unwrap();
    assert_eq!(sample(&opened, 2).unwrap(), ["images"]);
    assert_eq!(sample(&opened, 3).unwrap_err(), "it has no images for the field `images`");
    assert!(opened.report.warnings[0].contains("3 rows without images"), "{:?}", opened.report);
    let opened = own(", missing = \"skip\"").open_path("data/train.jsonl").unwrap();
    assert_eq!(opened.dataset.sample_count(), 6);
}

#[test]
fn files_of_lists_are_numbered_beside_those_of_other_fields() {
    let rows = r#"{"first": "c.jpg", "images": ["a/1.jpg", "b/2.png"], "last": "b/3.png"}
{"first": "b/3.png", "images": [], "last": "a/1.jpg"}
{"images": ["b/3.png"], "last": "c.jpg"}
"#;
    let made = pictured("train.jsonl", rows).with(
        "[dataset.fields]\nfirst = { from = \"first\", as = \"bytes\", missing = \"empty\" }\n\
         images = { from = \"images\", as = \"images\" }\nlast = { from = \"last\", as = \"image\" }",
    );
    let opened = made.open_path("data/train.jsonl").unwrap();
    for (id, expected) in [
        (0, ["[52, 52, 52, 52]", "images 1:49 2:100", "image 3"]),
        (1, ["[51, 51, 51]", "images", "image 1"]),
        (2, ["[]", "images 3:153", "image 4"]),
    ] {
        assert_eq!(sample(&opened, id).unwrap(), expected, "{id}");
    }
    let mut all = Vec::new();
    (0..3).for_each(|id| opened.dataset.locate(SampleId(id), &mut all));
    let paths: Vec<_> =
        all.iter().map(|Location { file, .. }| opened.dataset.path(*file)).collect();
    let expected =
        ["c.jpg", "a/1.jpg", "b/2.png", "b/3.png", "b/3.png", "a/1.jpg", "b/3.png", "c.jpg"];
    assert_eq!(paths, expected.map(|path| path.as_bytes().to_vec()));
    all.sort_by_key(|location| location.file);
    all.dedup();
    assert_eq!(all.len(), expected.len(), "each has a number of its own");
}

#[test]
fn cells_of_csv_are_one_path_or_json() {
    let rows = "images\na/1.jpg\n\"[\"\"c.jpg\"\", \"\"b/2.png\"\"]\"\n\"\"\n";
    let made = pictured("train.csv", rows);
    let opened = made.open_path("data/train.csv").unwrap();
    let found = [0, 1, 2].map(|id| sample(&opened, id).unwrap().remove(0));
    assert_eq!(found, ["images 1:49", "images 4:208 2:100", "images"]);
}

#[test]
fn lists_that_are_unusable_are_named_by_line() {
    for (row, reason) in [
        (r#"{"images": [3]}"#, "`images` is no list of paths: invalid type: integer `3`"),
        (r#"{"images": ["a/1.jpg", {"path": "c.jpg"}]}"#, "`images` is no list of paths"),
        (r#"{"images": ["https://host/a.jpg"]}"#, "set dataset.root to the URL"),
    ] {
        let made = pictured("train.jsonl", &format!("{ROWS}{row}\n"));
        let message = made.refusal("data/train.jsonl");
        assert!(
            message.contains("train.jsonl:10: `images` ") && message.contains(reason),
            "{message}"
        );
    }
    // Of data behind a URL, no path leads out of the root.
    let made = pictured("train.jsonl", "{\"images\": [\"a/1.jpg\", \"../c.jpg\"]}\n");
    for open in &EVERYWHERE[1..] {
        let mut config = config_for("manifest", &made.folder.path().join("data/train.jsonl"));
        config.own = own_keys(IMAGES);
        let message = open(&config, OpenOptions::default()).unwrap_err().to_string();
        assert!(message.contains("train.jsonl:1: `images` leads out of"), "{message}");
    }
}

#[test]
fn lists_of_paths_are_text_until_the_configuration_says_what_they_are() {
    let made = Fixture::new(&[("train.jsonl", "{\"images\": [\"a.jpg\"]}\n{\"images\": []}\n")]);
    let opened = made.open_path("data/train.jsonl").unwrap();
    assert_eq!(sample(&opened, 0).unwrap(), ["\"[\\\"a.jpg\\\"]\""]);
    let warning = "dataset.fields.images to { from = \"images\", as = \"images\" }";
    assert!(opened.report.warnings[0].contains(warning), "{:?}", opened.report);
}
