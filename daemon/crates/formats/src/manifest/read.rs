//! Reads manifests: finds each row's cells, checks them and adds them to the index.

use super::path_lists;
use super::paths::Paths;
use super::rules::FoundClasses;
use super::table::Table;
use super::tabular::RowsCallback;
use crate::columns::ColumnRule;
use crate::fields::{Form, Missing};
use crate::number_lists::ListForm;
use forebay_dataset::error::DatasetError;
use forebay_index::folder::select::Listed;
use forebay_index::row_index::{RowDraft, append_name};
use forebay_index::saved_index::Request;
use forebay_storage::version::FileStamp;

/// The number of rows between two progress reports.
const ROWS_PER_REPORT: u64 = 4096;

/// The state of reading all manifests.
pub(super) struct Reading<'a> {
    progress: RowsCallback<'a>,
    limit: Option<u64>,
    rules: &'a [ColumnRule],
    /// By rule.
    pub(super) found: Vec<FoundClasses>,
    /// Whether rows after the limit are read, because they may have other classes.
    finds: bool,
    pub(super) draft: RowDraft,
    pub(super) listed: Option<Listed<'a>>,
    pub(super) skipped: u64,
    /// By rule.
    pub(super) missing: Vec<u64>,
    /// By rule: the common form of its lists of numbers.
    pub(super) lists: Vec<Option<ListForm>>,
    /// By rule: the length of its longest list of paths.
    pub(super) longest_paths: Vec<Option<u64>>,
    rows: u64,
}

impl<'a> Reading<'a> {
    /// Starts without rows.
    ///
    /// # Errors
    /// A list of ids names a sample twice.
    pub(super) fn new(
        request: &'a Request<'_>,
        rules: &'a [ColumnRule],
        progress: RowsCallback<'a>,
    ) -> Result<Self, DatasetError> {
        let are_found =
            |rule: &ColumnRule| rule.classes().is_some_and(|classes| classes.are_sorted);
        Ok(Self {
            progress,
            limit: request.config.limit,
            rules,
            found: rules.iter().map(|_| FoundClasses::default()).collect(),
            finds: rules.iter().any(are_found),
            draft: RowDraft::new(rules.len(), [&request.identity, &request.digest], |cell| {
                cell.len() as u64
            }),
            listed: request.ids.as_ref().map(Listed::new).transpose()?,
            skipped: 0,
            missing: vec![0; rules.len()],
            lists: rules.iter().map(|rule| rule.list.clone()).collect(),
            longest_paths: rules.iter().map(|rule| rule.longest_paths).collect(),
            rows: 0,
        })
    }

    fn is_full(&self) -> bool {
        // With a list of ids, all of its names are searched.
        self.listed.is_none() && self.is_at_limit()
    }

    /// Whether further manifests would change nothing.
    pub(super) fn is_over(&self) -> bool {
        self.is_full() && !self.finds
    }

    /// The number of rows to read of the next manifest, if the limit determines it: no row is left out.
    pub(super) fn max_rows(&self) -> Option<u64> {
        let may_skip = self.rules.iter().any(|rule| rule.rule.missing == Missing::Skip);
        let left = self.limit?.saturating_sub(self.draft.samples());
        (self.listed.is_none() && !self.finds && !may_skip).then_some(left)
    }

    fn is_at_limit(&self) -> bool {
        self.limit.is_some_and(|limit| self.draft.samples() >= limit)
    }

    /// Reads the manifest `path`, and resolves its paths with `paths`.
    ///
    /// # Errors
    /// The manifest is damaged, lacks a requested column or contains a forbidden path, or the callback stops the scan.
    pub(super) fn read(
        &mut self,
        path: &[u8],
        stamp: FileStamp,
        mut table: Table<'_>,
        paths: &Paths<'_>,
    ) -> Result<(), DatasetError> {
        let columns = self.columns(&mut table)?;
        let before = self.rows;
        self.draft.begin(path, stamp);
        let mut was_there = vec![false; self.rules.len()];
        let mut resolved: Vec<Vec<u8>> = vec![Vec::new(); self.rules.len()];
        while table.next(false)? {
            self.rows += 1;
            if self.rows.is_multiple_of(ROWS_PER_REPORT)
                && (self.progress)(self.draft.samples()).is_break()
            {
                return Err(DatasetError::Cancelled);
            }
            if self.is_over() {
                break;
            }
            self.row(&table, &columns, paths, &mut resolved, &mut was_there, path)?;
        }
        // JSON has no header: a key that no row has is probably misspelled.
        let absent = |(_, there): &(&ColumnRule, &bool)| !**there;
        match self
            .rules
            .iter()
            .zip(&was_there)
            .find(absent)
            .filter(|_| table.has_nulls() && self.rows > before && !self.is_full())
        {
            Some((rule, _)) if rule.rule.missing == Missing::Error => Err(table.fault(format!(
                "no row has {} for dataset.fields.{}; check the name",
                rule.rule.from.join(" or "),
                rule.rule.name
            ))),
            _ => Ok(()),
        }
    }

