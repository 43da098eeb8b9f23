//! DALI's `.idx` files result in the same index as without them, and a wrong `.idx` never results in wrong bytes.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebay_observe::Clock;
use forebay_synth::tar;

use crate::open;
use crate::testing::{config_for, names, own_keys, sample, write_aged};
use forebay_dataset::{OpenOptions, Opened};
use forebay_storage::Patience;
use forebay_storage_remote::testing::{Fault, Server};

/// The members of an archive: names and data.
type Members = Vec<(String, Vec<u8>)>;

const FIELDS: &str = "[dataset.fields]\nimage = { from = [\"jpg\", \"png\"], as = \"image\" }\n\
    label = { from = \"cls\", as = \"integer\" }\nbox = { from = \"txt\", as = \"text\", missing = \"empty\" }";

/// 60 samples with images of at least 9,000 bytes; some have a text.
fn members(shard: usize) -> Members {
    let sample = |number: usize| {
        let key = format!("s{shard}/{number:04}");
        let picture = vec![number.to_le_bytes()[0]; 9_000 + 7 * (number % 5)];
        let label = ("cls", (100 + number).to_string().into_bytes());
        let text = (number % 7 == 3).then(|| ("txt", format!("text {number}").into_bytes()));
        let all = [Some(("jpg", picture)), Some(label), text];
        all.into_iter().flatten().map(move |(field, data)| (format!("{key}.{field}"), data))
    };
    (0..60).flat_map(sample).collect()
}

fn archive(members: &Members) -> Vec<u8> {
    let members: Vec<_> = members.iter().map(|(name, data)| (&name[..], &data[..])).collect();
    tar::archive(&members)
}

/// The output of wds2idx: one line per sample with extension, offset, size and name of each member.
fn list(members: &Members) -> String {
    let mut lines: Vec<(String, String)> = Vec::new();
    let mut offset = 512;
    for (name, data) in members {
        let base = name.rfind('/').map_or(0, |slash| slash + 1);
        let (stem, extension) = name.split_at(base + name[base..].find('.').unwrap());
        let words = format!("{} {offset} {} {name}", &extension[1..], data.len());
        match lines.last_mut() {
            Some((last, line)) if last == stem => line.push_str(&format!(" {words}")),
            _ => lines.push((stem.to_owned(), words)),
        }
        offset += data.len().next_multiple_of(512) + 512;
    }
    let body: String = lines.iter().map(|(_, line)| format!("{line}\n")).collect();
    format!("v1.2 {}\n{body}", lines.len())
}

struct Bucket {
    server: Server,
    folder: tempfile::TempDir,
    /// The number of requested bytes of archives.
    asked: Arc<Mutex<u64>>,
}

impl Bucket {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("data")).unwrap();
        let (server, asked) = (Server::of(folder.path()), Arc::<Mutex<u64>>::default());
        let count = Arc::clone(&asked);
        server.set_weather(move |request| {
            if request.method == "GET" && request.path.ends_with(".tar") {
                let range =
                    request.headers.get("range").map_or("", |range| &range["bytes=".len()..]);
                let (start, end) = range.split_once('-').unwrap_or(("0", ""));
                let end: u64 = end.parse().unwrap_or(1 << 40);
                *count.lock().unwrap() += end - start.parse::<u64>().unwrap() + 1;
            }
            Fault::None
        });
        Self { server, folder, asked }
    }

    fn data(&self) -> std::path::PathBuf {
        self.folder.path().join("data")
    }

    fn put(&self, name: &str, bytes: &[u8]) {
        write_aged(&self.data().join(name), bytes);
    }

    /// Opens the archives with a separate index, so that they are scanned.
    fn open(&self, scheme: &str, pattern: &str, options: OpenOptions<'_>) -> Opened {
        let mut config = config_for("webdataset", Path::new("/"));
        self.server.lead(
            &mut config.path,
            &mut config.storage,
            &self.server.url(scheme, &format!("data{pattern}")),
        );
        config.own = own_keys(FIELDS);
        static OPENED: AtomicU64 = AtomicU64::new(0);
        let number = OPENED.fetch_add(1, Ordering::Relaxed);
        config.index = Some(self.folder.path().join(format!("index-{number}")));
        *self.asked.lock().unwrap() = 0;
        open(&config, options).unwrap()
    }

    /// Compares the dataset with and without this list; returns the warnings, and the number of bytes of the archive
    /// that were requested with the list.
    fn compare(&self, list: &str) -> (Vec<String>, u64) {
        let path = self.data().join("a.idx");
        let _ = fs::remove_file(&path);
        let plain = self.open("s3", "", OpenOptions::default());
        fs::write(&path, list).unwrap();
        let with = self.open("s3", "", OpenOptions::default());
        let asked = *self.asked.lock().unwrap();
        assert_eq!(with.dataset.fingerprint(), plain.dataset.fingerprint());
        assert_eq!(names(&with), names(&plain));
        for id in 0..plain.dataset.sample_count() {
            assert_eq!(sample(&with, id), sample(&plain, id), "sample {id}");
        }
        let said = with.report.warnings.into_iter();
        (said.filter(|said| !plain.report.warnings.contains(said)).collect(), asked)
    }
}

