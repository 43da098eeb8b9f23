//! What a dataset's header says of it.

use forebay_dataset::error::DatasetError;
use forebay_protocol::tensor::{DType, MAX_RANK};

use super::filters::{Filter, filters};
use super::header::{
    DATASPACE, DATATYPE, EXTERNAL_FILES, FILL, FILTERS, LAYOUT, Message, OLD_FILL,
};
use super::listed::{ChunkList, ListKind};
use super::{Hdf5, Numbers, REWRITE, Sizes};

/// Flags of a newer layout: chunks that are partly outside of the shape have no filters; the only chunk has.
const PARTS_UNFILTERED: u8 = 1;
const ONE_FILTERED: u8 = 2;

/// A dataset of numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) struct Hdf5Dataset {
    pub(in super::super) dtype: DType,
    pub(in super::super) big_endian: bool,
    pub(in super::super) shape: Vec<u64>,
    /// An element that no one wrote, as stored.
    pub(in super::super) fill: Vec<u8>,
    pub(in super::super) place: Place,
}

/// Where the elements of a dataset are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) enum Place {
    /// One after the other from an offset of the file on; `None`: nowhere, all have the fill value.
    Range(Option<u64>),
    Chunks {
        /// The shape of a chunk, which those at the ends have too.
        chunk: Vec<u64>,
        /// In the order in which they were applied.
        filters: Vec<Filter>,
        /// `None`: there are none.
        list: Option<ChunkList>,
    },
}

/// Why a dataset is not read.
enum Fault {
    Damaged,
    Other(String),
}

impl From<String> for Fault {
    fn from(reason: String) -> Self {
        Self::Other(reason)
    }
}

