//! Chat templates: a conversation becomes the text that its model was trained on.
//!
//! A template is a program in Jinja that comes with a model. It is rendered as `apply_chat_template` of Transformers does:
//! same switches of whitespace, same functions, Python's way of printing values. It has no access to files, other
//! templates or a clock, and a limit of steps and of output.
//!
//! `{% generation %}` marks what the model itself says. It becomes a filter that puts two characters around this part,
//! which no text may contain (they are no characters of Unicode) and which are taken out of the result.

use std::io::Read as _;
use std::ops::Range;
use std::path::{Path, PathBuf};

use chrono::NaiveDate;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, Value};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State};
use serde_json::{Map, Value as Json};

use crate::python;

/// Around what the model says.
const BEGIN: char = '\u{fdd0}';
const END: char = '\u{fdd1}';
/// The filter that puts them there.
const FILTER: &str = "forebay_generation";
/// The steps of one rendering: so many, and for each byte of the conversation. Published templates take less than two a byte
/// for turns of one letter, which are the shortest.
const STEPS: u64 = 64 << 10;
const STEPS_PER_BYTE: u64 = 8;
const MOST_STEPS: u64 = 20_000_000;
/// The memory that a step pays for, as the engine counts.
const BYTES_PER_STEP: u64 = 64;
/// The largest file of a template.
const MAX_FILE_BYTES: u64 = 16 << 20;
/// The deepest nesting of a template's calls.
const MAX_DEPTH: usize = 64;
const NAME: &str = "chat template";
/// Where a message may have its reasoning; the first of them is used.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// A template that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// The file cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file has no template, or one that cannot be compiled.
    #[error("{}: {reason}", path.display())]
    Contents {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}

/// The text of a conversation; kept from conversation to conversation for its memory.
#[derive(Debug, Default)]
pub struct Rendered {
    /// The text.
    pub text: String,
    /// Which bytes of it the model says, in order.
    pub said: Vec<Range<usize>>,
}

/// A compiled template, with the special tokens of its model. Shared by all threads.
#[derive(Debug)]
pub struct Template {
    environment: Environment<'static>,
    /// Special tokens, such as `bos_token`, that the template prints.
    tokens: Map<String, Json>,
    marks_generation: bool,
    asks_for_date: bool,
    digest: [u8; 32],
}

impl Template {
    /// Reads a template: a file of Jinja, or a `tokenizer_config.json` that contains it, with the special tokens of that
    /// file. For a file of Jinja they are those of a `tokenizer_config.json` beside it, if there is one. `date` is what
    /// `strftime_now` gives.
    ///
    /// # Errors
    /// The file cannot be read, has no template, or has one that does not compile.
    pub fn open(path: &Path, date: Option<NaiveDate>) -> Result<Self, TemplateError> {
        let contents = |reason: String| TemplateError::Contents { path: path.to_owned(), reason };
        let text = read(path)?;
        let is_config = path.extension().is_some_and(|extension| extension == "json");
        let (source, config) = if is_config {
            let config: Json =
                serde_json::from_str(&text).map_err(|error| contents(error.to_string()))?;
            (template_of(&config).map_err(contents)?.to_owned(), config)
        } else {
            let beside = path.with_file_name("tokenizer_config.json");
            let config = match read(&beside) {
                Ok(text) => serde_json::from_str(&text).map_err(|error| {
                    TemplateError::Contents { path: beside, reason: error.to_string() }
                })?,
                Err(TemplateError::Read { source, .. })
                    if source.kind() == std::io::ErrorKind::NotFound =>
                {
                    Json::Null
                }
                Err(error) => return Err(error),
            };
            (text, config)
        };
        Self::compile(&source, special_tokens(&config), date).map_err(contents)
    }

