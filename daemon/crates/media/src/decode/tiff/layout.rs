//! The meaning of a TIFF image's samples: colours, grey, a palette, alpha.

use super::chunks::defect;
use super::directory::{Directory, Values};
use super::stored::{Kind, Stored, not_read, tag};
use crate::decode::colour;
use crate::decode::format::{Content, Form};
use crate::size::Size;
use forebay_dataset::Defect;

/// The maximal number of an image's samples per pixel.
const MOST_SAMPLES: usize = 16;

/// The meaning of a pixel's first samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning {
    Grey {
        is_inverted: bool,
    },
    Colours,
    Palette,
    /// Cyan, magenta, yellow and black; 0 means zero ink.
    Ink,
}

/// The meaning of the sample after them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Alpha {
    None,
    Straight,
    /// The colours are multiplied by it.
    Multiplied,
}

/// The layout of a TIFF image's pixels.
#[derive(Debug)]
pub(super) struct Layout<'f> {
    pub(super) stored: Stored<'f>,
    pub(super) meaning: Meaning,
    pub(super) alpha: Alpha,
    colours: Option<Values<'f>>,
}

impl<'f> Layout<'f> {
    pub(super) fn read(file: &'f [u8]) -> Result<Self, Defect> {
        let stored = Stored::read(file)?;
        let Stored { directory, samples, bits, .. } = stored;
        if samples > MOST_SAMPLES {
            return Err(no_image(&stored, &format!("{samples} samples"), "a pixel of it has"));
        }
        if stored.kind != Kind::Unsigned || bits > 16 {
            let kind = match stored.kind {
                Kind::Unsigned => "unsigned integers",
                Kind::Signed => "signed integers",
                Kind::Float => "floats",
            };
            return Err(no_image(&stored, &format!("{kind} of {bits} bits"), "its samples are"));
        }
        let photometric = directory.value(tag::PHOTOMETRIC);
        let photometric = photometric.ok_or_else(|| defect("its colours are missing"))?;
        let (meaning, colours) = match photometric {
            white @ 0..=1 => (Meaning::Grey { is_inverted: white == 0 }, 1),
            2 => (Meaning::Colours, 3),
            3 => (Meaning::Palette, 1),
            5 => (Meaning::Ink, 4),
            4 => return Err(not_read("a mask", "it is")),
            6 => return Err(not_read("YCbCr", "its colours are")),
            8..=10 => return Err(not_read("Lab", "its colours are")),
            other => return Err(not_read(&format!("of kind {other}"), "its colours are")),
        };
        let alpha = alpha(&directory, meaning, samples, colours)?;
        let is_known = match meaning {
            Meaning::Grey { .. } => bits >= 8 || samples == 1,
            Meaning::Colours => bits >= 8,
            Meaning::Palette => bits == 8 || (bits < 8 && samples == 1),
            Meaning::Ink => bits >= 8,
        };
        if !is_known {
            return Err(not_read(
                &format!("{samples} samples of {bits} bits"),
                "a pixel of it has",
            ));
        }
        let colours = directory.find(tag::COLOUR_MAP).filter(|_| meaning == Meaning::Palette);
        if meaning == Meaning::Palette && colours.is_none_or(|map| map.count() < 3 << bits) {
            return Err(defect("it has no palette, or one that is too short"));
        }
        Ok(Self { stored, meaning, alpha, colours })
    }

    /// The number of used samples per pixel.
    pub(super) fn used(&self) -> usize {
        let colours = match self.meaning {
            Meaning::Grey { .. } | Meaning::Palette => 1,
            Meaning::Colours => 3,
            Meaning::Ink => 4,
        };
        colours + usize::from(self.alpha != Alpha::None)
    }

