//! Chunks of tokens for LitData's `TokensLoader` (LitGPT's data). The table of the items is followed by the tokens of
//! all items. The format `tokens` reads them; a row is LitData's block.

use forebay_protocol::tensor::DType;

use super::Index;
use forebay_columnar::{lit_dtype, lit_tensor_dtype};
use forebay_index::shard_paths::is_below;

/// LitData's name of the item loader.
pub(super) const LOADER: &str = "TokensLoader";

/// The chunks of a folder.
#[derive(Debug)]
pub(crate) struct TokenChunks {
    pub(crate) dtype: DType,
    /// In the order of the index.
    pub(crate) chunks: Vec<TokenChunk>,
}

/// The description of a chunk.
#[derive(Debug)]
pub(crate) struct TokenChunk {
    pub(crate) name: Vec<u8>,
    items: u64,
    tokens: u64,
}

impl TokenChunks {
    /// Parses an `index.json`; `None`: it does not describe chunks of LitData.
    ///
    /// # Errors
    /// The chunks cannot be read as tokens.
    pub(crate) fn parse(text: &[u8]) -> Result<Option<Self>, String> {
        let Ok(Index { chunks, config }) = serde_json::from_slice::<Index>(text) else {
            return Ok(None);
        };
        if config.item_loader.as_deref() != Some(LOADER) {
            let found = config.item_loader.as_deref().unwrap_or("PyTreeLoader");
            return Err(format!(
                "its chunks hold LitData's items of {found}, and tokens are those of {LOADER}; set dataset.format to \"litdata\""
            ));
        }
        if config.encryption.is_some_and(|encryption| !encryption.is_null()) {
            return Err("its chunks are encrypted; write them without".to_owned());
        }
        if let Some(codec) = config.compression {
            return Err(format!(
                "its chunks are compressed ({codec}), and tokens are read where they lie; write them without `compression`"
            ));
        }
        let form = config.data_format.first().map_or("", String::as_str);
        let (kind, code) = form.split_once(':').unwrap_or((form, ""));
        let code = code.parse().ok();
        let dtype = match kind {
            "no_header_tensor" => code.and_then(lit_tensor_dtype),
            "no_header_numpy" => code.and_then(lit_dtype),
            _ => None,
        };
        let dtype = dtype.filter(|_| config.data_format.len() == 1).ok_or_else(|| {
            format!(
                "its items are {:?}, and tokens are one array of integers of one dimension",
                config.data_format
            )
        })?;
        let chunks = chunks.into_iter().map(|chunk| {
            let (items, name) = (chunk.chunk_size, chunk.filename);
            let tokens = chunk.dim.ok_or_else(|| {
                format!("it does not say how many tokens (dim) the chunk {name:?} has")
            })?;
            if name.contains('/') || !is_below(&name) {
                return Err(format!("it names the chunk {name:?}, which is no file of its folder"));
            }
            Ok(TokenChunk { name: name.into_bytes(), items, tokens })
        });
        Ok(Some(Self { dtype, chunks: chunks.collect::<Result<_, String>>()? }))
    }
}

impl TokenChunk {
    /// Gives the offset of a chunk's tokens and their number, from its first bytes and its length.
    ///
    /// # Errors
    /// The chunk does not match its description.
    pub(crate) fn tokens(
        &self,
        head: &[u8],
        bytes: u64,
        dtype: DType,
    ) -> Result<(u64, u64), String> {
        let Self { items, tokens, .. } = self;
        let start = items.checked_add(2).and_then(|numbers| numbers.checked_mul(4));
        let all = tokens.checked_mul(dtype.size_bytes());
        let expected = start.zip(all).and_then(|(start, all)| start.checked_add(all));
        let found = head.first_chunk().map(|items| u64::from(u32::from_le_bytes(*items)));
        match start.filter(|_| expected == Some(bytes) && found == Some(*items) && *tokens > 0) {
            Some(start) => Ok((start, *tokens)),
            None => Err(format!(
                "it has {bytes} bytes and {} items, and by index.json {tokens} tokens of {} in {items} items: it is cut off, or \
                 index.json is another one's",
                found.unwrap_or(0),
                dtype.name()
            )),
        }
    }
}

/// For fuzzers: parses a description and checks its bytes as the bytes of its chunks.
pub(crate) fn read_for_fuzzing(bytes: &[u8]) {
    let Ok(Some(TokenChunks { dtype, chunks })) = TokenChunks::parse(bytes) else { return };
    for chunk in chunks {
        if let Ok((start, tokens)) = chunk.tokens(bytes, bytes.len() as u64, dtype) {
            assert_eq!(start + tokens * dtype.size_bytes(), bytes.len() as u64);
        }
    }
}
