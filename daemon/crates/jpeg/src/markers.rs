//! Reads a file's markers up to the entropy-coded data (T.81, annex B): the kind of image and its tables.
//!
//! Accepts one baseline frame with one scan, in the form that every common encoder writes, and nothing that libjpeg
//! warns of.

use crate::request::Unsure;

/// One component of the frame, in the order of the scan.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Component {
    /// Sampling factors.
    pub across: u32,
    pub down: u32,
    /// Numbers of its tables in [`Frame`].
    pub quantization: usize,
    pub dc: usize,
    pub ac: usize,
}

/// The content of the markers. Tables are slices of the file.
#[derive(Debug)]
pub(crate) struct Frame<'f> {
    pub width: u32,
    pub height: u32,
    components: [Component; 3],
    count: usize,
    /// In zigzag order.
    pub quantization: [Option<&'f [u8; 64]>; 4],
    /// For each table: the number of codes of each length from 1 to 16, then the symbols.
    pub dc: [Option<&'f [u8]>; 4],
    pub ac: [Option<&'f [u8]>; 4],
    /// MCUs between two restart markers; 0: no markers.
    pub restart_interval: usize,
    /// The start of the entropy-coded data.
    pub scan: usize,
}

impl Frame<'_> {
    pub(crate) fn components(&self) -> &[Component] {
        &self.components[..self.count]
    }
}

/// libjpeg's limit.
const LONGEST_SIDE: u32 = 65_500;
const UNUSUAL: Unsure = Unsure("an unusual header");

/// Reads from a segment or from the file.
struct Reader<'f>(&'f [u8]);

impl<'f> Reader<'f> {
    fn take(&mut self, count: usize) -> Result<&'f [u8], Unsure> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(UNUSUAL)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<&'f [u8; N], Unsure> {
        self.take(N)?.first_chunk().ok_or(UNUSUAL)
    }

    fn byte(&mut self) -> Result<u8, Unsure> {
        Ok(self.array::<1>()?[0])
    }

    fn word(&mut self) -> Result<u16, Unsure> {
        Ok(u16::from_be_bytes(*self.array()?))
    }
}

/// Markers that determine how three components are interpreted.
#[derive(Default)]
struct ColourMarks {
    jfif: bool,
    adobe_transform: Option<u8>,
}

/// # Errors
/// The file is anything but usual.
pub(crate) fn read(file: &[u8]) -> Result<Frame<'_>, Unsure> {
    let mut rest = Reader(file);
    if rest.word()? != 0xffd8 {
        return Err(UNUSUAL);
    }
    let mut frame = Frame {
        width: 0,
        height: 0,
        components: Default::default(),
        count: 0,
        quantization: [None; 4],
        dc: [None; 4],
        ac: [None; 4],
        restart_interval: 0,
        scan: 0,
    };
    let mut ids = [0; 3];
    let mut marks = ColourMarks::default();
    loop {
        if rest.byte()? != 0xff {
            return Err(UNUSUAL);
        }
        let mut marker = rest.byte()?;
        while marker == 0xff {
            marker = rest.byte()?;
        }
        let length = usize::from(rest.word()?);
        let mut body = Reader(rest.take(length.checked_sub(2).ok_or(UNUSUAL)?)?);
        match marker {
            0xdb => read_quantization(&mut body, &mut frame)?,
            0xc4 => read_huffman(&mut body, &mut frame)?,
            0xc0 if frame.count == 0 => read_frame(&mut body, &mut frame, &mut ids)?,
            0xdd => {
                frame.restart_interval = body.word()?.into();
                if !body.0.is_empty() {
                    return Err(UNUSUAL);
                }
            }
            // Libjpeg's distinction from other uses of the same markers.
            0xe0 if body.0.len() >= 14 && body.0.starts_with(b"JFIF\0") => marks.jfif = true,
            0xee if body.0.len() >= 12 && body.0.starts_with(b"Adobe") => {
                marks.adobe_transform = Some(body.0[11]);
            }
            0xe0..=0xef | 0xfe => {}
            0xda => {
                read_scan(&mut body, &mut frame, ids)?;
                frame.scan = file.len() - rest.0.len();
                check_colour(&frame, ids, &marks)?;
                return Ok(frame);
            }
            _ => return Err(UNUSUAL),
        }
    }
}

