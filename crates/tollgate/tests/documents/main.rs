//! The repository's documents: tags that resolve, links that lead somewhere, pages of bounded length.
//!
//! `bounds_doc.rs` in the program `all` checks `docs/bounds.md`.

#![allow(clippy::unwrap_used, clippy::arithmetic_side_effects, reason = "tests")]

mod links;
mod tags;
mod tree;
