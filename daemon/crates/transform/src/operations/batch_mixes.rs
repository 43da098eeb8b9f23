//! `mixup` and `cutmix`, on complete batches: each row is mixed with its partner, the first with the last and so on
//! inward.
//!
//! One share λ applies to a batch, drawn with the key of its first row, as in torchvision's `MixUp` and `CutMix`. There
//! the partner is the previous row; here rows form pairs, since pairs can be mixed in place.
//!
//! Images that the client's GPU finishes are mixed there, after their conversion: the draws are sent with the batch
//! ([`forebay_protocol::mix`]). Labels are always mixed here.

mod pixels;

use self::pixels::{ImageRow, Part};
use crate::arguments::PositiveNumber;
use crate::batch::{BatchEntry, BatchOperation, BatchRow};
use crate::distribution::dirichlet;
use forebay_dataset::Defect;
use forebay_keys::{AtLeastOne, ConfigError, Keys, Section, SourceLocation};
use forebay_media::size::Size;
use forebay_order::Draws;
use forebay_protocol::mix::{MAX_MIXES, Mix};
use forebay_protocol::tensor::{DType, Extent, TensorSpec};

/// The tensors that describe the mix.
const LABEL_B: &str = "label_b";
const MIX: &str = "mix";

/// Maximal number of elements in the one-hot labels of a batch: more are a mistake.
const MOST_CLASSES: u64 = 1 << 20;

macro_rules! mixing {
    ($Arguments:ident, $words:literal, $name:literal, $compile:ident, $kind:expr) => {
        forebay_keys::keys! {
            #[doc = $words]
            pub(crate) struct $Arguments = $name {
                /// of the distribution Beta(alpha, alpha) of λ, the first image's share
                pub alpha: PositiveNumber, "", default(1.0);
                /// how many classes, from 2: `label` becomes their shares, float32; otherwise `label_b` and `mix` are added
                pub classes: AtLeastOne, "", absent("`label_b` and `mix`");
                /// the images to mix
                pub field: String, "", absent("the only image");
                /// the field of class numbers
                pub label: String, "", default("label".to_owned());
            }
        }

        pub(crate) fn $compile(section: &mut Section) -> Result<BatchEntry, ConfigError> {
            let arguments = $Arguments::read(section)?;
            let $Arguments { alpha, classes, field, label } = arguments;
            if classes.is_some_and(|classes| !(2..=MOST_CLASSES).contains(&classes)) {
                let path = section.key_path("classes");
                let message = format!("`{path}` must be a whole number from 2 to {MOST_CLASSES}");
                return Err(section.error_at("classes", message));
            }
            let location = section.location().clone();
            Ok(BatchEntry::Operation(Box::new(Mixing {
                kind: $kind,
                alpha,
                classes,
                field,
                label,
                location,
                tensors: None,
            })))
        }
    };
}

mixing!(
    Mixup,
    "each image and its label mixed with those of another row",
    "mixup",
    compile_mixup,
    Mixture::Sum
);
mixing!(
    Cutmix,
    "a rectangle of each image from another row, and as much of its label",
    "cutmix",
    compile_cutmix,
    Mixture::Rectangle
);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mixture {
    /// λ of one image plus 1 − λ of the other.
    Sum,
    /// A rectangle of one image in the other.
    Rectangle,
}

#[derive(Debug)]
struct Mixing {
    kind: Mixture,
    alpha: f64,
    classes: Option<u64>,
    field: Option<String>,
    label: String,
    location: SourceLocation,
    /// Set when the tensors are declared.
    tensors: Option<Tensors>,
}

/// The tensors that it processes, by number.
#[derive(Debug)]
struct Tensors {
    image: usize,
    row: ImageRow,
    /// If the client's GPU mixes: the number of this mix among those of the image.
    gpu_mix: Option<u32>,
    label: usize,
    output: LabelOutput,
}

#[derive(Debug)]
enum LabelOutput {
    /// The partner's label, and λ.
    Pair { label_b: usize, mix: usize },
    /// The share of each class.
    Shares(usize),
}