#[test]
fn index_from_lists_equals_that_of_a_scan_without_reading_whole_archives() {
    let bucket = Bucket::new();
    let (first, other) = (members(0), members(1));
    bucket.put("a.tar", &archive(&first));
    bucket.put("b.tar", &archive(&other));
    let whole: usize = archive(&first).len() + archive(&other).len();
    let plain = bucket.open("s3", "", OpenOptions::default());
    assert!(*bucket.asked.lock().unwrap() >= whole as u64);
    bucket.put("a.idx", list(&first).as_bytes());
    bucket.put("b.idx", list(&other).as_bytes());
    for (scheme, pattern) in [("s3", ""), ("s3", "/{a,b}.tar"), ("http", "/{a,b}.tar")] {
        let with = bucket.open(scheme, pattern, OpenOptions::default());
        let asked = *bucket.asked.lock().unwrap();
        assert!(asked < 40_000, "{scheme}: {asked} of {whole} bytes");
        assert_eq!(with.report.warnings, plain.report.warnings);
        assert_eq!(with.dataset.fingerprint(), plain.dataset.fingerprint());
        assert_eq!(names(&with), names(&plain));
        for id in 0..120 {
            assert_eq!(sample(&with, id), sample(&plain, id), "sample {id}");
        }
    }
    // The indexes differ in one flag per archive; see `Shard`.
    let bytes = |opened: &Opened| opened.dataset.index().unwrap()[256 + 3 * 56..].to_vec();
    assert_eq!(bytes(&bucket.open("s3", "", OpenOptions::default())), bytes(&plain));
}

#[test]
fn hidden_members_and_extended_headers_do_not_invalidate_a_list() {
    let bucket = Bucket::new();
    let all = members(0);
    let mut bytes = tar::member("pax_global_header", b"19 comment=nothing\n", b'g');
    let mut said = "v1.2 60\n".to_owned();
    for (place, (name, data)) in all.iter().enumerate() {
        bytes.extend(tar::member("x", b"22 mtime=1700000000.5\n", b'x'));
        if place % 9 == 4 {
            bytes.extend(tar::member("s0/._hidden.jpg", b"a Mac was here", b'0'));
        }
        let extension = name.rsplit_once('.').unwrap().1;
        said.push(if place == 0 || extension != "jpg" { ' ' } else { '\n' });
        said.push_str(&format!("{extension} {} {} {name}", bytes.len() + 512, data.len()));
        bytes.extend(tar::member(name, data, b'0'));
    }
    said = said.replacen("\n ", "\n", 1) + "\n";
    bucket.put("a.tar", &[&bytes[..], &[0; 10_240]].concat());
    let (said, asked) = bucket.compare(&said);
    assert_eq!(said, Vec::<String>::new());
    assert!(asked < 60_000, "{asked}");
    // An end without a mark is reported as without a list.
    bucket.put("a.tar", &archive(&all)[..archive(&all).len() - 1024]);
    let (said, asked) = bucket.compare(&list(&all));
    assert_eq!(said, Vec::<String>::new());
    assert!(asked < 40_000, "{asked}");
    let opened = bucket.open("s3", "", OpenOptions::default());
    assert!(opened.report.warnings.iter().any(|said| said.starts_with("1 archive without")));
}

