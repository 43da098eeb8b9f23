//! `forebay-test-server FOLDER PORT SEED PER_MILLE`: shows a folder as a bucket on a port of loopback, in a process of its
//! own that can be killed. So many of 1,000 requests meet bad weather. It prints its port once it listens, and ends with
//! its standard input.

use std::path::PathBuf;
use std::time::Duration;

use forebay_storage_remote::testing::{Fault, Request, Server};
use forebay_tests::kills::Random;

const USAGE: &str = "usage: forebay-test-server FOLDER PORT SEED PER_MILLE";

fn main() {
    let mut arguments = std::env::args().skip(1);
    let folder: PathBuf = arguments.next().expect(USAGE).into();
    let mut number = || arguments.next().and_then(|text| text.parse::<u64>().ok()).expect(USAGE);
    let (port, seed, per_mille) = (number(), number(), number());
    let port = u16::try_from(port).expect(USAGE);
    let server = Server::at(&folder, port);
    let mut random = Random::new(seed);
    server.set_weather(move |request| weather(request, &mut random, per_mille));
    println!("{}", server.port());
    // Its end says that whoever started this is gone.
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
    std::process::exit(0);
}

fn weather(request: &Request, random: &mut Random, per_mille: u64) -> Fault {
    if random.below(1000) >= per_mille {
        return Fault::None;
    }
    let busy = |seconds| {
        Fault::Status(503, Some(seconds), "<Error><Code>SlowDown</Code></Error>".to_owned())
    };
    // A page of a listing is taken whole or not at all.
    if request.is_listing() || request.method == "HEAD" {
        return if random.below(2) == 0 { busy(0) } else { Fault::Close };
    }
    let place = usize::try_from(random.below(2000)).unwrap_or(0);
    // What costs the client long waits is rare.
    match random.below(100) {
        0..15 => busy(0),
        15 => busy(1),
        16..25 => Fault::Status(500, None, String::new()),
        25..40 => Fault::Close,
        40..55 => Fault::Short(place),
        55..60 => Fault::Stall(place),
        60 => Fault::Silence,
        61..72 => Fault::WholeForRange,
        72..82 => Fault::Longer(1 + place),
        82..92 => Fault::Behind(1 + place),
        _ => Fault::Delay(Duration::from_millis(random.below(30))),
    }
}
