//! Asks a helper process for the samples of a sound that the daemon does not decode itself.

use forebay_dataset::Defect;
use forebay_decoders::{SOUND_WORKING_BYTES, SoundRequest};
use forebay_media::sound::SoundDecoder;
use forebay_workers::{ForeignOutcome, ForeignPool, ForeignReply, ForeignRequest, Lost};

use crate::video::{Ending, KIND_SOUND};

/// Frames that are read at once.
const FRAMES: usize = 8192;

/// The helpers of a plan, for the sound of one sample.
pub(crate) struct SoundsElsewhere<'d> {
    /// `None`: the names of the sounds are those of other codings.
    pub(crate) helpers: Option<&'d ForeignPool>,
    pub(crate) ending: &'d Ending,
    /// Set if no helper can be had.
    pub(crate) no_helpers: &'d mut Option<String>,
}

impl SoundDecoder for SoundsElsewhere<'_> {
    fn decode(
        &mut self,
        request: &SoundRequest<'_>,
        floats: &mut dyn FnMut(&[u8]) -> Result<(), Defect>,
    ) -> Result<(), Defect> {
        let Some(helpers) = self.helpers else {
            return Err(Defect(
                "it is AAC under a name of another coding: name the file or the member `.m4a`, or `.aac`".to_owned(),
            ));
        };
        let foreign = ForeignRequest {
            kind: KIND_SOUND,
            head: &request.head(),
            data: &request.data,
            memory_bytes: SOUND_WORKING_BYTES,
            max_result_bytes: request.result_bytes(),
        };
        let ending = || self.ending.is_ending();
        let mut taken = Ok(());
        let asked = helpers.ask(foreign, &ending, &mut |reply| {
            if reply.bytes != request.result_bytes() {
                return Err("the result has another length than was asked for".to_owned());
            }
            // Whether it is kept is no matter of the helper.
            taken = read(&reply, request.channels.into(), floats)?;
            Ok(())
        });
        match asked {
            Ok(ForeignOutcome::Done(())) => taken,
            Ok(ForeignOutcome::Refused(reason)) => Err(Defect(reason)),
            Err(lost) => {
                if let Lost::NoWorkers(reason) = &lost {
                    *self.no_helpers = Some(reason.clone());
                }
                Err(Defect(lost.to_string()))
            }
        }
    }
}

/// Passes on the floats of a reply, and returns how that went; the error is that of reading.
fn read(
    reply: &ForeignReply<'_>,
    channels: usize,
    floats: &mut dyn FnMut(&[u8]) -> Result<(), Defect>,
) -> Result<Result<(), Defect>, String> {
    let mut bytes = vec![0; FRAMES * channels * 4];
    let mut at = 0;
    while at < reply.bytes {
        let left = usize::try_from(reply.bytes - at).unwrap_or(usize::MAX);
        let part = left.min(FRAMES * channels * 4);
        reply.read(&mut bytes[..part], at).map_err(|error| error.to_string())?;
        if let Err(defect) = floats(&bytes[..part]) {
            return Ok(Err(defect));
        }
        at += part as u64;
    }
    Ok(Ok(()))
}
