//! `forebay show --operations`: one image with the effect of each operation in a stage.

use std::fs;
use std::path::Path;

use anyhow::Context as _;
use forebay_config::Config;
use forebay_dataset::{Dataset, Defect, Field, FieldKind, FieldValue};
use forebay_order::DrawKey;
use forebay_protocol::ids::SampleId;
use forebay_protocol::tensor::TensorSpec;
use forebay_storage::location::{FileId, FileTable, Location, SampleBytes};
use forebay_transform::{
    MemoryRow, Row, SamplePlan, SampleTask, WorkerScratch, operation_examples,
};

use super::sheet::Picture;

/// The size of the image that operations process.
const SMALL: (usize, usize) = (96, 72);
/// The space for the result: `pad` makes it larger.
const ROOM: (usize, usize) = (104, 80);
/// The space below it for the operation's name.
const NAME_HEIGHT: usize = 24;
const GAP: usize = 24;
/// The number of columns.
const COLUMNS: usize = 4;
/// With this seed the two draws of an operation differ: it rotates to the left and to the right, or is applied in only one.
const SEED: u64 = 54;
/// The original image and two draws.
const SHOWN: usize = 3;

/// A dataset with one image, which is the sample's bytes.
#[derive(Debug)]
struct OnePicture([Field; 1]);

impl FileTable for OnePicture {
    fn append_path(&self, _file: FileId, _path: &mut Vec<u8>) {}
}

impl Dataset for OnePicture {
    fn sample_count(&self) -> u64 {
        1
    }

    fn fields(&self) -> &[Field] {
        &self.0
    }

    fn locate(&self, _id: SampleId, locations: &mut Vec<Location>) {
        locations.push(Location::whole(FileId(0)));
    }

    fn read<'a>(
        &'a self,
        _id: SampleId,
        bytes: SampleBytes<'a>,
        values: &mut Vec<FieldValue<'a>>,
    ) -> Result<(), Defect> {
        values.push(FieldValue::EncodedImage(bytes.all()));
        Ok(())
    }

    fn fingerprint(&self) -> [u8; 32] {
        [0; 32]
    }
}

/// A row of an image in colour, height × width × channels.
fn picture(tensor: &TensorSpec, row: &[u8]) -> anyhow::Result<Picture> {
    let [height, width, channels] = tensor.row_shape[..] else {
        anyhow::bail!("`{}` is no image", tensor.name);
    };
    let size = |side| usize::try_from(side).context("an image that large");
    let channels = size(channels)?;
    let colours = |pixel: &[u8]| std::array::from_fn::<u8, 3, _>(|of| pixel[of.min(channels - 1)]);
    let pixels = row.chunks_exact(channels).flat_map(colours).collect();
    Ok(Picture { width: size(width)?, height: size(height)?, pixels })
}