/// Whether a tensor's rows are images of numbers that can be mixed.
fn is_image(tensor: &TensorSpec) -> bool {
    let is_number =
        matches!(tensor.dtype, DType::U8 | DType::F16 | DType::BF16 | DType::F32 | DType::F64);
    is_number && tensor.extent == Extent::Dense && tensor.row_shape.len() == 3
}

impl Mixing {
    fn error(&self, message: impl AsRef<str>) -> ConfigError {
        let message = format!("`{}`: {}", self.name(), message.as_ref());
        ConfigError::new(&self.location, message)
    }

    fn image_number(&self, tensors: &[TensorSpec]) -> Result<usize, ConfigError> {
        let images = || tensors.iter().enumerate().filter(|(_, tensor)| is_image(tensor));
        let listed = || {
            let names: Vec<_> = images().map(|(_, tensor)| format!("`{}`", tensor.name)).collect();
            if names.is_empty() { "none".to_owned() } else { names.join(", ") }
        };
        match &self.field {
            Some(field) => images().find(|(_, tensor)| tensor.name == *field).map(|(at, _)| at),
            None => images().map(|(at, _)| at).next().filter(|_| images().count() == 1),
        }
        .ok_or_else(|| {
            self.error(format!(
                "it needs `field`, the name of images of one size that are uint8 or floats; there are: {}",
                listed()
            ))
        })
    }

    fn label_number(&self, tensors: &[TensorSpec]) -> Result<usize, ConfigError> {
        let label = &self.label;
        let found = tensors.iter().position(|tensor| tensor.name == *label);
        let is_number = |at: &usize| {
            let TensorSpec { dtype, extent, row_shape, .. } = &tensors[*at];
            *dtype == DType::I64 && *extent == Extent::Dense && row_shape.is_empty()
        };
        found.filter(is_number).ok_or_else(|| {
            self.error(format!(
                "it needs a field of class numbers, int64, one a sample, and `{label}` is none; name it with `label`"
            ))
        })
    }
}

impl BatchOperation for Mixing {
    fn name(&self) -> &str {
        match self.kind {
            Mixture::Sum => "mixup",
            Mixture::Rectangle => "cutmix",
        }
    }

    fn arguments(&self) -> String {
        let Self { alpha, classes, field, label, .. } = self;
        format!("{:016x} {classes:?} {field:?} {label:?}", alpha.to_bits())
    }

    fn declare(&mut self, tensors: &mut Vec<TensorSpec>) -> Result<(), ConfigError> {
        let image = self.image_number(tensors)?;
        let label = self.label_number(tensors)?;
        let TensorSpec { dtype, row_shape, channels_last, .. } = &tensors[image];
        let sides = [row_shape[0], row_shape[1], row_shape[2]].map(|side| {
            u32::try_from(side).map_err(|_| self.error("the images have too many pixels"))
        });
        let [first, second, third] = sides;
        let (first, second, third) = (first?, second?, third?);
        let (channels, size) = if *channels_last {
            (third, Size { width: second, height: first })
        } else {
            (first, Size { width: third, height: second })
        };
        let (dtype, channels_last) = (*dtype, *channels_last);
        let row = ImageRow { dtype, size, channels: channels as usize, channels_last };
        let gpu_mix = match &mut tensors[image].finish {
            Some(finish) if finish.mixes == MAX_MIXES => {
                return Err(self.error(format!(
                    "at most {MAX_MIXES} operations can mix images that the GPU finishes"
                )));
            }
            Some(finish) => {
                finish.mixes += 1;
                Some(finish.mixes - 1)
            }
            None => None,
        };
        let output = if let Some(classes) = self.classes {
            tensors[label] = TensorSpec::dense(&self.label, DType::F32, &[classes]);
            LabelOutput::Shares(usize::try_from(classes).unwrap_or(usize::MAX))
        } else {
            for name in [LABEL_B, MIX] {
                if tensors.iter().any(|tensor| tensor.name == name) {
                    return Err(self.error(format!("there is a field `{name}` already")));
                }
            }
            tensors.push(TensorSpec::dense(LABEL_B, DType::I64, &[]));
            tensors.push(TensorSpec::dense(MIX, DType::F32, &[]));
            LabelOutput::Pair { label_b: tensors.len() - 2, mix: tensors.len() - 1 }
        };
        self.tensors = Some(Tensors { image, row, gpu_mix, label, output });
        Ok(())
    }