fn read_quantization<'f>(body: &mut Reader<'f>, frame: &mut Frame<'f>) -> Result<(), Unsure> {
    while !body.0.is_empty() {
        // A non-zero high half means 16 bits, which baseline files do not have.
        let place = usize::from(body.byte()?);
        *frame.quantization.get_mut(place).ok_or(UNUSUAL)? = Some(body.array()?);
    }
    Ok(())
}

fn read_huffman<'f>(body: &mut Reader<'f>, frame: &mut Frame<'f>) -> Result<(), Unsure> {
    while !body.0.is_empty() {
        let place = body.byte()?;
        let all = body.0;
        let symbols = body.array::<16>()?.iter().map(|count| usize::from(*count)).sum::<usize>();
        if symbols > 256 {
            return Err(UNUSUAL);
        }
        body.take(symbols)?;
        let tables = if place & 0x10 == 0 { &mut frame.dc } else { &mut frame.ac };
        let slot = tables.get_mut(usize::from(place & !0x10)).ok_or(UNUSUAL)?;
        *slot = all.get(..16 + symbols);
    }
    Ok(())
}

fn read_frame(
    body: &mut Reader<'_>,
    frame: &mut Frame<'_>,
    ids: &mut [u8; 3],
) -> Result<(), Unsure> {
    if body.byte()? != 8 {
        return Err(UNUSUAL);
    }
    frame.height = body.word()?.into();
    frame.width = body.word()?.into();
    let sides = 1..=LONGEST_SIDE;
    if !sides.contains(&frame.width) || !sides.contains(&frame.height) {
        return Err(UNUSUAL);
    }
    frame.count = body.byte()?.into();
    if !matches!(frame.count, 1 | 3) {
        return Err(UNUSUAL);
    }
    for (component, id) in frame.components[..frame.count].iter_mut().zip(ids) {
        let [own, factors, quantization] = *body.array()?;
        *id = own;
        component.across = u32::from(factors >> 4);
        component.down = u32::from(factors & 15);
        component.quantization = usize::from(quantization & 3);
        if quantization > 3 {
            return Err(UNUSUAL);
        }
    }
    if !body.0.is_empty() {
        return Err(UNUSUAL);
    }
    let is_usual = match &mut frame.components[..frame.count] {
        // A single component is coded block by block, regardless of its factors.
        [grey] => {
            let is_usual = (1..=4).contains(&grey.across) && (1..=4).contains(&grey.down);
            (grey.across, grey.down) = (1, 1);
            is_usual
        }
        [luma, chroma @ ..] => {
            matches!((luma.across, luma.down), (1 | 2, 1 | 2))
                && chroma.iter().all(|chroma| (chroma.across, chroma.down) == (1, 1))
        }
        [] => false,
    };
    if is_usual { Ok(()) } else { Err(UNUSUAL) }
}

fn read_scan(body: &mut Reader<'_>, frame: &mut Frame<'_>, ids: [u8; 3]) -> Result<(), Unsure> {
    if frame.count == 0 || usize::from(body.byte()?) != frame.count {
        return Err(UNUSUAL);
    }
    for (component, id) in frame.components[..frame.count].iter_mut().zip(ids) {
        let [own, tables] = *body.array()?;
        if own != id || tables & 0xcc != 0 {
            return Err(UNUSUAL);
        }
        component.dc = usize::from(tables >> 4);
        component.ac = usize::from(tables & 15);
    }
    // All coefficients at their full precision.
    if body.0 != [0, 63, 0] {
        return Err(UNUSUAL);
    }
    Ok(())
}

/// Checks that three components are certainly luma and chroma.
fn check_colour(frame: &Frame<'_>, ids: [u8; 3], marks: &ColourMarks) -> Result<(), Unsure> {
    let [first, second, third] = ids;
    if frame.count == 3 && (first == second || second == third || first == third) {
        return Err(UNUSUAL);
    }
    match marks.adobe_transform {
        _ if frame.count == 1 || marks.jfif => Ok(()),
        Some(1) => Ok(()),
        None if ids == [1, 2, 3] => Ok(()),
        _ => Err(Unsure("colours that are not certain")),
    }
}
