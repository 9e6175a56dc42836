//! The repository in words: tags that resolve, links that lead somewhere, types that exist, pages of
//! bounded length, names and comments.
//!
//! `bounds_doc.rs` in the program `all` checks `docs/bounds.md`.

#![allow(clippy::unwrap_used, clippy::arithmetic_side_effects, reason = "tests")]

mod identifiers;
mod links;
mod tags;
mod tree;
mod words;
