//! The answer to `Names`: as many names or labels of a stream's dataset as fit a frame.

use std::os::unix::ffi::OsStrExt;

use forebay_engine::Stream;
use forebay_protocol::frames::{DaemonFrame, Fault, FaultKind, NamesOf, NamesRequest};
use forebay_protocol::ids::SampleId;
use forebay_protocol::wire::MAX_FRAME_BYTES;

/// Size of the names of one answer, each with its length; the rest of the frame is for the other fields.
const MAX_NAMES_BYTES: usize = MAX_FRAME_BYTES - 1024;
/// Labels of one answer.
const MAX_LABELS: u64 = (MAX_NAMES_BYTES / size_of::<i64>()) as u64 - 1;
/// The length of a name before its bytes.
const LENGTH_BYTES: usize = size_of::<u64>();

pub(super) fn answer(
    stream: Option<&Stream>,
    NamesRequest { request, of }: NamesRequest,
) -> Result<DaemonFrame, Fault> {
    let stream = stream.ok_or_else(|| fault("Names before Attach".to_owned()))?;
    let (total, names) = match of {
        NamesOf::Classes { from } => {
            let classes = stream.class_names();
            let rest = usize::try_from(from).ok().and_then(|from| classes.get(from..));
            let rest = rest.ok_or_else(|| {
                fault(format!("Names from class {from} of {} classes", classes.len()))
            })?;
            (classes.len() as u64, fitting(rest.iter().map(|name| name.as_bytes().to_vec()))?)
        }
        NamesOf::Files { samples } => {
            let count = stream.sample_count();
            if let Some(absent) = samples.iter().find(|sample| **sample >= count) {
                return Err(fault(format!("Names of sample {absent} of {count} samples")));
            }
            let files = samples.iter().map(|sample| {
                stream.sample_path(SampleId(*sample)).as_os_str().as_bytes().to_vec()
            });
            (samples.len() as u64, fitting(files)?)
        }
        NamesOf::Labels { from } => {
            let count = stream.sample_count();
            let samples = from..count.min(from.saturating_add(MAX_LABELS));
            if from > count {
                return Err(fault(format!("labels from sample {from} of {count} samples")));
            }
            let labels = samples.map(|sample| stream.label(SampleId(sample)).map(i64::to_le_bytes));
            match labels.collect::<Result<Vec<_>, _>>() {
                Ok(labels) => (count, vec![labels.concat()]),
                // Not a fault, which would end the session.
                Err(reason) => (0, vec![reason.into_bytes()]),
            }
        }
    };
    Ok(DaemonFrame::Names { request, total, names })
}

/// The first names, as many as fit.
fn fitting(names: impl Iterator<Item = Vec<u8>>) -> Result<Vec<Vec<u8>>, Fault> {
    let mut found = Vec::new();
    let mut left = MAX_NAMES_BYTES;
    for name in names {
        match left.checked_sub(name.len() + LENGTH_BYTES) {
            Some(after) => left = after,
            None if found.is_empty() => {
                let message = format!(
                    "a name of {} bytes does not fit a control frame of {MAX_FRAME_BYTES}; shorten it",
                    name.len()
                );
                return Err(Fault { kind: FaultKind::Config, message });
            }
            None => break,
        }
        found.push(name);
    }
    Ok(found)
}

fn fault(message: String) -> Fault {
    Fault { kind: FaultKind::Protocol, message }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_protocol::wire::encode;

    #[test]
    fn answer_has_as_many_names_as_fit_a_frame() {
        let names = |count: usize, bytes: usize| (0..count).map(move |_| vec![b'x'; bytes]);
        for (count, bytes) in [(0, 1), (3, 10), (1_000_000, 5), (1_000_000, 0), (100, 4096)] {
            let found = fitting(names(count, bytes)).unwrap();
            assert_eq!(found.is_empty(), count == 0);
            assert!(found.len() == count || found.len() * (bytes + 8) > MAX_NAMES_BYTES - 4104);
            let frame = DaemonFrame::Names { request: u64::MAX, total: u64::MAX, names: found };
            assert!(encode(&frame).is_ok(), "{count} names of {bytes} bytes");
        }
        assert!(fitting(names(1, MAX_FRAME_BYTES)).unwrap_err().message.contains("shorten it"));
    }
}
