//! The difference of two texts, line by line.

#![expect(clippy::arithmetic_side_effects, reason = "numbers of lines of two texts in memory")]

/// The most lines of which a least difference is looked for; longer texts are compared from both
/// ends only.
const MAX_LINES: usize = 4_000;

/// Lines that are only in `old` after `-`, only in `new` after `+`, with what is equal around them
/// left out; empty if nothing differs.
pub(super) fn diff(old: &str, new: &str) -> String {
    let (old, new): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    let same = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
    let (old, new) = (old.get(same..).unwrap_or_default(), new.get(same..).unwrap_or_default());
    let tail = old.iter().rev().zip(new.iter().rev()).take_while(|(a, b)| a == b).count();
    let old = old.get(..old.len().saturating_sub(tail)).unwrap_or_default();
    let new = new.get(..new.len().saturating_sub(tail)).unwrap_or_default();
    let mut out = String::new();
    let (mut i, mut j) = (0_usize, 0_usize);
    if old.len() <= MAX_LINES && new.len() <= MAX_LINES {
        let common = lengths(old, new);
        let at =
            |i: usize, j: usize| common.get(i).and_then(|row| row.get(j)).copied().unwrap_or(0);
        while let (Some(a), Some(b)) = (old.get(i), new.get(j)) {
            let (down, right) = (i + 1, j + 1);
            if a == b {
                (i, j) = (down, right);
            } else if at(down, j) >= at(i, right) {
                line('-', a, &mut out);
                i = down;
            } else {
                line('+', b, &mut out);
                j = right;
            }
        }
    }
    old.iter().skip(i).for_each(|text| line('-', text, &mut out));
    new.iter().skip(j).for_each(|text| line('+', text, &mut out));
    out
}

fn line(sign: char, text: &str, out: &mut String) {
    out.push(sign);
    out.push(' ');
    out.push_str(text);
    out.push('\n');
}

/// Lengths of the longest common subsequences, from every pair of places on.
fn lengths(old: &[&str], new: &[&str]) -> Vec<Vec<u16>> {
    let width = new.len().saturating_add(1);
    let mut table = vec![vec![0_u16; width]; old.len().saturating_add(1)];
    for (i, a) in old.iter().enumerate().rev() {
        let below = table.get(i + 1).cloned().unwrap_or_default();
        let Some(row) = table.get_mut(i) else { continue };
        let mut right = 0_u16;
        for (j, b) in new.iter().enumerate().rev() {
            let at = |j: usize| below.get(j).copied().unwrap_or(0);
            let length = if a == b { at(j + 1) + 1 } else { at(j).max(right) };
            if let Some(cell) = row.get_mut(j) {
                *cell = length;
            }
            right = length;
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
