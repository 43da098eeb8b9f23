//! Entry points for fuzzers: texts, tokenizers and conversations from strangers.

use std::sync::LazyLock;

use serde_json::Map;

use crate::{Options, Rendered, Spelling, Template, Tokenizer, Tokens};

/// The tokenizers of the tests, one of each kind of model.
static TOKENIZERS: LazyLock<Vec<(Tokenizer, Option<Spelling>)>> = LazyLock::new(|| {
    let files: [&[u8]; 5] = [
        include_bytes!("../fixtures/byte-level.json"),
        include_bytes!("../fixtures/sentencepiece.json"),
        include_bytes!("../fixtures/word-piece.json"),
        include_bytes!("../fixtures/unigram.json"),
        include_bytes!("../fixtures/clip.json"),
    ];
    let open =
        |file: &&[u8]| Some((Tokenizer::from_json(file).ok()?, Spelling::from_json(file).ok()));
    files.iter().filter_map(open).collect()
});

/// A text, by each tokenizer: the ids do not depend on what came before, and their number is bounded.
///
/// # Panics
/// A second time gives other ids, or there are too many.
pub fn text(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let (mut tokens, mut again) = (Tokens::default(), Tokens::default());
    for (tokenizer, spelling) in TOKENIZERS.iter() {
        for options in [Options::new(true, true, None), Options::new(false, false, None)] {
            if tokenizer.encode(&text, &options, &mut tokens).is_err() {
                continue;
            }
            assert!(tokens.ids().len() <= 11 * text.len() + 8);
            let is_same = tokenizer.encode(&text, &options, &mut again).is_ok();
            assert!(is_same && tokens.ids() == again.ids());
        }
        let Some(spelling) = spelling else { continue };
        let mut normal = text.clone().into_owned();
        if spelling.normalize(&mut normal, &mut []).is_ok() {
            let mut end = 0;
            let spelled = spelling.spell(&normal, tokens.ids(), |bytes| end = bytes.end);
            assert!(spelled.is_err() || end <= normal.len() + 1);
        }
    }
}

/// The contents of a `tokenizer.json`.
pub fn tokenizer(bytes: &[u8]) {
    if let Ok(tokenizer) = Tokenizer::from_json(bytes) {
        let _ = tokenizer.encode(
            "a text, 12 中 <s>",
            &Options::new(true, true, None),
            &mut Tokens::default(),
        );
    }
    let _ = Spelling::from_json(bytes);
}

/// A chat template, a zero byte, and a conversation.
pub fn conversation(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let (template, conversation) = text.split_once('\0').unwrap_or((&text, "[]"));
    let Ok(template) = Template::compile(template, Map::new(), None) else { return };
    let mut rendered = Rendered::default();
    if template.render(conversation, false, 1 << 20, &mut rendered).is_ok() {
        assert!(rendered.said.iter().all(|part| rendered.text.get(part.clone()).is_some()));
    }
}
