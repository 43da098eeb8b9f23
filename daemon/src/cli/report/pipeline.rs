//! The pipeline as a picture: a box a stage, the queue after it as a bar, the trainer at the end.

use super::super::table::percent;
use super::markup::{escape, number, short_time};
use super::page::color;
use crate::observe::StageReport;

const BOX: f64 = 196.0;
const LINK: f64 = 92.0;
const HEIGHT: f64 = 112.0;

/// Draws stages over so many seconds; the trainer waited for a share of them. The box of the `limit` stands out.
pub(super) fn pipeline(
    stages: &[StageReport],
    seconds: f64,
    wait_share: f64,
    limit: &str,
) -> String {
    #[expect(clippy::cast_precision_loss, reason = "a few stages")]
    let width = (BOX + LINK) * stages.len() as f64 + BOX + 4.0;
    let mut svg = format!(
        "<svg class=\"plot\" style=\"max-width: {width}px\" viewBox=\"0 0 {width} {HEIGHT}\" role=\"img\" \
         xmlns=\"http://www.w3.org/2000/svg\"><title>the stages and how full the queues between them are</title>\n"
    );
    let mut x = 2.0;
    for (place, stage) in stages.iter().enumerate() {
        let busy = if seconds > 0.0 { stage.busy_seconds / seconds } else { 0.0 };
        let busy = format!(
            "{} of {} busy",
            number(busy.min(f64::from(stage.concurrency))),
            stage.concurrency
        );
        let times =
            format!("mean {}, p99 {}", short_time(stage.ave_time), short_time(stage.p99_time));
        let is_limit = limit == stage.name || (limit == "storage" && place == 0);
        let class = if is_limit { "box limit" } else { "box" };
        one_box(&mut svg, x, &stage.name, (class, color::stage(place)), [&busy, &times]);
        x += BOX;
        if let Some(queue) = &stage.queue {
            link(&mut svg, x, queue.occupancy_rate, color::stage(place));
        }
        x += LINK;
    }
    let class = if limit == "trainer" { "box limit" } else { "box" };
    one_box(
        &mut svg,
        x,
        "trainer",
        (class, color::WAIT),
        [&format!("waits {} of the time", percent(wait_share)), ""],
    );
    svg.push_str("</svg>\n");
    svg
}

fn one_box(svg: &mut String, x: f64, name: &str, (class, color): (&str, &str), words: [&str; 2]) {
    svg.push_str(&format!(
        "<rect class=\"{class}\" x=\"{x}\" y=\"14\" width=\"{BOX}\" height=\"84\" rx=\"8\" stroke=\"{color}\"/>\n\
         <text class=\"name\" x=\"{0}\" y=\"40\">{1}</text>\n<text x=\"{0}\" y=\"62\">{2}</text>\n\
         <text x=\"{0}\" y=\"82\">{3}</text>\n",
        x + 12.0,
        escape(name),
        escape(words[0]),
        escape(words[1]),
    ));
}

fn link(svg: &mut String, x: f64, occupancy: f64, color: &str) {
    let width = LINK - 32.0;
    let share = occupancy.clamp(0.0, 1.0);
    let left = x + 10.0;
    let tip = x + LINK - 6.0;
    let filled = width * share;
    let back = tip - 11.0;
    let middle = left + width / 2.0;
    svg.push_str(&format!(
        "<rect class=\"rest\" x=\"{left}\" y=\"50\" width=\"{width}\" height=\"12\" rx=\"3\"/>\n\
         <rect x=\"{left}\" y=\"50\" width=\"{filled:.1}\" height=\"12\" rx=\"3\" fill=\"{color}\"/>\n\
         <path class=\"arrow\" d=\"M{back} 49 L{tip} 56 L{back} 63 Z\"/>\n\
         <text x=\"{middle}\" y=\"80\" text-anchor=\"middle\">{}</text>\n",
        escape(&percent(share)),
    ));
}
