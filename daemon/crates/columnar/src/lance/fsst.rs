//! Texts as codes of a byte, each of which is a symbol of up to 8 bytes; the code 255 precedes a byte that is no symbol.

/// The length of a table: a header, the symbols of 8 bytes, their lengths, and zeros.
const TABLE_BYTES: usize = 8 + 256 * 8 + 256;
/// The last half of the header of a table.
const MAGIC: u64 = 0x4653_5354;
/// Set in the header of a table in use; without it, texts are stored as they are.
const IN_USE: u64 = 1 << 24;
const ESCAPE: u8 = 255;

/// The symbols of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Symbols {
    /// By code: a symbol and its length. `None`: texts are stored as they are.
    table: Option<Vec<([u8; 8], u8)>>,
}

impl Symbols {
    /// Parses a table; `None`: it is damaged.
    pub(super) fn parse(table: &[u8]) -> Option<Self> {
        let header = u64::from_le_bytes(*table.first_chunk()?);
        if table.len() != TABLE_BYTES || header >> 32 != MAGIC {
            return None;
        }
        if header & IN_USE == 0 {
            return Some(Self { table: None });
        }
        let count = usize::from(table[0]);
        let (symbols, lengths) = table[8..].split_at(8 * count);
        let (symbols, _) = symbols.as_chunks();
        let all = symbols.iter().zip(lengths).map(|(symbol, length)| (*symbol, (*length).min(8)));
        Some(Self { table: Some(all.collect()) })
    }

    /// Appends a text; `None`: it has a code without a symbol, or ends after an escape.
    pub(super) fn unpack(&self, codes: &[u8], out: &mut Vec<u8>) -> Option<()> {
        let Some(table) = &self.table else {
            out.extend_from_slice(codes);
            return Some(());
        };
        let mut rest = codes.iter();
        while let Some(code) = rest.next() {
            match *code {
                ESCAPE => out.push(*rest.next()?),
                code => {
                    let (symbol, length) = table.get(usize::from(code))?;
                    out.extend_from_slice(&symbol[..usize::from(*length)]);
                }
            }
        }
        Some(())
    }
}
