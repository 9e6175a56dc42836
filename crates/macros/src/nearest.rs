//! Which word was meant.

/// The known word that is nearest to a written one, if it is near at all.
pub(crate) fn nearest<'k>(written: &str, known: &[&'k str]) -> Option<&'k str> {
    let distances = known.iter().map(|word| (distance(written, word), *word));
    let (distance, word) = distances.min_by_key(|(distance, _)| *distance)?;
    // A third of the letters may be wrong.
    let most = written.chars().count().max(word.len()).div_ceil(3);
    (distance <= most).then_some(word)
}

/// The edit distance: letters to add, drop or change to make one word of the other.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (at, letter) in one.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], at + 1);
        for (column, with) in other.iter().enumerate() {
            let changed = diagonal + usize::from(letter != *with);
            diagonal = row[column + 1];
            row[column + 1] = changed.min(row[column].min(diagonal) + 1);
        }
    }
    row.last().copied().unwrap_or_default()
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