#[test]
fn list_of_another_archive_is_not_used() {
    let bucket = Bucket::new();
    let now = members(0);
    let right = list(&now);
    bucket.put("a.tar", &archive(&now));
    // Lists of older archives: one sample more or fewer at any position, the same samples in another order, other keys.
    let mut lists = Vec::new();
    for place in [0, 1, 57, 100, now.len() - 1] {
        let mut before = now.clone();
        before.remove(place);
        lists.push((list(&before), ""));
        let mut before = now.clone();
        before.insert(place, ("s0/more.jpg".to_owned(), vec![1; 3000]));
        lists.push((list(&before), ""));
    }
    let mut before = now.clone();
    before[2..].sort_by_key(|(name, data)| (data.len(), name.clone()));
    lists.push((list(&before), "it is of another archive"));
    lists.push((right.replace("s0/", "s1/"), "it is of another archive"));
    lists.push((list(&now[..now.len() - 2].to_vec()), "the archive goes on behind byte"));
    // Members are missing, while others of the same length are not.
    lists.push((list(&now).replace(" txt", "\ntxt"), "it announces 60 samples and has"));
    // Not a list, or of another version.
    lists.push((right.replacen("v1.2", "v1.1", 1), "it is of version v1.1"));
    lists.push((String::new(), "it does not begin as wds2idx writes it"));
    lists.push((right.replacen("v1.2 60", "v1.2 61", 1), "it announces 61 samples and has 60"));
    lists.push((right[..right.len() / 2].to_owned(), ""));
    lists.push((right.replacen(" s0/0000.jpg", " s0/00 00.jpg", 1), "line 2: "));
    lists.push((right.replacen("9000", "-9000", 1), "line 2: not EXTENSION OFFSET SIZE NAME"));
    lists.push((
        right.replacen("jpg 512", "jpg 511", 1),
        "line 2: a member that does not lie behind",
    ));
    lists.push((right.replacen("9000", "99999999", 1), "line 2: a member ends behind the archive"));
    // Offsets from GNU tar's block numbers, which are wrong for PAX archives.
    let shifted: Vec<String> = right.split(' ').map(str::to_owned).collect();
    let shifted: Vec<_> = (0..shifted.len())
        .map(|place| match shifted[place].parse::<u64>() {
            Ok(offset) if place % 4 == 2 => (offset + 1024).to_string(),
            _ => shifted[place].clone(),
        })
        .collect();
    lists.push((shifted.join(" "), ""));
    for (list, expected) in &lists {
        let (said, _) = bucket.compare(list);
        assert_eq!(said.len(), 1, "{said:?} of {list:.200}");
        let begin = "read through: 1 archive with an .idx that is not used; a.idx: ";
        assert!(said[0].starts_with(begin) && said[0].contains(expected), "{said:?}: {expected}");
    }
    assert_eq!(bucket.compare(&right).0, Vec::<String>::new());
}

/// If a header was not checked, a name that belongs to another member is detected when the sample is read.
#[test]
fn wrong_name_in_a_list_is_a_bad_sample_not_wrong_bytes() {
    let bucket = Bucket::new();
    let mut all = members(0);
    for (name, data) in &mut all {
        // Values of equal length, so that names can be swapped.
        let number = name[3..7].parse::<u64>().unwrap();
        let value = if name.ends_with("cls") { number.to_string() } else { name.clone() };
        *data = format!("{value:<40}").into_bytes();
    }
    bucket.put("a.tar", &archive(&all));
    let plain = bucket.open("s3", "", OpenOptions::default());
    let mut mixed = 0;
    for place in 1..all.len() - 1 {
        let mut lie = all.clone();
        let (jpg, cls) = (lie[place - 1].0.clone(), lie[place].0.clone());
        if jpg.ends_with("jpg") && cls.ends_with("cls") {
            (lie[place - 1].0, lie[place].0) = (cls, jpg);
            fs::write(bucket.data().join("a.idx"), list(&lie)).unwrap();
            let with = bucket.open("s3", "", OpenOptions::default());
            if with.report.warnings == plain.report.warnings {
                mixed += 1;
                let bad: Vec<_> = (0..60).filter_map(|id| sample(&with, id).err()).collect();
                assert_eq!(bad.len(), 1, "{bad:?}");
                assert!(bad[0].contains("where the .idx beside it has another one"), "{bad:?}");
            }
            for id in 0..60 {
                if let Ok(values) = sample(&with, id) {
                    assert_eq!(values, sample(&plain, id).unwrap());
                }
            }
        }
    }
    assert!(mixed > 20, "{mixed} lies at places that were not looked at");
}

#[test]
fn missing_list_is_not_treated_as_an_outage() {
    let bucket = Bucket::new();
    bucket.put("a.tar", &archive(&members(0)));
    for scheme in ["s3", "http"] {
        let patience = Patience::at_first_start("x", Duration::from_secs(60), Clock::system());
        let options = OpenOptions { patience: Some(&patience), ..OpenOptions::default() };
        let opened = bucket.open(scheme, "/a.tar", options);
        assert_eq!(opened.dataset.sample_count(), 60);
        assert!(!patience.is_exhausted());
    }
}
