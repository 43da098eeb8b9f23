//! Serves a folder as a bucket and as a web site on loopback, with injected faults; run by `scripts/bench/weather`.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use forebay_storage_remote::testing::{Fault, Server};

const REPORT_EVERY: Duration = Duration::from_secs(10);

/// Shows a folder as a bucket (S3, Google) and as a web site on this machine, in bad weather.
///
/// Shares are of the requests for files, from 0 to 1, and are taken one after the other: what is left over is answered, each
/// answer after a latency from the table. The same seed has the same weather for the same order of requests. Keys are not
/// checked.
#[derive(Debug, Parser)]
#[command(name = "scripts/bench/weather")]
struct Options {
    /// The folder.
    folder: PathBuf,
    /// The port; 0: any.
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// Latencies in milliseconds with the percentile up to which each holds, such as 50:30,99:100,100:1000.
    #[arg(long, value_delimiter = ',', value_parser = latency, default_value = "100:0")]
    latency: Vec<(f64, Duration)>,
    /// Bytes a second of one connection, such as 20MB; left out: no limit.
    #[arg(long, value_parser = bandwidth)]
    bandwidth: Option<u64>,
    /// Answers 503 with `Retry-After: 1`.
    #[arg(long, default_value_t = 0.0)]
    busy: f64,
    /// Answers 500.
    #[arg(long, default_value_t = 0.0)]
    broken: f64,
    /// Answers 403: credentials that have expired.
    #[arg(long, default_value_t = 0.0)]
    expired: f64,
    /// Closes the connection without an answer.
    #[arg(long, default_value_t = 0.0)]
    reset: f64,
    /// Gives no answer, and keeps the connection.
    #[arg(long, default_value_t = 0.0)]
    silent: f64,
    /// Ends the body early.
    #[arg(long, default_value_t = 0.0)]
    short: f64,
    /// Stops in the middle of the body, and keeps the connection.
    #[arg(long, default_value_t = 0.0)]
    stall: f64,
    /// Announces five bytes too many.
    #[arg(long, default_value_t = 0.0)]
    longer: f64,
    /// Gives the whole file for a part of it.
    #[arg(long, default_value_t = 0.0)]
    whole: f64,
    /// Gives another `ETag`.
    #[arg(long, default_value_t = 0.0)]
    changed: f64,
    /// Takes no connections for a while, in seconds: 60:10 is 10 of each 60.
    #[arg(long, value_parser = away)]
    away: Option<(u64, u64)>,
    /// Seed of the draws.
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

fn latency(text: &str) -> Result<(f64, Duration), String> {
    let form = "a latency is PERCENTILE:MILLISECONDS";
    let (percentile, milliseconds) = text.split_once(':').ok_or(form)?;
    let percentile = percentile.parse::<f64>().map_err(|_| form)?;
    Ok((percentile / 100.0, Duration::from_millis(milliseconds.parse().map_err(|_| form)?)))
}

fn bandwidth(text: &str) -> Result<u64, String> {
    let units = [("GB", 1_000_000_000), ("MB", 1_000_000), ("kB", 1000), ("", 1)];
    let found = units.iter().find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, bytes)));
    let (number, unit) = found.ok_or("no number")?;
    let number: u64 = number.trim().parse().map_err(|_| "bytes a second, such as 20MB")?;
    if number == 0 { Err("more than 0".to_owned()) } else { Ok(number * unit) }
}

fn away(text: &str) -> Result<(u64, u64), String> {
    let (every, length) = text.split_once(':').ok_or("EVERY:SECONDS")?;
    let (every, length) = (every.parse(), length.parse());
    match (every, length) {
        (Ok(every), Ok(length)) if length < every => Ok((every, length)),
        _ => Err("EVERY:SECONDS, fewer than each".to_owned()),
    }
}

/// A number from 0 to 1 for each request (the generator `SplitMix64`).
fn draw(seed: u64, number: u64, turn: u64) -> f64 {
    let mut state = seed ^ (2 * number + turn).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((state ^ (state >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
}

impl Options {
    /// The fault of a request.
    fn fault(&self, number: u64) -> Fault {
        let faults: [(f64, fn() -> Fault); 10] = [
            (self.busy, || Fault::Status(503, Some(1), String::new())),
            (self.broken, || Fault::Status(500, None, String::new())),
            (self.expired, || {
                let text = "<Error><Code>ExpiredToken</Code></Error>";
                Fault::Status(403, None, text.to_owned())
            }),
            (self.reset, || Fault::Close),
            (self.silent, || Fault::Silence),
            (self.short, || Fault::Short(1000)),
            (self.stall, || Fault::Stall(1000)),
            (self.longer, || Fault::Longer(5)),
            (self.whole, || Fault::WholeForRange),
            (self.changed, || Fault::OtherTag),
        ];
        let mut left = draw(self.seed, number, 0);
        for (share, fault) in faults {
            if left < share {
                return fault();
            }
            left -= share;
        }
        let place = draw(self.seed, number, 1);
        let latency = self.latency.iter().find(|(end, _)| place < *end).or(self.latency.last());
        Fault::Delay(latency.map_or(Duration::ZERO, |(_, time)| *time))
    }
}

fn main() {
    let options = Arc::new(Options::parse());
    if !options.folder.is_dir() {
        eprintln!("weather: {} is not a folder", options.folder.display());
        std::process::exit(1);
    }
    let mut server = Server::for_users(&options.folder, options.port, options.bandwidth);
    let faults = Arc::new(AtomicU64::new(0));
    {
        let (options, faults) = (Arc::clone(&options), Arc::clone(&faults));
        server.set_weather(move |request| {
            if request.is_listing() || request.method == "HEAD" {
                return Fault::None;
            }
            let fault = options.fault(request.number);
            // Relaxed: a count.
            faults.fetch_add(u64::from(!matches!(fault, Fault::Delay(_))), Ordering::Relaxed);
            fault
        });
    }
    let port = server.port();
    println!("http://127.0.0.1:{port}/");
    println!("or s3://bucket/, gs://bucket/ with");
    println!("[storage]\nendpoint = \"http://127.0.0.1:{port}\"\nanonymous = true");
    println!("Ctrl-C ends it.");
    let (begun, mut reported, mut is_away) = (Instant::now(), Instant::now(), false);
    loop {
        std::thread::sleep(Duration::from_millis(100));
        if let Some((every, length)) = options.away {
            let now_away = begun.elapsed().as_secs() % every >= every - length;
            match (is_away, now_away) {
                (false, true) => server.close(),
                (true, false) => server.open(),
                _ => {}
            }
            is_away = now_away;
        }
        if reported.elapsed() >= REPORT_EVERY {
            reported = Instant::now();
            let seconds = begun.elapsed().as_secs();
            let (requests, faults) = (server.requests(), faults.load(Ordering::Relaxed));
            let state = if is_away { ", away now" } else { "" };
            println!("{seconds} s: {requests} requests, {faults} answered wrongly or not{state}");
        }
    }
}
