//! The layout of a page and the compression of its values, as the page's description has them (Lance's
//! `encodings_v2_1.proto`).

use super::fsst::Symbols;
use crate::protobuf::{Fault, Part, parts};
use forebay_storage::codec::Codec;

/// The end of the name of the message that describes a page.
const PAGE_LAYOUT: &[u8] = b".encodings21.PageLayout";
/// The maximum depth of compressions within each other.
const MAX_DEPTH: u32 = 8;

/// Why a page is not read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Its description is damaged.
    Damaged,
    /// It has a feature that is not supported.
    Unread(String),
}

impl From<Fault> for Refusal {
    fn from(_: Fault) -> Self {
        Self::Damaged
    }
}

fn unread<T>(what: &str) -> Result<T, Refusal> {
    Err(Refusal::Unread(what.to_owned()))
}

/// The layout of a page.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Layout {
    /// Chunks of values.
    MiniBlock(MiniBlock),
    /// One value after the other.
    FullZip(FullZip),
    /// One value, or none.
    Constant(Constant),
    /// Places of values in the file, in chunks.
    Blob(MiniBlock),
}

/// Chunks of values: a buffer with the sizes of the chunks, the chunks, and a dictionary if there is one.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct MiniBlock {
    pub(super) repetition: Option<Compression>,
    pub(super) definition: Option<Compression>,
    pub(super) values: Compression,
    pub(super) dictionary: Option<(Compression, u64)>,
    pub(super) levels: Levels,
    /// The buffers of values in a chunk.
    pub(super) buffers: u64,
    /// The values of the page.
    pub(super) items: u64,
    /// Whether sizes of chunks and of buffers have 32 bits.
    pub(super) is_large: bool,
}

/// One value after the other: a buffer of values, and a buffer with their offsets if they differ in length.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct FullZip {
    /// The bytes before each value that say whether it is null.
    pub(super) control_bytes: u64,
    pub(super) width: Width,
    pub(super) values: Compression,
    pub(super) levels: Levels,
}

/// The length of each value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Width {
    /// In bytes.
    Fixed(u64),
    /// It is before the value, in this many bytes.
    Stored(u64),
}

/// One value: in the description, or in the first of an odd number of buffers. The other two have levels.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Constant {
    pub(super) value: Option<Vec<u8>>,
    pub(super) repetition: Option<(Compression, u64)>,
    pub(super) definition: Option<(Compression, u64)>,
    pub(super) levels: Levels,
}

/// What the levels of a page mean.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Levels {
    /// The levels up to this one have a place among the values; all but 0 are null.
    pub(super) visible: u16,
    /// The values are lists.
    pub(super) list: Option<List>,
}

/// The definition levels of lists without values. Others that are not [visible](Levels::visible) are null.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct List {
    /// An empty list; 0: there is none.
    pub(super) empty: u16,
}

/// A compression of values.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Compression {
    /// Values of this many bits.
    Flat { bits: u64 },
    /// Values of any length, with offsets of this many bytes.
    Variable { offset_bytes: usize },
    /// Blocks of 1024 numbers of this many bytes, each with its width before it.
    Packed { bytes: usize },
    /// Blocks of 1024 numbers of this many bytes, all of one width in bits.
    PackedAlike { bytes: usize, width: usize },
    /// Texts of symbols.
    Symbols(Symbols, Box<Self>),
    /// Runs of values of this many bytes.
    Runs { bytes: usize },
    /// The first bytes of all values, their second bytes, and so on.
    Split { bytes: usize },
    /// Bytes of another compression, packed by a codec.
    General(Codec, Box<Self>),
    /// Lists of a fixed number of items.
    Lists { items: u64, has_validity: bool, of: Box<Self> },
}

impl Layout {
    /// Parses the description of a page: the name of a message, and the message.
    pub(super) fn parse(described: &[u8]) -> Result<Self, Refusal> {
        let (mut name, mut layout) = (&[][..], &[][..]);
        for part in parts(described) {
            match part? {
                part @ Part { number: 1, .. } => name = part.content().ok_or(Refusal::Damaged)?,
                part @ Part { number: 2, .. } => layout = part.content().ok_or(Refusal::Damaged)?,
                _ => {}
            }
        }
        if !name.ends_with(PAGE_LAYOUT) {
            return unread("its pages are described in another way than those of the version 2.2");
        }
        Self::of(layout, 0)
    }

    fn of(layout: &[u8], depth: u32) -> Result<Self, Refusal> {
        let Some(part) = parts(layout).next().transpose()? else { return Err(Refusal::Damaged) };
        let message = part.content().ok_or(Refusal::Damaged)?;
        match part.number {
            1 => MiniBlock::parse(message).map(Self::MiniBlock),
            2 => Constant::parse(message).map(Self::Constant),
            3 => FullZip::parse(message).map(Self::FullZip),
            4 if depth == 0 => blob(message),
            _ => unread("its pages have a layout that is not read"),
        }
    }
}

