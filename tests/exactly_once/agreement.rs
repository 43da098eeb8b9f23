//! Promise P11, one data, one job: ranks with other data or another configuration are refused when their loaders are made.

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use forebay_tests::program::Finished;
use forebay_tests::{TestDir, data, program};

const TRAINER: &str = env!("CARGO_BIN_EXE_forebay-test-trainer");

fn text(images: &Path) -> String {
    format!(
        "dataset.path = {:?}\npreset = \"imagenet-train\"\nbatch.size = 4\nbatch.last = \"drop\"\norder.seed = 5\n\
         order.shuffle = true\norder.epochs = 2\n[[stage]]\nname = \"preprocess\"\nconcurrency = 1\noperations = [\
         {{ op = \"decode-image\" }}, {{ op = \"random-resized-crop\", size = 32 }}, {{ op = \"random-horizontal-flip\" }}]\n\
         [output.image]\ndtype = \"uint8\"\nlayout = \"NCHW\"\n",
        images.display()
    )
}

struct Job {
    dir: TestDir,
    text: String,
}

impl Job {
    fn new() -> Self {
        let dir = TestDir::new();
        data::images(&dir.path("images"), 24, 3);
        let text = text(&dir.path("images"));
        Self { dir, text }
    }

    /// A copy of the pictures.
    fn copy(&self, name: &str) -> PathBuf {
        let copy = self.dir.path(name);
        let mut command = self.dir.command(Path::new("cp"));
        command.arg("-r").arg(self.dir.path("images")).arg(&copy);
        assert!(program::run(&mut command).status.success());
        copy
    }

