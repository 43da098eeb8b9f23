//! Entry points for fuzzers. A function here may return in any way but must not panic; it asserts further properties.

use crate::choose::{Sampling, Short, Spacing, Start};
use crate::clip::Clip;
use crate::table::Table;
use crate::{matroska, mp4};

/// An MP4: its table survives its compact form, and a clip that is cut out of it survives its bytes.
///
/// # Panics
/// One of them does not.
pub fn video_mp4(bytes: &[u8]) {
    if let Ok(table) = mp4::read(bytes) {
        cut(&table, bytes);
    }
}

/// As [`video_mp4`], for Matroska.
///
/// # Panics
/// As [`video_mp4`].
pub fn video_mkv(bytes: &[u8]) {
    if let Ok(table) = matroska::read(bytes) {
        cut(&table, bytes);
    }
}

/// A clip as bytes: if it is one, its bytes are those of the same clip. And a table.
///
/// # Panics
/// They are those of another one.
pub fn video_clip(bytes: &[u8]) {
    if let Ok(clip) = Clip::from_bytes(bytes) {
        assert_eq!(Clip::from_bytes(&clip.to_bytes()).as_ref(), Ok(&clip));
    }
    if let Ok(table) = Table::read(bytes) {
        let mut again = Vec::new();
        table.write(&mut again);
        assert_eq!(Table::read(&again), Ok(table));
    }
}

fn cut(table: &Table, bytes: &[u8]) {
    let mut compact = Vec::new();
    table.write(&mut compact);
    assert_eq!(Table::read(&compact).as_ref(), Ok(table));
    let Some(stream) = table.video() else { return };
    let Some(shown) = stream.shown() else { return };
    let sampling = Sampling {
        frames: 3,
        clips: 2,
        spacing: Spacing::Rate(7.0),
        start: Start::Random,
        short: Short::Repeat,
    };
    let Some(wanted) = sampling.choose(&shown, bytes.len() as u64) else { return };
    let Ok(cut) = stream.cut(wanted) else { return };
    let place = |at: u64| usize::try_from(at).unwrap_or(usize::MAX);
    let mut data = Vec::new();
    for range in &cut.ranges {
        // Every packet is inside of the file.
        data.extend_from_slice(&bytes[place(range.start)..place(range.end)]);
        if data.len() > 1 << 24 {
            return;
        }
    }
    if let Ok(clip) = stream.clip(&cut, &data) {
        assert_eq!(Clip::from_bytes(&clip.to_bytes()).as_ref(), Ok(&clip));
    }
}
