//! Estimates a sample's memory in a plan's stages, from its bytes.

use super::{PlannedField, SamplePlan, StageBody};
use crate::needs::{Needs, Reckoning};
use crate::output::FieldOutput;
use forebay_dataset::{Dataset, Field, FieldKind, FieldValue};
use forebay_media::sound;
use forebay_protocol::ids::SampleId;
use forebay_storage::location::SampleBytes;

impl SamplePlan {
    /// The maximal memory of a sample in addition to its fetched bytes and its row. A result of a Python stage without
    /// a fixed size is assumed to be as large as the largest so far.
    pub fn needs(
        &self,
        (id, draw): (SampleId, u64),
        fetched: SampleBytes<'_>,
        dataset: &dyn Dataset,
    ) -> Needs {
        let unpacked_bytes = dataset.unpacked_bytes(fetched);
        let sample_bytes = dataset.own_bytes(id, fetched).saturating_add(unpacked_bytes);
        let mut values = Vec::new();
        let is_decoded = |field: &Field| {
            matches!(
                field.kind,
                FieldKind::EncodedImage
                    | FieldKind::EncodedImages
                    | FieldKind::Sound { .. }
                    | FieldKind::Video { .. }
            )
        };
        // A file of images is only split into its fields.
        if dataset.fields().iter().any(is_decoded)
            && dataset.read_drawn(id, draw, fetched, &mut values).is_err()
        {
            return Needs::default();
        }
        let mut files = vec![None; self.fields.len()];
        for (file, value) in files.iter_mut().zip(&values) {
            if let FieldValue::EncodedImage(bytes) = value {
                *file = Some(*bytes);
            }
        }
        let mut reckoning = Reckoning::new(files, sample_bytes);
        reckoning.bucket = self.bucket_of(id);
        if !values.is_empty() {
            let text_bytes = values.iter().map(|value| match value {
                FieldValue::Text(text) => text.len() as u64,
                FieldValue::Bytes(bytes) => bytes.len() as u64,
                _ => 0,
            });
            reckoning.text_bytes = text_bytes.sum();
        }
        for (field, value) in values.into_iter().enumerate() {
            match value {
                FieldValue::Sound(sound) => {
                    let (all, held) = sound::decoding_bytes(&sound, self.most_sound_bytes);
                    reckoning.scratch_bytes = reckoning.scratch_bytes.saturating_add(all);
                    reckoning.give(field, held);
                }
                FieldValue::EncodedImages(files) => reckoning.set_files(field, files),
                FieldValue::Video(clip) => reckoning.set_clip(field, &clip),
                _ => {}
            }
        }
        let mut carried_bytes = 0;
        for (number, stage) in self.stages.iter().enumerate() {
            let called_bytes = match &stage.body {
                StageBody::Native(operations) => {
                    operations.iter().for_each(|native| native.operation.reckon(&mut reckoning));
                    0
                }
                StageBody::Python(body) => {
                    let called_bytes = body.reckon(&mut reckoning);
                    for field in body.outputs().map(|output| output.field) {
                        // A result that is not read directly into its row.
                        let is_held = !self.is_read_into_row(number, field);
                        let bytes = if is_held { reckoning.held_bytes(field) } else { 0 };
                        reckoning.scratch_bytes = reckoning.scratch_bytes.saturating_add(bytes);
                    }
                    called_bytes
                }
            };
            let carried = self.fields.iter().enumerate().filter(|(_, of)| of.last_stage > number);
            let bytes = carried.map(|(field, _)| match dataset.fields().get(field) {
                Some(Field {
                    kind: FieldKind::Array { .. } | FieldKind::RaggedArray { .. },
                    ..
                }) if !reckoning.is_returned(field) => sample_bytes,
                _ => reckoning.held_bytes(field),
            });
            carried_bytes = carried_bytes.max(bytes.fold(called_bytes, u64::saturating_add));
        }
        let is_cast = |field: &PlannedField| match &field.output {
            Some((_, FieldOutput::Array { expected, target })) => expected.dtype != *target,
            Some((_, FieldOutput::RaggedArray { source, target, .. })) => source != target,
            _ => false,
        };
        // Elements that are reordered before they are cast.
        let reordered = self.fields.iter().enumerate().filter(|(_, field)| is_cast(field));
        let reordered = reordered.map(|(field, _)| reckoning.held_bytes(field).max(sample_bytes));
        let scratch_bytes = [reckoning.scratch_bytes, reckoning.remade_bytes, unpacked_bytes];
        let scratch_bytes = scratch_bytes.iter().sum::<u64>() + reordered.max().unwrap_or(0);
        Needs { scratch_bytes, carried_bytes }
    }

    /// Whether an array that a Python stage returned is copied from the arena directly into its row.
    pub(super) fn is_read_into_row(&self, stage: usize, field: usize) -> bool {
        let planned = &self.fields[field];
        stage == planned.last_stage
            && matches!(
                &planned.output,
                Some((_, FieldOutput::Array { expected, target })) if expected.dtype == *target
            )
    }
}
