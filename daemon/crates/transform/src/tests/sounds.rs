//! Operations on sounds: which ones are refused, and what lists of numbers become.

use super::*;

fn refusal_at(rate: Option<u32>, arguments: &str) -> Option<String> {
    let kind = FieldKind::Sound { row_shape: Vec::new(), rate, may_be_aac: false };
    let dataset = InMemory::new([("audio", kind)], value);
    let config = plain_config(&format!(
        "[[stage]]\noperations = [{{ op = \"mel-spectrogram\"{arguments} }}]\n[output]\n\
         audio = {{ ragged = true, max_bytes = \"1MiB\" }}\n"
    ));
    SamplePlan::compile(&config, &dataset).err().map(|error| error.to_string())
}

#[test]
fn filters_for_another_rate_than_the_sounds_are_refused() {
    assert_eq!(refusal_at(Some(16_000), ""), None);
    assert_eq!(refusal_at(Some(44_100), ", sample_rate = 44_100"), None);
    let other = refusal_at(Some(22_050), "").unwrap();
    for part in ["is 16000", "`audio` has 22050 samples a second", "set `sample_rate = 22050`"] {
        assert!(other.contains(part), "{other}");
    }
    let unset = refusal_at(None, ", sample_rate = 8000").unwrap();
    for part in ["have the rates of their files", "set `rate = 8000`", "dataset.fields.audio.rate"]
    {
        assert!(unset.contains(part), "{unset}");
    }
}

/// What is stored is a list of numbers, and what is written has rows of nine.
#[test]
fn a_stored_list_may_become_rows_of_another_shape() {
    let kind = FieldKind::RaggedArray { dtype: DType::F32, row_shape: Vec::new() };
    let dataset = InMemory::new([("sound", kind)], |_, _, _| {
        FieldValue::Array(ArrayValue {
            dtype: DType::F32,
            shape: [32][..].into(),
            fortran_order: false,
            big_endian: false,
            bytes: vec![0; 128].into(),
        })
    });
    let config = plain_config(
        "[[stage]]\noperations = [{ op = \"spectrogram\", n_fft = 16 }]\n[output]\n\
         sound = { ragged = true, max_bytes = 180 }\n",
    );
    assert_eq!(run_all(&config, &dataset, &[], 0).unwrap(), [vec![0; 5 * 9 * 4]]);
}
