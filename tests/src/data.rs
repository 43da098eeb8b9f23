//! Tiny data sets.

use std::io::Write;
use std::path::Path;

use forebay_synth::{
    ArrayContainer, ArrayOptions, GenerateOptions, generate_arrays, generate_images,
};

/// JPEGs of about 48×40 pixels in class folders.
pub fn images(folder: &Path, count: u64, classes: u32) {
    let options = GenerateOptions {
        images: count,
        classes,
        width: 48,
        height: 40,
        ..GenerateOptions::default()
    };
    generate_images(folder, &options, &|_, _| {}).unwrap();
}

/// The same as members of tar archives, 50 in each, with their labels as `cls`.
pub fn image_tars(folder: &Path, count: u64, classes: u32) {
    let files = folder.with_extension("files");
    images(&files, count, classes);
    forebay_synth::tar::pack_classes(&files, folder, 50).unwrap();
    std::fs::remove_dir_all(files).unwrap();
}

/// Samples of a class number in tar archives, 100 in each.
pub fn number_tars(folder: &Path, count: u64) {
    std::fs::create_dir_all(folder).unwrap();
    let numbers: Vec<u64> = (0..count).collect();
    for (archive, numbers) in numbers.chunks(100).enumerate() {
        let members: Vec<_> =
            numbers.iter().map(|number| (format!("{number:06}.cls"), number.to_string())).collect();
        let members: Vec<_> =
            members.iter().map(|(name, data)| (name.as_str(), data.as_bytes())).collect();
        let path = folder.join(format!("{archive:03}.tar"));
        std::fs::write(path, forebay_synth::tar::archive(&members)).unwrap();
    }
}

/// A WAV file of 16 bits and one channel at 8 kHz; so many frames of a value.
pub fn wave(frames: u32, value: i16) -> Vec<u8> {
    let data = value.to_le_bytes().repeat(usize::try_from(frames).unwrap());
    let head = b"WAVEfmt \x10\0\0\0\x01\0\x01\0\x40\x1f\0\0\x80\x3e\0\0\x02\0\x10\0data";
    let size = (u32::try_from(head.len()).unwrap() + 4 + 2 * frames).to_le_bytes();
    [&b"RIFF"[..], &size, head, &(2 * frames).to_le_bytes(), &data].concat()
}

/// Sounds of 100 frames and more in class folders, and the same in a tar archive beside them.
pub fn sounds(folder: &Path, archive: &Path, count: u32) {
    let mut members = Vec::new();
    for number in 0..count {
        let sound = wave(100 + number, i16::try_from(number).unwrap());
        let class = folder.join(format!("class-{}", number % 4));
        std::fs::create_dir_all(&class).unwrap();
        std::fs::write(class.join(format!("{number:03}.wav")), &sound).unwrap();
        members.push((format!("{number:03}.cls"), (number % 4).to_string().into_bytes()));
        members.push((format!("{number:03}.wav"), sound));
    }
    let members: Vec<_> = members.iter().map(|(name, data)| (&name[..], &data[..])).collect();
    std::fs::create_dir_all(archive.parent().unwrap()).unwrap();
    std::fs::write(archive, forebay_synth::tar::archive(&members)).unwrap();
}

/// NumPy arrays of 2×3 float32.
pub fn arrays(folder: &Path, container: ArrayContainer, count: u64) {
    let options = ArrayOptions {
        container,
        samples: count,
        classes: u32::try_from(count.min(4)).unwrap(),
        shape: vec![2, 3],
        ..ArrayOptions::default()
    };
    generate_arrays(folder, &options, &|_, _| {}).unwrap();
}

/// `.npz` files of `boxes`, float32 `[n, 4]` with n = id % 5, all of them the sample's number.
///
/// # Panics
/// When they cannot be written.
pub fn boxes(folder: &Path, count: u16) {
    std::fs::create_dir_all(folder).unwrap();
    for sample in 0..count {
        let rows = sample % 5;
        let elements = (0..4 * rows).flat_map(|_| f32::from(sample).to_le_bytes());
        let path = folder.join(format!("{sample:03}.npz"));
        one_array(&path, "boxes", "<f4", &format!("({rows}, 4)"), elements.collect());
    }
}