    /// Compiles a template.
    ///
    /// # Errors
    /// Where and why it does not compile.
    pub fn compile(
        source: &str,
        tokens: Map<String, Json>,
        date: Option<NaiveDate>,
    ) -> Result<Self, String> {
        if source.contains([BEGIN, END]) || has_mark(&Json::Object(tokens.clone())) {
            return Err("the template has U+FDD0 or U+FDD1, which are no characters".to_owned());
        }
        let mut digest = blake3::Hasher::new();
        digest.update(source.as_bytes());
        digest.update(Json::Object(tokens.clone()).to_string().as_bytes());
        let (source, marks_generation) = with_filter(source);
        let asks_for_date = source.contains("strftime_now");
        let mut environment = environment(date);
        environment
            .add_template_owned(NAME, source)
            .map_err(|error| format!("the chat template does not compile: {}", describe(&error)))?;
        let digest = *digest.finalize().as_bytes();
        Ok(Self { environment, tokens, marks_generation, asks_for_date, digest })
    }

    /// Whether the template marks what the model says.
    #[must_use]
    pub const fn marks_generation(&self) -> bool {
        self.marks_generation
    }

    /// Whether the template names `strftime_now`.
    #[must_use]
    pub const fn asks_for_date(&self) -> bool {
        self.asks_for_date
    }

    /// The digest of the template and of the special tokens that it prints.
    #[must_use]
    pub const fn digest(&self) -> &[u8; 32] {
        &self.digest
    }

    /// The most memory of the values that a template makes of a conversation of so many bytes.
    #[must_use]
    pub fn most_bytes(conversation: u64) -> u64 {
        steps(conversation) * BYTES_PER_STEP
    }

    /// The text of a conversation: JSON, either a list of messages or an object with `messages` and what else the
    /// template reads, such as `tools` and `documents`. The text has at most `most` bytes.
    ///
    /// # Errors
    /// It is not such JSON, the template refuses it, or the text is longer.
    pub fn render(
        &self,
        conversation: &str,
        adds_prompt: bool,
        most: usize,
        rendered: &mut Rendered,
    ) -> Result<(), String> {
        rendered.text.clear();
        rendered.said.clear();
        let read: Json = serde_json::from_str(conversation)
            .map_err(|error| format!("the conversation is not JSON: {error}"))?;
        if let Some(number) = large_integer(conversation) {
            return Err(format!(
                "the conversation has the integer {number}, which has more than 64 bits"
            ));
        }
        if has_mark(&read) {
            return Err("the conversation has U+FDD0 or U+FDD1, which are no characters".to_owned());
        }
        let mut names = self.tokens.clone();
        for name in ["tools", "documents"] {
            names.insert(name.to_owned(), Json::Null);
        }
        match read {
            messages @ Json::Array(_) => {
                names.insert("messages".to_owned(), messages);
            }
            Json::Object(of) if of.contains_key("messages") => names.extend(of),
            _ => {
                return Err(
                    "the conversation is neither a list of messages nor an object with `messages`"
                        .to_owned(),
                );
            }
        }
        names.insert("add_generation_prompt".to_owned(), adds_prompt.into());
        if let Some(Json::Array(messages)) = names.get_mut("messages") {
            messages.iter_mut().for_each(name_reasoning);
        }
        // A clone shares all but its limit.
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(steps(conversation.len() as u64)));
        let template = environment.get_template(NAME).map_err(|error| describe(&error))?;
        let mut written = Limited { bytes: Vec::new(), most };
        template
            .render_captured_to(Value::from(Serde(&names)), &mut written)
            .map_err(|error| describe(&error))?;
        let text = String::from_utf8(written.bytes).map_err(|error| error.to_string())?;
        take_marks(&text, rendered)
    }
}

/// The steps for a conversation of so many bytes.
fn steps(conversation: u64) -> u64 {
    conversation.saturating_mul(STEPS_PER_BYTE).saturating_add(STEPS).min(MOST_STEPS)
}

