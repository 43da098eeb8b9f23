//! Patches of lists of images, and the tokens of images in texts. `fixtures/patches.py` writes what the reference makes.

use super::*;

macro_rules! fixture {
    ($name:literal) => {
        include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/patches/", $name))
    };
}

/// In the order of the fixture's grids.
const FILES: [&[u8]; 5] = [
    fixture!("colours.png"),
    fixture!("alpha.png"),
    fixture!("grey.png"),
    fixture!("tall.png"),
    fixture!("exact.png"),
];
const VALUES: &[u8] = fixture!("values.f32");
const GRIDS: &[u8] = fixture!("grids.txt");
/// The arguments of the fixture.
const SMALL: &str = "patch_size = 2, min_pixels = 32, max_pixels = 160";

/// A sample's bytes: each image's length and file.
fn packed(files: &[&[u8]]) -> Vec<u8> {
    let with_length =
        |file: &&[u8]| [&u32::try_from(file.len()).unwrap().to_le_bytes()[..], file].concat();
    files.iter().flat_map(with_length).collect()
}

/// `images`, and `text`, which has a token and an `x` for each of them.
fn dataset() -> InMemory {
    let fields = [("images", FieldKind::EncodedImages), ("text", FieldKind::Text)];
    InMemory::new(fields, |field, _, mut bytes| {
        let mut files = Vec::new();
        while let Some((length, rest)) = bytes.split_first_chunk() {
            let (file, rest) = rest.split_at(u32::from_le_bytes(*length) as usize);
            files.push(file);
            bytes = rest;
        }
        match field {
            "images" => FieldValue::EncodedImages(files),
            _ => FieldValue::Text("<|im_start|>x".repeat(files.len()).into()),
        }
    })
}

fn config(stages: &str) -> Config {
    plain_config(&format!(
        "{stages}\n[output]\ntext = {{ ragged = true, max_bytes = 4000 }}\npixel_values = {{ ragged = true }}"
    ))
}

fn patches(arguments: &str) -> String {
    format!("[[stage]]\noperations = [{{ op = \"image-patches\", {SMALL}{arguments} }}]")
}

fn run(config: &Config, files: &[&[u8]]) -> Result<Vec<Vec<u8>>, String> {
    run_all(config, &dataset(), &packed(files), 0).map_err(|defect| defect.0)
}

fn wide(row: &[u8]) -> Vec<i64> {
    row.as_chunks::<8>().0.iter().map(|bytes| i64::from_ne_bytes(*bytes)).collect()
}

fn grids() -> Vec<i64> {
    let lines = std::str::from_utf8(GRIDS).unwrap().lines();
    let numbers = lines.flat_map(|line| line.split(' ').skip(1));
    numbers.map(|number| number.parse().unwrap()).collect()
}

#[test]
#[cfg(target_endian = "little")]
fn patches_and_grids_are_those_of_the_reference() {
    let plan = SamplePlan::compile(&config(&patches("")), &dataset()).unwrap();
    let names: Vec<&str> = plan.tensors().iter().map(|tensor| tensor.name.as_str()).collect();
    assert_eq!(names, ["pixel_values", "text", "image_grid_thw"]);
    assert_eq!(plan.tensors()[0].row_shape, [24]);
    let rows = run(&config(&patches("")), &FILES).unwrap();
    assert_eq!(wide(&rows[2]), grids());
    let floats = |bytes: &[u8]| -> Vec<f32> {
        bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    };
    let (found, expected) = (floats(&rows[0]), floats(VALUES));
    assert_eq!(found.len(), expected.len());
    let differing: Vec<_> = (0..found.len())
        .filter(|place| found[*place].to_bits() != expected[*place].to_bits())
        .map(|place| (place / 24, place % 24, found[place], expected[place]))
        .collect();
    assert!(
        differing.is_empty(),
        "{} differ: {:?}",
        differing.len(),
        &differing[..differing.len().min(9)]
    );
    // The files are carried from a stage before.
    let later = config(&format!("[[stage]]\noperations = []\n{}", patches("")));
    assert!(run(&later, &FILES).unwrap() == rows);
    let none = run(&config(&patches("")), &[]).unwrap();
    assert_eq!((none[0].len(), none[2].len()), (0, 0));
}

