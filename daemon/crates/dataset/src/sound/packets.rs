//! Sounds whose container says where each packet is: MP4 (M4A), and files of AAC alone. Nothing is decoded here.
//!
//! The tables are those of videos (`forebay-video`), so that fragments and edit lists are read as FFmpeg reads them. The
//! length is what the file says: the durations of its packets, less what its edit list leaves out at the start. FFmpeg
//! keeps what an encoder of AAC adds to the last packet; the file's table of durations says where it begins.

use std::ops::Range;

use forebay_video::Failure;
use forebay_video::codec::Codec;
use forebay_video::table::{Media, Stream};

use super::aac::{self, AacForm};
use super::{SoundCoding, SoundHeader, big, cut, not_read};
use crate::Defect;

/// The packets of a sound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PacketSound {
    /// What they are coded with: ALAC or AAC.
    pub codec: Codec,
    /// What the decoder needs to know, as [`Codec`] says.
    pub configuration: Vec<u8>,
    /// Its channels.
    pub channels: u16,
    /// Samples a second.
    pub rate: u32,
    /// Samples before the sound.
    pub skipped: u64,
    /// Samples of the sound.
    pub samples: u64,
    /// The places of its packets in the file, in order.
    pub packets: Vec<Range<usize>>,
    /// The samples of each.
    pub lengths: Vec<u32>,
}

impl PacketSound {
    /// Finds the packets.
    ///
    /// # Errors
    /// There is no sound of a coding that is read, or the file lacks bytes.
    pub fn read(file: &[u8]) -> Result<Self, Defect> {
        if !forebay_video::mp4::begins(file) {
            return aac::adts(file);
        }
        let defect =
            |reason: &dyn std::fmt::Display| Defect(format!("cannot read the MP4 file: {reason}"));
        let table = forebay_video::mp4::read(file).map_err(|failure| match failure {
            Failure::Refused(refused) => defect(&refused),
            Failure::Read(never) => match never {},
        })?;
        let unknown = table.unknown.join(", ");
        match table.audio() {
            Some(stream) => Self::of_stream(stream),
            None if unknown.is_empty() => Err(defect(&"it has no sound")),
            None => Err(Defect(not_read(&format!("`{}` in an MP4 file", unknown.escape_debug())))),
        }
    }

    fn of_stream(stream: &Stream) -> Result<Self, Defect> {
        let Media::Audio { skipped, channels, .. } = stream.media else { return Err(cut()) };
        let (channels, rate, most_samples) = match stream.codec {
            Codec::Alac => alac(&stream.configuration)?,
            Codec::Aac => {
                let form = AacForm::read(&stream.configuration)?;
                let said = u16::try_from(channels).ok().filter(|channels| *channels > 0);
                let channels = form.channels.or(said).ok_or_else(aac::unknown_channels)?;
                (channels, form.rate, form.samples)
            }
            codec => return Err(Defect(not_read(&format!("`{}` in an MP4 file", codec.name())))),
        };
        // Of packets that decoding needs and that are not heard, those at the beginning are counted in `skipped`.
        let heard = |packet: &forebay_video::table::Packet| !packet.discard;
        let end = stream.packets.iter().rposition(heard).map_or(0, |last| last + 1);
        let begin = stream.packets.iter().position(heard).unwrap_or(0);
        let packets = &stream.packets[..end];
        if !packets[begin..].iter().all(heard) {
            return Err(Defect(not_read("an MP4 file with several edits of its sound")));
        }
        let scale = u64::from(stream.time_base.denominator);
        let in_samples = |ticks: u64| ticks * u64::from(rate) / scale.max(1);
        let lengths: Vec<u32> = (1..=packets.len())
            .zip(packets)
            .map(|(number, packet)| {
                let duration =
                    u32::try_from(in_samples(packet.duration.into())).unwrap_or(u32::MAX);
                match stream.codec {
                    // A packet has its samples, whatever the table says of a pause after it; the last one may be cut.
                    Codec::Aac if number < packets.len() || duration == 0 => most_samples,
                    _ => duration.min(most_samples),
                }
            })
            .collect();
        let all: u64 = lengths.iter().map(|length| u64::from(*length)).sum();
        let skipped = in_samples(skipped.into());
        let place = |at: u64| usize::try_from(at).unwrap_or(usize::MAX);
        Ok(Self {
            codec: stream.codec,
            configuration: stream.configuration.clone(),
            channels,
            rate,
            skipped,
            samples: all.saturating_sub(skipped),
            packets: packets
                .iter()
                .map(|packet| place(packet.offset)..place(packet.end()))
                .collect(),
            lengths,
        })
    }

    /// The packet that holds a sample, and the sample at which it begins.
    pub fn packet_of(&self, sample: u64) -> (usize, u64) {
        let mut start = 0;
        for (packet, length) in self.lengths.iter().enumerate() {
            let end = start + u64::from(*length);
            if sample < end {
                return (packet, start);
            }
            start = end;
        }
        (self.packets.len(), start)
    }

    /// As [`SoundHeader::read`].
    pub(super) fn header(file: &[u8]) -> Result<SoundHeader, Defect> {
        Self::read(file).map(|Self { codec, channels, rate, samples, .. }| SoundHeader {
            coding: if codec == Codec::Aac { SoundCoding::Aac } else { SoundCoding::Alac },
            channels,
            rate,
            frames: Some(samples),
            data: 0..file.len(),
        })
    }
}

/// The channels, the rate and the most samples of a packet, by the configuration: a box's head, its version, and what
/// the decoder knows as its cookie.
fn alac(configuration: &[u8]) -> Result<(u16, u32, u32), Defect> {
    let cookie = configuration.get(ALAC_COOKIE..).filter(|cookie| cookie.len() >= 24);
    let cookie = cookie.ok_or_else(cut)?;
    let number = |bytes: &[u8]| u32::try_from(big(bytes)).unwrap_or(0);
    Ok((u16::from(cookie[9]), number(&cookie[20..24]), number(&cookie[..4])))
}

/// Where the cookie begins in the configuration of ALAC.
pub const ALAC_COOKIE: usize = 12;
