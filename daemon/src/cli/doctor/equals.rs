//! The native equivalents of transforms of torchvision and albumentations, one line per class.

/// How similar an operation is to a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Likeness {
    /// The same distributions, and the same pixels up to rounding.
    Same,
    /// Different draws or different pixels; the note explains it.
    Close,
    /// A list of operations, whose time is that of its elements.
    List,
    /// Native stages do not need this step.
    Unneeded,
}

/// A class and its native equivalent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Equal {
    /// The class as a worker reports it: `torchvision.Resize`, for v1 and v2.
    pub(super) class: &'static str,
    pub(super) likeness: Likeness,
    /// The operation's entry in TOML, with example arguments; or what to write if no operation is needed.
    pub(super) entry: &'static str,
    /// The differences; may be empty.
    pub(super) note: &'static str,
}

impl Equal {
    /// The name in the entry; empty if no operation is needed.
    pub(super) fn operation(&self) -> &'static str {
        let name = self.entry.strip_prefix("{ op = \"").and_then(|rest| rest.split_once('"'));
        name.map_or("", |(name, _)| name)
    }
}

/// The native equivalent of a class, if there is one.
pub(super) fn equal_of(class: &str) -> Option<&'static Equal> {
    EQUALS.iter().find(|equal| equal.class == class)
}

const fn same(class: &'static str, entry: &'static str, note: &'static str) -> Equal {
    Equal { class, likeness: Likeness::Same, entry, note }
}

const fn close(class: &'static str, entry: &'static str, note: &'static str) -> Equal {
    Equal { class, likeness: Likeness::Close, entry, note }
}

const fn list(class: &'static str, entry: &'static str, note: &'static str) -> Equal {
    Equal { class, likeness: Likeness::List, entry, note }
}

const fn unneeded(class: &'static str, entry: &'static str) -> Equal {
    Equal { class, likeness: Likeness::Unneeded, entry, note: "" }
}

const P: &str = "`p` is `probability`";
const AREA: &str = "`scale` is `area`";
const TENSORS: &str = "batches are tensors";
const FLOATS: &str = "[output] image = { dtype = \"float32\" }";
const BOXES: &str =
    "geometric operations with `fields` clip boxes and drop those that are too small";
/// For albumentations, whose transforms have a probability.
const AT_TIMES: &str = "`p` is the `probability` of a random-apply around it";
const ANTIALIASED: &str = "pixels are antialiased, OpenCV's are not";

