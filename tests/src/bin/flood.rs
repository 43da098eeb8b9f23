//! Floods a daemon with one frame, or measures what floods of each frame leave to an honest client, as JSON.
//!
//! `forebay-test-flood client SOCKET KIND SESSION` sends until it is killed; `forebay-test-flood measure [SECONDS [KIND…]]`
//! measures so long for each kind.

use std::path::Path;

use forebay_tests::flood::{KINDS, flood, measure};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["client", socket, kind, session] => {
            flood(Path::new(socket), kind, session.parse().unwrap())
        }
        ["measure", rest @ ..] => {
            let seconds = rest.first().and_then(|text| text.parse().ok()).unwrap_or(10.0);
            let kinds = rest.get(1..).filter(|kinds| !kinds.is_empty()).unwrap_or(&KINDS);
            let program = std::env::current_exe().unwrap();
            println!("{}", measure(&program, seconds, kinds));
        }
        _ => panic!("client SOCKET KIND SESSION, or measure [SECONDS [KIND…]]"),
    }
}
