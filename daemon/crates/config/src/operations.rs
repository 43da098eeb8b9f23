//! Lists of operations in the configuration, to be read by the registry of operations.

use std::path::Path;

use forebay_keys::kinds;
use forebay_keys::{Kind, LocalPath};
use forebay_keys::{Located, Value};

/// The arguments of operations that name a file, by operation. A relative path starts at the configuration's folder. The
/// operation gives the file's digest to the fingerprint.
const FILES: [(&str, &str); 3] =
    [("tokenize", "tokenizer"), ("chat", "tokenizer"), ("chat", "template")];

/// Whether an argument of an operation names a file.
pub(crate) fn names_a_file(operation: &[(String, Located)], key: &str) -> bool {
    let name = operation.iter().find(|(key, _)| key == "op").and_then(|(_, op)| op.value.as_text());
    name.is_some_and(|name| FILES.contains(&(name, key)))
}

/// Makes the paths of an operation's files absolute.
fn resolve_files(operation: &mut Located, folder: &Path) {
    let Value::Table(entries) = &mut operation.value else { return };
    let files: Vec<usize> =
        (0..entries.len()).filter(|entry| names_a_file(entries, &entries[*entry].0)).collect();
    for entry in files {
        let located = &mut entries[entry].1;
        if let Some(path) = LocalPath::read(&located.value) {
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
