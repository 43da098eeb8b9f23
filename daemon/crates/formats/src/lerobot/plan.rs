//! The fields of a sample: what each is made of, and at which instants.

use forebay_dataset::{Field, FieldKind};
use forebay_keys::nearest;
use forebay_protocol::tensor::{DType, MAX_TENSORS};

use super::TASK;
use super::index::{Column, Form, Rules};
use super::keys::Instants;
use crate::fields::{RESERVED, name_fault};

/// What a field is made of.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Made {
    /// The values of a column.
    Column(Column),
    /// The pictures of a camera.
    Camera(usize),
    /// Which instants lie outside of the episode.
    Pad,
    /// The text of the task, whose number is in a column.
    Task(Column),
}

/// A field.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Planned {
    pub(super) field: Field,
    pub(super) made: Made,
    /// The instants, in frames from the sample's; `None`: its own, and the field is not stacked.
    pub(super) deltas: Option<Vec<i64>>,
}

impl Planned {
    /// The frames of a field within an episode of so many, clamped at its ends.
    pub(super) fn rows(&self, row: u64, rows: u64) -> impl Iterator<Item = u64> {
        let of = move |delta: i64| row.saturating_add_signed(delta).min(rows.saturating_sub(1));
        self.deltas.as_deref().unwrap_or(&[0]).iter().copied().map(of)
    }

    /// The elements of an array field are so many bytes.
    pub(super) fn array_bytes(&self) -> Option<u64> {
        match &self.field.kind {
            FieldKind::Array { dtype, shape } => {
                Some(shape.iter().fold(dtype.size_bytes(), |all, side| all.saturating_mul(*side)))
            }
            _ => None,
        }
    }
}

/// The fields of all samples.
///
/// # Errors
/// A name that the dataset does not have, or fields that no batch can have.
pub(super) fn plan(
    rules: &Rules,
    chosen: Option<&[String]>,
    instants: &[(String, Instants)],
    tolerance: f64,
) -> Result<Vec<Planned>, String> {
    let task = rules.tasks.as_ref().and_then(|_| rules.column("task_index"));
    let names = || {
        let features = rules.features.iter().map(|known| known.name.as_str());
        features.chain(task.map(|_| TASK))
    };
    let check = |key: &str, name: &str| {
        if names().any(|known| known == name) {
            return Ok(());
        }
        let hint = match nearest(name, names()) {
            Some(near) => format!("did you mean {near:?}?"),
            None => format!("there are {}", names().collect::<Vec<_>>().join(", ")),
        };
        Err(format!("dataset.{key} names {name:?}, which is no feature that can be read; {hint}"))
    };
    for name in chosen.unwrap_or_default() {
        check("features", name)?;
        if let Some(fault) = name_fault(name) {
            return Err(format!(
                "dataset.features: {fault}; a batch has the number of the frame as `index`"
            ));
        }
    }
    let is_chosen = |name: &str| chosen.is_none_or(|chosen| chosen.iter().any(|one| one == name));
    for (name, instants) in instants {
        let key = match instants {
            Instants::Seconds(_) => "delta_timestamps",
            Instants::Frames(_) => "delta_frames",
        };
        check(key, name)?;
        if [TASK, "index"].contains(&name.as_str()) || !is_chosen(name) {
            return Err(format!(
                "dataset.{key} names {name:?}, which is not stacked; name it in dataset.features, or leave it out here"
            ));
        }
    }
    let mut fields: Vec<Planned> = Vec::new();
    // The name `index` is that of the sample's number, which is the same number.
    let named =
        rules.features.iter().filter(|known| is_chosen(&known.name) && known.name != "index");
    for known in named {
        let name = known.name.clone();
        if let Some(fault) = name_fault(&name) {
            return Err(format!("{fault}: name the others in dataset.features"));
        }
        let instants = instants.iter().find(|(feature, _)| *feature == name);
        let deltas = instants.map(|(name, instants)| instants.frames(name, rules.fps, tolerance));
        let deltas = deltas.transpose()?;
        let count = deltas.as_ref().map(|deltas| deltas.len() as u64);
        let (made, kind) = match &known.form {
            Form::Camera { place, .. } => {
                let frames = Some(count.unwrap_or(1));
                (Made::Camera(*place), FieldKind::Video { clips: None, frames })
            }
            Form::Column(column) => {
                let dtype =
                    column.dtype().ok_or_else(|| format!("{name:?} has an unknown type"))?;
                let shape = count.into_iter().chain(column.shape.iter().copied()).collect();
                (Made::Column(column.clone()), FieldKind::Array { dtype, shape })
            }
        };
        fields.push(Planned {
            field: Field { name: name.clone(), kind },
            made,
            deltas: deltas.clone(),
        });
        if let (Some(count), Some(deltas)) = (count, deltas) {
            let kind = FieldKind::Array { dtype: DType::Bool, shape: vec![count] };
            let name = format!("{name}_is_pad");
            if let Some(fault) = name_fault(&name) {
                return Err(fault);
            }
            let field = Field { name, kind };
            fields.push(Planned { field, made: Made::Pad, deltas: Some(deltas) });
        }
    }
    if let Some(column) = task.filter(|_| is_chosen(TASK)) {
        let field = Field { name: TASK.to_owned(), kind: FieldKind::Text };
        fields.push(Planned { field, made: Made::Task(column.clone()), deltas: None });
    }
    if fields.is_empty() {
        return Err("no field is left; name features in dataset.features".to_owned());
    }
    if fields.len() + RESERVED.len() > MAX_TENSORS {
        return Err(format!(
            "a sample has {} fields, and a batch has at most {}; name fewer in dataset.features",
            fields.len(),
            MAX_TENSORS - RESERVED.len()
        ));
    }
    let mut all: Vec<&str> = fields.iter().map(|planned| planned.field.name.as_str()).collect();
    all.sort_unstable();
    match all.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(twice) => {
            Err(format!("two fields are named {:?}; leave one out of dataset.features", twice[0]))
        }
        None => Ok(fields),
    }
}
