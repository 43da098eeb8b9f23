//! The tokenizer alone, on threads that do nothing else; for `scripts/bench/texts`. Prints the number of tokens, and the
//! seconds and CPU seconds in which they were made.
//!
//! Arguments: a `tokenizer.json`, a file of JSON lines with `text`, the threads, the seconds, the most tokens of a text,
//! and `rows` or `bare`. With `rows` it does what a loop without a loader has to do for training: each thread takes the
//! texts in an order of its own, another one each epoch, and writes the ids of each text as int64 into a row of a batch,
//! filled up with zeros. With `bare` the ids stay as the tokenizer gives them, and the texts come in the file's order.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_text::{Options, Side, Tokenizer, Tokens};

/// The rows of a batch, and the batches whose memory is used in turn: as many as a ring of eight slots has.
const ROWS: usize = 32;
const BATCHES: usize = 8;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [tokenizer, lines, threads, seconds, most, kind] = arguments.as_slice() else {
        return Err("TOKENIZER LINES THREADS SECONDS MAX_LENGTH rows|bare".into());
    };
    let tokenizer = Tokenizer::open(tokenizer.as_ref())?;
    let mut texts = Vec::new();
    for line in std::fs::read_to_string(lines)?.lines() {
        let line: serde_json::Value = serde_json::from_str(line)?;
        texts.extend(line["text"].as_str().map(ToOwned::to_owned));
    }
    let (threads, seconds) = (threads.parse::<usize>()?, Duration::from_secs(seconds.parse()?));
    let most: usize = most.parse()?;
    let options = Options::new(true, true, Some((most, Side::Right)));
    let makes_rows = kind == "rows";
    let (total, used, begun) = (AtomicU64::new(0), cpu_seconds()?, Instant::now());
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (texts, tokenizer, options, total) = (&texts, &tokenizer, &options, &total);
            scope.spawn(move || {
                let mut tokens = Tokens::default();
                let mut order = Order::new(texts.len(), thread, threads, makes_rows);
                let mut rows = Rows::new(most);
                while begun.elapsed() <= seconds {
                    if tokenizer.encode(&texts[order.next()], options, &mut tokens).is_ok() {
                        if makes_rows {
                            rows.write(tokens.ids());
                        }
                        // Relaxed: a sum.
                        total.fetch_add(tokens.ids().len() as u64, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let (seconds, used) = (begun.elapsed().as_secs_f64(), cpu_seconds()? - used);
    println!("{} {seconds} {used}", total.load(Ordering::Relaxed));
    Ok(())
}

/// The order in which a thread takes the texts.
struct Order {
    places: Vec<usize>,
    next: usize,
    random: u64,
    is_shuffled: bool,
}

impl Order {
    fn new(texts: usize, thread: usize, threads: usize, is_shuffled: bool) -> Self {
        let next = if is_shuffled { texts } else { thread * texts / threads };
        Self { places: (0..texts).collect(), next, random: thread as u64 + 1, is_shuffled }
    }

    fn next(&mut self) -> usize {
        if self.next == self.places.len() {
            self.next = 0;
            for place in (1..self.places.len()).rev().filter(|_| self.is_shuffled) {
                // xorshift: good enough for an order.
                self.random ^= self.random << 13;
                self.random ^= self.random >> 7;
                self.random ^= self.random << 17;
                let other = usize::try_from(self.random % (place as u64 + 1)).unwrap_or(0);
                self.places.swap(place, other);
            }
        }
        self.next += 1;
        self.places[self.next - 1]
    }
}

/// The batches that a thread fills, one after the other.
struct Rows {
    elements: Vec<i64>,
    length: usize,
    next: usize,
}

impl Rows {
    fn new(length: usize) -> Self {
        Self { elements: vec![0; BATCHES * ROWS * length], length, next: 0 }
    }

    fn write(&mut self, ids: &[u32]) {
        let row = &mut self.elements[self.next * self.length..][..self.length];
        let (of_ids, of_fill) = row.split_at_mut(ids.len());
        of_ids.iter_mut().zip(ids).for_each(|(element, id)| *element = i64::from(*id));
        of_fill.fill(0);
        std::hint::black_box(row);
        self.next = (self.next + 1) % (BATCHES * ROWS);
    }
}

/// The CPU time of this process, in seconds: user and system, in hundredths in `/proc`.
fn cpu_seconds() -> Result<f64, Box<dyn std::error::Error>> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let ticks = after_name.split_whitespace().skip(11).take(2).map(str::parse::<f64>);
    Ok(ticks.sum::<Result<f64, _>>()? / 100.0)
}
