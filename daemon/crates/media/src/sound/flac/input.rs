//! The bytes of a file's frames for claxon, with a position: a frame that claxon refuses is read again from its start.
//! As quick as claxon's own `BufferedReader`; its `Cursor` takes a third longer.

use std::io::{Error, ErrorKind, Result};

use claxon::input::ReadBytes;

/// Frames, and how much of them is read.
pub(super) struct Input<'f> {
    pub(super) data: &'f [u8],
    pub(super) at: usize,
}

impl<'f> Input<'f> {
    fn take(&mut self, count: usize) -> Result<&'f [u8]> {
        let rest = self.data.get(self.at..).unwrap_or_default();
        let taken = rest.get(..count).ok_or_else(|| Error::from(ErrorKind::UnexpectedEof))?;
        self.at += count;
        Ok(taken)
    }
}

impl ReadBytes for Input<'_> {
    #[inline]
    fn read_u8(&mut self) -> Result<u8> {
        let byte = self.data.get(self.at).ok_or_else(|| Error::from(ErrorKind::UnexpectedEof))?;
        self.at += 1;
        Ok(*byte)
    }

    fn read_u8_or_eof(&mut self) -> Result<Option<u8>> {
        Ok(self.read_u8().ok())
    }

    fn read_into(&mut self, buffer: &mut [u8]) -> Result<()> {
        buffer.copy_from_slice(self.take(buffer.len())?);
        Ok(())
    }

    fn skip(&mut self, amount: u32) -> Result<()> {
        self.take(usize::try_from(amount).unwrap_or(usize::MAX)).map(drop)
    }
}
