//! Texts and masks against those of Transformers, which `fixtures/chats.py` writes.
//!
//! `FOREBAY_CHATS` names another folder that this script has filled.

use std::collections::HashMap;

use serde::Deserialize;

use super::*;
use crate::spelling::Spelling;
use crate::tokenizer::{Options, Tokenizer, Tokens};

/// The longest text of the tests.
const MOST: usize = 1 << 24;

fn fixtures() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures")
}

#[derive(Deserialize)]
struct Stored {
    chat_template: String,
    tokens: Map<String, Json>,
}

/// Ids, and which of them the model says.
type Tokenized = (Vec<u32>, Vec<u8>);

#[derive(Deserialize)]
struct Results {
    chats: Vec<String>,
    texts: HashMap<String, Vec<Option<String>>>,
    /// By tokenizer and template, separated by a space: of each conversation.
    tokens: HashMap<String, Vec<Tokenized>>,
}

fn folder() -> PathBuf {
    std::env::var_os("FOREBAY_CHATS").map_or_else(|| fixtures().join("templates"), PathBuf::from)
}

fn json<T: serde::de::DeserializeOwned>(path: &Path) -> T {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn template(name: &str) -> Template {
    let stored: Stored = json(&folder().join(format!("{name}.json")));
    let date = NaiveDate::from_ymd_opt(2024, 7, 26);
    Template::compile(&stored.chat_template, stored.tokens, date).unwrap()
}

#[test]
fn texts_are_those_of_transformers() {
    let results: Results = json(&folder().join("results.json"));
    assert!(results.texts.len() >= 7);
    let mut rendered = Rendered::default();
    let (mut compared, mut different) = (0, Vec::new());
    for (name, texts) in &results.texts {
        let template = template(name);
        for (number, (chat, expected)) in results.chats.iter().zip(texts).enumerate() {
            let found = template.render(chat, number % 3 == 0, MOST, &mut rendered);
            let found = found.map(|()| rendered.text.clone());
            compared += 1;
            if found.as_ref().ok() != expected.as_ref() {
                different.push(format!(
                    "{name} {number}: {found:?}, and {expected:?} is expected, of {chat}"
                ));
            }
        }
    }
    assert!(different.is_empty(), "{} of {compared} differ; {}", different.len(), different[0]);
}

#[test]
fn tokens_and_masks_are_those_of_transformers() {
    let results: Results = json(&folder().join("results.json"));
    let options = Options::new(false, true, None);
    let (mut rendered, mut tokens) = (Rendered::default(), Tokens::default());
    for (names, expected) in &results.tokens {
        let (tokenizer, name) = names.split_once(' ').unwrap();
        let contents = std::fs::read(fixtures().join(format!("{tokenizer}.json"))).unwrap();
        let spelling = Spelling::from_json(&contents).unwrap();
        let tokenizer = Tokenizer::from_json(&contents).unwrap();
        let template = template(name);
        assert!(template.marks_generation());
        let mut spelled = 0;
        for (chat, (ids, mask)) in results.chats.iter().zip(expected) {
            template.render(chat, false, MOST, &mut rendered).unwrap();
            tokenizer.encode(&rendered.text, &options, &mut tokens).unwrap();
            assert_eq!(tokens.ids(), ids, "{names}: {chat}");
            spelling.normalize(&mut rendered.text, &mut rendered.said).unwrap();
            let mut found = Vec::new();
            let spells = spelling.spell(&rendered.text, tokens.ids(), |bytes| {
                let is_said =
                    |said: &Range<usize>| bytes.start < said.end && bytes.end > said.start;
                found.push(u8::from(rendered.said.iter().any(is_said)));
            });
            // An unknown token covers characters that its name does not contain.
            if spells.is_ok() {
                spelled += 1;
                assert_eq!(found, *mask, "{names}: {chat}");
            } else {
                assert!(names.contains("sentencepiece"), "{names}: {spells:?}");
            }
        }
        assert!(spelled > expected.len() / 2, "{names}: {spelled} of {}", expected.len());
    }
}

#[test]
fn tokens_of_a_configuration_are_names_in_the_template() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("tokenizer_config.json");
    let write = |template: &str| {
        let contents = format!(
            r#"{{"bos_token": {{"content": "<s>"}}, "eos_token": "</s>", "add_bos_token": true, "chat_template": {template}}}"#
        );
        std::fs::write(&config, contents).unwrap();
    };
    let text = |path: &Path| {
        let mut rendered = Rendered::default();
        Template::open(path, None)
            .unwrap()
            .render(r#"[{"role": "user"}]"#, true, MOST, &mut rendered)
            .unwrap();
        rendered.text
    };
    let source = "{{ bos_token }}{{ eos_token }}{{ messages[0].role }}{{ add_generation_prompt }}";
    write(&format!("{source:?}"));
    assert_eq!(text(&config), "<s></s>userTrue");
    write(&format!(
        r#"[{{"name": "tool_use", "template": ""}}, {{"name": "default", "template": {source:?}}}]"#
    ));
    assert_eq!(text(&config), "<s></s>userTrue");
    let jinja = folder.path().join("chat_template.jinja");
    std::fs::write(&jinja, source).unwrap();
    assert_eq!(text(&jinja), "<s></s>userTrue");
    write("null");
    let message = Template::open(&config, None).unwrap_err().to_string();
    assert!(message.contains("it has no `chat_template`"), "{message}");
    std::fs::write(&jinja, "a\n{% for %}").unwrap();
    let message = Template::open(&jinja, None).unwrap_err().to_string();
    assert!(message.contains("line 2 of the chat template"), "{message}");
}

fn refusal(source: &str, chat: &str) -> String {
    let template = Template::compile(source, Map::new(), None).unwrap();
    template.render(chat, false, MOST, &mut Rendered::default()).unwrap_err()
}

#[test]
fn hostile_templates_and_conversations_end_with_a_reason() {
    let long = "{% for a in range(10000) %}{% for b in range(10000) %}{% endfor %}{% endfor %}";
    assert!(refusal(long, "[]").contains("fuel"), "{}", refusal(long, "[]"));
    let large = "{% for a in range(900) %}{{ 'x' * 100 }}{% endfor %}";
    let template = Template::compile(large, Map::new(), None).unwrap();
    let error = template.render("[]", false, 1000, &mut Rendered::default()).unwrap_err();
    assert!(error.contains("more than 1000 bytes"), "{error}");
    // The memory of values is what steps pay for.
    for source in [
        "{{ ('x' * 100000000)|length }}",
        "{{ ([1] * 10000000)|list|length }}",
        "{% set a = 'x' * 100000 %}{{ ([a] * 1000)|tojson|length }}",
        "{% set a = 'x' * 100000 %}{{ [a] * 1000 }}",
    ] {
        let template = Template::compile(source, Map::new(), None).unwrap();
        let error = template.render("[]", false, MOST, &mut Rendered::default());
        let error = error.expect_err(source);
        assert!(error.contains("fuel") || error.contains("steps that are left"), "{error}");
    }
    let nested = "{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}";
    assert!(refusal(nested, "[]").contains("recursion"), "{}", refusal(nested, "[]"));
    assert_eq!(
        refusal("{{ raise_exception('No, \"thanks\"') }}", "[]"),
        "line 1 of the chat template: No, \"thanks\""
    );
    let included = Template::compile("{% include 'x' %}", Map::new(), None).unwrap_err();
    assert!(included.contains("unknown statement include"), "{included}");
    for (chat, reason) in [
        ("", "the conversation is not JSON"),
        ("7", "neither a list of messages nor an object"),
        ("{}", "neither a list of messages nor an object"),
        ("[\"\u{fdd0}\"]", "U+FDD0"),
        (r#"[{"role": "user", "content": "\ufdd0a\ufdd1"}]"#, "U+FDD0"),
        (r#"[{"\ufdd0": "a"}]"#, "U+FDD0"),
        (r#"[{"a": "\"1e", "b": [18446744073709551616]}]"#, "the integer 18446744073709551616"),
        ("[-9223372036854775809]", "the integer -9223372036854775809"),
    ] {
        assert!(refusal("", chat).contains(reason), "{chat}");
    }
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(refusal("", &deep).contains("not JSON"));
}

#[test]
fn integers_of_64_bits_are_printed_as_they_are() {
    let template = Template::compile("{{ messages }}", Map::new(), None).unwrap();
    let mut rendered = Rendered::default();
    let chat = r#"[18446744073709551615, -9223372036854775808, 1e2, 12345678901234567890.0, "99999999999999999999"]"#;
    template.render(chat, false, MOST, &mut rendered).unwrap();
    assert_eq!(
        rendered.text,
        "[18446744073709551615, -9223372036854775808, 100.0, 1.2345678901234567e+19, '99999999999999999999']"
    );
}

/// Turns of one letter take the most steps for their bytes; 32 thousand tokens are some 130 kB.
#[test]
fn long_conversations_are_rendered() {
    let results: Results = json(&folder().join("results.json"));
    let mut rendered = Rendered::default();
    for name in results.texts.keys() {
        for turns in [10, 1000, 10_000] {
            let turn = r#"{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}"#;
            let chat = format!("[{}]", vec![turn; turns / 2].join(", "));
            template(name).render(&chat, false, MOST, &mut rendered).unwrap();
            assert!(rendered.text.len() >= turns, "{name}");
        }
    }
    assert_eq!(Template::most_bytes(0), 4 << 20);
    assert_eq!(Template::most_bytes(1 << 40), 1_280_000_000);
}

#[test]
fn only_tags_of_templates_mark_what_the_model_says() {
    let marks =
        |source: &str| Template::compile(source, Map::new(), None).unwrap().marks_generation();
    assert!(marks("{%- generation +%}a{%+ endgeneration -%}"));
    assert!(marks("{# {% #}{ {% generation %}a{% endgeneration %}"));
    assert!(!marks("{# put {% generation %} here #}a"));
    assert!(!marks("{% raw %}{% generation %}{% endgeneration %}{% endraw %}"));
    assert!(Template::compile("\u{fdd0}", Map::new(), None).is_err());
}

#[test]
fn date_is_that_of_the_configuration() {
    let date = NaiveDate::from_ymd_opt(2024, 7, 26);
    let template = Template::compile("{{ strftime_now('%d %b %Y') }}", Map::new(), date).unwrap();
    assert!(template.asks_for_date());
    let mut rendered = Rendered::default();
    template.render("[]", false, MOST, &mut rendered).unwrap();
    assert_eq!(rendered.text, "26 Jul 2024");
    assert!(refusal("{{ strftime_now('%d') }}", "[]").contains("unknown"));
}
