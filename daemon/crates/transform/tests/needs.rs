//! A sample's memory is at most the estimate from its header, and not many times less.
//!
//! The memory is the process's peak resident memory: of all allocators, and without reserved capacity that was never
//! written to.

#[path = "../examples/support/in_memory.rs"]
mod in_memory;

use std::fs;
use std::sync::{Mutex, MutexGuard, PoisonError};

use forebay_dataset::{FieldKind, FieldValue, Sound, SoundForm};
use forebay_order::DrawKey;
use forebay_protocol::ids::SampleId;
use forebay_protocol::tensor::Extent;
use forebay_transform::{KEPT_BYTES, SamplePlan, SampleTask, WorkerScratch};
use in_memory::{InMemory, OneRow};

const SIDE: usize = 1_500;

fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            crc >> 1 ^ (0xedb8_8320 & (crc & 1).wrapping_neg())
        })
    })
}

/// These zeros as a deflate stream of stored blocks.
fn stored_stream(zeros: &[u8]) -> Vec<u8> {
    let mut stream = vec![0x78, 0x01];
    let mut blocks = zeros.chunks(65_535).peekable();
    while let Some(block) = blocks.next() {
        let length = u16::try_from(block.len()).unwrap();
        stream.push(u8::from(blocks.peek().is_none()));
        stream.extend(length.to_le_bytes());
        stream.extend((!length).to_le_bytes());
        stream.extend(block);
    }
    let adler = u32::try_from(zeros.len() % 65_521).unwrap() << 16 | 1;
    stream.extend(adler.to_be_bytes());
    stream
}

/// A black PNG in stored blocks: `stored` samples of `depth` bits per pixel, of this colour type.
fn png(depth: u8, colours: u8, stored: usize) -> Vec<u8> {
    let lines = vec![0; SIDE * (1 + (SIDE * stored * usize::from(depth)).div_ceil(8))];
    let stream = stored_stream(&lines);
    let side = u32::try_from(SIDE).unwrap().to_be_bytes();
    let header = [&side[..], &side, &[depth, colours, 0, 0, 0]].concat();
    let palette = vec![0; if colours == 3 { 768 } else { 0 }];
    let mut file = b"\x89PNG\r\n\x1a\n".to_vec();
    for (name, body) in
        [(b"IHDR", header), (b"PLTE", palette), (b"IDAT", stream), (b"IEND", vec![])]
    {
        if name == b"PLTE" && body.is_empty() {
            continue;
        }
        let named = [&name[..], &body].concat();
        file.extend(u32::try_from(body.len()).unwrap().to_be_bytes());
        file.extend(&named);
        file.extend(crc32(&named).to_be_bytes());
    }
    file
}

/// The file with a compressed text of 4 MB after its header, which is never inflated.
fn with_packed_text(file: &[u8], name: &[u8; 4]) -> Vec<u8> {
    let text = stored_stream(&vec![0; 4_000_000]);
    let named = [&name[..], b"a profile\0\0", &text].concat();
    let mut changed = file[..33].to_vec();
    changed.extend(u32::try_from(named.len() - 4).unwrap().to_be_bytes());
    changed.extend(&named);
    changed.extend(crc32(&named).to_be_bytes());
    changed.extend(&file[33..]);
    changed
}

fn webp(colours: image_webp::ColorType, channels: usize) -> Vec<u8> {
    let side = u32::try_from(SIDE).unwrap();
    let pixels: Vec<u8> =
        (0..SIDE * SIDE * channels).map(|at| ((at * at) >> 12).to_le_bytes()[0]).collect();
    let mut file = Vec::new();
    image_webp::WebPEncoder::new(&mut file).encode(&pixels, side, side, colours).unwrap();
    file
}

