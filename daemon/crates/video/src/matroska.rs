//! Matroska and WebM: the table of a file in one pass over the heads of its blocks.
//!
//! The container has no list of packets: its cues name some key packets alone. The pass reads what lies around the blocks'
//! payload, and this too where blocks are small. A file without sizes of its clusters, as a live stream is written, is read
//! as well. Elements by RFC 9559.

mod elements;
mod tracks;

use crate::error::{Refused, Result, refuse};
use crate::read_at::{Failure, ReadAt, Window};
use crate::table::{MAX_PACKETS, Packet, Table};
use elements::{Element, id, signed, unsigned};
use tracks::{Tracks, default_scale};

/// What is read at once, in bytes.
const READ: u64 = 64 << 10;
/// The longest list of tracks, in bytes.
const MAX_TRACKS_BYTES: u64 = 64 << 20;
/// The most elements of a file.
const MAX_ELEMENTS: u32 = 1 << 25;

/// Whether a file may be of this container, by its first bytes.
#[must_use]
pub fn begins(bytes: &[u8]) -> bool {
    bytes.starts_with(&[0x1a, 0x45, 0xdf, 0xa3])
}

/// Reads the table of a file.
///
/// # Errors
/// The file cannot be read, is not Matroska, or says what cannot be.
pub fn read<R: ReadAt>(source: R) -> Result<Table, Failure<R::Error>> {
    let mut file = Window::new(source);
    let length_bytes = file.length_bytes();
    let mut state = State::default();
    let mut at = 0;
    for _ in 0..MAX_ELEMENTS {
        let Some(element) = Element::read(file.bytes(at, 16, READ)?, at)? else { break };
        at = state.take(&mut file, &element)?;
        if at >= length_bytes {
            break;
        }
    }
    let table = state.tracks.ok_or_else(|| Refused("it has no tracks".to_owned()))?.finish()?;
    table.check(length_bytes)?;
    Ok(table)
}

/// What was read so far.
#[derive(Debug, Default)]
struct State {
    /// Nanoseconds of a tick, if they are said before the tracks.
    scale: Option<u64>,
    tracks: Option<Tracks>,
    /// The time of the cluster.
    cluster: i64,
    /// The track and the packet of the last block.
    last: Option<(usize, usize)>,
    packets: u32,
}

impl State {
    /// Takes an element; returns where the next one begins.
    fn take<R: ReadAt>(
        &mut self,
        file: &mut Window<R>,
        element: &Element,
    ) -> Result<u64, Failure<R::Error>> {
        match element.id {
            // What is inside comes next.
            id::SEGMENT | id::BLOCK_GROUP => return Ok(element.body),
            id::CLUSTER => {
                self.cluster = 0;
                return Ok(element.body);
            }
            id::INFO | id::TRACKS => {
                let body = whole(file, element)?;
                if element.id == id::INFO {
                    self.scale = tracks::scale(body)?;
                } else if self.tracks.is_none() {
                    self.tracks = Some(Tracks::read(body, self.scale.unwrap_or(default_scale()))?);
                }
            }
            id::TIMESTAMP => {
                let time = unsigned(whole(file, element)?)?;
                self.cluster = i64::try_from(time)
                    .map_err(|_| Refused(format!("a cluster begins at {time} ticks")))?;
            }
            id::SIMPLE_BLOCK | id::BLOCK => {
                let head = file.bytes(element.body, 16, READ)?;
                self.add_block(element, head)?;
            }
            id::BLOCK_DURATION => {
                let duration = unsigned(whole(file, element)?)?;
                if let Some(packet) = self.last_packet() {
                    packet.duration = u32::try_from(duration).unwrap_or(0);
                }
            }
            id::REFERENCE_BLOCK => {
                if let Some(packet) = self.last_packet() {
                    packet.key = false;
                }
            }
            _ => {}
        }
        let end = element.end().ok_or_else(|| {
            Refused(format!("an element {:#x} at byte {} has no size", element.id, element.start))
        })?;
        Ok(end)
    }

    fn last_packet(&mut self) -> Option<&mut Packet> {
        let (track, packet) = self.last?;
        self.tracks.as_mut()?.tracks.get_mut(track)?.packets.get_mut(packet)
    }

    /// Adds the packet of a block.
    fn add_block(&mut self, element: &Element, head: &[u8]) -> Result<()> {
        self.last = None;
        let Some(tracks) = &mut self.tracks else {
            return refuse!("a block comes before the tracks");
        };
        let (number, length) = elements::number(head)?;
        let Some((time, flags)) = head.get(length..length + 3).map(|head| head.split_at(2)) else {
            return refuse!("a block at byte {} ends in its head", element.start);
        };
        let Some(place) = tracks.tracks.iter().position(|track| track.number == number) else {
            return Ok(());
        };
        let track = &mut tracks.tracks[place];
        if track.stream.is_err() {
            return Ok(());
        }
        let flags = flags.first().copied().unwrap_or(0);
        if flags & 6 != 0 {
            return track.leave_out_laced();
        }
        let before = length as u64 + 3;
        let size = element.size.and_then(|size| size.checked_sub(before));
        let Some(size) = size.and_then(|size| u32::try_from(size).ok()).filter(|size| *size > 0)
        else {
            return refuse!("a block at byte {} has no packet", element.start);
        };
        if self.packets >= MAX_PACKETS {
            return refuse!("it has more than {MAX_PACKETS} packets");
        }
        self.packets += 1;
        let pts = self.cluster.saturating_add(signed(time)).saturating_sub(track.delay);
        track.packets.push(Packet {
            offset: element.body + before,
            size,
            pts,
            dts: pts,
            duration: track.duration,
            key: element.id == id::BLOCK || flags & 0x80 != 0,
            discard: false,
        });
        self.last = Some((place, track.packets.len() - 1));
        Ok(())
    }
}

/// The body of an element, whole.
fn whole<'w, R: ReadAt>(
    file: &'w mut Window<R>,
    element: &Element,
) -> Result<&'w [u8], Failure<R::Error>> {
    let size = element.size.unwrap_or(u64::MAX);
    let is_inside = element.end().is_some_and(|end| end <= file.length_bytes());
    if !is_inside || size > MAX_TRACKS_BYTES {
        return Ok(refuse!(
            "its element {:#x} at byte {} has {size} bytes: the file is cut off, or its header is wrong",
            element.id,
            element.start
        )?);
    }
    file.bytes(element.body, size, READ)
}
