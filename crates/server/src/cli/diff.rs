//! The difference of two texts, line by line.

#![expect(clippy::arithmetic_side_effects, reason = "numbers of lines of two texts in memory")]

/// The most lines for which the shortest difference is computed; longer texts are compared from both
/// ends only.
const MAX_LINES: usize = 4_000;

/// Lines that are only in `old` after `-`, and only in `new` after `+`; empty if nothing differs.
pub(super) fn diff(old: &str, new: &str) -> String {
    let (old, new): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    let same = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
    let (old, new) = (&old[same..], &new[same..]);
    let tail = old.iter().rev().zip(new.iter().rev()).take_while(|(a, b)| a == b).count();
    let (old, new) = (&old[..old.len() - tail], &new[..new.len() - tail]);
    let mut out = String::new();
    let (mut i, mut j) = (0_usize, 0_usize);
    if old.len() <= MAX_LINES && new.len() <= MAX_LINES {
        let common = lengths(old, new);
        while let (Some(a), Some(b)) = (old.get(i), new.get(j)) {
            if a == b {
                (i, j) = (i + 1, j + 1);
            } else if common[i + 1][j] >= common[i][j + 1] {
                line('-', a, &mut out);
                i += 1;
            } else {
                line('+', b, &mut out);
                j += 1;
            }
        }
    }
    old[i..].iter().for_each(|text| line('-', text, &mut out));
    new[j..].iter().for_each(|text| line('+', text, &mut out));
    out
}

fn line(sign: char, text: &str, out: &mut String) {
    out.extend([sign, ' ']);
    out.push_str(text);
    out.push('\n');
}

/// Lengths of the longest common subsequences, from every pair of places on.
fn lengths(old: &[&str], new: &[&str]) -> Vec<Vec<u16>> {
    let mut table = vec![vec![0_u16; new.len() + 1]; old.len() + 1];
    for (i, a) in old.iter().enumerate().rev() {
        for (j, b) in new.iter().enumerate().rev() {
            table[i][j] =
                if a == b { table[i + 1][j + 1] + 1 } else { table[i + 1][j].max(table[i][j + 1]) };
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_differs_is_shown() {
        assert_eq!(diff("a\nb\nc\n", "a\nb\nc\n"), "");
        assert_eq!(diff("a\nb\nc\nd\n", "a\nx\nc\ny\nd\n"), "- b\n+ x\n+ y\n");
        assert_eq!(diff("", "a\n"), "+ a\n");
        assert_eq!(diff("a\n", ""), "- a\n");
    }
}
