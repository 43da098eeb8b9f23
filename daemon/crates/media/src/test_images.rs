//! Images and draws shared by the tests of this crate.

use forebay_order::{DrawKey, Draws};
use jpeg_encoder::{ColorType, Encoder, SamplingFactor};

/// The draws of an operation on a sample.
pub fn draws(seed: u64) -> Draws {
    Draws::new(DrawKey { seed, epoch: 0, sample: 0 }, 0)
}

/// Smooth colours with edges and a little texture, height × width × channels.
pub fn gradient(width: usize, height: usize, channels: usize) -> Vec<u8> {
    let mut pixels = Vec::with_capacity(width * height * channels);
    let mut noise = 1_u32;
    for y in 0..height {
        for x in 0..width {
            for channel in 0..channels {
                noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let edge = if (x / 9 + y / 7 + channel) % 3 == 0 { 40 } else { 0 };
                let slope = x * 110 / width + y * 60 / height + channel * 10;
                pixels.push(u8::try_from(slope + edge).unwrap() + noise.to_be_bytes()[0] / 64);
            }
        }
    }
    pixels
}

/// A 4:2:0 baseline JPEG (grey for one channel).
pub fn jpeg(pixels: &[u8], width: u16, height: u16, channels: usize) -> Vec<u8> {
    let mut file = Vec::new();
    let mut encoder = Encoder::new(&mut file, 90);
    encoder.set_sampling_factor(SamplingFactor::F_2_2);
    let colour = if channels == 1 { ColorType::Luma } else { ColorType::Rgb };
    encoder.encode(pixels, width, height, colour).unwrap();
    file
}

/// The file with an EXIF orientation tag.
pub fn with_orientation(file: &[u8], tag: u8) -> Vec<u8> {
    let mut block = b"Exif\0\0MM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0".to_vec();
    block.extend([tag, 0, 0, 0, 0, 0, 0]);
    let mut turned = file[..2].to_vec();
    turned.extend([0xff, 0xe1]);
    turned.extend(u16::try_from(block.len() + 2).unwrap().to_be_bytes());
    turned.extend(block);
    turned.extend(&file[2..]);
    turned
}
