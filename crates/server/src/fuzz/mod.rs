//! Whatever bytes come in, the parsers say what is wrong and go on (E50).
//!
//! Inputs are valid texts that were edited: bytes say which text, and then where it is cut, repeated,
//! overwritten, or given words of its grammar. So most of them get past the first check of a parser.
//! `make test` makes some ten thousand of each; `make soak` (`TOLLGATE_SOAK`) a hundred times that, over
//! ten million in all. Under `cargo bolero` a fuzzer that sees coverage chooses the bytes.

mod parsers;

use std::sync::atomic::{AtomicUsize, Ordering};

/// Inputs for each parser.
const INPUTS: usize = 20_000;

/// The longest script of edits.
const MAX_SCRIPT: usize = 96;

/// Runs `check` on edited texts.
fn fuzz(texts: &[&[u8]], words: &[&[u8]], check: impl Fn(&[u8]) + std::panic::RefUnwindSafe) {
    let soak = std::env::var("TOLLGATE_SOAK").ok().and_then(|text| text.parse().ok());
    let inputs = INPUTS.saturating_mul(soak.unwrap_or(1_usize).max(1));
    let done = AtomicUsize::new(0);
    bolero::check!().with_iterations(inputs).with_max_len(MAX_SCRIPT).for_each(
        |script: &[u8]| {
            done.fetch_add(1, Ordering::Relaxed);
            check(&edited(texts, words, script));
        },
    );
    println!("{} inputs", done.load(Ordering::Relaxed));
    assert!(done.load(Ordering::Relaxed) >= inputs, "as many as were meant");
}

/// The text that a script makes: its first byte chooses one, and each three bytes are an edit.
fn edited(texts: &[&[u8]], words: &[&[u8]], script: &[u8]) -> Vec<u8> {
    let Some((first, edits)) = script.split_first() else { return Vec::new() };
    let chosen = usize::from(*first).checked_rem(texts.len().saturating_add(1)).unwrap_or(0);
    // One choice is the script itself: bytes as they come.
    let Some(text) = texts.get(chosen) else { return edits.to_vec() };
    let mut text = text.to_vec();
    for edit in edits.chunks_exact(3) {
        let &[kind, at, with] = edit else { continue };
        let place = usize::from(at).saturating_mul(text.len()).checked_div(256).unwrap_or(0);
        let length = usize::from(with & 15).min(text.len().saturating_sub(place));
        let end = place.saturating_add(length);
        match kind % 6 {
            0 => text.truncate(place),
            1 => drop(text.drain(place..end)),
            2 => text.insert(place, with),
            3 => {
                let word = words.get(usize::from(with).checked_rem(words.len()).unwrap_or(0));
                text.splice(place..place, word.copied().unwrap_or_default().iter().copied());
            }
            4 => {
                let word = words.get(usize::from(with).checked_rem(words.len()).unwrap_or(0));
                let word = word.copied().unwrap_or_default();
                let end = place.saturating_add(word.len()).min(text.len());
                text.splice(place..end, word.iter().copied());
            }
            _ => {
                let again = text.get(place..end).unwrap_or_default().repeat(2);
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
    assert_eq!(
        edit(&[0, 5, 0, 2]),
        b"ababab".to_vec().into_iter().chain(*b"cdef").collect::<Vec<_>>()
    );
    assert_eq!(edit(&[1, 7, 8]), [7, 8]);
}
