//! `[dataset.tokens]`: converts files of tokens to rows, and texts or lists of numbers of another format to such files.

use forebay_config::DatasetConfig;
use forebay_keys::{
    AtLeastOne, ByteSize, ConfigError, Keys, LocalPath, Section, Table, TokenName, Value, keys,
    words,
};
use forebay_protocol::tensor::DType;

use forebay_index::folder::scan::{FolderFormat, LooseFiles};

/// The format's name, and the extension to look for in a folder without a configuration.
pub(crate) const FORMAT: FolderFormat =
    FolderFormat { name: "tokens", extensions: &[".bin"], loose: LooseFiles::NoFolders };

/// The name of the table within `[dataset]`.
pub(crate) const TABLE: &str = "tokens";
/// The maximum row length: its last position must fit `cu_seqlens`, and its memory a batch.
const MAX_LENGTH: u64 = 1 << 24;
/// The default of `max_bytes`.
const MAX_TEXT_BYTES: u64 = 16 << 20;

words! {
    /// The contents of a row.
    pub(super) enum Cut {
        /// A fixed part of a file.
        Windows = "windows",
        /// A fixed part of the concatenated documents.
        Concatenate = "concatenate",
        /// Documents that fit a row together.
        Pack = "pack",
    }
}

words! {
    /// The contents of the field `labels`.
    pub(super) enum Labels {
        /// At each position, the next token.
        Shifted = "shifted",
        /// The tokens themselves.
        Same = "same",
        /// The field does not exist.
        None = "none",
    }
}

words! {
    /// A field with the boundaries of a row's documents.
    pub(super) enum Boundary {
        /// The start of each segment, then the row's length up to the end of the field.
        CuSeqlens = "cu_seqlens",
        /// Positions relative to the start of each segment.
        PositionIds = "position_ids",
        /// The number of each position's segment, starting at 1; 0 for padding.
        SegmentIds = "segment_ids",
    }
}

words! {
    /// What becomes of a text that cannot be made tokens.
    pub(crate) enum BadTexts {
        /// The dataset is not opened.
        Error = "error",
        /// It is left out.
        Skip = "skip",
    }
}

keys! {
    /// How files of tokens become rows, and texts such files.
    pub(crate) struct TokenKeys = "dataset.tokens", check check {
        /// how long each row is
        pub length: AtLeastOne, "tokens", default(2048);
        /// of texts in any format that has a field of text: the `tokenizer.json` with which they become tokens, once, in the
        /// cache; see [Texts](config-tokens.md#texts)
        pub tokenizer: LocalPath, "", absent("`format = \"tokens\"`: files of tokens");
        /// of texts, or of lists of token numbers without `tokenizer`: the field
        pub field: String, "", absent("the only text");
        /// of texts: whether the tokens that the tokenizer puts around a text are added
        pub add_special_tokens: bool, "", absent("true");
        /// of texts: whether the name of a special token within a text is this token; `false`: it is text
        pub parse_special_tokens: bool, "", absent("true");
        /// of texts and lists: one that cannot be made tokens is an error, or with `"skip"` left out, counted and named
        pub bad_texts: BadTexts, "", absent("`\"error\"`");
        /// of texts: a longer one cannot be made tokens
        pub max_bytes: ByteSize, "bytes", absent("16 MiB");
        /// the type of the tokens in raw `.bin` files; files with a header say their own
        pub dtype: DType, "", default(DType::U16);
        /// what a row is: a fixed part of a file, a fixed part of all documents one after the other, or documents that fit
        /// together; see [Tokens](config-tokens.md)
        pub cut: Cut, "", default(Cut::Windows);
        /// the token that ends each document: where `.bin` and `.npy` files are cut into documents; put after each text;
        /// it also fills what `pack` leaves free. A number, or with `tokenizer` also a name
        pub end: TokenName, "", absent("none: 0 fills what `pack` leaves free");
        /// the field `labels`: the next token at each position, the tokens themselves (for models that shift them), or no
        /// such field
        pub labels: Labels, "", default(Labels::Shifted);
        /// fields that say where a row's documents end: `cu_seqlens`, `position_ids`, `segment_ids`
        pub boundaries: Vec<Boundary>, "", default(Vec::new());
    }
}

