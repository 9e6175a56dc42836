//! Parsers return an error for any bytes, and never panic (E50).
//!
//! Inputs are valid texts that were edited: bytes choose the text, and then where it is cut, repeated,
//! overwritten, or given words of its grammar. So most of them get past the first check of a parser.
//! `make test` makes some ten thousand of each; `make soak` (`TOLLGATE_SOAK`) a hundred times that, over
//! ten million in all. Under `cargo bolero` a fuzzer that sees coverage chooses the bytes.

#![expect(clippy::arithmetic_side_effects, reason = "places in texts of some hundred bytes")]

mod parsers;

use std::sync::atomic::{AtomicUsize, Ordering};

/// Inputs for each parser.
const INPUTS: usize = 20_000;

/// The longest script of edits.
const MAX_SCRIPT: usize = 96;

/// Separates the words of a grammar.
const BETWEEN: char = '~';

/// Runs `check` on edited texts. `words` are those of their grammar, with [`BETWEEN`] between them.
fn fuzz(texts: &[&[u8]], words: &str, check: impl Fn(&[u8]) + std::panic::RefUnwindSafe) {
    let words: Vec<&[u8]> = words.split(BETWEEN).map(str::as_bytes).collect();
    let soak = std::env::var("TOLLGATE_SOAK").ok().and_then(|text| text.parse().ok());
    let inputs = INPUTS * soak.unwrap_or(1_usize).max(1);
    let done = AtomicUsize::new(0);
    bolero::check!().with_iterations(inputs).with_max_len(MAX_SCRIPT).for_each(
        |script: &[u8]| {
            done.fetch_add(1, Ordering::Relaxed);
            check(&edited(texts, &words, script));
        },
    );
    println!("{} inputs", done.load(Ordering::Relaxed));
    assert!(done.load(Ordering::Relaxed) >= inputs, "as many as were meant");
}

/// The text that a script makes: its first byte chooses one, and each three bytes are an edit.
fn edited(texts: &[&[u8]], words: &[&[u8]], script: &[u8]) -> Vec<u8> {
    let Some((first, edits)) = script.split_first() else { return Vec::new() };
    let chosen = usize::from(*first) % (texts.len() + 1);
    // One choice is the script itself: bytes as they come.
    let Some(text) = texts.get(chosen) else { return edits.to_vec() };
    let mut text = text.to_vec();
    for [kind, at, with] in edits.as_chunks().0 {
        let place = usize::from(*at) * text.len() / 256;
        let end = place + usize::from(with & 15).min(text.len() - place);
        let word = words[usize::from(*with) % words.len()];
        match kind % 6 {
            0 => text.truncate(place),
            1 => drop(text.drain(place..end)),
            2 => text.insert(place, *with),
            3 => drop(text.splice(place..place, word.iter().copied())),
            4 => {
                let end = (place + word.len()).min(text.len());
                text.splice(place..end, word.iter().copied());
            }
            _ => {
                let again = text[place..end].repeat(2);
                text.splice(place..place, again);
            }
        }
    }
    text
}

#[test]
fn scripts_reach_what_they_are_meant_to() {
    let edit = |script: &[u8]| edited(&[b"abcdef"], &[b"XY"], script);
    assert_eq!(edit(&[0, 0, 128, 0]), b"abc");
    assert_eq!(edit(&[0, 1, 0, 2]), b"cdef");
    assert_eq!(edit(&[0, 2, 128, b'-']), b"abc-def");
    assert_eq!(edit(&[0, 3, 128, 0]), b"abcXYdef");
    assert_eq!(edit(&[0, 4, 128, 0]), b"abcXYf");
    assert_eq!(edit(&[0, 5, 0, 2]), b"abababcdef");
    assert_eq!(edit(&[1, 7, 8]), [7, 8]);
}
