//! Daemons that share a file, each with a separate index; their writers run in the tests' thread.

use std::fs::OpenOptions;

use super::*;
use crate::record::HEADER_BYTES;

const IMAGES: u64 = 1000;

struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("index")
    }

    fn bytes(&self) -> Vec<u8> {
        std::fs::read(self.path()).unwrap()
    }

    fn daemon(&self) -> Daemon {
        self.daemon_with(16 << 20, true)
    }

    /// A daemon that has read the file.
    fn daemon_with(&self, limit_bytes: u64, may_write: bool) -> Daemon {
        let mut options = OpenOptions::new();
        options.read(true).append(may_write).create(may_write);
        let file = options.open(self.path()).unwrap();
        let terms = Terms { limit_bytes, images: IMAGES, may_write };
        let index = JpegIndex::new(file, &self.path(), terms);
        index.table.get_or_init(|| Table::new(IMAGES));
        let mut daemon = Daemon { index, writer: Writer::default() };
        daemon.round(true);
        daemon
    }
}

struct Daemon {
    index: JpegIndex,
    writer: Writer,
}

impl Daemon {
    fn round(&mut self, is_first: bool) {
        if let Err(error) = self.writer.round(&self.index, is_first, Instant::now()) {
            self.index.stop(error.to_string());
        }
    }

    fn learn(&mut self, files: std::ops::Range<u32>) {
        for number in files {
            let mut buffer = Vec::new();
            let Found { marks: known, to_learn } = self.index.find(&file(number), &mut buffer);
            if let (None, Some(key)) = (known, to_learn) {
                assert!(self.index.offer(key, &marks(number)));
            }
        }
        self.round(false);
    }

    fn known(&self, number: u32) -> Option<Vec<u8>> {
        self.index.find(&file(number), &mut Vec::new()).marks.map(<[u8]>::to_vec)
    }

    fn count_known(&self, files: std::ops::Range<u32>) -> usize {
        let right = |number: &u32| {
            self.known(*number).inspect(|found| assert_eq!(*found, marks(*number))).is_some()
        };
        files.filter(right).count()
    }
}

fn file(number: u32) -> Vec<u8> {
    number.to_le_bytes().repeat(2100)
}

/// 0 to 3,000 bytes: some are longer than one read.
fn marks(number: u32) -> Vec<u8> {
    (0..number * 977 % 3001).map(|byte| u8::try_from((byte ^ number) & 255).unwrap()).collect()
}

#[test]
fn marks_of_one_daemon_are_known_to_the_next() {
    let place = Place::new();
    place.daemon().learn(0..40);
    let next = place.daemon();
    assert_eq!((next.count_known(0..40), next.count_known(40..60)), (40, 0));
    let Figures { records, bytes, found, missed, .. } = next.index.figures();
    assert_eq!((records, bytes, found, missed), (40, place.bytes().len() as u64, 40, 20));
    assert_eq!(next.index.find(&[1; 100], &mut Vec::new()), Found::default(), "too small");
}

#[test]
fn thread_appends_waiting_records_before_it_ends() {
    let place = Place::new();
    let open = || {
        let file = OpenOptions::new().read(true).append(true).create(true).open(place.path());
        let terms = Terms { limit_bytes: 1 << 20, images: 10, may_write: true };
        Arc::new(JpegIndex::new(file.unwrap(), &place.path(), terms))
    };
    let index = open();
    assert_eq!(index.find(&file(1), &mut Vec::new()), Found::default(), "before its start");
    index.start().unwrap();
    let Found { marks: None, to_learn: Some(key) } = index.find(&file(1), &mut Vec::new()) else {
        panic!("nothing is known")
    };
    assert!(index.offer(key, b"marks"));
    index.finish(Duration::from_secs(60));
    let next = open();
    next.look().unwrap();
    assert_eq!(next.find(&file(1), &mut Vec::new()).marks, Some(&b"marks"[..]));
}

#[test]
fn record_with_more_marks_replaces_one_with_fewer() {
    let place = Place::new();
    let (mut one, mut other) = (place.daemon(), place.daemon());
    let key = one.index.find(&file(7), &mut Vec::new()).to_learn.unwrap();
    let offer = |daemon: &mut Daemon, marks: &[u8]| {
        assert!(daemon.index.offer(key, marks));
        daemon.round(false);
        place.bytes().len()
    };
    let few = offer(&mut one, &[1; 100]);
    // The other daemon did not read the first one's record yet; both find it.
    assert_eq!(offer(&mut other, &[2; 99]), few);
    assert_eq!(offer(&mut other, &[]), few, "where there is nothing to learn");
    let more = offer(&mut other, &[3; 108]);
    assert_eq!(more, few + 32 + 112);
    assert_eq!(offer(&mut one, &[4; 108]), more, "as many");
    for daemon in [&one, &other, &place.daemon()] {
        assert_eq!(daemon.known(7), Some(vec![3; 108]));
        assert_eq!(daemon.index.figures().records, 1);
    }
    // Two threads of one daemon.
    assert!(one.index.offer(key, &[5; 200]) && one.index.offer(key, &[6; 150]));
    one.round(false);
    assert_eq!(place.daemon().known(7), Some(vec![5; 200]));
}

#[test]
fn concurrent_daemons_write_each_record_once() {
    let place = Place::new();
    let (mut one, mut other) = (place.daemon(), place.daemon());
    for round in 0..10 {
        one.learn(round * 20..round * 20 + 20);
        other.learn(round * 20 + 10..round * 20 + 40);
    }
    let (known, next) = (other.count_known(0..230), place.daemon());
    assert_eq!((next.count_known(0..230), known), (220, 220));
    let all: u64 = (0..220).map(|number| (marks(number).len() as u64 + 39) / 8 * 8).sum();
    assert_eq!(place.bytes().len() as u64, HEADER_BYTES as u64 + all);
}

