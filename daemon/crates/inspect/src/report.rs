//! Reports of `bench`, `headspace` and `show`: one HTML file with the run as JSON, and with the script and style of the
//! live page (`page`), which draw it. The file loads nothing and sends nothing, which its Content-Security-Policy
//! enforces: only the script with this file's nonce runs. Strings of the run are only data, never markup.

mod file;
mod machine;
mod time_series;

use std::hash::{BuildHasher as _, RandomState};

use serde_json::{Value, json};

use crate::bench_report::BenchReport;
use crate::page;
use crate::sanitize::sanitize_json;
pub use file::ReportFile;
pub use time_series::TimeSeries;

/// The report of a measured run of the stream `name`; `config` is the configuration as printed by `forebay check`.
pub fn bench_page(name: &str, run: &BenchReport, series: &TimeSeries, config: &str) -> String {
    page(json!({
        "kind": "bench",
        "title": format!("forebay bench: {name}"),
        "run": run,
        "points": series.rates(),
        "config": config.lines().collect::<Vec<_>>(),
        "facts": facts(),
    }))
}

/// The report of a measured headspace: the value that `--json` prints, and for each block of steps its phase (before,
/// during or after the replay) and its seconds per step.
pub(crate) fn headspace_page(found: Value, blocks: &[(String, f64)]) -> String {
    page(json!({
        "kind": "headspace",
        "title": "forebay headspace",
        "run": found,
        "blocks": blocks,
        "facts": facts(),
    }))
}

/// The report of some samples of the stream `name` as a trainer receives them, from `forebay show`.
pub fn samples_page(name: &str, found: Value, config: &str) -> String {
    page(json!({
        "kind": "samples",
        "title": format!("forebay show: {name}"),
        "run": found,
        "config": config.lines().collect::<Vec<_>>(),
        "facts": facts(),
    }))
}

/// The command line and the machine.
fn facts() -> Vec<(String, String)> {
    let command_line: Vec<String> = std::env::args().collect();
    let mut facts = vec![("command".to_owned(), command_line.join(" "))];
    facts.extend(machine::machine());
    facts
}

fn page(mut data: Value) -> String {
    data["release"] = env!("CARGO_PKG_VERSION").into();
    // No `<`: the text cannot end its element.
    let data = sanitize_json(data).to_string().replace('<', "\\u003c");
    let nonce = format!("{:016x}", RandomState::new().hash_one(&data));
    let script: String =
        [page::METRICS_JS, page::PARTS_JS, page::CHART_JS, page::SAMPLES_JS, page::REPORT_JS]
            .map(without_modules)
            .concat();
    let text = page::REPORT_HTML.replace("{nonce}", &nonce);
    let text = text.replace("{icon}", page::ICON.trim_end()).replace("{style}", page::CSS);
    text.replace("{script}", &script).replace("{data}", &data)
}

/// A module without its imports and exports, so that several modules become one script: a file cannot import from
/// itself.
fn without_modules(module: &str) -> String {
    let lines = module.lines().filter(|line| !line.starts_with("import "));
    lines.flat_map(|line| [line.strip_prefix("export ").unwrap_or(line), "\n"]).collect()
}

#[cfg(test)]
mod tests {
    use forebay_observe::Verdict;

    use super::*;

    fn bench(series: &TimeSeries, text: &str) -> String {
        let verdict = Verdict { sentence: text.to_owned(), ..Verdict::default() };
        bench_page(text, &BenchReport { verdict, ..BenchReport::default() }, series, text)
    }

    /// The JSON in a page.
    fn data(page: &str) -> Value {
        let (_, rest) = page.split_once("<script type=\"application/json\" id=\"data\">").unwrap();
        serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
    }

    #[test]
    fn report_runs_only_its_script_and_loads_nothing() {
        let page = bench(&TimeSeries::default(), "text");
        let (_, policy) = page.split_once("Content-Security-Policy\" content=\"").unwrap();
        let policy = policy.split_once('"').unwrap().0;
        assert!(policy.starts_with("default-src 'none'; script-src 'nonce-"), "{policy}");
        assert!(!policy.contains("unsafe") && !policy.contains("http"), "{policy}");
        for absent in [
            "{nonce}",
            "{data}",
            "{script}",
            "{style}",
            "{icon}",
            "\nimport ",
            "\nexport ",
            " src=",
            " href=",
        ] {
            assert!(!page.contains(absent), "{absent}");
        }
        assert_eq!(page.matches("http").count(), page.matches("http://www.w3.org/").count() + 1);
    }

    #[test]
    fn strings_of_a_run_are_never_markup() {
        let hostile = "</script><script>alert(1)</script><!--\" onload='x' & \u{1b}[2J {script}";
        let page = bench(&TimeSeries::default(), hostile);
        assert!(!page.contains("alert(1)</script>") && !page.contains('\u{1b}'), "{page}");
        assert_eq!(page.matches("</script>").count(), 2);
        assert_eq!(data(&page)["config"][0], hostile.replace('\u{1b}', "\\x1b"));
        let page = headspace_page(json!({ "sentence": hostile }), &[(hostile.to_owned(), 1.0)]);
        assert_eq!(page.matches("</script>").count(), 2);
    }
}
