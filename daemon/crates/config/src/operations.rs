//! Lists of operations in the configuration, to be read by the registry of operations.

use std::path::Path;

use forebay_keys::kinds;
use forebay_keys::{Kind, LocalPath};
use forebay_keys::{Located, Value};

/// The arguments of operations that name a file. A relative path starts at the configuration's folder.
pub(crate) const FILE_KEYS: [&str; 2] = ["tokenizer", "template"];

/// Makes the paths of an operation's files absolute.
fn resolve_files(operation: &mut Located, folder: &Path) {
    let Value::Table(entries) = &mut operation.value else { return };
    for (key, located) in entries {
        if let (true, Some(path)) =
            (FILE_KEYS.contains(&key.as_str()), LocalPath::read(&located.value))
        {
            located.value = LocalPath::write(&LocalPath::resolve(path, folder));
        }
    }
}

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
    resolve(out, folder) {
        let mut operations = out;
        operations.iter_mut().for_each(|operation| resolve_files(operation, folder));
        operations
    }
    schema { "type": "array", "items": { "$ref": "#/definitions/operation" } }

    /// As [`Operations`], for complete batches.
    [pub] BatchOperations as Vec<Located>: "an array of tables such as [{ op = \"mixup\", alpha = 0.2 }], or [] for none", type "an array of tables";
    read(value) { Operations::read(value) }
    write(out) { Operations::write(out) }
    schema { "type": "array", "items": { "$ref": "#/definitions/batch_operation" } }
}
