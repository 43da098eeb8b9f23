//! Prints the packets of a file as `scripts/prove-video-tables` compares them with ffprobe's: stream, codec, pts, dts,
//! size, offset and flags of each, tab-separated, stream by stream.

use std::fs;
use std::process::ExitCode;

use forebay_video::table::Media;

fn main() -> ExitCode {
    let mut has_failed = false;
    for path in std::env::args().skip(1) {
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) => {
                eprintln!("{path}: {error}");
                return ExitCode::FAILURE;
            }
        };
        match forebay_video::read(bytes.as_slice()) {
            Err(error) => {
                println!("{path}\trefused\t{error:?}");
                has_failed = true;
            }
            Ok(table) => {
                for stream in &table.streams {
                    let base = stream.time_base;
                    let media = match stream.media {
                        Media::Video { width, height, rotation, .. } => {
                            format!("{width}x{height}\t{rotation:?}")
                        }
                        Media::Audio { rate, channels, .. } => format!("0x0\t{rate} {channels}"),
                    };
                    let (number, codec) = (stream.number, stream.codec.name());
                    println!(
                        "stream\t{number}\t{codec}\t{}/{}\t{media}\t{}",
                        base.numerator,
                        base.denominator,
                        stream.configuration.len()
                    );
                    for packet in &stream.packets {
                        let flags = [(packet.key, 'K'), (packet.discard, 'D')];
                        let flags = flags.map(|(is_set, flag)| if is_set { flag } else { '_' });
                        println!(
                            "{number}\t{}\t{}\t{}\t{}\t{}{}",
                            packet.pts, packet.dts, packet.size, packet.offset, flags[0], flags[1]
                        );
                    }
                }
            }
        }
    }
    if has_failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
