//! The forms of fields that a column's values can take.

use forebay_columnar::{Encoding, dtype};
use forebay_protocol::tensor::DType;

use crate::fields::Form;

const BOOL: &str = DType::Bool.name();

/// The form of a field if the configuration sets none.
pub(super) fn usual_form(encoding: &Encoding) -> Option<Form> {
    Some(match encoding {
        Encoding::Bytes => Form::Bytes,
        Encoding::Text | Encoding::Json | Encoding::Nested => Form::Text,
        Encoding::Image => Form::Image,
        Encoding::Images => Form::Images,
        Encoding::Number(name) if name.starts_with("float") => Form::Float,
        Encoding::Number(name) if name == BOOL => Form::Bool,
        Encoding::Number(_) | Encoding::IntegerText => Form::Integer,
        Encoding::FloatText => Form::Float,
        Encoding::Array(_) => Form::Array,
        Encoding::ByteLists | Encoding::Unread(_) => return None,
    })
}

/// Whether a value can be read in this form.
pub(super) fn can_be(encoding: &Encoding, form: Form, has_key: bool) -> bool {
    match encoding {
        Encoding::Unread(_) => false,
        Encoding::Json | Encoding::Nested | Encoding::Text | Encoding::Bytes if has_key => {
            !form.is_of_bytes()
        }
        _ if has_key => false,
        Encoding::Bytes => true,
        Encoding::Text | Encoding::IntegerText | Encoding::FloatText => !form.is_of_bytes(),
        Encoding::Image => matches!(form, Form::Image | Form::Images | Form::Bytes),
        Encoding::Images | Encoding::ByteLists => form == Form::Images,
        Encoding::Json | Encoding::Nested => matches!(form, Form::Text | Form::Bytes),
        Encoding::Number(name) => {
            form == Form::Float
                || (form == Form::Integer && !name.starts_with("float"))
                || (form == Form::Bool && name == BOOL)
        }
        Encoding::Array(_) => form == Form::Array,
    }
}

/// The type that a number keeps in a batch: floats of 16 and 32 bits, and booleans. `None`: it becomes an int64 or
/// a float64, as PyTorch's losses take labels.
pub(crate) fn kept_type(encoding: &Encoding, form: Form) -> Option<DType> {
    let Encoding::Number(name) = encoding else { return None };
    match (dtype(name)?, form) {
        (kept @ (DType::F16 | DType::F32), Form::Float) | (kept @ DType::Bool, Form::Bool) => {
            Some(kept)
        }
        _ => None,
    }
}