/// The longest text that a value may be written as: what the steps that are left pay for.
fn most_left(state: &State<'_, '_>) -> usize {
    let left = state.fuel_levels().map_or(0, |(_, left)| left);
    usize::try_from(left.saturating_mul(BYTES_PER_STEP)).unwrap_or(usize::MAX)
}

/// The text of a file.
fn read(path: &Path) -> Result<String, TemplateError> {
    let unread = |source| TemplateError::Read { path: path.to_owned(), source };
    let file = std::fs::File::open(path).map_err(unread)?;
    let mut text = String::new();
    file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text).map_err(unread)?;
    if text.len() as u64 > MAX_FILE_BYTES {
        let reason = format!("more than {} MiB is no chat template", MAX_FILE_BYTES >> 20);
        return Err(TemplateError::Contents { path: path.to_owned(), reason });
    }
    Ok(text)
}

/// The template of a `tokenizer_config.json`; of several the one called `default`.
fn template_of(config: &Json) -> Result<&str, String> {
    match config.get("chat_template") {
        Some(Json::String(source)) => Ok(source),
        Some(Json::Array(named)) => {
            let default =
                named.iter().find(|entry| entry.get("name").is_some_and(|name| name == "default"));
            default
                .and_then(|entry| entry.get("template")?.as_str())
                .ok_or_else(|| "none of its chat templates is called `default`".to_owned())
        }
        _ => Err("it has no `chat_template`; give the file of the template, `chat_template.jinja`"
            .to_owned()),
    }
}

/// The special tokens of a `tokenizer_config.json`: each a text, or an object with its text as `content`.
fn special_tokens(config: &Json) -> Map<String, Json> {
    let entries = config.as_object().into_iter().flatten();
    let tokens = entries.filter_map(|(name, value)| {
        let text = value.as_str().or_else(|| value.get("content")?.as_str())?;
        name.ends_with("_token").then(|| (name.clone(), Json::from(text)))
    });
    tokens.collect()
}

/// Whether a text within a value has a character that marks what the model says.
fn has_mark(value: &Json) -> bool {
    let is_marked = |text: &str| text.contains([BEGIN, END]);
    match value {
        Json::String(text) => is_marked(text),
        Json::Array(items) => items.iter().any(has_mark),
        Json::Object(entries) => {
            entries.iter().any(|(key, value)| is_marked(key) || has_mark(value))
        }
        _ => false,
    }
}

/// The first integer of valid JSON that its values would hold as a float, which is printed otherwise.
fn large_integer(json: &str) -> Option<&str> {
    let bytes = json.as_bytes();
    let (mut at, mut is_text) = (0, false);
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'\\' => at += 1,
            b'"' => is_text = !is_text,
            b'-' | b'0'..=b'9' if !is_text => {
                let is_part =
                    |byte: &&u8| matches!(byte, b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9');
                let number = &json[at..at + bytes[at..].iter().take_while(is_part).count()];
                let is_integer = !number.contains(['.', 'e', 'E']);
                if is_integer && number.parse::<u64>().is_err() && number.parse::<i64>().is_err() {
                    return Some(number);
                }
                at += number.len() - 1;
            }
            _ => {}
        }
        at += 1;
    }
    None
}

/// Gives a message's reasoning the names under which templates read it.
fn name_reasoning(message: &mut Json) {
    let Json::Object(message) = message else { return };
    let of = |name: &&str| message.get(*name).and_then(Json::as_str);
    let reasoning = REASONING.iter().find_map(of).map(Json::from);
    if let Some(reasoning) = reasoning {
        message.entry("thinking").or_insert_with(|| reasoning.clone());
        message.insert("reasoning_content".to_owned(), reasoning);
    }
}

