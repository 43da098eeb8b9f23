use super::*;
use crate::decode::Decoders;
use crate::reduction::{Reduction, Wanted};
use crate::size::Rectangle;
use forebay_dataset::mask::{MaskDraft, in_steps, push_outline, push_runs};

/// The masks of pycocotools; `make_cases.py` writes them.
const CASES: &str = include_str!("cases.txt");

const GREY: Form = Form { channels: 1, content: Content::Colours };

fn pixels(file: &[u8], form: Form) -> Result<Vec<u8>, Defect> {
    let (size, _) = (FORMAT.read_header)(file, false)?;
    let mut pixels = Vec::new();
    decode(file, size, form, &mut Vec::new(), &mut pixels)?;
    let count = (size.width * size.height) as usize;
    pixels.truncate(count * usize::from(form.channels) * form.content.element_bytes());
    Ok(pixels)
}

fn outline(points: &[f64]) -> Vec<u8> {
    let points: Vec<_> = points
        .as_chunks::<2>()
        .0
        .iter()
        .map(|point| point.map(|at| in_steps(at).unwrap()))
        .collect();
    let mut part = Vec::new();
    push_outline(&points, &mut part);
    part
}

#[test]
fn outlines_have_the_pixels_that_pycocotools_gives_them() {
    let mut inside = 0;
    for case in CASES.lines() {
        let words: Vec<&str> = case.split(' ').collect();
        let [width, height] = [0, 1].map(|at| words[at].parse::<u32>().unwrap());
        let mut draft = MaskDraft::new(width, height);
        for polygon in words[2].split('|') {
            let points: Vec<f64> = polygon.split(',').map(|at| at.parse().unwrap()).collect();
            draft.add(7, &outline(&points));
        }
        let painted = pixels(&draft.into_bytes(), GREY).unwrap();
        let runs: Vec<u32> = words[3].split(',').map(|run| run.parse().unwrap()).collect();
        let mut expected = MaskDraft::new(width, height);
        let mut part = Vec::new();
        push_runs(&runs, &mut part);
        expected.add(7, &part);
        assert_eq!(painted, pixels(&expected.into_bytes(), GREY).unwrap(), "{case}");
        let is_outside = runs.iter().step_by(2).sum::<u32>();
        inside += width * height - is_outside;
        let painted = painted.iter().filter(|pixel| **pixel == 7).count();
        assert_eq!(u32::try_from(painted), Ok(width * height - is_outside));
    }
    assert!(inside > 1000, "{inside}");
}

#[test]
fn later_objects_are_painted_over_earlier_ones_in_8_and_16_bits() {
    let mut draft = MaskDraft::new(3, 2);
    let mut part = Vec::new();
    push_runs(&[0, 4], &mut part);
    draft.add(300, &part);
    part.clear();
    push_runs(&[3, 2, 1], &mut part);
    draft.add(2, &part);
    let file = draft.into_bytes();
    let wide = Form { channels: 1, content: Content::Wide };
    let levels: Vec<u16> = pixels(&file, wide)
        .unwrap()
        .as_chunks()
        .0
        .iter()
        .map(|level| u16::from_ne_bytes(*level))
        .collect();
    // Down the columns: 300, 300 | 300, 2 | 2, 0.
    assert_eq!(levels, [300, 300, 2, 300, 2, 0]);
    let colours = pixels(&file, Form { channels: 3, content: Content::Wide }).unwrap();
    assert_eq!(colours.len(), 36);
    let error = pixels(&file, GREY).unwrap_err();
    assert!(error.0.contains("set `depth = 16`"), "{error}");
}

#[test]
fn masks_are_images_of_the_decoders() {
    let mut draft = MaskDraft::new(40, 30);
    draft.add(9, &outline(&[2.0, 2.0, 30.0, 3.5, 12.0, 28.0]));
    let file = draft.into_bytes();
    let (mut decoders, mut out) = (Decoders::default(), Vec::new());
    let header = decoders.read_header(&file, false, 1200).unwrap();
    let needed = Rectangle::whole(header.size());
    let wanted = Wanted { reduction: Reduction::NONE, channels: 3, needed, in_colour_rows: false };
    decoders.decode(&file, &header, wanted, &mut out).unwrap();
    assert_eq!(out[3 * (10 * 40 + 14)..][..3], [9; 3]);
    let error = decoders.read_header(&file, false, 1199).unwrap_err();
    assert!(error.0.contains("more than limits.pixels"), "{error}");
}

#[test]
fn what_cannot_be_painted_is_refused_before_memory_is_taken() {
    let file = |width, height, part: &[u8]| {
        let mut draft = MaskDraft::new(width, height);
        draft.add(1, part);
        draft.into_bytes()
    };
    let mut runs = Vec::new();
    push_runs(&[3, 9], &mut runs);
    let mut crooked = vec![0.0, 0.0];
    for at in 0..200 {
        crooked.extend([0.0, 1e5, f64::from(at), -1e5]);
    }
    for (file, reason) in [
        (file(3, 3, &runs), "its runs have 12 pixels, and the image has 9"),
        (file(3, 3, &outline(&crooked)), "longer than the image has room for"),
        (file(3, 3, &outline(&[0.0, 0.0, 5e7, 0.0, 0.0, 5e7])), "far outside of it"),
        (file(1 << 20, 1 << 20, &runs), "more than 4,294,967,295 pixels"),
        (file(3, 3, &runs)[..18].to_vec(), "cut off or malformed"),
        (file(3, 3, &runs)[..12].to_vec(), "its header is cut off"),
    ] {
        let error = pixels(&file, GREY).unwrap_err();
        assert!(error.0.contains(reason), "{reason}: {error}");
    }
    // A few bytes that would set each pixel a thousand times.
    let mut layers = MaskDraft::new(1024, 1024);
    let mut whole = Vec::new();
    push_runs(&[0, 1 << 20], &mut whole);
    (0..1000).for_each(|_| layers.add(1, &whole));
    let file_of_layers = layers.into_bytes();
    assert!(file_of_layers.len() < 10_000);
    let error = pixels(&file_of_layers, GREY).unwrap_err();
    assert!(error.0.contains("cover the image more than 256 times"), "{error}");
    // The estimate covers what following an outline takes.
    let whole = file(64, 64, &outline(&[0.0, 0.0, 64.0, 0.0, 64.0, 64.0]));
    let size = Size { width: 64, height: 64 };
    let bytes = (FORMAT.bytes_beside_pixels)(&whole, size, GREY);
    assert!((4 * 2 * 64..16 * 64).contains(&bytes), "{bytes}");
}