    /// Whether pixels of the form are stored directly.
    pub(super) fn is_direct(&self, form: Form) -> bool {
        let is_plain = match self.meaning {
            Meaning::Grey { is_inverted } => !is_inverted || self.stored.bits == 16,
            Meaning::Colours => true,
            Meaning::Palette | Meaning::Ink => false,
        };
        let bits = if form.content == Content::Wide { 16 } else { 8 };
        is_plain
            && self.alpha != Alpha::Multiplied
            && self.stored.bits == bits
            && self.used() == usize::from(form.channels)
    }

    /// Checks that it can be decoded to the form.
    ///
    /// # Errors
    /// The reason.
    pub(super) fn check(&self, form: Form) -> Result<(), Defect> {
        let is_grey = matches!(self.meaning, Meaning::Grey { .. });
        let reason = match form.content {
            Content::Colours => return Ok(()),
            Content::Indices if self.meaning == Meaning::Palette => return Ok(()),
            Content::Indices if !is_grey => "it has colours and no palette",
            Content::Indices if self.stored.bits == 16 => "its levels have 16 bits, and 8 are read",
            Content::Indices => return Ok(()),
            Content::Wide if self.meaning == Meaning::Ink && self.stored.bits == 16 => {
                return Err(not_read("CMYK", "16-bit levels are requested, and its colours are"));
            }
            Content::Wide => {
                return colour::check_wide(self.stored.bits, self.used(), form.channels);
            }
        };
        Err(Defect(format!("the TIFF file is not an image of indices: {reason}")))
    }

    /// The colours of a palette's indices, followed by alpha.
    pub(super) fn look_up(
        &self,
        stored: &[u8],
        channels: u8,
        out: &mut [u8],
    ) -> Result<(), Defect> {
        let map = self.colours.as_ref().ok_or_else(|| defect("it has no palette"))?;
        let mut colours = [[0, 0, 0, 255]; 256];
        let entries = 1_usize << self.stored.bits;
        for (index, colour) in colours.iter_mut().take(entries).enumerate() {
            for (channel, level) in colour.iter_mut().take(3).enumerate() {
                // The high byte, as in Pillow.
                let wide = map.get(channel * entries + index).unwrap_or(0);
                *level = u8::try_from(wide >> 8).unwrap_or(u8::MAX);
            }
        }
        let pixels = stored.chunks_exact(self.used());
        for (from, out) in pixels.zip(out.chunks_exact_mut(usize::from(channels))) {
            let mut colour = colours[usize::from(from[0])];
            colour[3] = from.get(1).copied().unwrap_or(255);
            colour::convert(4, &colour, channels, out);
        }
        Ok(())
    }
}

/// Refuses samples that are read as an array, with the operation for this file.
fn no_image(stored: &Stored<'_>, what: &str, is: &str) -> Defect {
    let Some(dtype) = stored.dtype() else { return not_read(what, is) };
    let Stored { size: Size { width, height }, samples, .. } = stored;
    defect(format!(
        "{is} {what}, which `decode-image` does not read; use {{ op = \"decode-raster\", size = [{height}, {width}], \
         samples = {samples}, dtype = \"{}\" }}",
        dtype.name()
    ))
}

fn alpha(
    directory: &Directory<'_>,
    meaning: Meaning,
    samples: usize,
    colours: usize,
) -> Result<Alpha, Defect> {
    let Some(beyond) = samples.checked_sub(colours) else {
        return Err(defect(format!("{samples} samples a pixel, too few for its colours")));
    };
    let said = directory.find(tag::EXTRA_SAMPLES).and_then(|extra| extra.get(0));
    Ok(match (beyond, said, meaning) {
        (0, ..) | (_, _, Meaning::Ink) => Alpha::None,
        (_, Some(1), Meaning::Palette) => {
            return Err(not_read("multiplied by alpha", "the colours of its palette are"));
        }
        (_, Some(1), _) => Alpha::Multiplied,
        // Corel Draw marks alpha as 999.
        (_, Some(2 | 999), _) | (1, None, Meaning::Colours) => Alpha::Straight,
        _ => Alpha::None,
    })
}