impl Hdf5<'_> {
    /// Reads what a dataset is.
    ///
    /// # Errors
    /// It is of another type than numbers, stored in a way that is not read, damaged, or cannot be read.
    pub(in super::super) fn dataset(
        &mut self,
        path: &str,
        header: u64,
    ) -> Result<Hdf5Dataset, DatasetError> {
        let messages = self.header(header)?;
        let found = self.dataset_of(&messages);
        found.map_err(|fault| match fault {
            Fault::Damaged => self.damaged(&format!("the header of {path:?}"), header),
            Fault::Other(reason) => self.fault(format!("the dataset {path:?}: {reason}")),
        })
    }

    fn dataset_of(&self, messages: &[Message]) -> Result<Hdf5Dataset, Fault> {
        let one = |kind: u16| messages.iter().find(|message| message.kind == kind);
        let needed = |kind: u16| one(kind).ok_or(Fault::Damaged);
        let used = [DATATYPE, DATASPACE, FILL, OLD_FILL, FILTERS, LAYOUT];
        if let Some(shared) = used.into_iter().filter_map(one).find(|message| message.is_shared) {
            let what = if shared.kind == DATATYPE {
                "its type has a name, and"
            } else {
                "a part of its header"
            };
            return Err(
                format!("{what} is stored apart from it, which is not read; {REWRITE}").into()
            );
        }
        if one(EXTERNAL_FILES).is_some() {
            return Err("its elements are in other files, which are not read".to_owned().into());
        }
        let (dtype, big_endian) = type_of(&needed(DATATYPE)?.bytes)?;
        let (shape, most) = shape_of(&needed(DATASPACE)?.bytes, self.sizes)?;
        let size = usize::try_from(dtype.size_bytes()).unwrap_or(8);
        let fill = match (one(FILL), one(OLD_FILL)) {
            (Some(message), _) => fill_of(&message.bytes).ok_or(Fault::Damaged)?,
            (None, Some(message)) => sized_value(&mut Numbers { rest: &message.bytes }),
            (None, None) => None,
        };
        let fill = fill.filter(|fill| fill.len() == size).unwrap_or_else(|| vec![0; size]);
        let filters = one(FILTERS).map(|message| filters(&message.bytes)).transpose()?;
        let layout = needed(LAYOUT)?;
        let of = (&shape[..], most, size as u64);
        let place = self.place_of(layout, of, filters.unwrap_or_default())?;
        Ok(Hdf5Dataset { dtype, big_endian, shape, fill, place })
    }

    fn place_of(
        &self,
        message: &Message,
        (shape, most, size): (&[u64], Vec<u64>, u64),
        filters: Vec<Filter>,
    ) -> Result<Place, Fault> {
        let mut numbers = Numbers { rest: &message.bytes };
        let version = numbers.u8().ok_or(Fault::Damaged)?;
        let class = numbers.u8().ok_or(Fault::Damaged)?;
        let bytes = shape.iter().fold(size, |all, side| all.saturating_mul(*side));
        let is_long = |stored: Option<u64>| match stored {
            Some(stored) if stored >= bytes => Ok(()),
            Some(stored) => Err(Fault::Other(format!(
                "its elements have {bytes} bytes, and {stored} are stored"
            ))),
            None => Err(Fault::Damaged),
        };
        match (version, class) {
            // In the header.
            (3..=5, 0) => {
                let stored = numbers.u16().map(u64::from);
                is_long(stored)?;
                let at = self.base.saturating_add(message.address).saturating_add(4);
                Ok(Place::Range(Some(at)))
            }
            (3..=5, 1) => {
                let address = numbers.address(self.sizes).ok_or(Fault::Damaged)?;
                is_long(numbers.sized(self.sizes.length))?;
                Ok(Place::Range(address.map(|address| self.base.saturating_add(address))))
            }
            (3, 2) => {
                let axes = usize::from(numbers.u8().ok_or(Fault::Damaged)?);
                let tree = numbers.address(self.sizes).ok_or(Fault::Damaged)?;
                let chunk = chunk_of(&mut numbers, axes, 4, (shape, size))?;
                let list = |address| ChunkList { kind: ListKind::Tree, address, most };
                Ok(Place::Chunks { chunk, filters, list: tree.map(list) })
            }
            (4 | 5, 2) => {
                let parsed = numbers.u8().zip(numbers.u8()).zip(numbers.u8());
                let ((flags, axes), side_bytes) = parsed.ok_or(Fault::Damaged)?;
                if flags & PARTS_UNFILTERED != 0 && !filters.is_empty() {
                    return Err(format!(
                        "chunks at its ends are without its filters, which is not read; {REWRITE}"
                    )
                    .into());
                }
                let chunk = chunk_of(&mut numbers, axes.into(), side_bytes.into(), (shape, size))?;
                let kind = list_kind(&mut numbers, flags, self.sizes).ok_or(Fault::Damaged)?;
                let address = numbers.address(self.sizes).ok_or(Fault::Damaged)?;
                let list = |address| ChunkList { kind, address, most };
                Ok(Place::Chunks { chunk, filters, list: address.map(list) })
            }
            (4 | 5, 3) => {
                Err("it is a view of other datasets, which is not read".to_owned().into())
            }
            _ => {
                Err(format!("its layout is of version {version}, which is not read; {REWRITE}")
                    .into())
            }
        }
    }
}

/// The shape of a chunk, which is stored with the size of an element after it.
fn chunk_of(
    numbers: &mut Numbers<'_>,
    axes: usize,
    side_bytes: usize,
    (shape, size): (&[u64], u64),
) -> Result<Vec<u64>, Fault> {
    let side = |_| numbers.sized(side_bytes).filter(|_| side_bytes <= 8);
    let mut chunk: Vec<u64> = (0..axes).map(side).collect::<Option<_>>().ok_or(Fault::Damaged)?;
    let is_whole = chunk.pop() == Some(size) && chunk.len() == shape.len();
    (is_whole && !chunk.contains(&0)).then_some(chunk).ok_or(Fault::Damaged)
}

