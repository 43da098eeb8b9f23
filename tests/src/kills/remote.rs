//! SIGKILL of trainers, their daemons and the server behind which the data lies, in bad weather: each trainer is resumed
//! from its last checkpoint, and what the trainers deliver is what an undisturbed run over the folder on disk does.
//!
//! Trainers take turns in eight configurations: images, archives and an array of ranges, with a cache on disk and without
//! one, shuffled and in order. During a trainer's life its daemon and the server are killed at random instants, at last the trainer is.
//! The server comes back by itself after a while, on its port; it answers some requests wrongly or not at all.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::lives::{Course, Found, finish, live_and_die};
use super::reference::Reference;
use super::report::{Before, is_nothing, percentiles};
use super::served::Served;
use super::{Plan, Random};
use crate::{TestDir, data};

/// Of each form of the data.
const SAMPLES: u64 = 202;
/// The longest time that the server is away.
const AWAY: Duration = Duration::from_millis(250);
/// Does it with the trainer's and the server's program; gives the report, whose `ok` says whether all was well.
pub fn run(trainer: &Path, server: &Path, plan: Plan) -> Value {
    let dir = TestDir::new();
    let shown = dir.path("data");
    make_data(&shown);
    let served = Served::new(server, &shown, plan.seed);
    let mut courses = courses(&dir, &shown, served.port());
    for course in &mut courses {
        let _ = course.reference.epoch(0).len();
    }
    let before = Before::now(&dir);
    let mut random = Random::new(plan.seed);
    let mut found = Found::default();
    let mut life = 0;
    while found.kills.values().sum::<u64>() < plan.kills {
        let turn = life % courses.len();
        life += 1;
        let course = &mut courses[turn];
        if random.below(8) == 0 {
            let _ = std::fs::remove_file(course.config.with_extension("index"));
        }
        // What was fetched once would not be asked for any more.
        if let Some(cache) = course.cache.as_ref().filter(|_| random.below(3) == 0) {
            let _ = std::fs::remove_dir_all(cache);
        }
        let mut kill_server =
            |random: &mut Random| served.kill(random.pause(AWAY)).then_some("server");
        let lines = live_and_die(&dir, trainer, course, &mut kill_server, &mut random, &mut found);
        course.check(&lines, &mut found);
    }
    let damaged = finish(&dir, &mut courses);
    drop((courses, served));
    let left = before.left(&dir);
    let is_right = found.mismatches + found.lost + found.repeated + damaged == 0;
    json!({
        "mode": "remote", "kills": found.kills.values().sum::<u64>(), "kills_of": found.kills, "seed": plan.seed,
        "trainers": life, "ended_at_start": found.ended_at_start, "batches": found.batches, "epochs": found.epochs, "mismatches": found.mismatches,
        "lost": found.lost, "repeated": found.repeated, "damaged_entries": damaged,
        "seconds_to_end": percentiles(&mut found.to_end), "left": left,
        "ok": is_right && found.batches > 0 && is_nothing(&left),
    })
}

/// Images in class folders, one of them broken; the same in archives; an array of as many samples.
fn make_data(shown: &Path) {
    let images = shown.join("images");
    data::images(&images, SAMPLES, 4);
    forebay_synth::tar::pack_classes(&images, &shown.join("tars"), 50).unwrap();
    std::fs::write(images.join("class-001/00000005.jpg"), "no image").unwrap();
    data::stack(&shown.join("stack"), SAMPLES);
}

fn courses(dir: &TestDir, shown: &Path, port: u16) -> Vec<Course> {
    let keys = "ring.slots = 4\norder.seed = 11\nbatch.last = \"short\"\ndataset.outage_timeout = \"80s\"\n\
                errors.on_bad_sample = \"substitute\"";
    let storage = format!(
        "storage = {{ endpoint = \"http://127.0.0.1:{port}\", anonymous = true, stall = \"300ms\" }}"
    );
    // Of neighbours in order several come by one request.
    const COURSES: [(&str, &str, bool, bool); 8] = [
        ("images-cached", "images", true, true),
        ("tars-in-order", "tars", false, false),
        ("stack", "stack", true, false),
        ("stack-cached", "stack", true, true),
        ("images", "images", true, false),
        ("stack-in-order", "stack", false, false),
        ("tars-cached", "tars", true, true),
        ("tars", "tars", true, false),
    ];
    let course = |(name, data, is_shuffled, has_cache): (&'static str, &str, bool, bool)| {
        let keys = format!("order.shuffle = {is_shuffled}\n{keys}");
        let text = |root: &Path, keys: &str| match data {
            "stack" => data::stack_config(&root.join(data), keys),
            _ => {
                let text = data::image_config(&root.join(data), keys);
                let format = if data == "tars" { "webdataset" } else { "image-folder" };
                let text = text.replace("batch.size = 8", "batch.size = 4");
                format!("dataset.format = {format:?}\n{text}")
            }
        };
        let local = dir.config(&format!("local-{name}.toml"), &text(shown, &keys));
        let cache = has_cache.then(|| dir.path(&format!("kept-{name}")));
        let kept = cache.as_ref().map(|path| {
            format!("cache = {{ path = {:?}, keep_free = 0 }}", path.display().to_string())
        });
        let keys = [&keys, &storage, kept.as_deref().unwrap_or_default()].join("\n");
        let config = dir.config(&format!("{name}.toml"), &text(Path::new("s3://bucket"), &keys));
        let reference = Reference::of(local);
        Course::new(name, config, cache, reference)
    };
    COURSES.map(course).into()
}
