//! Lists of operations in the configuration, to be read by the registry of operations.

use forebay_keys::kinds;
use forebay_keys::{Located, Value};

kinds! {
    /// An array of tables, which the registry of operations reads.
    [pub] Operations as Vec<Located>: "an array of tables such as [{ op = \"decode-image\" }], or [] for none", type "an array of tables";
    read(value) {
        match value {
            Value::Array(items) if items.iter().all(|item| matches!(item.value, Value::Table(_))) => {
                Some(items.clone())
            }
            _ => None,
        }
    }
    write(out) { Value::Array(out.clone()) }
    schema { "type": "array", "items": { "$ref": "#/definitions/operation" } }

    /// As [`Operations`], for complete batches.
    [pub] BatchOperations as Vec<Located>: "an array of tables such as [{ op = \"mixup\", alpha = 0.2 }], or [] for none", type "an array of tables";
    read(value) { Operations::read(value) }
    write(out) { Operations::write(out) }
    schema { "type": "array", "items": { "$ref": "#/definitions/batch_operation" } }
}
