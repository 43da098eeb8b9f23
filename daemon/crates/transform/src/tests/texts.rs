//! Plans that make tokens of texts. The ids themselves are compared in `forebay-text`.

use super::*;

const TOKENIZER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../text/fixtures/byte-level.json");

fn config(arguments: &str, output: &str) -> Config {
    plain_config(&format!(
        "[[stage]]\noperations = [{{ op = \"tokenize\", tokenizer = \"{TOKENIZER}\"{arguments} }}]\n[output]\n{output}"
    ))
}

fn numbers(row: &[u8]) -> Vec<i32> {
    row.as_chunks::<4>().0.iter().map(|bytes| i32::from_ne_bytes(*bytes)).collect()
}

/// The ids of the caption.
fn ids() -> Vec<i32> {
    let tokenizer = forebay_text::Tokenizer::open(TOKENIZER.as_ref()).unwrap();
    let mut tokens = forebay_text::Tokens::default();
    let options = forebay_text::Options::new(true, true, None);
    tokenizer.encode("a gräy cat", &options, &mut tokens).unwrap();
    tokens.ids().iter().map(|id| i32::try_from(*id).unwrap()).collect()
}

#[test]
fn text_becomes_a_ragged_row_of_its_tokens() {
    let dataset = mixed(&["label", "caption"]);
    let ragged = "caption = { ragged = true, max_bytes = 400 }";
    let rows = run_all(&config("", ragged), &dataset, &[], 0).unwrap();
    assert_eq!(numbers(&rows[1]), ids());
    // Carried through another stage, cast, and under another name with its length.
    let more = "[[stage]]\noperations = []\n";
    let config = plain_config(&format!(
        "[[stage]]\noperations = [{{ op = \"tokenize\", tokenizer = \"{TOKENIZER}\", to = \"input_ids\", length = \"count\" }}]\n{more}[output]\ninput_ids = {{ ragged = true, max_bytes = 400, dtype = \"int64\" }}"
    ));
    let plan = SamplePlan::compile(&config, &dataset).unwrap();
    let names: Vec<&str> = plan.tensors().iter().map(|tensor| tensor.name.as_str()).collect();
    assert_eq!(names, ["label", "input_ids", "count"]);
    let rows = run_all(&config, &dataset, &[], 0).unwrap();
    let wide: Vec<i64> =
        rows[1].as_chunks::<8>().0.iter().map(|bytes| i64::from_ne_bytes(*bytes)).collect();
    assert_eq!(wide, ids().into_iter().map(i64::from).collect::<Vec<_>>());
    assert_eq!(i64::from_ne_bytes(rows[2][..8].try_into().unwrap()), ids().len() as i64);
}

#[test]
fn types_too_small_for_the_tokens_are_refused() {
    let dataset = mixed(&["caption"]);
    let compiled = |dtype: &str| {
        let ragged = format!("caption = {{ ragged = true, max_bytes = 400, dtype = \"{dtype}\" }}");
        SamplePlan::compile(&config("", &ragged), &dataset).map(drop)
    };
    for dtype in ["uint8", "int8", "bfloat16", "bool"] {
        let error = compiled(dtype).unwrap_err().to_string();
        assert!(error.contains(&format!("which are not all `{dtype}`")), "{error}");
    }
    assert!(["int16", "uint16", "float16"].iter().all(|dtype| compiled(dtype).is_ok()));
}

#[test]
fn rows_of_max_length_are_cut_and_filled() {
    let dataset = mixed(&["caption"]);
    let whole = ids();
    let short = whole.len() - 2;
    let run =
        |arguments: &str| numbers(&run_all(&config(arguments, ""), &dataset, &[], 0).unwrap()[0]);
    let filled = run(&format!(", max_length = {}, pad = \"<pad>\"", whole.len() + 3));
    let pad = forebay_text::Tokenizer::open(TOKENIZER.as_ref()).unwrap().id_of("<pad>").unwrap();
    assert_eq!(filled[..whole.len()], whole);
    assert_eq!(filled[whole.len()..], [i32::try_from(pad).unwrap(); 3]);
    let cut = run(&format!(", max_length = {short}, pad = 7"));
    assert_eq!(
        (cut.len(), &cut[..short - 1], cut[short - 1]),
        (short, &whole[..short - 1], *whole.last().unwrap())
    );
    let cut = run(&format!(", max_length = {short}, pad = 7, cut = \"left\""));
    assert_eq!((cut[0], &cut[1..]), (whole[0], &whole[3..]));
    // Without `pad` the longest row is known, so `max_bytes` is not needed.
    let ragged = config(&format!(", max_length = {short}"), "caption = { ragged = true }");
    assert_eq!(run_all(&ragged, &dataset, &[], 0).unwrap()[0].len(), 4 * short);
}

#[test]
fn digest_of_the_tokenizer_is_part_of_the_fingerprint_and_its_path_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("copy.json");
    std::fs::copy(TOKENIZER, &copy).unwrap();
    let dataset = mixed(&["caption"]);
    let print = |path: &str| {
        let config = plain_config(&format!(
            "[[stage]]\noperations = [{{ op = \"tokenize\", tokenizer = \"{path}\", max_length = 4, pad = 0 }}]"
        ));
        let plan = SamplePlan::compile(&config, &dataset).unwrap();
        config.fingerprint(plan.file_digests(), plan.batch_operations())
    };
    let before = print(copy.to_str().unwrap());
    assert_eq!(before, print(TOKENIZER));
    std::fs::copy(TOKENIZER.replace("byte-level", "word-piece"), &copy).unwrap();
    assert_ne!(before, print(copy.to_str().unwrap()));
}