/// The same as the only frame of an animation.
fn animated_webp() -> Vec<u8> {
    let chunk = |name: &[u8; 4], content: &[u8]| {
        let bytes = u32::try_from(content.len()).unwrap().to_le_bytes();
        [&name[..], &bytes, content, &[0][..content.len() % 2]].concat()
    };
    let still = webp(image_webp::ColorType::Rgba8, 4);
    let side = (u32::try_from(SIDE).unwrap() - 1).to_le_bytes();
    let size = [&side[..3], &side[..3]].concat();
    let extended = chunk(b"VP8X", &[&[0x12, 0, 0, 0][..], &size].concat());
    let frame = [&[0; 6][..], &size, &[0; 4], &still[12..]].concat();
    let chunks = [extended, chunk(b"ANIM", &[0; 6]), chunk(b"ANMF", &frame)].concat();
    chunk(b"RIFF", &[&b"WEBP"[..], &chunks].concat())
}

/// A TIFF with one uncompressed strip: `samples` of 16 bits, or a palette index.
fn tiff(samples: usize) -> Vec<u8> {
    let (bits, photometric) = if samples == 1 { (8, 3) } else { (16, 2) };
    let side = u32::try_from(SIDE).unwrap();
    let bytes = u32::try_from(SIDE * SIDE * samples * bits / 8).unwrap();
    let count = u32::try_from(samples).unwrap();
    let (bits, mut file) = (u32::try_from(bits).unwrap(), b"II*\0\x08\0\0\0".to_vec());
    let more = 8 + 2 + 9 * 12 + 4;
    let entries = [
        (256, 4, 1, side),
        (257, 4, 1, side),
        (258, 3, 1, bits),
        (259, 3, 1, 1),
        (262, 3, 1, photometric),
        (273, 4, 1, more + 1536),
        (277, 3, 1, count),
        (279, 4, 1, bytes),
        (320, 3, 768, more),
    ];
    file.extend(9_u16.to_le_bytes());
    for (tag, kind, count, value) in entries {
        file.extend(u16::to_le_bytes(tag));
        file.extend(u16::to_le_bytes(kind));
        file.extend(u32::to_le_bytes(count));
        file.extend(value.to_le_bytes());
    }
    file.resize(more as usize + 1536 + bytes as usize, 0);
    file
}

/// A BMP of 24 bits.
fn bmp() -> Vec<u8> {
    let side = u32::try_from(SIDE).unwrap();
    let mut file = b"BM".to_vec();
    for number in [0, 0, 54, 40, side, side, 24 << 16 | 1, 0, 0, 0, 0, 0, 0] {
        file.extend(u32::to_le_bytes(number));
    }
    file.resize(54 + SIDE * SIDE * 3, 0);
    file
}

fn gif() -> Vec<u8> {
    let side = u16::try_from(SIDE).unwrap();
    let indices: Vec<u8> = (0..SIDE * SIDE).map(|at| ((at * at) >> 12).to_le_bytes()[0]).collect();
    let mut file = Vec::new();
    let palette = [7; 768];
    let mut encoder = gif::Encoder::new(&mut file, side, side, &palette).unwrap();
    encoder.write_frame(&gif::Frame::from_indexed_pixels(side, side, indices, None)).unwrap();
    drop(encoder);
    file
}

/// The usual coding of a photograph, which the fast decoder supports.
fn jpeg(restart_interval: Option<u16>, factors: jpeg_encoder::SamplingFactor) -> Vec<u8> {
    encoded(factors, |encoder| {
        if let Some(interval) = restart_interval {
            encoder.set_restart_interval(interval);
        }
    })
}

fn encoded(
    factors: jpeg_encoder::SamplingFactor,
    set: impl FnOnce(&mut jpeg_encoder::Encoder<&mut Vec<u8>>),
) -> Vec<u8> {
    let side = u16::try_from(SIDE).unwrap();
    let pixels: Vec<u8> =
        (0..SIDE * SIDE * 3).map(|at| ((at * at) >> 12).to_le_bytes()[0]).collect();
    let mut file = Vec::new();
    let mut encoder = jpeg_encoder::Encoder::new(&mut file, 90);
    encoder.set_sampling_factor(factors);
    set(&mut encoder);
    encoder.encode(&pixels, side, side, jpeg_encoder::ColorType::Rgb).unwrap();
    file
}

