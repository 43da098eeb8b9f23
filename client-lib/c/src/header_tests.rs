//! The header and this crate agree: a C program that includes the header prints its constants, sizes and offsets.

use std::fmt::Write as _;
use std::mem::offset_of;
use std::path::Path;
use std::process::Command;

use forebay_protocol::tensor::{MAX_NAME_BYTES, MAX_RANK};

use crate::batch::{BatchInfo, ElementType, TensorInfo};
use crate::loader::LoaderInfo;
use crate::options::{Options, Override};
use crate::padded::PaddedInfo;
use crate::status::Status;

/// Lines for the program, and what it must print.
#[derive(Default)]
struct Question {
    program: String,
    expected: String,
}

impl Question {
    fn ask(&mut self, expression: &str, expected: i64) {
        writeln!(
            self.program,
            "    printf(\"%s = %ld\\n\", \"{expression}\", (long)({expression}));"
        )
        .unwrap();
        writeln!(self.expected, "{expression} = {expected}").unwrap();
    }
}

/// The size of a field, which padding would hide from its offset and the next one's.
fn size_of_field<T, F>(_: impl Fn(&T) -> &F) -> usize {
    size_of::<F>()
}

macro_rules! ask_struct {
    ($question:ident, $c:literal, $rust:ident: $($field:ident)+) => {
        $question.ask(concat!("sizeof(", $c, ")"), i64::try_from(size_of::<$rust>()).unwrap());
        $($question.ask(
            concat!("offsetof(", $c, ", ", stringify!($field), ")"),
            i64::try_from(offset_of!($rust, $field)).unwrap(),
        );
        $question.ask(
            concat!("sizeof(((", $c, " *)0)->", stringify!($field), ")"),
            i64::try_from(size_of_field(|value: &$rust| &value.$field)).unwrap(),
        );)+
        // Fails to compile unless every field is listed.
        let _ = |value: $rust| { let $rust { $($field: _),+ } = value; };
    };
}

#[test]
fn header_and_crate_have_the_same_layout() {
    let mut question = Question::default();
    for (status, constant, _) in Status::ALL {
        question.ask(constant, *status as i64);
    }
    let versions = env!("CARGO_PKG_VERSION").split('.').map(|part| part.parse().unwrap());
    for (name, value) in ["MAJOR", "MINOR", "PATCH"].iter().zip(versions) {
        question.ask(&format!("FOREBAY_VERSION_{name}"), value);
    }
    question.ask("FOREBAY_MAX_RANK", i64::try_from(MAX_RANK).unwrap());
    question.ask("FOREBAY_MAX_NAME_BYTES", i64::try_from(MAX_NAME_BYTES).unwrap());
    ask_struct!(question, "forebay_override", Override: key json);
    ask_struct!(question, "forebay_options", Options: size target stream json folder overrides override_count state force
        rank world_size timeout_seconds program interrupt interrupt_context shared trainer batch_size);
    ask_struct!(question, "forebay_loader_info", LoaderInfo: size batches_per_epoch samples_per_epoch epochs held given_up
        restarts batch_size tensor_count slots hold rank world_size daemon_process);
    ask_struct!(question, "forebay_batch_info", BatchInfo: size rows number epoch epoch_after samples_after payload_bytes
        tensor_count is_last_of_epoch);
    ask_struct!(question, "forebay_dtype", ElementType: code bits lanes);
    ask_struct!(question, "forebay_tensor", TensorInfo: size data bytes shape strides offsets lengths dtype rank
        row_rank row_shape channels_last name);
    ask_struct!(question, "forebay_padded", PaddedInfo: size data lengths bytes shape rank);

    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("question.c");
    let program = folder.path().join("question");
    let text = format!(
        "#include <forebay.h>\n#include <stdio.h>\nint main(void)\n{{\n{}    return 0;\n}}\n",
        question.program
    );
    std::fs::write(&source, text).unwrap();
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    let status = Command::new("cc")
        .args(["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", "-I"])
        .arg(include)
        .arg(&source)
        .arg("-o")
        .arg(&program)
        .status()
        .unwrap();
    assert!(status.success(), "cc: {status}");
    let output = Command::new(&program).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), question.expected);
}
