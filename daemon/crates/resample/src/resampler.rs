//! Resamples an image: computes weights, then one row of the result after the other.

use crate::axis::{Axis, Key};
use crate::request::{Filter, Form, Shown, Source, Target};
use crate::simd::{Gather, Line, MOST_PAIRS, PLANE_SLACK, Simd};

/// A work thread's state, kept between images.
#[derive(Debug)]
pub struct Resampler {
    simd: Simd,
    columns: Axis,
    rows: Axis,
    gather: Gather,
    /// A weighted sum of rows, in the source's layout; and its separated colours.
    line: Vec<u8>,
    planes: Vec<u8>,
}

impl Resampler {
    /// `None`: the processor does not have the required features.
    #[must_use]
    pub fn new() -> Option<Self> {
        let simd = Simd::detect()?;
        let (columns, rows, gather, line, planes) = Default::default();
        Some(Self { simd, columns, rows, gather, line, planes })
    }

    /// Whether images of this size are supported: computes the weights, which [`Self::resample`] then reuses. `false`
    /// if a side is reduced by a factor of about four or more, or if the shown part is outside of the source.
    pub fn prepare(
        &mut self,
        from: (u32, u32),
        columns: Shown,
        rows: Shown,
        filter: Filter,
        to: (u32, u32),
        mirror: bool,
    ) -> bool {
        let across = Key { from: from.0, shown: columns, to: to.0, filter };
        let down = Key { from: from.1, shown: rows, to: to.1, filter };
        self.simd.make(&mut self.columns, across)
            && self.simd.make(&mut self.rows, down)
            && self.rows.most_pairs() <= MOST_PAIRS
            && self.gather.make(&self.columns, across, mirror)
    }

    /// Writes the shown part of the source to the target. `false`: nothing is written, for the reasons of
    /// [`Self::prepare`].
    ///
    /// # Panics
    /// The length of the source's or the target's pixels does not match their size.
    pub fn resample(
        &mut self,
        source: &Source<'_>,
        columns: Shown,
        rows: Shown,
        filter: Filter,
        target: &mut Target<'_>,
    ) -> bool {
        let (from, to) = ((source.width, source.height), (target.width, target.height));
        assert_eq!(target.pixels.len(), to.0 as usize * to.1 as usize * 3, "the target's length");
        let is_kind = self.prepare(from, columns, rows, filter, to, target.mirror);
        if is_kind {
            self.write(source, target);
        }
        is_kind
    }

    fn write(&mut self, source: &Source<'_>, target: &mut Target<'_>) {
        let Self { simd, rows, gather, line, planes, .. } = self;
        let (width, height) = (target.width as usize, target.height as usize);
        let from_width = source.width as usize;
        let from_bytes = from_width * 3;
        // Colours are separated sixteen pixels at a time.
        let plane_bytes = from_width.next_multiple_of(16) + PLANE_SLACK;
        line.resize(from_width.next_multiple_of(16) * 3 + PLANE_SLACK, 0);
        planes.resize(plane_bytes * 3, 0);
        for row in 0..height {
            let (first, weights) = rows.place(row);
            simd.weigh_rows(source, first, weights, rows.precision(), &mut line[..from_bytes]);
            let [red, green, blue] = match source.form {
                Form::Planar => {
                    [0, 1, 2].map(|plane| &line[plane * from_width..][..from_width + PLANE_SLACK])
                }
                Form::Interleaved => {
                    let [red, green, blue] = parts(planes, plane_bytes);
                    simd.separate(line, red, green, blue);
                    [&*red, &*green, &*blue]
                }
            };
            let to = if target.upend { height - 1 - row } else { row };
            let to = match target.form {
                Form::Interleaved => {
                    Line::Interleaved(&mut target.pixels[to * width * 3..][..width * 3])
                }
                Form::Planar => {
                    let [red, green, blue] = parts(target.pixels, width * height);
                    let line = to * width..(to + 1) * width;
                    Line::Planar([
                        &mut red[line.clone()],
                        &mut green[line.clone()],
                        &mut blue[line],
                    ])
                }
            };
            simd.gather(gather, [red, green, blue], to);
        }
    }

    /// Bytes of memory.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        let lines = self.line.capacity() + self.planes.capacity();
        self.columns.bytes() + self.rows.bytes() + self.gather.bytes() + lines
    }

    /// Frees memory.
    pub fn trim(&mut self) {
        (self.columns, self.rows, self.gather) = Default::default();
        (self.line, self.planes) = Default::default();
    }
}

/// Three parts of a buffer.
fn parts(buffer: &mut [u8], bytes: usize) -> [&mut [u8]; 3] {
    let (first, rest) = buffer.split_at_mut(bytes);
    let (second, rest) = rest.split_at_mut(bytes);
    [first, second, &mut rest[..bytes]]
}