/// The source with `{% generation %}` and `{% endgeneration %}` as a filter, and whether it has them. Comments and raw
/// parts stay as they are.
fn with_filter(source: &str) -> (String, bool) {
    let (mut out, mut rest, mut found, mut is_raw) =
        (String::with_capacity(source.len()), source, false, false);
    while let Some(start) = rest.find('{') {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        // `{%}` does not end itself.
        let end = match tag.as_bytes().get(1) {
            Some(b'#') if !is_raw => tag[2..].find("#}"),
            Some(b'%') => tag[2..].find("%}"),
            _ => None,
        };
        let Some(end) = end.map(|end| end + 2) else {
            out.push('{');
            rest = &tag[1..];
            continue;
        };
        let (whole, inside) = (&tag[..end + 2], &tag[2..end]);
        let is_tag = tag.starts_with("{%");
        let word = inside.trim_matches(['-', '+']).trim();
        let replaced = match word {
            "raw" | "endraw" if is_tag => {
                is_raw = word == "raw";
                None
            }
            "generation" if is_tag && !is_raw => Some(format!("filter {FILTER}")),
            "endgeneration" if is_tag && !is_raw => Some("endfilter".to_owned()),
            _ => None,
        };
        found |= replaced.is_some();
        match replaced {
            Some(words) => out.push_str(&whole.replacen(word, &words, 1)),
            None => out.push_str(whole),
        }
        rest = &tag[end + 2..];
    }
    out.push_str(rest);
    (out, found)
}

fn environment(date: Option<NaiveDate>) -> Environment<'static> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    if let Ok(syntax) = syntax {
        environment.set_syntax(syntax);
    }
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_recursion_limit(MAX_DEPTH);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.set_formatter(|out, state, value| {
        Ok(out.write_str(&python::printed(value, most_left(state))?)?)
    });
    environment.add_filter("tojson", |state: &State, value: &Value, options: Kwargs| {
        python::to_json(value, &options, most_left(state))
    });
    environment.add_filter(FILTER, |text: &str| format!("{BEGIN}{text}{END}"));
    environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
    if let Some(date) = date {
        environment.add_function("strftime_now", move |format: &str| strftime(date, format));
    }
    environment
}

/// The date in a form of `strftime`; midnight, where the form has a time.
fn strftime(date: NaiveDate, format: &str) -> Result<String, Error> {
    use std::fmt::Write as _;
    let mut out = String::new();
    write!(out, "{}", date.and_time(chrono::NaiveTime::MIN).format(format)).map_err(|_| {
        Error::new(ErrorKind::InvalidOperation, format!("`strftime_now` does not know {format:?}"))
    })?;
    Ok(out)
}

/// The error with its line, in one line.
fn describe(error: &Error) -> String {
    let what = match (error.kind(), std::error::Error::source(error)) {
        // The writer's reason.
        (ErrorKind::WriteFailure, Some(reason)) => reason.to_string(),
        (kind, _) => error.detail().map_or_else(|| kind.to_string(), ToOwned::to_owned),
    };
    match error.line() {
        Some(line) => format!("line {line} of the chat template: {what}"),
        None => what,
    }
}

/// Output up to a limit.
struct Limited {
    bytes: Vec<u8>,
    most: usize,
}

impl std::io::Write for &mut Limited {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.bytes.len() + bytes.len() > self.most {
            let message = format!("the text of the conversation has more than {} bytes", self.most);
            return Err(std::io::Error::other(message));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The text without marks, and what is between them.
fn take_marks(text: &str, rendered: &mut Rendered) -> Result<(), String> {
    let mut begun = None;
    let mut rest = text;
    while let Some(place) = rest.find([BEGIN, END]) {
        rendered.text.push_str(&rest[..place]);
        let mark = rest[place..].chars().next().unwrap_or(END);
        match (mark, begun) {
            (BEGIN, None) => begun = Some(rendered.text.len()),
            (END, Some(start)) => {
                rendered.said.push(start..rendered.text.len());
                begun = None;
            }
            _ => return Err("`{% generation %}` within `{% generation %}`".to_owned()),
        }
        rest = &rest[place + mark.len_utf8()..];
    }
    rendered.text.push_str(rest);
    Ok(())
}

#[cfg(test)]
#[path = "chat_tests.rs"]
mod tests;