/// The result of an operation for a file: two draws, or the first two of several fields. The arguments are in TOML.
fn shown(file: &[u8], name: &str, arguments: &str) -> anyhow::Result<Vec<Picture>> {
    let (width, height) = SMALL;
    let separator = if arguments.is_empty() { "" } else { ", " };
    // The largest central area with this shape.
    let small = format!(
        r#"{{ op = "decode-image" }}, {{ op = "random-resized-crop", size = [{height}, {width}], area = [1.0, 1.0], ratio = [1.33333, 1.33334] }}"#
    );
    let operation = if name.is_empty() {
        String::new()
    } else {
        format!(r#", {{ op = "{name}"{separator}{arguments} }}"#)
    };
    let text = |output: &str| {
        format!(
            "dataset = {{ path = \"/\", format = \"image-folder\" }}\nbatch.size = 1\n[[stage]]\nname = \"show\"\n\
             operations = [{small}{operation}]\n[output]\n{output}"
        )
    };
    let dataset = OnePicture([Field { name: "image".to_owned(), kind: FieldKind::EncodedImage }]);
    let compile = |output: &str| {
        let config = Config::from_text("operations", Path::new("/"), &text(output), &[])?;
        SamplePlan::compile(&config, &dataset)
    };
    let names = compile("")?;
    let output: String = names
        .tensors()
        .iter()
        .map(|tensor| format!("{} = {{ layout = \"NHWC\" }}\n", tensor.name))
        .collect();
    let plan = compile(&output)?;
    let mut row = MemoryRow::of(plan.tensors());
    let mut scratch = WorkerScratch::default();
    let mut pictures = Vec::new();
    for sample in 0..SHOWN as u64 - 1 {
        let key = DrawKey { seed: SEED, epoch: 0, sample };
        let mut task = SampleTask::new(SampleId(sample), key, file.to_vec());
        plan.run(0, &mut task, &dataset, &mut row, &mut scratch)
            .map_err(|Defect(why)| anyhow::anyhow!("{why}"))?;
        for (number, tensor) in plan.tensors().iter().enumerate() {
            pictures.push(picture(tensor, row.dense(number))?);
        }
    }
    pictures.truncate(SHOWN - 1);
    Ok(pictures)
}

/// Draws all operations that change images on one sheet, each with the original image and two draws; returns their
/// number. Without a file, the image is a drawn house.
///
/// # Errors
/// The file cannot be read or is not an image, or the sheet cannot be written.
pub(super) fn draw(file: Option<&Path>, sheet: &Path) -> anyhow::Result<usize> {
    let bytes = match file {
        Some(path) => fs::read(path).with_context(|| format!("{}", path.display()))?,
        None => {
            let (pixels, width, height) = forebay_synth::scene();
            Picture { width: width.into(), height: height.into(), pixels }.jpeg(95)?
        }
    };
    let named =
        || file.map_or_else(|| "the drawn house".to_owned(), |path| path.display().to_string());
    let before = shown(&bytes, "", "").with_context(named)?;
    let examples: Vec<_> = operation_examples().collect();
    let block = (SHOWN * ROOM.0, ROOM.1 + NAME_HEIGHT);
    let mut all = Picture::white(
        COLUMNS * (block.0 + GAP) + GAP,
        examples.len().div_ceil(COLUMNS) * (block.1 + GAP) + GAP,
    );
    for (place, (name, arguments)) in examples.iter().enumerate() {
        let after = shown(&bytes, name, arguments).with_context(|| format!("`{name}`"))?;
        let left = GAP + place % COLUMNS * (block.0 + GAP);
        let top = GAP + place / COLUMNS * (block.1 + GAP);
        for (place, picture) in before.iter().take(1).chain(&after).enumerate() {
            let middle = |room: usize, side: usize| room.saturating_sub(side) / 2;
            let x = left + place * ROOM.0 + middle(ROOM.0, picture.width);
            all.draw(picture, x, top + middle(ROOM.1, picture.height));
        }
        all.write(name, left + 4, top + ROOM.1 + 2);
    }
    fs::write(sheet, all.jpeg(65)?).with_context(|| format!("{}", sheet.display()))?;
    Ok(examples.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_on_images_is_drawn_and_changes_the_image() {
        let (pixels, width, height) = forebay_synth::scene();
        let scene = Picture { width: width.into(), height: height.into(), pixels };
        let file = scene.jpeg(95).unwrap();
        let before = shown(&file, "", "").unwrap();
        assert_eq!((before[0].width, before[0].height), SMALL);
        assert_eq!(before[0].pixels, before[1].pixels);
        let drawn: Vec<&str> = operation_examples().map(|(name, _)| name).collect();
        let all = forebay_transform::operation_tables().map(|table| table.path);
        let left_out: Vec<&str> = all.filter(|name| !drawn.contains(name)).collect();
        // `decode-image` is applied to each image of the sheet, and texts, lists and rasters are no images; the effect of
        // the others is not visible in bytes.
        let on_others = [
            "decode-raster",
            "decode-video",
            "image-patches",
            "map-segments",
            "spectrogram",
            "mel-spectrogram",
            "tokenize",
            "chat",
        ];
        let left_out: Vec<&str> =
            left_out.into_iter().filter(|name| !on_others.contains(name)).collect();
        assert_eq!(left_out, ["decode-image", "normalize", "delay"]);
        for (name, arguments) in operation_examples() {
            let after = shown(&file, name, arguments).unwrap();
            assert_eq!(after.len(), SHOWN - 1, "{name}");
            assert!(after.iter().any(|after| after.pixels != before[0].pixels), "{name}");
            for picture in after {
                assert!(picture.width <= ROOM.0 && picture.height <= ROOM.1, "{name}");
                assert_eq!(picture.pixels.len(), picture.width * picture.height * 3, "{name}");
            }
        }
    }
}