/// Places of values: pairs of an offset and a length.
fn blob(message: &[u8]) -> Result<Layout, Refusal> {
    let (mut inner, mut levels) = (None, Levels::default());
    for part in parts(message) {
        match part? {
            part @ Part { number: 1, .. } => {
                inner = Some(Layout::of(part.content().ok_or(Refusal::Damaged)?, 1)?);
            }
            part @ Part { number: 2, .. } => levels.add(part)?,
            _ => {}
        }
    }
    match inner {
        Some(Layout::MiniBlock(places)) if levels.list.is_none() => Ok(Layout::Blob(places)),
        _ => unread("its blobs are described in a way that is not read"),
    }
}

impl MiniBlock {
    fn parse(message: &[u8]) -> Result<Self, Refusal> {
        let (mut repetition, mut definition, mut values, mut dictionary) = (None, None, None, None);
        let (mut levels, mut buffers, mut items, mut entries) = (Levels::default(), 0, 0, 0);
        let mut is_large = false;
        for part in parts(message) {
            let part = part?;
            match part.number {
                1 => repetition = Some(Compression::parse(part, 0)?),
                2 => definition = Some(Compression::parse(part, 0)?),
                3 => values = Some(Compression::parse(part, 0)?),
                4 => dictionary = Some(Compression::parse(part, 0)?),
                5 => entries = integer(part)?,
                6 => levels.add(part)?,
                7 => buffers = integer(part)?,
                9 => items = integer(part)?,
                10 => is_large = integer(part)? != 0,
                _ => {}
            }
        }
        let values = values.ok_or(Refusal::Damaged)?;
        let dictionary = dictionary.map(|compression| (compression, entries));
        Ok(Self { repetition, definition, values, dictionary, levels, buffers, items, is_large })
    }
}

impl FullZip {
    fn parse(message: &[u8]) -> Result<Self, Refusal> {
        let (mut repetition_bits, mut definition_bits, mut width, mut values) = (0, 0, None, None);
        let mut levels = Levels::default();
        for part in parts(message) {
            let part = part?;
            match part.number {
                1 => repetition_bits = integer(part)?,
                2 => definition_bits = integer(part)?,
                3 => width = Some(Width::Fixed(whole_bytes(integer(part)?)?)),
                4 => width = Some(Width::Stored(whole_bytes(integer(part)?)?)),
                7 => values = Some(Compression::parse(part, 0)?),
                8 => levels.add(part)?,
                _ => {}
            }
        }
        if repetition_bits > 0 || levels.list.is_some() {
            return unread("its lists have values that are stored one by one");
        }
        let control_bytes = match definition_bits {
            0 => 0,
            1..=8 => 1,
            9..=16 => 2,
            _ => return Err(Refusal::Damaged),
        };
        let (width, values) = width.zip(values).ok_or(Refusal::Damaged)?;
        Ok(Self { control_bytes, width, values, levels })
    }
}

impl Constant {
    fn parse(message: &[u8]) -> Result<Self, Refusal> {
        let (mut value, mut repetition, mut definition) = (None, None, None);
        let (mut levels, mut repetitions, mut definitions) = (Levels::default(), 0, 0);
        for part in parts(message) {
            let part = part?;
            match part.number {
                5 => levels.add(part)?,
                6 => value = Some(part.content().ok_or(Refusal::Damaged)?.to_vec()),
                7 => repetition = Some(Compression::parse(part, 0)?),
                8 => definition = Some(Compression::parse(part, 0)?),
                9 => repetitions = integer(part)?,
                10 => definitions = integer(part)?,
                _ => {}
            }
        }
        let repetition = repetition.map(|compression| (compression, repetitions));
        let definition = definition.map(|compression| (compression, definitions));
        Ok(Self { value, repetition, definition, levels })
    }
}

impl Levels {
    /// Adds layers, from the innermost outwards.
    fn add(&mut self, part: Part<'_>) -> Result<(), Refusal> {
        let mut layers = Vec::new();
        crate::protobuf::append_integers(part, &mut layers)?;
        // The next level of a layer that can be null or empty.
        let mut next = self.visible + 1;
        for layer in layers {
            let is_list = matches!(layer, 2 | 4..=6);
            if is_list && self.list.is_some() {
                return unread("its lists are in lists");
            }
            match layer {
                1 => {}
                2 => self.list = Some(List { empty: 0 }),
                3 if self.list.is_none() => {
                    self.visible = next;
                    next += 1;
                }
                // Structs around a list.
                3 => {}
                4 => self.list = Some(List { empty: 0 }),
                5 => self.list = Some(List { empty: next }),
                6 => self.list = Some(List { empty: next + 1 }),
                _ => return Err(Refusal::Damaged),
            }
        }
        Ok(())
    }
}