    /// A rank that takes an epoch of a configuration.
    fn start(&self, name: &str, text: &str, rank: u32, variables: &[(&str, &str)]) -> Child {
        let config = self.dir.config(&format!("{name}-{rank}.toml"), text);
        let mut command = self.dir.command(Path::new(TRAINER));
        command.arg(format!("use={}", config.display())).arg("epoch");
        command.env("RANK", rank.to_string()).env("WORLD_SIZE", "2");
        command.envs(variables.iter().copied());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Two ranks that compare themselves in a folder.
    fn two(&self, name: &str, texts: [&str; 2], second: &[(&str, &str)]) -> [Finished; 2] {
        let folder = self.dir.path("ranks").display().to_string();
        let mut ranks = (0..).zip(texts).map(|(rank, text)| {
            let mut variables =
                vec![("FOREBAY_RANKS_FOLDER", folder.as_str()), ("FOREBAY_JOB", name)];
            if rank == 1 {
                variables.extend(second);
            }
            self.start(name, text, rank, &variables)
        });
        let children = [ranks.next().unwrap(), ranks.next().unwrap()];
        children.map(program::finish)
    }
}

fn error(finished: &Finished) -> String {
    let last = finished.json_lines().pop().unwrap_or_else(|| panic!("{finished:?}"));
    last["error"].as_str().unwrap_or_else(|| panic!("{finished:?}")).to_owned()
}

#[test]
fn every_difference_between_ranks_is_refused_on_both_and_named() {
    let job = Job::new();
    let less = job.copy("less");
    let entries = |folder: &Path| {
        let mut paths: Vec<PathBuf> =
            std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        paths
    };
    let first_class =
        |folder: &Path| entries(folder).into_iter().find(|path| path.is_dir()).unwrap();
    let first_file = |folder: &Path| entries(&first_class(folder)).remove(0);
    std::fs::remove_file(first_file(&less)).unwrap();
    let renamed = job.copy("renamed");
    let file = first_file(&renamed);
    std::fs::rename(&file, file.with_file_name("another.jpg")).unwrap();
    let class = job.copy("class");
    let folder = first_class(&class);
    std::fs::rename(&folder, folder.with_file_name("another-class")).unwrap();
    let at = |folder: &Path| text(folder);
    let with = |from: &str, to: &str| {
        assert!(job.text.contains(from), "{from}");
        job.text.replace(from, to)
    };
    let cases: Vec<(&str, String, &str)> = vec![
        ("a-file-less", at(&less), "samples is 24 on rank 0 and 23 on rank 1"),
        ("a-file-renamed", at(&renamed), "dataset is "),
        ("a-class-renamed", at(&class), "dataset is "),
        ("seed", with("seed = 5", "seed = 6"), "order.seed is 5 on rank 0 and 6 on rank 1"),
        ("shuffle", with("shuffle = true", "shuffle = false"), "order.shuffle is true on rank 0"),
        ("epochs", with("epochs = 2", "epochs = 3"), "order.epochs is 2 on rank 0 and 3 on rank 1"),
        ("batch", with("size = 4", "size = 3"), "batch.size is 4 on rank 0 and 3 on rank 1"),
        ("last", with("\"drop\"", "\"pad\""), "batch.last is drop on rank 0 and pad on rank 1"),
        ("argument", with("size = 32", "size = 31"), "operations is "),
        ("operation", with(", { op = \"random-horizontal-flip\" }", ""), "operations is "),
        ("dtype", with("\"uint8\"", "\"float32\""), "output is "),
        ("layout", with("\"NCHW\"", "\"NHWC\""), "output is "),
    ];
    let differences = cases.len();
    for (name, other, part) in cases {
        for (rank, finished) in job.two(name, [&job.text, &other], &[]).iter().enumerate() {
            let error = error(finished);
            assert_eq!(finished.status.code(), Some(3), "{name}, rank {rank}: {finished:?}");
            assert!(error.contains("do not share one stream"), "{name}, rank {rank}: {error}");
            assert!(error.contains(part), "{name}, rank {rank}: {error}");
        }
    }
    for finished in job.two("world", [&job.text, &job.text], &[("WORLD_SIZE", "3")]) {
        let error = error(&finished);
        assert!(error.contains("world_size is 2 on rank 0 and 3 on rank 1"), "{error}");
    }
    println!("{} differences were refused on both ranks", differences + 1);
    // Other paths, threads and memory are no difference.
    let same = at(&job.copy("same")).replace("concurrency = 1", "concurrency = 2");
    for finished in job.two("same", [&job.text, &same], &[]) {
        assert!(finished.status.success(), "{finished:?}");
        assert_eq!(finished.json_lines().len(), 1 + 3, "{finished:?}");
    }
}

#[test]
fn a_rank_that_does_not_come_is_named_and_one_that_comes_late_is_compared() {
    let job = Job::new();
    let folder = job.dir.path("ranks").display().to_string();
    let variables = [
        ("FOREBAY_RANKS_FOLDER", folder.as_str()),
        ("FOREBAY_JOB", "late"),
        ("FOREBAY_RANKS_WAIT", "0.3"),
    ];
    let finished = program::finish(job.start("late", &job.text, 0, &variables));
    assert!(finished.status.success(), "{finished:?}");
    assert!(
        finished.stderr.contains("rank 1 did not make this loader within 0.3 s"),
        "{finished:?}"
    );
    let other = job.text.replace("seed = 5", "seed = 6");
    let late = error(&program::finish(job.start("late", &other, 1, &variables)));
    assert!(late.contains("order.seed is 5 on rank 0 and 6 on rank 1"), "{late}");
    // Another run in the same folder begins anew.
    let again = [variables[0], ("FOREBAY_JOB", "again"), variables[2]];
    let finished = program::finish(job.start("again", &other, 0, &again));
    assert!(finished.status.success(), "{finished:?}");
    let unnamed = error(&program::finish(job.start("late", &other, 0, &variables[..1])));
    assert!(unnamed.contains("set FOREBAY_JOB"), "{unnamed}");
}

#[test]
fn what_the_launcher_expects_is_what_check_prints() {
    let job = Job::new();
    let config = job.dir.config("train.toml", &job.text);
    let plan =
        program::run(job.dir.forebay(&["check", "--plan-only", "--world-size", "2"]).arg(&config));
    let expected = plan
        .stdout
        .lines()
        .find_map(|line| line.trim().strip_prefix("FOREBAY_EXPECT"))
        .unwrap_or_else(|| panic!("{plan:?}"))
        .trim()
        .to_owned();
    // The ranks here have configurations of other names.
    let (stream, expected) = expected.split_once(':').unwrap();
    assert_eq!(stream, "train");
    let expected = format!("another:samples=1;{expected}");
    let expect = [("FOREBAY_EXPECT", expected.as_str())];
    for rank in 0..2 {
        let finished = program::finish(job.start("expected", &job.text, rank, &expect));
        assert!(finished.status.success(), "{finished:?}");
    }
    let other = job.text.replace("seed = 5", "seed = 6");
    let refused = error(&program::finish(job.start("other", &other, 1, &expect)));
    assert!(refused.contains("rank 1") && refused.contains("order.seed is 6 and 5 is expected"));
    let version = [("FOREBAY_EXPECT", "stream_version=1000")];
    let refused = error(&program::finish(job.start("version", &job.text, 0, &version)));
    assert!(refused.contains("and 1000 is expected"), "{refused}");
    // A loader of one rank, such as an evaluation's, is not compared.
    let alone = [version[0], ("RANK", "0"), ("WORLD_SIZE", "1")];
    assert!(program::finish(job.start("alone", &job.text, 0, &alone)).status.success());
}
