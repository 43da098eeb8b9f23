//! Tokens per second of the tokenizer alone, on threads that do nothing else; for `scripts/bench/texts`.
//!
//! Arguments: a `tokenizer.json`, a file of JSON lines with `text`, the threads, the seconds.

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
    let (total, begun) = (AtomicU64::new(0), Instant::now());
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
    println!("{}", total.load(Ordering::Relaxed) as f64 / begun.elapsed().as_secs_f64());
    Ok(())
}