fn check(keys: &mut TokenKeys, section: &Section) -> Result<(), ConfigError> {
    let fail = |key, message: String| Err(section.error_at(key, message));
    if keys.length > MAX_LENGTH {
        let message = format!("`{}` must be at most {MAX_LENGTH}", section.key_path("length"));
        return fail("length", message);
    }
    if !is_integer(keys.dtype) {
        let message = format!(
            "`{}` must be an integer type such as `uint16` or `uint32`, not `{}`",
            section.key_path("dtype"),
            keys.dtype.name()
        );
        return fail("dtype", message);
    }
    let names = keys.boundaries.iter();
    if let Some(twice) = names
        .enumerate()
        .find_map(|(place, name)| keys.boundaries[..place].contains(name).then_some(name))
    {
        let message =
            format!("`{}` names `{}` twice", section.key_path("boundaries"), twice.word());
        return fail("boundaries", message);
    }
    if keys.cut == Cut::Windows && !keys.boundaries.is_empty() && keys.end.is_none() {
        let message = format!(
            "`{}` in windows are where the token `{}` is; set it, or leave them out",
            section.key_path("boundaries"),
            section.key_path("end")
        );
        return fail("boundaries", message);
    }
    if let (Some(TokenName::Name(name)), None) = (&keys.end, &keys.tokenizer) {
        let message = format!(
            "`{}` must be a number without `{}`, not {name:?}",
            section.key_path("end"),
            section.key_path("tokenizer")
        );
        return fail("end", message);
    }
    let of_texts = ["add_special_tokens", "parse_special_tokens", "max_bytes"];
    let stray = of_texts.into_iter().find(|key| section.location_of(key).is_some());
    if let (Some(key), None) = (stray, &keys.tokenizer) {
        let message = format!(
            "`{}` has no effect without `{}`; leave it out",
            section.key_path(key),
            section.key_path("tokenizer")
        );
        return fail(key, message);
    }
    Ok(())
}

/// Whether a type is valid for tokens.
pub(crate) const fn is_integer(dtype: DType) -> bool {
    !matches!(dtype, DType::F16 | DType::BF16 | DType::F32 | DType::F64 | DType::Bool)
}

impl TokenKeys {
    /// Reads the keys from a configuration.
    ///
    /// # Errors
    /// An unknown key, or a value of the wrong type.
    pub(super) fn of(config: &DatasetConfig) -> Result<Self, ConfigError> {
        Ok(OwnKeys::read(&mut config.own.clone())?.0)
    }

    /// The number of the token that ends each document.
    pub(crate) const fn end_id(&self) -> Option<u32> {
        match &self.end {
            Some(TokenName::Id(id)) => Some(*id),
            // A name has been replaced by its number, or was refused.
            Some(TokenName::Name(_)) | None => None,
        }
    }

    /// Whether an unusable text is left out.
    pub(crate) fn skips_bad(&self) -> bool {
        self.bad_texts == Some(BadTexts::Skip)
    }

    /// The most bytes of a text.
    pub(crate) fn most_text_bytes(&self) -> u64 {
        self.max_bytes.unwrap_or(MAX_TEXT_BYTES)
    }

    /// Whether the tokens are made of another format's samples.
    pub(crate) const fn are_made(&self) -> bool {
        self.tokenizer.is_some() || self.field.is_some()
    }

    /// The keys as `[dataset.tokens]` in a section of `[dataset]`.
    pub(crate) fn to_value(&self) -> Value {
        let entries = self.entries().into_iter();
        Value::Table(entries.map(|(key, value)| (key.to_owned(), value.into())).collect())
    }

    /// Adds everything that determines the contents of rows.
    pub(super) fn digest(&self, hasher: &mut blake3::Hasher, dtype: DType) {
        let end = self.end_id().map_or(u64::MAX, u64::from);
        for number in [self.length, end, self.boundaries.len() as u64] {
            hasher.update(&number.to_le_bytes());
        }
        let boundaries = self.boundaries.iter().map(|boundary| boundary.word());
        let words = [dtype.name(), self.cut.word(), self.labels.word()].into_iter();
        for word in words.chain(boundaries) {
            hasher.update(word.as_bytes());
            hasher.update(b"\0");
        }
    }

    /// Whether labels need the token after the row.
    pub(super) fn looks_ahead(&self) -> bool {
        self.labels == Labels::Shifted
    }

    /// Whether the documents of a row are distinguished.
    pub(super) fn has_segments(&self) -> bool {
        self.cut == Cut::Pack || !self.boundaries.is_empty()
    }
}

/// The format's keys of `[dataset]`: only the table.
#[derive(Debug)]
pub(crate) struct OwnKeys(TokenKeys);

impl Keys for OwnKeys {
    const TABLE: Table = TokenKeys::TABLE;

    fn take(section: &mut Section) -> Result<Self, ConfigError> {
        let mut section = section.take_section(TABLE)?;
        let keys = TokenKeys::read(&mut section)?;
        match ["tokenizer", "field", "bad_texts"].into_iter().find(|key| section.location_of(key).is_some()) {
            Some(key) => Err(section.error_at(key, format!(
                "`{}` is of tokens that are made of the samples of another format, and these files are tokens already; leave it out, or \
                 set `dataset.format` to that of the texts, such as \"parquet\"",
                section.key_path(key)
            ))),
            None => Ok(Self(keys)),
        }
    }

    fn entries(&self) -> Vec<(&'static str, Value)> {
        vec![(TABLE, self.0.to_value())]
    }

    fn check(&mut self, _section: &Section) -> Result<(), ConfigError> {
        Ok(())
    }
}