    fn run(&self, rows: &mut [BatchRow<'_>], operation: u64) -> Result<(), Defect> {
        let (Some(tensors), Some(first)) = (&self.tensors, rows.first()) else {
            return Ok(());
        };
        let mut draws = Draws::new(first.key, operation);
        let [share, _] = dirichlet::<2>(&mut draws, self.alpha);
        let part = match self.kind {
            Mixture::Sum => None,
            Mixture::Rectangle => Some(draw_part(tensors.row.size, share, &mut draws)),
        };
        let share = part.as_ref().map_or(share, |part| part.rest(tensors.row.size));
        #[expect(clippy::cast_possible_truncation, reason = "λ is a float32 in the batch")]
        let share = share as f32;
        if let Some(number) = tensors.gpu_mix {
            let mix = part.as_ref().map_or(Mix::Sum { share }, Part::mix);
            rows[0].row.set_mix(tensors.image, number, &mix);
            return tensors.write_labels(rows, share);
        }
        let count = rows.len();
        for place in 0..count / 2 {
            let (before, after) = rows.split_at_mut(count - 1 - place);
            let one = before[place].row.dense(tensors.image);
            let other = after[0].row.dense(tensors.image);
            match &part {
                None => tensors.row.mix(share, one, other),
                Some(part) => tensors.row.swap(part, one, other),
            }
        }
        tensors.write_labels(rows, share)
    }
}

/// The rectangle that `CutMix` draws: with the area 1 − λ, clipped at the image's edges.
fn draw_part(size: Size, share: f64, draws: &mut Draws) -> Part {
    let ratio = 0.5 * libm::sqrt(1.0 - share);
    let mut axis = |side: u32| {
        let middle = draws.below(u64::from(side.max(1)));
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "at most half a side"
        )]
        let half = (ratio * f64::from(side)) as u64;
        let narrow = |place: u64| usize::try_from(place).unwrap_or(0);
        narrow(middle.saturating_sub(half))..narrow((middle + half).min(side.into()))
    };
    let columns = axis(size.width);
    Part { columns, rows: axis(size.height) }
}

impl Tensors {
    fn label(&self, row: &mut BatchRow<'_>) -> Option<i64> {
        row.row.dense(self.label).first_chunk().map(|bytes| i64::from_ne_bytes(*bytes))
    }

    fn write_labels(&self, rows: &mut [BatchRow<'_>], share: f32) -> Result<(), Defect> {
        let short = || Defect("a row is shorter than planned".to_owned());
        let labels: Option<Vec<i64>> = rows.iter_mut().map(|row| self.label(row)).collect();
        let labels = labels.ok_or_else(short)?;
        for (row, (own, partner)) in rows.iter_mut().zip(labels.iter().zip(labels.iter().rev())) {
            match self.output {
                LabelOutput::Pair { label_b, mix } => {
                    let to = row.row.dense(label_b).first_chunk_mut().ok_or_else(short)?;
                    *to = partner.to_ne_bytes();
                    let to = row.row.dense(mix).first_chunk_mut().ok_or_else(short)?;
                    *to = share.to_ne_bytes();
                }
                LabelOutput::Shares(classes) => {
                    let (shares, _) = row.row.dense(self.label).as_chunks_mut::<4>();
                    shares.fill(0.0_f32.to_ne_bytes());
                    for (label, share) in [(own, share), (partner, 1.0 - share)] {
                        let place = usize::try_from(*label).ok().filter(|place| *place < classes);
                        let place = place.and_then(|place| shares.get_mut(place)).ok_or_else(|| {
                            Defect(format!(
                                "a label is {label}, and `classes` is {classes}: labels are 0 to {}",
                                classes - 1
                            ))
                        })?;
                        *place = (f32::from_ne_bytes(*place) + share).to_ne_bytes();
                    }
                }
            }
        }
        Ok(())
    }
}
