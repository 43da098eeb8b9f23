//! The helper process's side: the decoders that it opens, and how it answers.

use std::io;
use std::process::ExitCode;

use forebay_decoders::{Defect, Library, Missing, Output, SoundRequest, decode, decode_sound};
use forebay_video::clip::Clip;
use forebay_video::codec::Codec;
use forebay_workers::{Foreign, HelperError, HelperOutput, WorkerClass, serve_helper};

use super::decoding::{KIND_PICTURES, KIND_SOUND};

/// The decoders of this process.
struct Decoders(Result<Library, Missing>);

/// Serves a daemon's requests as a helper process; `lower` takes a scheduling class.
///
/// # Errors
/// It was not started by a daemon.
pub fn serve_decoders(lower: impl FnOnce(WorkerClass)) -> io::Result<ExitCode> {
    serve_helper(lower, || Decoders(Library::open()))
}

/// The decoders of this host, in words.
///
/// # Errors
/// It has none: says which package to install.
pub fn host_decoders() -> Result<String, String> {
    decoders_of(&Decoders(Library::open()).introduction())
}

/// What decides the samples of AAC on this host, by what a helper says.
pub(super) fn sounds_of(introduction: &str) -> String {
    let value: serde_json::Value = serde_json::from_str(introduction).unwrap_or_default();
    let sounds = value.get("sounds").and_then(serde_json::Value::as_str);
    sounds.unwrap_or("no libavcodec").to_owned()
}

/// What a helper says of its decoders, in words.
///
/// # Errors
/// It has none: says which package to install.
pub(super) fn decoders_of(introduction: &str) -> Result<String, String> {
    let value: serde_json::Value = serde_json::from_str(introduction)
        .map_err(|error| format!("a decoder's process introduces itself with {error}"))?;
    match value.get("missing").and_then(serde_json::Value::as_str) {
        Some(missing) => Err(missing.to_owned()),
        None => {
            let decoders = value.get("decoders").and_then(serde_json::Value::as_object);
            let decoders = decoders.into_iter().flatten().map(|(codec, decoder)| {
                let decoder = decoder.as_str().unwrap_or_default();
                if decoder == codec { codec.clone() } else { format!("{codec} by {decoder}") }
            });
            let version = value.get("libavcodec").and_then(serde_json::Value::as_str);
            let (version, decoders) = (version.unwrap_or_default(), decoders.collect::<Vec<_>>());
            Ok(format!("libavcodec {version} ({})", decoders.join(", ")))
        }
    }
}

impl Foreign for Decoders {
    fn introduction(&self) -> String {
        let value = match &self.0 {
            Err(missing) => serde_json::json!({ "missing": missing.to_string() }),
            Ok(library) => {
                let decoders = Codec::ALL.iter().filter_map(|codec| {
                    Some((codec.name().to_owned(), library.decoder_name(*codec)?.into()))
                });
                let decoders: serde_json::Map<_, serde_json::Value> = decoders.collect();
                serde_json::json!({
                    "libavcodec": library.version(),
                    "decoders": decoders,
                    "sounds": library.sounds(),
                })
            }
        };
        value.to_string()
    }

    fn decode(
        &mut self,
        kind: u32,
        head: &[u8],
        data: &[u8],
        output: &mut HelperOutput<'_>,
    ) -> Result<Vec<u8>, HelperError> {
        let refused = |reason: String| HelperError::Refused(reason);
        let library =
            self.0.as_ref().map_err(|missing| HelperError::Cannot(missing.to_string()))?;
        if kind == KIND_SOUND {
            let request = SoundRequest::of_parts(head, data).map_err(refused)?;
            return decode_sound(library, &request, &mut ToArena(output))
                .map(|()| Vec::new())
                .map_err(of_defect);
        }
        if kind != KIND_PICTURES {
            return Err(refused(format!("a request of the kind {kind} is not known")));
        }
        let Some((most_pixels, head)) = head.split_first_chunk() else {
            return Err(refused("a request is too short".to_owned()));
        };
        let clip = Clip::of_parts(head, data).map_err(|error| refused(error.to_string()))?;
        let most_pixels = u64::from_le_bytes(*most_pixels);
        let frames =
            decode(library, &clip, most_pixels, &mut ToArena(output)).map_err(of_defect)?;
        Ok(frames.to_bytes())
    }
}

/// What the daemon learns of a defect.
fn of_defect(defect: Defect) -> HelperError {
    match defect.to_string() {
        reason if defect.is_memory() => HelperError::NoMemory(reason),
        reason if defect.is_of_library() => HelperError::Cannot(reason),
        reason => HelperError::Refused(reason),
    }
}

struct ToArena<'o, 'a>(&'o mut HelperOutput<'a>);

impl Output for ToArena<'_, '_> {
    fn append(&mut self, row: &[u8]) -> Result<(), String> {
        self.0.append(row)
    }
}
