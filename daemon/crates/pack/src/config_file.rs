//! The configuration that reads a result: that of the source, with another `[dataset]`.

use std::path::{Path, PathBuf};

use forebay_config::{CacheConfig, Config, DatasetConfig, OutputConfig};
use forebay_dataset::FieldKind;
use forebay_keys::{Keys as _, Section, Value, toml_key};

use crate::Request;
use crate::error::PackError;
use crate::folder::Unfinished;
use crate::layout::TableOf;
use crate::verify::name_field;

/// The name of the file.
pub const CONFIG_FILE: &str = "forebay.toml";

/// The text of the file. Its path is its own folder, which may be moved.
pub(crate) fn text(request: &Request<'_>, table: &TableOf) -> Result<String, PackError> {
    let mut config = request.config.clone();
    config.dataset = dataset(request, table, String::new(), PathBuf::from("."))?;
    for (place, column) in table.columns.iter().enumerate() {
        if matches!(column.field.kind, FieldKind::RaggedArray { .. }) {
            set_ragged(&mut config.output, request, place, &column.field.name)?;
        }
    }
    let source = &request.config.source;
    Ok(format!(
        "# Made by `forebay pack` of {source:?}: the same, but for [dataset].\n{}",
        config.resolved_toml()
    ))
}

/// The dataset for verifying, whose fields are those of the file and the names.
pub(crate) fn for_verifying(
    request: &Request<'_>,
    table: &TableOf,
    folder: &Unfinished,
) -> Result<DatasetConfig, PackError> {
    let names = name_field(table).unwrap_or_default();
    let mut dataset = dataset(request, table, names, folder.path().to_owned())?;
    dataset.index = Some(folder.own().join("index"));
    Ok(dataset)
}

fn dataset(
    request: &Request<'_>,
    table: &TableOf,
    more_fields: String,
    path: PathBuf,
) -> Result<DatasetConfig, PackError> {
    let rules = table.columns.iter().map(|column| {
        let from = column.from.iter().map(|name| Value::String(name.clone()).to_toml());
        let from = from.collect::<Vec<_>>().join(", ");
        let from = if column.from.len() == 1 { from } else { format!("[{from}]") };
        format!(
            "{} = {{ from = {from}, {} }}\n",
            toml_key(&column.field.name),
            column.stored.rule()
        )
    });
    let format = request.layout.0.format();
    let text = format!(
        "batch.size = 1\nstage = [{{ name = \"copy\", operations = [] }}]\n[dataset]\nformat = \"{format}\"\npath = \"/\"\n[dataset.fields]\n{}{more_fields}",
        rules.collect::<String>()
    );
    let own = Config::from_text("packed", Path::new("/"), &text, &[])?.dataset.own;
    Ok(DatasetConfig {
        name: None,
        path,
        format: format.to_owned(),
        ids: None,
        condition: None,
        split: None,
        limit: None,
        index: None,
        own,
        storage: Section::default(),
        cache: CacheConfig::default(),
        object: None,
        ..request.config.dataset.clone()
    })
}

/// Says that the rows of a field differ in length: an archive does not.
fn set_ragged(
    output: &mut Vec<OutputConfig>,
    request: &Request<'_>,
    place: usize,
    name: &str,
) -> Result<(), PackError> {
    let max_bytes = request.source.dataset.max_row_bytes(place);
    match output.iter_mut().find(|output| output.field == name) {
        Some(output) => {
            output.ragged = true;
            output.max_bytes = output.max_bytes.or(max_bytes);
        }
        None => {
            let mut made = OutputConfig::read(&mut Section::default())?;
            (made.field, made.ragged, made.max_bytes) = (name.to_owned(), true, max_bytes);
            output.push(made);
        }
    }
    Ok(())
}