#[test]
fn mistakes_name_their_argument() {
    let refused = |fields: &[&str], arguments: &str| {
        SamplePlan::compile(&config(arguments, ""), &mixed(fields)).unwrap_err().to_string()
    };
    for (fields, arguments, expected) in [
        (&["caption"][..], ", pad = 0", "give `max_length` too"),
        (&["caption"], ", cut = \"left\"", "give `max_length` too"),
        (
            &["caption"],
            ", max_length = 4, pad = \"<none>\"",
            "the tokenizer has no added token \"<none>\"; give its number",
        ),
        (
            &["caption", "label"],
            ", max_length = 4, to = \"label\"",
            "there is a field `label` already",
        ),
        (
            &["caption", "label"],
            ", max_length = 4, length = \"label\"",
            "there is a field `label` already",
        ),
        (&["caption"], ", max_length = 4, pad = 70000", "the tokenizer's largest token is"),
        (
            &["caption"],
            ", max_length = 2, pad = 0",
            "adds 2 tokens to each text, so `max_length` is above 2",
        ),
        (&["label"], "", "`tokenize` needs a text, and the dataset has none"),
        (
            &["caption", "label"],
            ", field = \"label\"",
            "needs a text, but field `label` is not one",
        ),
        (&["caption"], ", tokeniser = 1", "operations[0].tokenizer`?"),
    ] {
        let message = refused(fields, arguments);
        assert!(message.contains(expected), "{arguments}: {message}");
    }
    let missing =
        plain_config("[[stage]]\noperations = [{ op = \"tokenize\", tokenizer = \"/none.json\" }]");
    let message = SamplePlan::compile(&missing, &mixed(&["caption"])).unwrap_err().to_string();
    assert!(message.contains("/none.json: No such file"), "{message}");
}

#[test]
fn a_text_above_max_bytes_is_a_bad_sample() {
    let refused = run_all(
        &config(", max_length = 4, pad = 0, max_bytes = 8", ""),
        &mixed(&["caption"]),
        &[],
        0,
    );
    assert_eq!(
        refused.unwrap_err().0,
        "the text has 11 bytes, more than `max_bytes` of `tokenize`, 8"
    );
}

const TEMPLATES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../text/fixtures/templates");
const CHAT: &str =
    r#"[{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "a gräy cat"}]"#;
const MARKED: &str = "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}";

fn conversations() -> InMemory {
    InMemory::new([("chat", FieldKind::Text)], |_, _, _| FieldValue::Text(CHAT.into()))
}

fn chat(template: &str, arguments: &str) -> Result<Vec<Vec<u8>>, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("chat_template.jinja");
    std::fs::write(&path, template).unwrap();
    let config = plain_config(&format!(
        "[[stage]]\noperations = [{{ op = \"chat\", template = {path:?}, tokenizer = {TOKENIZER:?}{arguments} }}]"
    ));
    let dataset = conversations();
    SamplePlan::compile(&config, &dataset).map_err(|error| error.to_string())?;
    run_all(&config, &dataset, &[], 0).map_err(|defect| defect.0)
}

#[test]
fn conversation_becomes_its_tokens_and_labels_of_what_the_model_says() {
    let rows = chat(MARKED, ", max_length = 40, pad = 0, labels = \"labels\", length = \"count\"")
        .unwrap();
    let (ids, labels) = (numbers(&rows[0]), numbers(&rows[1]));
    let count = usize::try_from(i64::from_ne_bytes(rows[2][..8].try_into().unwrap())).unwrap();
    // Without the tokens around a text: the caption of the other tests, after the question.
    let caption = &super::texts::ids()[1..];
    let caption = &caption[..caption.len() - 1];
    let question = count - caption.len();
    assert_eq!(&ids[question..count], caption);
    assert_eq!(ids[count..], vec![0; 40 - count]);
    assert_eq!(&labels[question..count], caption);
    assert!(labels[..question].iter().chain(&labels[count..]).all(|label| *label == -100));
    // Cut from either end, ids and labels alike.
    for (side, kept) in [("right", 0..4), ("left", count - 4..count)] {
        let arguments = format!(", max_length = 4, pad = 0, labels = \"labels\", cut = {side:?}");
        let rows = chat(MARKED, &arguments).unwrap();
        assert_eq!(
            (numbers(&rows[0]), numbers(&rows[1])),
            (ids[kept.clone()].to_vec(), labels[kept].to_vec())
        );
    }
}

#[test]
fn templates_that_cannot_be_used_are_refused() {
    let row = ", max_length = 4, pad = 0";
    for (template, arguments, expected) in [
        ("{{ messages }}", ", labels = \"labels\"", "does not mark what the model says"),
        ("{{ strftime_now('%d') }}", "", "give it as `date = \"2024-07-26\"`"),
        ("{{ messages }}", ", date = \"26 July\"", "a date such as"),
        ("{% if %}", "", "line 1 of the chat template"),
        ("{{ raise_exception('no') }}", "", "line 1 of the chat template: no"),
    ] {
        let message = chat(template, &format!("{row}{arguments}")).unwrap_err();
        assert!(message.contains(expected), "{template}: {message}");
    }
    assert!(chat("{{ strftime_now('%d') }}", &format!("{row}, date = \"2024-07-26\"")).is_ok());
    let word_piece = plain_config(&format!(
        "[[stage]]\noperations = [{{ op = \"chat\", template = \"{TEMPLATES}/marked-chatml.json\", tokenizer = \"{}\", labels = \"labels\" }}]",
        TOKENIZER.replace("byte-level", "word-piece")
    ));
    let message = SamplePlan::compile(&word_piece, &conversations()).unwrap_err().to_string();
    assert!(message.contains("a BPE model"), "{message}");
}
