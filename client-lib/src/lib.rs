//! The Forebay client.