#[test]
fn truncated_record_is_learned_again() {
    let place = Place::new();
    place.daemon().learn(0..6);
    let whole = place.bytes();
    for length in (0..whole.len()).step_by(7).chain([31, 32, 33, whole.len() - 1]) {
        std::fs::write(place.path(), &whole[..length]).unwrap();
        // A daemon without the lock does not change it.
        let reader = place.daemon_with(1 << 20, false);
        assert!(reader.count_known(0..6) < 6);
        assert_eq!(place.bytes().len(), length);
        let mut daemon = place.daemon();
        assert_eq!(daemon.count_known(0..6), reader.count_known(0..6), "{length} bytes");
        daemon.learn(0..6);
        assert_eq!(daemon.count_known(0..6), 6);
        assert_eq!(place.daemon().count_known(0..6), 6);
        assert_eq!(place.bytes().len(), whole.len());
    }
}

#[test]
fn damage_gives_correct_marks_or_none() {
    let place = Place::new();
    place.daemon().learn(0..30);
    let whole = place.bytes();
    let mut state = 88_172_645_463_325_252_u64;
    let mut below = |limit: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state >> 20).unwrap() % limit
    };
    let before = place.daemon();
    let mut lost = 0;
    for _ in 0..300 {
        let mut damaged = whole.clone();
        for _ in 0..=below(4) {
            let at = below(damaged.len());
            match below(4) {
                0 => damaged[at] ^= 1 << below(8),
                1 => damaged.truncate(at.max(1)),
                2 => damaged.copy_within(at.., at / 2),
                _ => damaged.insert(at, 0),
            }
        }
        std::fs::write(place.path(), &damaged).unwrap();
        // A daemon that knew all before, and a new one; `count_known` compares the marks.
        before.count_known(0..30);
        let mut daemon = place.daemon();
        lost += usize::from(daemon.count_known(0..30) < 30);
        if daemon.index.figures().stopped.is_none() {
            daemon.learn(0..30);
            assert_eq!(place.daemon().count_known(0..30), 30);
        }
    }
    assert!(lost > 200, "{lost}");
}

#[test]
fn daemon_reads_a_truncated_file_again() {
    let place = Place::new();
    let mut before = place.daemon();
    before.learn(0..20);
    let mut damaged = place.bytes();
    damaged[HEADER_BYTES + 68] ^= 1;
    std::fs::write(place.path(), &damaged).unwrap();
    // Cuts most records off and appends others: now the file is longer than the first daemon knows.
    place.daemon().learn(20..60);
    assert!(place.bytes().len() > damaged.len());
    // Other records are now at the places that it knows.
    before.count_known(0..20);
    before.learn(60..62);
    assert_eq!((before.count_known(20..62), place.daemon().count_known(20..62)), (42, 42));
    for length in [HEADER_BYTES as u64 + 8, 40, 0] {
        OpenOptions::new().write(true).open(place.path()).unwrap().set_len(length).unwrap();
        // Marks for a file that was restarted are learned again.
        before.learn(62..63);
        before.learn(62..63);
        assert_eq!((before.count_known(0..63), before.index.figures().records), (1, 1));
        assert_eq!(place.daemon().count_known(0..63), 1);
    }
}

#[test]
fn foreign_file_is_kept_and_another_version_is_restarted() {
    let place = Place::new();
    std::fs::write(place.path(), b"photographs of my cats, in no order").unwrap();
    let mut daemon = place.daemon();
    daemon.learn(0..5);
    assert!(daemon.index.figures().stopped.unwrap().contains("another kind of file"));
    assert_eq!(place.bytes(), b"photographs of my cats, in no order");
    let mut other = b"FOREBJPG\xff\xff\0\0".to_vec();
    other.resize(400, 3);
    std::fs::write(place.path(), &other).unwrap();
    assert_eq!(place.daemon_with(1 << 20, false).count_known(0..5), 0);
    assert_eq!(place.bytes(), other);
    place.daemon().learn(0..5);
    assert_eq!(place.daemon().count_known(0..5), 5);
}

#[test]
fn daemons_share_the_limit() {
    let place = Place::new();
    let limit = 20_000;
    let (mut one, mut other) = (place.daemon_with(limit, true), place.daemon_with(limit, true));
    one.learn(0..10);
    other.learn(5..60);
    one.learn(60..90);
    assert!((15_000..=20_000).contains(&place.bytes().len()), "{}", place.bytes().len());
    for daemon in [&one, &other] {
        assert!(daemon.index.figures().stopped.unwrap().contains("dataset.jpeg_index_bytes"));
        assert_eq!(daemon.index.find(&file(99), &mut Vec::new()), Found::default());
    }
    let all = place.daemon_with(limit, true).count_known(0..90);
    assert_eq!((one.count_known(0..90), other.count_known(0..5)), (all, 5));
}

#[test]
fn records_wait_while_another_process_holds_the_lock() {
    let place = Place::new();
    let (mut one, other) = (place.daemon(), place.daemon());
    let lock = Lock::take(&other.index.file, Instant::now()).unwrap().unwrap();
    one.learn(0..5);
    assert_eq!((one.count_known(0..5), place.bytes().len()), (0, HEADER_BYTES));
    drop(lock);
    one.round(false);
    assert_eq!(one.count_known(0..5), 5);
}