/// One `.npy` file whose first axis is the samples: `folder/samples.npy`.
pub fn stack(folder: &Path, count: u64) {
    arrays(folder, ArrayContainer::NpyStack, count);
}

/// One `.npy` of so many one-byte samples, all zero: it takes no room on disk.
pub fn sparse_stack(folder: &Path, count: u64) {
    sparse(folder, &format!("({count},)"), count);
}

/// The same of samples of so many bytes.
pub fn sparse_rows(folder: &Path, count: u64, bytes: u64) {
    sparse(folder, &format!("({count}, {bytes})"), count * bytes);
}

fn sparse(folder: &Path, shape: &str, bytes: u64) {
    std::fs::create_dir_all(folder).unwrap();
    let header = format!("{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}");
    let mut start = b"\x93NUMPY\x01\x00".to_vec();
    // As in `sentences`.
    start.extend(118u16.to_le_bytes());
    start.extend(format!("{header:<117}\n").as_bytes());
    let mut file = std::fs::File::create(folder.join("samples.npy")).unwrap();
    file.write_all(&start).unwrap();
    file.set_len(start.len() as u64 + bytes).unwrap();
}

/// `.npz` files with one member `tokens` (int32) of 1 to 7 elements, all equal to the file's number.
pub fn sentences(folder: &Path, count: u32) {
    std::fs::create_dir_all(folder).unwrap();
    for number in 0..count {
        let length = 1 + number % 7;
        let elements = (0..length).flat_map(|_| number.to_le_bytes());
        let path = folder.join(format!("{number:04}.npz"));
        one_array(&path, "tokens", "<i4", &format!("({length},)"), elements.collect());
    }
}

/// A `.npz` file of one stored array.
fn one_array(path: &Path, name: &str, descr: &str, shape: &str, elements: Vec<u8>) {
    let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
    // Magic, version and header length take 10 bytes; the whole is padded to 64 and ends in a line feed.
    let header = format!("{header:<117}\n");
    let mut array = b"\x93NUMPY\x01\x00".to_vec();
    array.extend(u16::try_from(header.len()).unwrap().to_le_bytes());
    array.extend(header.as_bytes());
    array.extend(elements);
    let mut archive = zip::ZipWriter::new(std::fs::File::create(path).unwrap());
    let stored =
        zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    archive.start_file(format!("{name}.npy"), stored).unwrap();
    archive.write_all(&array).unwrap();
    archive.finish().unwrap();
}

/// A configuration over a stack of arrays, in batches of 4, without a socket: `keys` come on top.
pub fn stack_config(folder: &Path, keys: &str) -> String {
    staged_config(folder, keys, "{ name = \"copy\", concurrency = 2, operations = [] }")
}

/// As [`stack_config`], through other stages.
pub fn staged_config(folder: &Path, keys: &str, stages: &str) -> String {
    let path = folder.join("samples.npy");
    format!(
        "dataset.path = {:?}\ndataset.format = \"npy\"\nbatch.size = 4\nstage = [{stages}]\n{keys}\n",
        path.display()
    )
}

/// A configuration over images in class folders: crops of 32×32 in batches of 8, flipped at random.
pub fn image_config(folder: &Path, keys: &str) -> String {
    format!(
        "dataset.path = {:?}\npreset = \"imagenet-train\"\nbatch.size = 8\n{keys}\n\
         [[stage]]\nname = \"preprocess\"\nconcurrency = 2\noperations = [{{ op = \"decode-image\" }}, \
         {{ op = \"random-resized-crop\", size = 32 }}, {{ op = \"random-horizontal-flip\" }}]\n",
        folder.display()
    )
}