#[test]
fn images_that_cannot_be_used_are_named() {
    let small = config(&patches(", max_images = 2"));
    let refused = |files: &[&[u8]]| run(&small, files).unwrap_err();
    let message = refused(&FILES[..3]);
    assert_eq!(message, "the sample has 3 images, more than `max_images` of `image-patches`, 2");
    let message = refused(&[FILES[0], &FILES[0][..300]]);
    assert!(message.starts_with("image 2 of 2: "), "{message}");
    assert!(refused(&[b"", FILES[0]]).starts_with("image 1 of 2: "));
    let long = jpeg(&gradient(1208, 6, 3), 1208, 6, 3);
    let message = refused(&[&long]);
    assert!(
        message.starts_with("image 1 of 1: 1208x6 pixels: one side is 201.3 times"),
        "{message}"
    );
}

#[test]
fn mistakes_name_their_argument() {
    for (stages, expected) in [
        (patches(", field = \"text\""), "needs an image list, but field `text` is not one"),
        (patches(", to = \"text\""), "there is a field `text` already"),
        (patches(", grid = \"text\""), "there is a field `text` already"),
        (patches(", merge_size = 2000"), "`stage.1.operations[0].merge_size` is at most 1024"),
        (
            patches(", temporal_patch_size = 1024, merge_size = 1")
                .replace("patch_size = 2,", "patch_size = 999,"),
            "a patch has",
        ),
        (
            patches("").replace("min_pixels = 32", "min_pixels = 161"),
            "is 161, more than `max_pixels`, 160",
        ),
        (patches("").replace("160", "90000000000"), "lower `max_pixels`, or raise the limit"),
        (patches(", std = [0, 1, 1]"), "`std` must be above 0, not 0"),
    ] {
        let stages = stages.replace("[[stage]]", "[[stage]]\nname = \"1\"");
        let message = SamplePlan::compile(&config(&stages), &dataset()).unwrap_err().to_string();
        assert!(message.contains(expected), "{expected}: {message}");
    }
    let plain = plain_config("[[stage]]\noperations = []");
    let message = SamplePlan::compile(&plain, &dataset()).unwrap_err().to_string();
    assert!(message.contains("make patches of them with `image-patches`"), "{message}");
}

#[cfg(feature = "text")]
mod tokens {
    use super::*;

    const TOKENIZER: &str =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../text/fixtures/byte-level.json");

    fn numbers(row: &[u8]) -> Vec<i32> {
        row.as_chunks::<4>().0.iter().map(|bytes| i32::from_ne_bytes(*bytes)).collect()
    }

    fn id(token: &str) -> i32 {
        let tokenizer = forebay_text::Tokenizer::open(TOKENIZER.as_ref()).unwrap();
        i32::try_from(tokenizer.id_of(token).unwrap()).unwrap()
    }

    fn tokenized(arguments: &str) -> Config {
        config(&format!(
            "{}\n[[stage]]\nname = \"text\"\noperations = [{{ op = \"tokenize\", tokenizer = {TOKENIZER:?}, image_token = \"<|im_start|>\"{arguments} }}]",
            patches("")
        ))
    }

    /// The numbers of tokens of the fixture's images: 4 × 6 patches and so on, of which 2 × 2 are one token.
    fn counts() -> Vec<usize> {
        grids().chunks(3).map(|grid| usize::try_from(grid[1] * grid[2] / 4).unwrap()).collect()
    }

    #[test]
    fn tokens_of_images_are_repeated_for_their_patches() {
        let image = id("<|im_start|>");
        let rows = run(&tokenized(", length = \"length\""), &FILES).unwrap();
        let ids = numbers(&rows[1]);
        // The tokens around the text, and an `x` behind each image.
        let runs: Vec<usize> =
            ids.split(|id| *id != image).map(<[i32]>::len).filter(|length| *length > 0).collect();
        assert_eq!(runs, counts());
        assert_eq!(ids.len(), counts().iter().sum::<usize>() + FILES.len() + 2);
        assert_eq!(wide(&rows[3]), [ids.len() as i64]);
        // Rows with images are not cut; others are.
        let short = tokenized(", max_length = 20, pad = 0");
        let message = run(&short, &FILES).unwrap_err();
        assert!(
            message.ends_with("with those of images, more than `max_length` of `tokenize`, 20"),
            "{message}"
        );
        let row = numbers(&run(&short, &FILES[..1]).unwrap()[1]);
        assert_eq!((row.len(), row[row.len() - 11..].to_vec()), (20, vec![0; 11]));
    }

