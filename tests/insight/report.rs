//! The page that `forebay bench --report` writes.

use forebay_tests::{TestDir, data, program};

#[test]
fn a_measured_run_writes_its_data_into_a_page() {
    let dir = TestDir::new();
    data::stack(&dir.path("data"), 400);
    let text = data::stack_config(&dir.path("data"), "order.epochs = 1")
        .replace("operations = []", "operations = [{ op = \"delay\", milliseconds = 4 }]");
    let config = dir.config("train<b>.toml", &text);
    let page = dir.path("out.html");
    std::fs::write(&page, "of an earlier run").unwrap();
    let run = program::run(dir.forebay(&["bench", "--json", "--report"]).arg(&page).arg(&config));
    assert_eq!(run.json()["samples"], 400);
    let text = std::fs::read_to_string(&page).unwrap();
    assert!(text.starts_with("<!doctype html>") && text.ends_with("</html>\n"), "{text}");
    assert!(!text.contains("<b>"), "{text}");
    let (_, data) = text.split_once("id=\"data\">").unwrap();
    let data: serde_json::Value =
        serde_json::from_str(data.split_once("</script>").unwrap().0).unwrap();
    assert_eq!(data["title"], "forebay bench: train<b>");
    assert_eq!(
        (&data["run"]["samples"], &data["run"]["stages"][1]["name"]),
        (&run.json()["samples"], &"copy".into())
    );
    assert!(data["config"].to_string().contains("milliseconds = 4"), "{data}");
    assert!(data["facts"].to_string().contains("kernel"), "{data}");
    // The daemon was asked while it ran.
    assert!(data["points"].as_array().unwrap().len() >= 2, "{data}");
    let left: Vec<_> = std::fs::read_dir(page.parent().unwrap())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.contains(".tmp"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}
