//! Entry points for fuzzers.

use super::yaml::Yaml;
use super::{Objects, voc, yolo};

/// Reads a text as a VOC file, as a YOLO file of labels and as a `data.yaml`; gives what each of the first two has.
pub(crate) fn read_for_fuzzing(text: &str, mut visit: impl FnMut(usize, usize, usize)) {
    let mut see = |objects: &Objects| {
        assert!(objects.boxes.iter().flatten().all(|corner| corner.is_finite()));
        visit(objects.boxes.len(), objects.labels.len(), objects.outlines.len());
    };
    for read in [voc::read(text), yolo::read(text, [480, 640], 80)] {
        match read {
            Ok(objects) => see(&objects),
            Err((line, message)) => {
                let lines = text.bytes().filter(|byte| *byte == b'\n').count();
                assert!(
                    (1..=lines + 1).contains(&line) && !message.contains('\n'),
                    "{line}: {message}"
                );
            }
        }
    }
    let _ = Yaml::read(text);
}