/// The kind of a newer list of chunks.
fn list_kind(numbers: &mut Numbers<'_>, flags: u8, sizes: Sizes) -> Option<ListKind> {
    Some(match numbers.u8()? {
        1 if flags & ONE_FILTERED != 0 => {
            ListKind::One(Some((numbers.sized(sizes.length)?, numbers.u32()?)))
        }
        1 => ListKind::One(None),
        2 => ListKind::Row,
        3 => {
            // What the array says, too.
            numbers.skip(1)?;
            ListKind::FixedArray
        }
        4 => {
            numbers.skip(5)?;
            ListKind::GrowingArray
        }
        5 => {
            numbers.skip(6)?;
            ListKind::Records
        }
        _ => return None,
    })
}

/// The type of elements, and whether the most significant byte is first.
fn type_of(bytes: &[u8]) -> Result<(DType, bool), Fault> {
    const CLASSES: [&str; 11] = [
        "integers",
        "floats",
        "times",
        "texts",
        "bits",
        "opaque bytes",
        "structures",
        "references",
        "enumerations",
        "lists of different lengths",
        "arrays",
    ];
    let damaged = || Fault::Damaged;
    let mut numbers = Numbers { rest: bytes };
    let first = numbers.u8().ok_or_else(damaged)?;
    let (class, version) = (first & 15, first >> 4);
    let flags = numbers.take(3).ok_or_else(damaged)?;
    let (big_endian, is_signed) = (flags[0] & 1 != 0, flags[0] & 8 != 0);
    let size = numbers.u32().ok_or_else(damaged)?;
    let refused = |what: &str| {
        Fault::Other(format!("its elements are {what}; numbers and booleans are read"))
    };
    match class {
        0 => {
            let bits = numbers.u16().zip(numbers.u16()).ok_or_else(damaged)?;
            let dtype = match (size, is_signed) {
                (1, false) => DType::U8,
                (1, true) => DType::I8,
                (2, false) => DType::U16,
                (2, true) => DType::I16,
                (4, false) => DType::U32,
                (4, true) => DType::I32,
                (8, false) => DType::U64,
                (8, true) => DType::I64,
                _ => return Err(refused(&format!("integers of {size} bytes"))),
            };
            match bits == (0, u16::try_from(8 * size).unwrap_or(0)) {
                true => Ok((dtype, big_endian)),
                false => Err(refused("integers of other numbers of bits")),
            }
        }
        1 => {
            // The offset and the number of bits; places and sizes of the exponent and the mantissa; the exponent's bias.
            let form = numbers.take(12).ok_or_else(damaged)?;
            let dtype = match (size, form) {
                (2, [0, 0, 16, 0, 10, 5, 0, 10, 15, 0, 0, 0]) => DType::F16,
                (4, [0, 0, 32, 0, 23, 8, 0, 23, 127, 0, 0, 0]) => DType::F32,
                (8, [0, 0, 64, 0, 52, 11, 0, 52, 255, 3, 0, 0]) => DType::F64,
                _ => return Err(refused("floats of another form than IEEE's")),
            };
            // The order of a VAX; a mantissa whose first bit is not implied; the place of the sign.
            let is_usual = flags[0] & 0x40 == 0
                && flags[0] & 0x30 == 0x20
                && u64::from(flags[1]) == 8 * dtype.size_bytes() - 1;
            match is_usual {
                true => Ok((dtype, big_endian)),
                false => Err(refused("floats of another form than IEEE's")),
            }
        }
        // Bits, as PyTables writes booleans: whole bytes are numbers.
        4 => {
            let bits = numbers.u16().zip(numbers.u16()).ok_or_else(damaged)?;
            let dtype = [DType::U8, DType::U16, DType::U32, DType::U64]
                .into_iter()
                .find(|dtype| dtype.size_bytes() == u64::from(size));
            match dtype.filter(|_| bits == (0, u16::try_from(8 * size).unwrap_or(0))) {
                Some(dtype) => Ok((dtype, big_endian)),
                None => Err(refused("bits")),
            }
        }
        8 => {
            // Of integers; h5py's booleans are 0 with the name FALSE and 1 with the name TRUE.
            let is_of_integers = numbers.rest.first().is_some_and(|first| first & 15 == 0);
            is_of_integers.then_some(()).ok_or_else(damaged)?;
            let (dtype, big_endian) = type_of(numbers.rest)?;
            if dtype.size_bytes() != u64::from(size) {
                return Err(Fault::Damaged);
            }
            let count = u16::from_le_bytes([flags[0], flags[1]]);
            // After the type of integers.
            let members = numbers.rest.get(12..).unwrap_or_default();
            let padded = if version < 3 {
                (&b"FALSE\0\0\0TRUE\0\0\0\0"[..], 16)
            } else {
                (&b"FALSE\0TRUE\0"[..], 11)
            };
            let is_bool = count == 2
                && size == 1
                && members.starts_with(padded.0)
                && members.get(padded.1..).is_some_and(|values| values.starts_with(&[0, 1]));
            Ok((if is_bool { DType::Bool } else { dtype }, big_endian))
        }
        other => Err(refused(CLASSES.get(usize::from(other)).unwrap_or(&"of an unknown type"))),
    }
}

