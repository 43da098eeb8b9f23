//! Asks a helper process for the pictures of a clip.

use std::sync::Arc;

use forebay_dataset::Defect;
use forebay_decoders::{Frames, working_bytes};
use forebay_media::video::VideoFrame;
use forebay_video::clip::Clip;
use forebay_workers::{ForeignOutcome, ForeignPool, ForeignRequest, Lost};

use super::{Ending, frame_bytes};

/// The number of a request for pictures.
pub(super) const KIND_PICTURES: u32 = 1;
/// The number of a request for a sound.
pub(crate) const KIND_SOUND: u32 = 2;

/// What decoding a clip needs.
pub(crate) struct Decoding<'d> {
    pub(crate) helpers: &'d ForeignPool,
    pub(crate) most_pixels: u64,
    pub(crate) ending: &'d Ending,
    /// Set if no helper can be had.
    pub(crate) no_helpers: &'d mut Option<String>,
}

impl Decoding<'_> {
    /// The pictures of a clip in the order of its wanted times. Equal times share their planes.
    ///
    /// # Errors
    /// The clip is defective, or the thread ends.
    pub(crate) fn run(self, clip: &Clip<'_>) -> Result<Vec<VideoFrame>, Defect> {
        let mut head = self.most_pixels.to_le_bytes().to_vec();
        clip.write_head(&mut head);
        let mut distinct = clip.wanted.clone();
        distinct.sort_unstable();
        distinct.dedup();
        let request = ForeignRequest {
            kind: KIND_PICTURES,
            head: &head,
            data: &clip.data,
            memory_bytes: working_bytes(clip.codec, clip.width, clip.height, clip.color.bits),
            max_result_bytes: frame_bytes(clip).saturating_mul(distinct.len() as u64),
        };
        let ending = || self.ending.is_ending();
        let asked = self.helpers.ask(request, &ending, &mut |reply| {
            let frames = Frames::of_bytes(reply.head, reply.bytes, self.most_pixels)?;
            let bytes = usize::try_from(reply.bytes).map_err(|error| error.to_string())?;
            let mut planes = vec![0; bytes];
            reply.read(&mut planes, 0).map_err(|error| error.to_string())?;
            let places = frames.places(&clip.wanted).map_err(|pts| format!("nothing at {pts}"))?;
            Ok((frames, Arc::new(planes), places))
        });
        let (frames, planes, places) = match asked {
            Ok(ForeignOutcome::Done(done)) => done,
            Ok(ForeignOutcome::Refused(reason)) => return Err(Defect(reason)),
            Err(lost) => {
                if let Lost::NoWorkers(reason) = &lost {
                    *self.no_helpers = Some(reason.clone());
                }
                return Err(Defect(lost.to_string()));
            }
        };
        let size = frames.frames.first().map(|frame| (frame.width, frame.height));
        if frames.frames.iter().any(|frame| Some((frame.width, frame.height)) != size) {
            return Err(Defect("its pictures differ in size".to_owned()));
        }
        let picture = |place: usize| {
            VideoFrame::new(&planes, &frames.frames[place], clip.color, clip.rotation)
                .ok_or_else(|| Defect("its planes are too short".to_owned()))
        };
        places.into_iter().map(picture).collect()
    }
}
