//! Hostile and unusual headers.
