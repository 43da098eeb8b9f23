//! BloscLZ, the compressor that Blosc uses if none is named: literals, and copies of what was unpacked before.
//!
//! A stream is of runs, each after a control byte: below 32 so many literals plus one; above, a copy, whose length is in
//! the upper three bits and whose distance in the lower five and the next byte, or in two bytes more if it is far. The
//! first byte is one of literals, whatever its upper bits are.

/// The distance from which one has two bytes more.
const NEAR: usize = 8191;

/// Unpacks a stream into exactly this memory. `None`: the stream is damaged, or has another size.
pub(super) fn unpack(packed: &[u8], into: &mut [u8]) -> Option<()> {
    let (first, mut rest) = packed.split_first()?;
    let (mut control, mut done) = (usize::from(first & 31), 0_usize);
    loop {
        if control < 32 {
            let (literals, behind) = rest.split_at_checked(control + 1)?;
            into.get_mut(done..)?.get_mut(..literals.len())?.copy_from_slice(literals);
            (done, rest) = (done + literals.len(), behind);
        } else {
            let mut length = (control >> 5) + 2;
            if control >> 5 == 7 {
                loop {
                    let more = next(&mut rest)?;
                    length = length.checked_add(more)?;
                    if more != 255 {
                        break;
                    }
                }
            }
            let (upper, lower) = (control & 31, next(&mut rest)?);
            let distance = match (upper, lower) {
                (31, 255) => (next(&mut rest)? << 8) + next(&mut rest)? + NEAR + 1,
                _ => (upper << 8) + lower + 1,
            };
            copy(into, done, distance, length)?;
            done += length;
        }
        match rest.split_first() {
            Some((byte, behind)) => (control, rest) = (usize::from(*byte), behind),
            None => break,
        }
    }
    (done == into.len()).then_some(())
}

fn next(rest: &mut &[u8]) -> Option<usize> {
    let (byte, behind) = rest.split_first()?;
    *rest = behind;
    Some(usize::from(*byte))
}

/// Repeats what begins `distance` bytes before `done`; a copy may reach into what it has written.
fn copy(into: &mut [u8], done: usize, distance: usize, length: usize) -> Option<()> {
    let start = done.checked_sub(distance)?;
    let end = done.checked_add(length).filter(|end| *end <= into.len())?;
    let mut at = done;
    while at < end {
        // What is there doubles with each step.
        let step = (at - start).min(end - at);
        into.copy_within(start..start + step, at);
        at += step;
    }
    Some(())
}
