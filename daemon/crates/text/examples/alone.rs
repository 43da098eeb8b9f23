//! The tokenizer alone, on threads that do nothing else; for `scripts/bench/texts`. Prints the number of tokens, and the
//! seconds and CPU seconds in which they were made.
//!
//! Arguments: a `tokenizer.json`, a file of JSON lines with `text`, the threads, the seconds, the most tokens of a text.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_text::{Options, Side, Tokenizer, Tokens};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [tokenizer, lines, threads, seconds, most] = arguments.as_slice() else {
        return Err("TOKENIZER LINES THREADS SECONDS MAX_LENGTH".into());
    };
    let tokenizer = Tokenizer::open(tokenizer.as_ref())?;
    let mut texts = Vec::new();
    for line in std::fs::read_to_string(lines)?.lines() {
        let line: serde_json::Value = serde_json::from_str(line)?;
        texts.extend(line["text"].as_str().map(ToOwned::to_owned));
    }
    let (threads, seconds) = (threads.parse::<usize>()?, Duration::from_secs(seconds.parse()?));
    let options = Options::new(true, true, Some((most.parse()?, Side::Right)));
    let (total, used, begun) = (AtomicU64::new(0), cpu_seconds()?, Instant::now());
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (texts, tokenizer, options, total) = (&texts, &tokenizer, &options, &total);
            scope.spawn(move || {
                let mut tokens = Tokens::default();
                for text in texts.iter().cycle().skip(thread * texts.len() / threads) {
                    if begun.elapsed() > seconds {
                        break;
                    }
                    if tokenizer.encode(text, options, &mut tokens).is_ok() {
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

/// The CPU time of this process, in seconds: user and system, in hundredths in `/proc`.
fn cpu_seconds() -> Result<f64, Box<dyn std::error::Error>> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let ticks = after_name.split_whitespace().skip(11).take(2).map(str::parse::<f64>);
    Ok(ticks.sum::<Result<f64, _>>()? / 100.0)
}