/// The kernel counts pages by processor, and sums them up from time to time.
const MEASURED_WITHIN_BYTES: u64 = 1 << 20;

/// Resident memory belongs to the whole process: one test at a time.
static MEASURING: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    let alone = MEASURING.lock().unwrap_or_else(PoisonError::into_inner);
    forebay_transform::give_back_large_buffers();
    alone
}

/// A line of this process's status, in bytes.
fn status_bytes(name: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim_start_matches(':').trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// A sample's peak memory, the estimate, and the memory that the thread keeps.
fn taken(file: &[u8], operations: &str) -> (u64, u64, u64) {
    let text = format!("[[stage]]\noperations = [{operations}]\n");
    taken_of(&InMemory::images(), file, &text)
}

fn taken_of(dataset: &InMemory, file: &[u8], text: &str) -> (u64, u64, u64) {
    let config = forebay_config::plain_config::plain_config(text);
    let plan = SamplePlan::compile(&config, dataset).unwrap();
    let needs = plan.needs((SampleId(0), 0), file.into(), dataset);
    assert_eq!(needs.carried_bytes, 0, "there is one stage");
    let row_bytes = match plan.tensors()[0].extent {
        Extent::Ragged { max_row_bytes, .. } => max_row_bytes,
        Extent::Dense => plan.tensors()[0].row_pitch_bytes().unwrap(),
    };
    // Written to, so that it is resident.
    let mut row = OneRow(vec![1; usize::try_from(row_bytes).unwrap()]);
    let mut scratch = WorkerScratch::default();
    let key = DrawKey { seed: 1, epoch: 0, sample: 0 };
    let mut task = SampleTask::new(SampleId(0), key, file.to_vec());
    // Resets the peak.
    fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = status_bytes("VmRSS");
    plan.run(0, &mut task, dataset, &mut row, &mut scratch).unwrap();
    let beyond = |name| status_bytes(name).saturating_sub(before);
    (beyond("VmHWM"), needs.scratch_bytes, beyond("VmRSS"))
}

#[test]
fn picture_needs_at_most_the_estimate_from_its_header() {
    let _alone = alone();
    let files = [
        ("PNG of RGB", png(8, 2, 3)),
        ("PNG with alpha", png(8, 6, 4)),
        ("PNG of 16 bits", png(16, 2, 3)),
        ("PNG of grey", png(8, 0, 1)),
        ("PNG of a palette", png(8, 3, 1)),
        ("PNG with a packed profile", with_packed_text(&png(8, 2, 3), b"iCCP")),
        ("PNG with a packed text", with_packed_text(&png(8, 0, 1), b"zTXt")),
        ("WebP of RGB", webp(image_webp::ColorType::Rgb8, 3)),
        ("WebP with alpha", webp(image_webp::ColorType::Rgba8, 4)),
        ("animated WebP", animated_webp()),
        ("TIFF of 16 bits", tiff(3)),
        ("TIFF of a palette", tiff(1)),
        ("BMP", bmp()),
        ("GIF", gif()),
    ];
    for (name, file) in files {
        for channels in [1, 3, 4] {
            for size in ["[224, 224]", "2000"] {
                let operations = format!(
                    "{{ op = \"decode-image\", channels = {channels} }}, {{ op = \"resize\", size = {size} }}, \
                     {{ op = \"center-crop\", size = 128 }}, {{ op = \"resize\", size = [64, 64] }}"
                );
                let (most, reckoned, kept) = taken(&file, &operations);
                let figures = format!("{name} as {channels}, {size}: {most} of {reckoned}");
                assert!(most <= reckoned + MEASURED_WITHIN_BYTES, "{figures}");
                // Only the crop's part of the larger result is computed.
                assert!(size == "2000" || reckoned <= 5 * most, "{figures}");
                assert!(kept <= KEPT_BYTES as u64 + (1 << 20), "{figures}: keeps {kept}");
            }
        }
    }
}

/// Levels of 16 bits need twice the memory, in the resampler too.
#[test]
fn picture_of_16_bits_needs_at_most_the_estimate() {
    let _alone = alone();
    for (name, file) in
        [("PNG", png(16, 2, 3)), ("PNG with alpha", png(16, 6, 4)), ("TIFF", tiff(3))]
    {
        for channels in [3, 4] {
            let operations = format!(
                "{{ op = \"decode-image\", channels = {channels}, depth = 16 }}, {{ op = \"resize\", size = 1000 }}, \
                 {{ op = \"center-crop\", size = 128 }}, {{ op = \"resize\", size = [64, 64] }}"
            );
            let (most, reckoned, kept) = taken(&file, &operations);
            let figures = format!("{name} as {channels}: {most} of {reckoned}");
            assert!(most <= reckoned + MEASURED_WITHIN_BYTES && reckoned <= 5 * most, "{figures}");
            assert!(kept <= KEPT_BYTES as u64 + (1 << 20), "{figures}: keeps {kept}");
        }
    }
}

/// An audio file is decoded to floats, which are resampled to other floats.
#[test]
fn audio_needs_at_most_the_estimate_from_its_header() {
    let _alone = alone();
    let mut file = b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0\x01\0\x02\0".to_vec();
    for number in [44_100, 176_400, 16 << 16 | 4] {
        file.extend(u32::to_le_bytes(number));
    }
    file.extend(b"data");
    file.extend(16_000_000_u32.to_le_bytes());
    file.resize(file.len() + 16_000_000, 7);
    let kind =
        |row_shape| [("sound", FieldKind::Sound { row_shape, rate: None, may_be_aac: false })];
    let mixed = InMemory::new(kind(Vec::new()), |_, _, file| {
        let form = SoundForm { channels: None, rate: Some(48_000), span: None };
        FieldValue::Sound(Sound { file, form })
    });
    let both = InMemory::new(kind(vec![2]), |_, _, file| {
        FieldValue::Sound(Sound {
            file,
            form: SoundForm { channels: Some(2), rate: None, span: None },
        })
    });
    let text = "stage = [{ name = \"a\", operations = [] }]\n[output]\n\
                sound = { ragged = true, max_bytes = \"40MiB\" }\n";
    for (name, dataset) in [("mixed and resampled", mixed), ("both channels", both)] {
        let (most, reckoned, kept) = taken_of(&dataset, &file, text);
        let figures = format!("{name}: {most} of {reckoned}");
        assert!(most <= reckoned + MEASURED_WITHIN_BYTES && reckoned <= 3 * most, "{figures}");
        assert!(kept <= KEPT_BYTES as u64 + (1 << 20), "{figures}: keeps {kept}");
    }
}

/// The sound is there beside its spectrogram, here a quarter as large, and not twice.
#[test]
fn spectrogram_needs_at_most_the_estimate() {
    let _alone = alone();
    let mut file = b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0\x03\0\x01\0".to_vec();
    for number in [44_100, 176_400, 32 << 16 | 4] {
        file.extend(u32::to_le_bytes(number));
    }
    file.extend(b"data");
    file.extend(40_000_000_u32.to_le_bytes());
    file.resize(file.len() + 40_000_000, 1);
    let sound = [(
        "sound",
        FieldKind::Sound { row_shape: Vec::new(), rate: Some(48_000), may_be_aac: false },
    )];
    let dataset = InMemory::new(sound, |_, _, file| {
        let form = SoundForm { channels: None, rate: Some(48_000), span: None };
        FieldValue::Sound(Sound { file, form })
    });
    let text = "stage = [{ name = \"a\", operations = [{ op = \"spectrogram\", hop_length = 800 }] }]\n[output]\n\
                sound = { ragged = true, max_bytes = \"20MiB\" }\n";
    let (most, reckoned, kept) = taken_of(&dataset, &file, text);
    let figures = format!("{most} of {reckoned}");
    assert!(most <= reckoned + MEASURED_WITHIN_BYTES && reckoned <= 3 * most, "{figures}");
    assert!(kept <= KEPT_BYTES as u64 + (1 << 20), "{figures}: keeps {kept}");
}

/// Their buffers are larger than the picture: copies, and elements in single precision.
#[test]
fn augmented_picture_needs_at_most_the_estimate() {
    let _alone = alone();
    let file = png(8, 2, 3);
    for augmentation in [
        r#"{ op = "gaussian-blur", kernel_size = 9 }"#,
        r#"{ op = "color-jitter", brightness = 0.4, saturation = 0.4, hue = 0.2 }"#,
        r#"{ op = "rotate", degrees = 40, expand = true }"#,
        r#"{ op = "pad", padding = 300, padding_mode = "reflect" }"#,
        r#"{ op = "aug-mix" }"#,
        r#"{ op = "rand-augment" }"#,
        r#"{ op = "random-apply", probability = 1.0, operations = [{ op = "perspective", probability = 1.0 }] }"#,
    ] {
        let operations = format!(
            r#"{{ op = "decode-image" }}, {augmentation}, {{ op = "center-crop", size = 64 }}"#
        );
        let (most, reckoned, kept) = taken(&file, &operations);
        let figures = format!("{augmentation}: {most} of {reckoned}");
        println!("{figures}");
        assert!(most <= reckoned + MEASURED_WITHIN_BYTES && reckoned <= 6 * most, "{figures}");
        assert!(kept <= KEPT_BYTES as u64 + (1 << 20), "{figures}: keeps {kept}");
    }
}

/// All views of a picture are held until the last is written.
#[test]
fn views_of_a_picture_need_at_most_the_estimate() {
    let _alone = alone();
    let file = png(8, 2, 3);
    let blur = r#"{ op = "gaussian-blur", kernel_size = 9 }"#;
    for list in [
        blur.to_owned() + r#", { op = "center-crop", size = 1000 }"#,
        r#"{ op = "resize", size = [1000, 1000] }, "#.to_owned() + blur,
        r#"{ op = "random-resized-crop", size = 64 }, { op = "rand-augment" }"#.to_owned(),
    ] {
        let operations = format!(
            r#"{{ op = "decode-image" }}, {{ op = "views", outputs = {{ view = 4 }}, operations = {{ view = [{list}] }} }}"#
        );
        let (most, reckoned, kept) = taken(&file, &operations);
        let figures = format!("{list}: {most} of {reckoned}");
        println!("{figures}");
        assert!(most <= reckoned + MEASURED_WITHIN_BYTES && reckoned <= 6 * most, "{figures}");
        assert!(kept <= KEPT_BYTES as u64 + (1 << 20), "{figures}: keeps {kept}");
    }
}

/// A file that the fast decoder rejects only at its end: its memory counts in addition to libjpeg-turbo's.
#[test]
fn jpeg_needs_at_most_the_estimate_for_both_decoders() {
    let _alone = alone();
    use jpeg_encoder::SamplingFactor::{F_1_1, F_2_1, F_2_2};
    for factors in [F_1_1, F_2_1, F_2_2] {
        for interval in [None, Some(1), Some(64)] {
            let whole = jpeg(interval, factors);
            let progressive = encoded(factors, |encoder| encoder.set_progressive(true));
            let strange = [&whole[..whole.len() - 2], &[0xff, 0xfe, 0, 2, 0xff, 0xd9]].concat();
            for (file, channels) in [(&whole, 3), (&whole, 1), (&strange, 4), (&progressive, 3)] {
                let operations = format!(
                    "{{ op = \"decode-image\", channels = {channels} }}, {{ op = \"center-crop\", size = 1500 }}"
                );
                let (most, reckoned, kept) = taken(file, &operations);
                let figures =
                    format!("{factors:?}, {interval:?}, {channels}: {most} of {reckoned}");
                assert!(
                    most <= reckoned + MEASURED_WITHIN_BYTES && reckoned <= 4 * most,
                    "{figures}"
                );
                assert!(kept <= KEPT_BYTES as u64 + (1 << 20), "{figures}: keeps {kept}");
            }
        }
    }
}

/// For an image that waits between two stages its pixels count, not its file's bytes.
#[test]
fn memory_between_stages_is_included_in_the_estimate() {
    let _alone = alone();
    let dataset = InMemory::images();
    let text = "[[stage]]\noperations = [{ op = \"decode-image\" }]\n[[stage]]\n\
                operations = [{ op = \"center-crop\", size = 64 }]\n[[stage]]\n\
                operations = [{ op = \"random-horizontal-flip\" }]\n";
    let config = forebay_config::plain_config::plain_config(text);
    let plan = SamplePlan::compile(&config, &dataset).unwrap();
    let file = png(8, 2, 3);
    let needs = plan.needs((SampleId(0), 0), file.as_slice().into(), &dataset);
    assert_eq!(needs.carried_bytes, (SIDE * SIDE * 3) as u64);
    assert_eq!(
        plan.needs((SampleId(0), 0), (&b"no picture"[..]).into(), &dataset).scratch_bytes,
        0
    );
}

#[test]
fn rasters_need_at_most_the_estimate() {
    let _alone = alone();
    let text = format!(
        "[[stage]]\noperations = [{{ op = \"decode-raster\", size = {SIDE}, samples = 3, dtype = \"uint16\" }}]\n\
         [[stage]]\noperations = [{{ op = \"delay\", milliseconds = 0 }}]\n"
    );
    let (most, reckoned, kept) = taken_of(&InMemory::images(), &tiff(3), &text);
    let figures = format!("{most} of {reckoned}");
    assert!(most <= reckoned + MEASURED_WITHIN_BYTES && reckoned <= 4 * most, "{figures}");
    assert!(kept <= KEPT_BYTES as u64 + (1 << 20), "{figures}: keeps {kept}");
}

/// One picture of a list is decoded and resized at a time, and the patches of all are held.
#[test]
fn patches_of_pictures_need_at_most_the_estimate() {
    let _alone = alone();
    let images = [("images", FieldKind::EncodedImages)];
    let dataset =
        InMemory::new(images, |_, _, file| FieldValue::EncodedImages(vec![file, file, file]));
    let files = [
        ("PNG of RGB", png(8, 2, 3)),
        ("PNG with alpha", png(8, 6, 4)),
        ("GIF", gif()),
        ("JPEG", jpeg(None, jpeg_encoder::SamplingFactor::F_2_2)),
    ];
    for (name, file) in files {
        for pixels in [200_000, 1_003_520, 4_000_000] {
            let text = format!(
                "[[stage]]\noperations = [{{ op = \"image-patches\", min_pixels = {pixels}, max_pixels = {}, max_images = 3 }}]\n\
                 [output]\npixel_values = {{ ragged = true }}\n",
                pixels + 100_000
            );
            let (most, reckoned, kept) = taken_of(&dataset, &file, &text);
            let figures = format!("{name}, {pixels} pixels: {most} of {reckoned}");
            println!("{figures}");
            assert!(most <= reckoned + MEASURED_WITHIN_BYTES && reckoned <= 4 * most, "{figures}");
            assert!(kept <= KEPT_BYTES as u64 + (1 << 20), "{figures}: keeps {kept}");
        }
    }
}