    /// By rule, the indices of its columns.
    fn columns(&self, table: &mut Table<'_>) -> Result<Vec<Vec<usize>>, DatasetError> {
        let wanted: Vec<&str> =
            self.rules.iter().flat_map(|rule| &rule.rule.from).map(String::as_str).collect();
        let mut places = table.take_columns(&wanted).into_iter();
        let mut columns = Vec::new();
        for rule in self.rules {
            let found: Vec<usize> =
                rule.rule.from.iter().filter_map(|_| places.next().flatten()).collect();
            if found.is_empty() {
                return Err(table.fault(format!(
                    "the header has no column {} for dataset.fields.{}; it has {}",
                    rule.rule.from.join(" or "),
                    rule.rule.name,
                    table.columns().join(", ")
                )));
            }
            columns.push(found);
        }
        Ok(columns)
    }

    /// Adds one row.
    fn row(
        &mut self,
        table: &Table<'_>,
        columns: &[Vec<usize>],
        paths: &Paths<'_>,
        resolved: &mut [Vec<u8>],
        was_there: &mut [bool],
        manifest: &[u8],
    ) -> Result<(), DatasetError> {
        let mut cells: Vec<Option<&[u8]>> = Vec::with_capacity(self.rules.len());
        let mut lacks = false;
        let mut resolved = resolved.iter_mut();
        for (place, (rule, columns)) in self.rules.iter().zip(columns).enumerate() {
            // An empty CSV cell is an empty text; in other forms it is a missing value.
            let may_be_empty = rule.rule.form == Form::Text;
            let is_value = |cell: &&[u8]| !cell.is_empty() || may_be_empty;
            let mut values = columns
                .iter()
                .filter_map(|column| Some((*column, table.cell(*column).filter(is_value)?)));
            let found = values.next();
            was_there[place] |= found.is_some();
            lacks |= found.is_none() && rule.rule.missing == Missing::Skip;
            if let (Some((column, cell)), Some(classes)) = (found, rule.classes()) {
                let checked = match classes.are_sorted {
                    true => self.found[place].add(cell),
                    false if rule.labels.of(cell).is_some() => Ok(()),
                    false => {
                        Err(format!("is none of its classes: {:?}", String::from_utf8_lossy(cell)))
                    }
                };
                checked.map_err(|reason| table.fault_in(column, &reason))?;
            }
            let path = resolved.next();
            cells.push(match (found, path) {
                (Some((column, cell)), Some(path)) if rule.is_file() => {
                    let resolved = match rule.longest_paths {
                        Some(_) => path_lists::resolve(cell, table.is_list(column), paths, path),
                        None => paths.resolve(cell, path),
                    };
                    resolved.map_err(|reason| table.fault_in(column, &reason))?;
                    Some(path.as_slice())
                }
                (found, _) => found.map(|(_, cell)| cell),
            });
        }
        if lacks {
            self.skipped += 1;
            return Ok(());
        }
        let line = table.line() as u64;
        if let Some(listed) = &mut self.listed {
            let mut name = Vec::new();
            append_name(manifest, line, &mut name);
            if !listed.take(&name) {
                return Ok(());
            }
        }
        if self.is_at_limit() {
            return Ok(());
        }
        for (missing, cell) in self.missing.iter_mut().zip(&cells) {
            *missing += u64::from(cell.is_none());
        }
        for (list, cell) in self.lists.iter_mut().zip(&cells) {
            if let (Some(list), Some(cell)) = (list, cell) {
                // A list that does not fit is a bad sample.
                list.add(cell);
            }
        }
        for (longest, cell) in self.longest_paths.iter_mut().zip(&cells) {
            if let (Some(longest), Some(cell)) = (longest, cell) {
                *longest = (*longest).max(path_lists::paths_of(cell).count() as u64);
            }
        }
        self.draft.add(line, cells.into_iter());
        Ok(())
    }
}