impl Compression {
    fn parse(part: Part<'_>, depth: u32) -> Result<Self, Refusal> {
        if depth == MAX_DEPTH {
            return Err(Refusal::Damaged);
        }
        let message = part.content().ok_or(Refusal::Damaged)?;
        let Some(kind) = parts(message).next().transpose()? else { return Err(Refusal::Damaged) };
        let own = Fields::parse(kind.content().ok_or(Refusal::Damaged)?)?;
        let below = |number| {
            let part = own.get(number).ok_or(Refusal::Damaged)?;
            Self::parse(part, depth + 1)
        };
        let flat = |number| match below(number)? {
            Self::Flat { bits } => Ok(bits),
            _ => unread("its numbers are compressed twice"),
        };
        Ok(match kind.number {
            1 => {
                own.refuse_packed(2)?;
                Self::Flat { bits: own.integer(1)? }
            }
            2 => {
                own.refuse_packed(2)?;
                Self::Variable { offset_bytes: word(flat(1)?)? }
            }
            4 => {
                let width = usize::try_from(flat(3)?).map_err(|_| Refusal::Damaged)?;
                Self::PackedAlike { bytes: word(own.integer(1)?)?, width }
            }
            5 => {
                own.refuse_packed(2)?;
                Self::Packed { bytes: word(own.integer(1)?)? }
            }
            6 => {
                let table = own.get(1).and_then(Part::content).ok_or(Refusal::Damaged)?;
                let symbols = Symbols::parse(table).ok_or(Refusal::Damaged)?;
                Self::Symbols(symbols, Box::new(below(2)?))
            }
            8 => {
                if flat(2)? != 8 {
                    return unread("its runs have lengths of other than 8 bits");
                }
                Self::Runs { bytes: word(flat(1)?)? }
            }
            9 => Self::Split { bytes: word(flat(1)?)? },
            10 => {
                let codec = own.get(1).and_then(Part::content).ok_or(Refusal::Damaged)?;
                let codec = match Fields::parse(codec)?.integer(1)? {
                    1 => Codec::Lz4,
                    2 => Codec::Zstd,
                    _ => return unread("its values are compressed by a codec that is not read"),
                };
                Self::General(codec, Box::new(below(3)?))
            }
            11 => Self::Lists {
                items: own.integer(1)?,
                has_validity: own.integer(3)? != 0,
                of: Box::new(below(2)?),
            },
            // Pairs of numbers side by side, such as the places of blobs.
            12 if matches!(below(2)?, Self::Flat { bits: 128 }) => Self::Flat { bits: 128 },
            12 | 13 => return unread("its structs are packed into single values"),
            _ => return unread("its values are compressed in a way that is not read"),
        })
    }
}

/// The last field of each number below 4 of a message.
#[derive(Default)]
struct Fields<'a>([Option<Part<'a>>; 4]);

impl<'a> Fields<'a> {
    fn parse(message: &'a [u8]) -> Result<Self, Refusal> {
        let mut fields = Self::default();
        for part in parts(message) {
            let part = part?;
            let place = usize::try_from(part.number).ok();
            if let Some(field) = place.and_then(|place| fields.0.get_mut(place)) {
                *field = Some(part);
            }
        }
        Ok(fields)
    }

    fn get(&self, number: usize) -> Option<Part<'a>> {
        self.0.get(number).copied().flatten()
    }

    /// A number, which is 0 if it is not written.
    fn integer(&self, number: usize) -> Result<u64, Refusal> {
        self.get(number).map_or(Ok(0), integer)
    }

    /// Refuses a codec around a buffer, which writers of 2.2 do not use.
    fn refuse_packed(&self, number: usize) -> Result<(), Refusal> {
        match self.get(number) {
            None => Ok(()),
            Some(_) => unread("its buffers are compressed one by one"),
        }
    }
}

fn integer(part: Part<'_>) -> Result<u64, Refusal> {
    part.integer().ok_or(Refusal::Damaged)
}

fn whole_bytes(bits: u64) -> Result<u64, Refusal> {
    match bits % 8 {
        0 => Ok(bits / 8),
        _ => unread("its values have parts of bytes"),
    }
}

/// The bytes of a number of 8, 16, 32 or 64 bits.
fn word(bits: u64) -> Result<usize, Refusal> {
    match bits {
        8 | 16 | 32 | 64 => Ok(usize::try_from(bits / 8).unwrap_or(8)),
        _ => unread("its numbers have other than 8, 16, 32 or 64 bits"),
    }
}
