//! Manifests with a list of paths of pictures a row: the patches of the same rows from a disk and from servers, and a file
//! that is missing, changed or outside the root.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_client::Loader;
use forebay_storage_remote::testing::{Fault, Server};
use forebay_tests::taken::{ids, sorted, take_epoch, until_error};
use forebay_tests::{TestDir, data, program, test_dir};

const SAMPLES: u64 = 40;

fn picture(number: u64) -> String {
    let number = number % SAMPLES;
    format!("class-{:03}/{number:08}.jpg", number % 2)
}

/// Rows of none to eight pictures, in turn as a list, as a path or not named at all.
fn manifest() -> String {
    let row = |number: u64| {
        let names: Vec<_> = (0..number % 9).map(|place| picture(number + place * 7)).collect();
        let key = match &names[..] {
            [] if number.is_multiple_of(2) => String::new(),
            [one] => format!("\"image\": {one:?}, "),
            several => format!("\"images\": {several:?}, "),
        };
        format!("{{{key}\"number\": {number}}}\n")
    };
    (0..SAMPLES).map(row).collect()
}

/// A folder of pictures with a manifest.
fn made() -> TestDir {
    let dir = TestDir::new();
    data::images(&dir.path("images"), SAMPLES, 2);
    fs::write(dir.path("images/train.jsonl"), manifest()).unwrap();
    dir
}

fn config(dir: &TestDir, file: &str, path: &str, keys: &str) -> PathBuf {
    let text = format!(
        "dataset.path = {path:?}\ndataset.format = \"manifest\"\norder.epochs = 1\nbatch.size = 5\n{keys}\n\
         [dataset.fields]\nimages = {{ from = [\"images\", \"image\"], as = \"images\", missing = \"empty\" }}\n\
         number = {{ from = \"number\", as = \"integer\" }}\n\
         [[stage]]\nname = \"patches\"\noperations = [{{ op = \"image-patches\", max_images = 8, max_pixels = 3136 }}]\n\
         [output]\npixel_values = {{ ragged = true, compact = true }}\n\
         image_grid_thw = {{ ragged = true, compact = true }}\n"
    );
    dir.config(file, &text)
}

fn local(dir: &TestDir, keys: &str) -> PathBuf {
    let path = dir.path("images/train.jsonl");
    config(dir, "local.toml", path.to_str().unwrap(), keys)
}

fn attach(config: &Path) -> Loader {
    test_dir::loader(config, 0, 1).attach().unwrap()
}

#[test]
fn lists_of_pictures_behind_a_url_are_those_on_disk_in_any_weather() {
    let dir = made();
    let expected = take_epoch(&mut attach(&local(&dir, "")));
    assert_eq!(sorted(ids(&expected)), (0..40).collect::<Vec<_>>());
    let server = Server::of(&dir.path(""));
    for scheme in ["s3", "http"] {
        let endpoint = match scheme {
            "s3" => format!(", endpoint = \"http://127.0.0.1:{}\"", server.port()),
            _ => String::new(),
        };
        let keys = format!(
            "dataset.outage_timeout = \"60s\"\nstorage = {{ anonymous = true, stall = \"300ms\"{endpoint} }}"
        );
        let url = server.url(scheme, "images/train.jsonl");
        let remote = config(&dir, &format!("{scheme}.toml"), &url, &keys);
        server.set_weather(|_| Fault::None);
        assert_eq!(take_epoch(&mut attach(&remote)), expected, "{scheme}");
        // A row is read again as a whole, and the longest has twelve requests: most of them get through.
        server.set_weather(|request| match request.number % 67 {
            0 => Fault::Status(503, Some(0), String::new()),
            13 => Fault::Close,
            26 => Fault::Short(100),
            39 => Fault::Stall(100),
            52 => Fault::Longer(9),
            60 => Fault::Delay(Duration::from_millis(5)),
            _ => Fault::None,
        });
        assert_eq!(take_epoch(&mut attach(&remote)), expected, "{scheme}");
    }
    // A manifest on this machine of pictures in a bucket.
    server.set_weather(|_| Fault::None);
    let keys = format!(
        "dataset.root = {:?}\nstorage = {{ anonymous = true, endpoint = \"http://127.0.0.1:{}\" }}",
        server.url("s3", "images"),
        server.port()
    );
    fs::write(dir.path("list.jsonl"), manifest()).unwrap();
    let listed = config(&dir, "root.toml", dir.path("list.jsonl").to_str().unwrap(), &keys);
    let found = take_epoch(&mut attach(&listed));
    assert!(found.iter().zip(&expected).all(|(found, expected)| found.digest == expected.digest));
}

#[test]
fn a_picture_of_a_list_that_is_missing_or_broken_is_named_or_replaced() {
    let dir = made();
    // Of the row of the most pictures, the last one: it is opened when it is read.
    let file = dir.path("images").join(picture(8 + 7 * 7));
    let gone = dir.path("gone.jpg");
    let impatient = "dataset.outage_timeout = \"1s\"\n";
    fs::rename(&file, &gone).unwrap();
    let (_, error) = until_error(&mut attach(&local(&dir, impatient)));
    let said = error.to_string();
    assert!(said.contains(file.to_str().unwrap()) && said.contains("vanished"), "{said}");
    let keys = format!("{impatient}errors = {{ on_unreadable = \"substitute\", budget = 40 }}");
    let found = take_epoch(&mut attach(&local(&dir, &keys)));
    assert_eq!(found.len(), 8);
    assert!(!ids(&found).contains(&8), "{:?}", ids(&found));
    // A link to it is followed, as for other pictures.
    std::os::unix::fs::symlink(&gone, &file).unwrap();
    let found = take_epoch(&mut attach(&local(&dir, "")));
    assert_eq!(sorted(ids(&found)), (0..40).collect::<Vec<_>>());
    fs::remove_file(&file).unwrap();
    fs::write(&file, b"no picture").unwrap();
    let (_, error) = until_error(&mut attach(&local(&dir, "")));
    let said = error.to_string();
    assert!(said.contains("train.jsonl:") && said.contains(": image "), "{said}");
}

#[test]
fn check_names_the_row_that_leads_out_of_a_bucket() {
    let dir = made();
    let text = manifest() + "{\"images\": [\"class-000/00000000.jpg\", \"../../secret.jpg\"]}\n";
    fs::write(dir.path("images/train.jsonl"), text).unwrap();
    let server = Server::of(&dir.path(""));
    let keys = format!(
        "storage = {{ anonymous = true, endpoint = \"http://127.0.0.1:{}\" }}",
        server.port()
    );
    let config = config(&dir, "s3.toml", &server.url("s3", "images/train.jsonl"), &keys);
    let said = program::run_to_end(dir.forebay(&["check"]).arg(&config));
    assert!(said.contains("train.jsonl:41: `images` leads out of s3://"), "{said}");
    // On disk the check passes, and says how many files a row has.
    fs::write(dir.path("images/train.jsonl"), manifest()).unwrap();
    let said = program::run(dir.forebay(&["check"]).arg(local(&dir, "")));
    assert!(said.status.success(), "{said:?}");
    assert!(said.stdout.contains("images|image (up to 8 a row)"), "{said:?}");
}
