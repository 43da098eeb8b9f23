//! Numbers of 7 bits a byte, the lowest first, as protocol buffers and Riegeli have them.

/// Takes a number off the front; `None`: it is cut off, or longer than 10 bytes.
pub fn take(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..70).step_by(7) {
        let (byte, after) = rest.split_first()?;
        *rest = after;
        // Bits beyond 64 are dropped, as in protocol buffers.
        number |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}