    fn chat(template: &str, arguments: &str) -> Config {
        let folder = tempfile::tempdir().unwrap().keep();
        let path = folder.join("chat_template.jinja");
        std::fs::write(&path, template).unwrap();
        config(&format!(
            "{}\n[[stage]]\nname = \"text\"\noperations = [{{ op = \"chat\", template = {path:?}, tokenizer = {TOKENIZER:?}, image_token = \"<|im_start|>\"{arguments} }}]",
            patches("")
        ))
    }

    /// A dataset of two images and a conversation.
    fn conversation() -> InMemory {
        let fields = [("images", FieldKind::EncodedImages), ("text", FieldKind::Text)];
        InMemory::new(fields, |field, _, _| match field {
            "images" => FieldValue::EncodedImages(vec![FILES[0], FILES[3]]),
            _ => FieldValue::Text(r#"[{"role": "user"}, {"role": "assistant"}]"#.into()),
        })
    }

    const MARKED: &str = "ab<|im_start|>{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}cd<|im_start|>ef{% endgeneration %}{% endif %}{% endfor %}";

    #[test]
    fn labels_of_images_are_ignored() {
        let run =
            |config: &Config| run_all(config, &conversation(), &[], 0).map_err(|defect| defect.0);
        let row = chat(MARKED, ", labels = \"labels\", max_length = 60, pad = 0");
        let rows = run(&row).unwrap();
        let (ids, labels) = (numbers(&rows[1]), numbers(&rows[3]));
        let image = id("<|im_start|>");
        let all = counts();
        let of_images = ids.iter().filter(|id| **id == image).count();
        assert_eq!(of_images, all[0] + all[3]);
        for (id, label) in ids.iter().zip(&labels) {
            assert!(*label == -100 || (label == id && *id != image));
        }
        // What the model says around its image has labels.
        let place = ids.iter().rposition(|id| *id == image).unwrap();
        assert!(
            labels[place + 1] == ids[place + 1] && labels[place - all[3]] == ids[place - all[3]]
        );
        assert_eq!(labels[0], -100);
        // A cut through an image, and one behind all of them.
        let cut = |most: usize| run(&chat(MARKED, &format!(", max_length = {most}, pad = 0")));
        let message = cut(place).unwrap_err();
        assert!(message.contains("cuts off those of images"), "{message}");
        assert_eq!(numbers(&cut(place + 1).unwrap()[1]), ids[..=place]);
    }

    #[test]
    fn another_number_of_tokens_than_images_is_a_bad_sample() {
        let config = chat("<|im_start|>", ", max_length = 60, pad = 0");
        let message = run_all(&config, &conversation(), &[], 0).unwrap_err().0;
        assert_eq!(message, "the text has 1 of \"<|im_start|>\", and the sample has 2 images");
    }

    #[test]
    fn tokens_of_images_need_patches_before() {
        let refused = |stages: String| {
            SamplePlan::compile(&config(&stages), &dataset()).unwrap_err().to_string()
        };
        let tokenize = |token: &str| {
            format!(
                "[[stage]]\nname = \"text\"\noperations = [{{ op = \"tokenize\", tokenizer = {TOKENIZER:?}, image_token = {token:?} }}]"
            )
        };
        let message = refused(format!("{}\n{}", tokenize("<|im_start|>"), patches("")));
        assert!(message.contains("put one such operation before `tokenize`"), "{message}");
        let message = refused(format!("{}\n{}", patches(""), tokenize("<image>")));
        assert!(message.contains("the tokenizer has no added token \"<image>\""), "{message}");
    }
}
