//! Selections of datasets.