#[rustfmt::skip]
pub(super) const EQUALS: &[Equal] = &[
    same("torchvision.Resize", r#"{ op = "resize", size = 256 }"#, "there is no `max_size`"),
    same("torchvision.CenterCrop", r#"{ op = "center-crop", size = 224 }"#, ""),
    same("torchvision.RandomCrop", r#"{ op = "random-crop", size = 224, padding = 4 }"#, "small images are padded, as with `pad_if_needed`"),
    same("torchvision.RandomResizedCrop", r#"{ op = "random-resized-crop", size = 224, area = [0.08, 1.0] }"#, AREA),
    same("torchvision.RandomHorizontalFlip", r#"{ op = "random-horizontal-flip", probability = 0.5 }"#, P),
    same("torchvision.RandomVerticalFlip", r#"{ op = "random-vertical-flip", probability = 0.5 }"#, P),
    same("torchvision.Pad", r#"{ op = "pad", padding = 4 }"#, ""),
    same("torchvision.RandomRotation", r#"{ op = "rotate", degrees = 15 }"#, ""),
    same("torchvision.RandomAffine", r#"{ op = "affine", degrees = 15, translate = [0.1, 0.1], scale = [0.9, 1.1] }"#, ""),
    same("torchvision.RandomPerspective", r#"{ op = "perspective", distortion_scale = 0.5, probability = 0.5 }"#, P),
    same("torchvision.ColorJitter", r#"{ op = "color-jitter", brightness = 0.4, contrast = 0.4, saturation = 0.4, hue = 0.1 }"#, ""),
    same("torchvision.Grayscale", r#"{ op = "grayscale", channels = 3 }"#, "`num_output_channels` is `channels`"),
    same("torchvision.RandomGrayscale", r#"{ op = "random-grayscale", probability = 0.1 }"#, P),
    same("torchvision.GaussianBlur", r#"{ op = "gaussian-blur", kernel_size = 9, sigma = [0.1, 2.0] }"#, ""),
    same("torchvision.RandomAdjustSharpness", r#"{ op = "adjust-sharpness", sharpness_factor = 2.0, probability = 0.5 }"#, P),
    same("torchvision.RandomInvert", r#"{ op = "invert", probability = 0.5 }"#, P),
    same("torchvision.RandomPosterize", r#"{ op = "posterize", bits = 4, probability = 0.5 }"#, P),
    same("torchvision.RandomSolarize", r#"{ op = "solarize", threshold = 128, probability = 0.5 }"#, "`threshold` is in levels of bytes; `p` is `probability`"),
    same("torchvision.RandomEqualize", r#"{ op = "equalize", probability = 0.5 }"#, P),
    same("torchvision.RandomAutocontrast", r#"{ op = "autocontrast", probability = 0.5 }"#, P),
    same("torchvision.RandomErasing", r#"{ op = "random-erasing", probability = 0.5, value = 0 }"#, "it comes before values are normalized, and `value` is in levels of bytes: 0 after ImageNet's normalization is [124, 116, 104]"),
    same("torchvision.RandAugment", r#"{ op = "rand-augment", num_ops = 2, magnitude = 9 }"#, ""),
    same("torchvision.TrivialAugmentWide", r#"{ op = "trivial-augment-wide" }"#, ""),
    same("torchvision.AutoAugment", r#"{ op = "auto-augment", policy = "imagenet" }"#, ""),
    same("torchvision.AugMix", r#"{ op = "aug-mix", severity = 3 }"#, "`chain_depth` left out is -1"),
    same("torchvision.Normalize", r#"{ op = "normalize", mean = [0.485, 0.456, 0.406], std = [0.229, 0.224, 0.225] }"#, "it comes last and takes bytes, so no other conversion to floats is needed"),
    list("torchvision.RandomApply", r#"{ op = "random-apply", probability = 0.5, operations = [] }"#, P),
    list("torchvision.RandomChoice", r#"{ op = "random-choice", operations = [] }"#, "`p` is `probabilities`"),
    list("torchvision.RandomOrder", r#"{ op = "random-order", operations = [] }"#, ""),
    unneeded("torchvision.ToTensor", FLOATS),
    unneeded("torchvision.ConvertImageDtype", FLOATS),
    unneeded("torchvision.ToDtype", FLOATS),
    unneeded("torchvision.PILToTensor", TENSORS),
    unneeded("torchvision.ToImage", TENSORS),
    unneeded("torchvision.ToPureTensor", TENSORS),
    unneeded("torchvision.ToPILImage", "native operations take images as decode-image leaves them"),
    unneeded("torchvision.RGB", "decode-image gives three channels"),
    unneeded("torchvision.ClampBoundingBoxes", BOXES),
    unneeded("torchvision.SanitizeBoundingBoxes", BOXES),
    close("albumentations.Resize", r#"{ op = "resize", size = [224, 224] }"#, ANTIALIASED),
    close("albumentations.SmallestMaxSize", r#"{ op = "resize", size = 256 }"#, ANTIALIASED),
    close("albumentations.CenterCrop", r#"{ op = "center-crop", size = [224, 224] }"#, "it lies up to a pixel further; small images are padded, as with `pad_if_needed`"),
    same("albumentations.RandomCrop", r#"{ op = "random-crop", size = [224, 224] }"#, "small images are padded, as with `pad_if_needed`"),
    close("albumentations.RandomResizedCrop", r#"{ op = "random-resized-crop", size = [224, 224], area = [0.08, 1.0] }"#, "`scale` is `area`; pixels are antialiased, OpenCV's are not"),
    same("albumentations.HorizontalFlip", r#"{ op = "random-horizontal-flip", probability = 0.5 }"#, P),
    same("albumentations.VerticalFlip", r#"{ op = "random-vertical-flip", probability = 0.5 }"#, P),
    same("albumentations.Pad", r#"{ op = "pad", padding = 4 }"#, "`border_mode` is `padding_mode`"),
    close("albumentations.Rotate", r#"{ op = "rotate", degrees = 90, interpolation = "bilinear" }"#, AT_TIMES),
    close("albumentations.Affine", r#"{ op = "affine", degrees = 15, scale = [0.9, 1.1], shear = 5, interpolation = "bilinear" }"#, "`translate_percent` is `translate`, and one factor of scale holds for both sides; `p` is the `probability` of a random-apply around it"),
    close("albumentations.ShiftScaleRotate", r#"{ op = "affine", degrees = 45, translate = [0.0625, 0.0625], scale = [0.9, 1.1], interpolation = "bilinear" }"#, AT_TIMES),
    close("albumentations.Perspective", r#"{ op = "perspective", distortion_scale = 0.2, probability = 0.5 }"#, "corners move inward by uniform draws, there by normal ones"),
    close("albumentations.ColorJitter", r#"{ op = "color-jitter", brightness = 0.2, contrast = 0.2, saturation = 0.2, hue = 0.1 }"#, "the hue turns without OpenCV's 180 steps; `p` is the `probability` of a random-apply around it"),
    close("albumentations.RandomBrightnessContrast", r#"{ op = "color-jitter", brightness = 0.2, contrast = 0.2 }"#, "brightness is a factor, there a sum; contrast is about the mean, there about 0; `p` is the `probability` of a random-apply around it"),
    close("albumentations.HueSaturationValue", r#"{ op = "color-jitter", brightness = 0.1, saturation = 0.1, hue = 0.1 }"#, "saturation and brightness are factors, there sums; `p` is the `probability` of a random-apply around it"),
    same("albumentations.ToGray", r#"{ op = "random-grayscale", probability = 0.5 }"#, "as `method = \"weighted_average\"`"),
    close("albumentations.GaussianBlur", r#"{ op = "gaussian-blur", kernel_size = 9, sigma = [0.5, 3.0] }"#, "the filter's size is given, there it follows from sigma; `p` is the `probability` of a random-apply around it"),
    same("albumentations.Posterize", r#"{ op = "posterize", bits = 4, probability = 0.5 }"#, "`num_bits` is `bits`, one number"),
    same("albumentations.Solarize", r#"{ op = "solarize", threshold = 128, probability = 0.5 }"#, "`threshold` is one number in levels of bytes, there a range of shares"),
    close("albumentations.Equalize", r#"{ op = "equalize", probability = 0.5 }"#, "as `mode = \"pil\"`"),
    close("albumentations.AutoContrast", r#"{ op = "autocontrast", probability = 0.5 }"#, "as `method = \"pil\"` with a `cutoff` of 0"),
    same("albumentations.InvertImg", r#"{ op = "invert", probability = 0.5 }"#, P),
    close("albumentations.Erasing", r#"{ op = "random-erasing", probability = 0.5, value = 0 }"#, "`ratio` is height to width and uniform in its logarithm; `fill` is `value`"),
    close("albumentations.CoarseDropout", r#"{ op = "random-erasing", probability = 0.5, scale = [0.01, 0.04], ratio = [0.5, 2.0], value = 0 }"#, "one part, drawn by its area; `fill` is `value`"),
    same("albumentations.Normalize", r#"{ op = "normalize", mean = [0.485, 0.456, 0.406], std = [0.229, 0.224, 0.225] }"#, "as `normalization = \"standard\"` of bytes; it comes last"),
    list("albumentations.OneOf", r#"{ op = "random-choice", operations = [] }"#, "the `p` of what it holds are `probabilities`; its own is the `probability` of a random-apply around it"),
    list("albumentations.Sequential", r#"{ op = "random-apply", probability = 0.5, operations = [] }"#, P),
    unneeded("albumentations.ToFloat", FLOATS),
    unneeded("albumentations.ToTensorV2", TENSORS),
    unneeded("albumentations.ToRGB", "decode-image gives three channels"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_transform::operation_tables;

    #[test]
    fn operations_and_their_arguments_exist() {
        for equal in EQUALS {
            let name = equal.operation();
            assert_eq!(name.is_empty(), equal.likeness == Likeness::Unneeded, "{equal:?}");
            if name.is_empty() {
                continue;
            }
            let table = operation_tables().find(|table| table.path == name);
            let table = table.unwrap_or_else(|| panic!("no operation {name:?}: {equal:?}"));
            let inner = equal.entry.trim_start_matches("{ ").trim_end_matches(" }");
            // Values in the table do not contain `=`.
            for key in inner.split(" = ").map(|part| part.rsplit(' ').next().unwrap()) {
                let is_value = key.ends_with(['"', ']']) || key.parse::<f64>().is_ok();
                let is_known = table.keys.iter().any(|known| known.name == key);
                assert!(is_value || key == "op" || is_known, "{key}: {equal:?}");
            }
        }
    }

    #[test]
    fn each_class_occurs_once_and_only_differences_have_notes() {
        for (place, equal) in EQUALS.iter().enumerate() {
            let again = EQUALS[place + 1..].iter().find(|other| other.class == equal.class);
            assert!(again.is_none(), "{equal:?}");
            assert!(equal.likeness != Likeness::Close || !equal.note.is_empty(), "{equal:?}");
        }
        assert_eq!(equal_of("torchvision.ColorJitter").unwrap().operation(), "color-jitter");
        assert!(equal_of("torchvision.Compose").is_none());
    }
}
