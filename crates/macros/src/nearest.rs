//! Finds the known word that resembles a misspelled one.

use tollgate_core::rule::edit_distance;

/// The known word nearest to a written one, if one is near enough.
pub(crate) fn nearest<'k>(written: &str, known: &[&'k str]) -> Option<&'k str> {
    let distances = known.iter().map(|word| (edit_distance(written, word), *word));
    let (distance, word) = distances.min_by_key(|(distance, _)| *distance)?;
    // A third of the letters may be wrong.
    let most = written.chars().count().max(word.len()).div_ceil(3);
    (distance <= most).then_some(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_finds_its_word_and_another_word_finds_none() {
        let known = ["by", "rule", "message", "limiter"];
        assert_eq!(nearest("mesage", &known), Some("message"));
        assert_eq!(nearest("limter", &known), Some("limiter"));
        assert_eq!(nearest("bye", &known), Some("by"));
        assert_eq!(nearest("window", &known), None);
        assert_eq!(nearest("", &known), None);
    }
}
