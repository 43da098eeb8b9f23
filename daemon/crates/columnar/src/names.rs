//! Limits on the names of a file's columns. A header of a few kilobytes can name a long struct around thousands of
//! columns, each of which repeats the struct's name.

/// The maximum number of columns of an Arrow or Parquet file.
pub(crate) const MAX_COLUMNS: u64 = 1 << 16;
/// The maximum length of a column's dotted name, including the enclosing structs.
const MAX_NAME_BYTES: u64 = 64 << 10;
/// The maximum length of all columns' names together.
const MAX_NAMES_BYTES: u64 = 16 << 20;

/// The lengths of a file's names, summed before any is copied.
#[derive(Debug, Default)]
pub(crate) struct NameSizes {
    columns: u64,
    all: u64,
}

impl NameSizes {
    /// The length of a name in a struct whose own name has `above` bytes; 0: not in a struct.
    pub(crate) fn below(above: u64, name: &str) -> u64 {
        above.saturating_add(u64::from(above > 0)).saturating_add(name.len() as u64)
    }

    /// Counts a column's name.
    ///
    /// # Errors
    /// It exceeds the maximum.
    pub(crate) fn add(&mut self, bytes: u64) -> Result<(), String> {
        if bytes > MAX_NAME_BYTES {
            return Err(format!(
                "a column's name, with those of the structs around it, has {bytes} bytes, and at most {MAX_NAME_BYTES} are read"
            ));
        }
        self.columns += 1;
        self.all = self.all.saturating_add(bytes);
        Ok(())
    }

    /// # Errors
    /// There are too many columns, or their names are too long in total.
    pub(crate) fn check(&self) -> Result<(), String> {
        let Self { columns, all } = *self;
        if columns > MAX_COLUMNS {
            return Err(format!("it has {columns} columns, and at most {MAX_COLUMNS} are read"));
        }
        if all > MAX_NAMES_BYTES {
            return Err(format!(
                "the names of its {columns} columns have {all} bytes, and at most {MAX_NAMES_BYTES} are read"
            ));
        }
        Ok(())
    }
}