/// The shape of a dataset, which has rows, and the greatest that it may get.
fn shape_of(bytes: &[u8], sizes: Sizes) -> Result<(Vec<u64>, Vec<u64>), Fault> {
    let mut numbers = Numbers { rest: bytes };
    let parsed = numbers.u8().zip(numbers.u8()).zip(numbers.u8());
    let ((version, rank), flags) = parsed.ok_or(Fault::Damaged)?;
    let is_null = match version {
        1 => {
            numbers.skip(5).ok_or(Fault::Damaged)?;
            false
        }
        2 => numbers.u8().ok_or(Fault::Damaged)? == 2,
        _ => return Err(Fault::Damaged),
    };
    if is_null || rank == 0 {
        return Err("it has no rows; the first axis must be the rows".to_owned().into());
    }
    if usize::from(rank) >= MAX_RANK {
        return Err(
            format!("it has {rank} dimensions, and a sample may have {}", MAX_RANK - 1).into()
        );
    }
    let mut sides = || (0..rank).map(|_| numbers.sized(sizes.length)).collect::<Option<Vec<_>>>();
    let shape = sides().ok_or(Fault::Damaged)?;
    let mut most = shape.clone();
    if flags & 1 != 0 {
        most = sides().ok_or(Fault::Damaged)?;
        let endless = u64::MAX >> (64 - 8 * sizes.length);
        most.iter_mut().filter(|side| **side == endless).for_each(|side| *side = u64::MAX);
    }
    // A row with no elements has no values, and the sizes of others are computed with the element's.
    let elements = shape.iter().try_fold(8_u64, |all, side| all.checked_mul((*side).max(1)));
    elements.map(|_| (shape, most)).ok_or(Fault::Damaged)
}

/// The fill value of a message; the inner `None`: it has none.
fn fill_of(bytes: &[u8]) -> Option<Option<Vec<u8>>> {
    let mut numbers = Numbers { rest: bytes };
    Some(match numbers.u8()? {
        // When space is allocated, when it is filled, whether there is a value.
        1 | 2 => match numbers.take(3)?[2] {
            0 => None,
            _ => sized_value(&mut numbers),
        },
        3 => match numbers.u8()? & 0x20 {
            0 => None,
            _ => sized_value(&mut numbers),
        },
        _ => return None,
    })
}

/// A value after its size.
fn sized_value(numbers: &mut Numbers<'_>) -> Option<Vec<u8>> {
    let size = numbers.u32().and_then(|size| usize::try_from(size).ok())?;
    numbers.take(size).filter(|value| !value.is_empty()).map(<[u8]>::to_vec)
}
