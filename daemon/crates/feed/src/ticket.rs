//! A ticket: the rows that a daemon asks a feeder for. Fixed numbers, little-endian, so that any language writes it in a
//! line or two:
//! ```text
//!   "FBT1"   digest of the row identity: 16 bytes   urgency: u32   number of rows: u32   rows: (sample: u64, pass: u64) each
//! ```

use forebay_protocol::frames::RowKey;

/// Its first bytes: the format and its version.
const MAGIC: [u8; 4] = *b"FBT1";
/// The bytes before the rows.
const HEAD: usize = 28;
/// The bytes of a row.
const ROW: usize = 16;
/// The most rows of a ticket, whatever a feeder allows.
pub(crate) const MAX_ROWS: usize = 256;

/// The first bytes of a row identity's BLAKE3 digest.
pub(crate) type IdentityDigest = [u8; 16];

/// The digest of a row identity's text.
pub(crate) fn digest_of(identity: &str) -> IdentityDigest {
    let mut digest = [0; 16];
    digest.copy_from_slice(&blake3::hash(identity.as_bytes()).as_bytes()[..16]);
    digest
}

/// See the module's head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ticket {
    pub(crate) identity: IdentityDigest,
    /// Whether a trainer waits for the rows, or soon will.
    pub(crate) is_urgent: bool,
    pub(crate) rows: Vec<RowKey>,
}

/// Why bytes are no ticket.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum TicketError {
    #[error("a ticket begins with `FBT1`; this one is of another version or none")]
    Magic,
    #[error("a ticket of {rows} rows has {expected} bytes, and not {found}")]
    Length { rows: usize, expected: usize, found: usize },
    #[error("a ticket has 1 to {MAX_ROWS} rows, and this one has {0}")]
    Rows(usize),
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

impl Ticket {
    /// Reads a ticket.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, TicketError> {
        let head = (number::<4>(bytes, 0), number(bytes, 4), number(bytes, 20), number(bytes, 24));
        let (Some(MAGIC), Some(identity), Some(urgency), Some(count)) = head else {
            return Err(TicketError::Magic);
        };
        let rows = usize::try_from(u32::from_le_bytes(count)).unwrap_or(usize::MAX);
        if rows == 0 || rows > MAX_ROWS {
            return Err(TicketError::Rows(rows));
        }
        let (expected, found) = (HEAD + rows * ROW, bytes.len());
        if expected != found {
            return Err(TicketError::Length { rows, expected, found });
        }
        let row = |bytes: &[u8]| {
            let word = |at| number(bytes, at).map_or(0, u64::from_le_bytes);
            RowKey { sample: word(0), pass: word(8) }
        };
        Ok(Self {
            identity,
            is_urgent: u32::from_le_bytes(urgency) == 0,
            rows: bytes[HEAD..].chunks_exact(ROW).map(row).collect(),
        })
    }

    /// Its bytes.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEAD + self.rows.len() * ROW);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&self.identity);
        bytes.extend_from_slice(&u32::from(!self.is_urgent).to_le_bytes());
        let count = u32::try_from(self.rows.len()).unwrap_or(u32::MAX);
        bytes.extend_from_slice(&count.to_le_bytes());
        for row in &self.rows {
            bytes.extend_from_slice(&row.sample.to_le_bytes());
            bytes.extend_from_slice(&row.pass.to_le_bytes());
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket() -> Ticket {
        let rows = vec![RowKey { sample: 7, pass: 1 }, RowKey { sample: u64::MAX, pass: 0 }];
        Ticket { identity: digest_of("samples=3"), is_urgent: true, rows }
    }

    #[test]
    fn tickets_round_trip() {
        for is_urgent in [true, false] {
            let ticket = Ticket { is_urgent, ..ticket() };
            assert_eq!(Ticket::read(&ticket.to_bytes()), Ok(ticket));
        }
    }

    #[test]
    fn other_bytes_are_refused() {
        let bytes = ticket().to_bytes();
        for length in 0..bytes.len() {
            assert!(Ticket::read(&bytes[..length]).is_err(), "{length}");
        }
        let longer = [&bytes[..], &[0]].concat();
        assert!(matches!(Ticket::read(&longer), Err(TicketError::Length { found: 61, .. })));
        for (count, error) in [(0, 0), (257, 257)] {
            let mut bytes = bytes.clone();
            bytes[24..28].copy_from_slice(&u32::to_le_bytes(count));
            assert_eq!(Ticket::read(&bytes), Err(TicketError::Rows(error)));
        }
    }
}
