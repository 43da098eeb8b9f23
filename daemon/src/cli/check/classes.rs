//! The lines of `forebay check` about classes that are drawn alike and about grouped batches.

use forebay_engine::{DrawnClasses, Stream};
use forebay_order::{Balanced, Classes, Grouped, Selection};
use forebay_protocol::counted::counted;

/// The order, in a line.
pub(super) fn order(stream: &Stream) -> String {
    let field = stream.drawn_classes().map_or("", |drawn| &drawn.field);
    match stream.selection() {
        Selection::Balanced(balanced) => {
            format!(
                "each of {} by {field} {} an epoch",
                counted(balanced.classes().count(), "class"),
                drawn(balanced)
            )
        }
        Selection::Grouped(grouped) => {
            let groups = grouped.batch_size() / grouped.size();
            let of = match groups {
                1 => "one group".to_owned(),
                groups if grouped.differ() => format!("each of {groups} groups"),
                groups => format!("each of {groups} groups, which may be the same"),
            };
            format!("batches of {} of {of} by {field}", counted(grouped.size(), "sample"))
        }
        _ => String::new(),
    }
}

/// How often a class is drawn in an epoch.
fn drawn(balanced: &Balanced) -> String {
    match balanced.draws_of_class() {
        (fewest, most) if fewest == most => counted(most, "time"),
        (fewest, most) => format!("{fewest} or {most} times"),
    }
}

/// Names and texts of further lines.
pub(super) fn lines(stream: &Stream) -> Vec<(&'static str, String)> {
    let Some((drawn, classes)) = found(stream) else { return Vec::new() };
    let mut lines = Vec::new();
    let mut listed: Vec<String> =
        drawn.first.iter().map(|(name, samples)| format!("{name} {samples}")).collect();
    let (fewest, most) = sizes(classes);
    let more = u64::from(classes.count()) - listed.len() as u64;
    if more > 0 {
        listed.push(format!("{more} more"));
    }
    let extent = if fewest == most { fewest.to_string() } else { format!("{fewest} to {most}") };
    lines.push(("by class", format!("{} each: {}", counted(extent, "sample"), listed.join(", "))));
    if drawn.without > 0 {
        let text =
            format!("{} whose {} cannot be read", counted(drawn.without, "sample"), drawn.field);
        lines.push(("never drawn", text));
    }
    if let Selection::Grouped(grouped) = stream.selection() {
        lines.extend(of_groups(grouped));
    }
    lines
}

fn of_groups(grouped: &Grouped) -> impl Iterator<Item = (&'static str, String)> {
    let (groups, samples) = grouped.too_small();
    let size = grouped.size();
    let rest = (grouped.left_out() > 0).then(|| {
        let left_out = grouped.left_out();
        ("rests of groups", format!("{} an epoch, others in each", counted(left_out, "sample")))
    });
    let small = (groups > 0).then(|| {
        (
            "never drawn",
            format!(
                "{} of {} with fewer than {size}",
                counted(samples, "sample"),
                counted(groups, "group")
            ),
        )
    });
    rest.into_iter().chain(small)
}

fn found(stream: &Stream) -> Option<(&DrawnClasses, &Classes)> {
    let classes = match stream.selection() {
        Selection::Balanced(balanced) => balanced.classes(),
        Selection::Grouped(grouped) => grouped.classes(),
        _ => return None,
    };
    Some((stream.drawn_classes()?, classes))
}

/// The samples of the smallest and of the largest class.
fn sizes(classes: &Classes) -> (u64, u64) {
    let sizes = || (0..classes.count()).map(|class| classes.samples_of(class));
    (sizes().min().unwrap_or(0), sizes().max().unwrap_or(0))
}

/// The same as JSON; null for other orders.
pub(super) fn as_json(stream: &Stream) -> serde_json::Value {
    let Some((drawn, classes)) = found(stream) else { return serde_json::Value::Null };
    let (fewest, most) = sizes(classes);
    let class =
        |(name, samples): &(String, u64)| serde_json::json!({ "name": name, "samples": samples });
    let mut json = serde_json::json!({
        "field": drawn.field,
        "count": classes.count(),
        "fewest_samples": fewest,
        "most_samples": most,
        "first": drawn.first.iter().map(class).collect::<Vec<_>>(),
        "samples_without": drawn.without,
    });
    match stream.selection() {
        Selection::Balanced(balanced) => {
            let (fewest, most) = balanced.draws_of_class();
            json["fewest_draws_per_epoch"] = fewest.into();
            json["most_draws_per_epoch"] = most.into();
        }
        Selection::Grouped(grouped) => {
            let (small, small_samples) = grouped.too_small();
            json["size"] = grouped.size().into();
            json["groups_of_batch_differ"] = grouped.differ().into();
            json["samples_left_out_per_epoch"] = grouped.left_out().into();
            json["too_small"] = small.into();
            json["samples_of_too_small"] = small_samples.into();
        }
        _ => {}
    }
    json
}
