//! The page that `forebay bench --report` writes.

use forebay_tests::{Place, data, program};

#[test]
fn a_measured_run_leaves_a_page_with_its_plots() {
    let place = Place::new();
    data::stack(&place.path("data"), 400);
    let text = data::stack_config(&place.path("data"), "order.epochs = 1")
        .replace("operations = []", "operations = [{ op = \"delay\", milliseconds = 4 }]");
    let config = place.config("train<b>.toml", &text);
    let page = place.path("out.html");
    std::fs::write(&page, "of an earlier run").unwrap();
    let run = program::run(place.forebay(&["bench", "--json", "--report"]).arg(&page).arg(&config));
    assert_eq!(run.json()["samples"], 400);
    let text = std::fs::read_to_string(&page).unwrap();
    assert!(text.starts_with("<!DOCTYPE html>") && text.ends_with("</html>\n"), "{text}");
    for part in
        ["<polyline", "Times of copy", "milliseconds = 4", "train&lt;b&gt;", "kernel", "</svg>"]
    {
        assert!(text.contains(part), "{part} in {text}");
    }
    assert!(!text.contains("<b>.toml") && !text.contains("<script"), "{text}");
    // Each of the courses has points: the daemon was asked while it ran.
    let courses = text.split("<polyline").skip(1);
    let points =
        courses.map(|part| part.split("points=\"").nth(1).unwrap().split('"').next().unwrap());
    assert!(
        points.clone().count() >= 4 && points.clone().all(|points| points.split(' ').count() >= 2),
        "{text}"
    );
    let left: Vec<_> = std::fs::read_dir(page.parent().unwrap())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.contains(".tmp"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_page_that_cannot_be_written_is_told_of_before_the_run() {
    let place = Place::new();
    // No data: a run that began would say so.
    let config = place.config("train.toml", &data::stack_config(&place.path("data"), ""));
    let page = place.path("no/such/folder/out.html");
    let run = program::run(place.forebay(&["bench", "--report"]).arg(&page).arg(&config));
    assert!(run.status.code() == Some(1) && run.stderr.contains("cannot be written"), "{run:?}");
}
