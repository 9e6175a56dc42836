//! Ten thousand files, broken in every way: an error with a place, or a set that round-trips.

use tollgate::rules::{self, Format, Problems};
use tollgate_core::testing::Rng;

use crate::generate::{Texts, declaration};
use crate::round_trip::FORMATS;

/// The number of files; `TOLLGATE_SOAK` multiplies it.
fn files() -> u64 {
    let soak = std::env::var("TOLLGATE_SOAK").map_or(1, |times| times.parse().unwrap());
    10_000 * soak
}

#[test]
fn a_broken_file_has_a_place_or_round_trips() {
    let (mut read, mut loaded) = (0, 0);
    let files = files();
    for seed in 0..files {
        let mut rng = Rng::new(seed);
        let texts = rng.pick(&[Texts::Realistic, Texts::Arbitrary]);
        let format = rng.pick(&FORMATS);
        let mut text = rules::write(&declaration(&mut rng, texts), format);
        for _ in 0..=rng.below(3) {
            text = broken(&mut rng, &text);
        }
        match rules::read(&text, format) {
            Err(problems) => assert_places(&problems, &text, seed),
            Ok(declared) => {
                read += 1;
                let again = rules::write(&declared, format);
                assert_eq!(rules::read(&again, format), Ok(declared), "seed {seed}:\n{text}");
                match rules::load(&text, format) {
                    Err(problems) => assert_places(&problems, &text, seed),
                    Ok(_) => loaded += 1,
                }
            }
        }
    }
    // Files that are all refused, or all fine, would test only half of the promise.
    assert!(read > files / 20 && read < files - files / 10, "{read} of {files} were read");
    assert!(loaded > files / 50, "{loaded} of {files} were loaded");
}

fn assert_places(problems: &Problems, text: &str, seed: u64) {
    assert!(problems.iter().len() > 0, "seed {seed}: an error without a problem");
    assert!(problems.iter().len() <= Problems::MAX, "seed {seed}");
    // Formats differ in what ends a line: TOML and JSON know `\\n`, YAML `\\r` as well.
    let lines = text.matches(['\n', '\r']).count() + 1;
    for problem in problems {
        let line = usize::try_from(problem.line()).unwrap();
        assert!((1..=lines + 1).contains(&line), "seed {seed}: {problem} in {lines} lines\n{text}");
        let column = usize::try_from(problem.column()).unwrap();
        assert!((1..=text.len() + 2).contains(&column), "seed {seed}: {problem}\n{text}");
        assert!(!problem.message().is_empty() && problem.to_string().len() < 1_500, "{problem}");
        assert!(!problem.to_string().contains('\n'), "seed {seed}: {problem:?}");
    }
}

/// The text with one thing changed.
fn broken(rng: &mut Rng, text: &str) -> String {
    match rng.below(12) {
        0 => flipped(rng, text),
        1 => text[..boundary(rng, text)].to_owned(),
        2 => without_lines(rng, text),
        3 => with_line_twice(rng, text),
        4 => {
            let value = odd_value(rng);
            inserted(rng, text, &value)
        }
        5 => swapped(rng, text),
        6 => deleted(rng, text),
        7 => {
            let depth = usize::try_from(rng.magnitude(20_000)).unwrap();
            let open = rng.pick(&["[", "{", "- ", "{\"a\":", "[{a: ", "? "]);
            inserted(rng, text, &open.repeat(depth))
        }
        8 => {
            let letters: String = (0..rng.below(6))
                .filter_map(|_| char::from_u32(u32::try_from(rng.magnitude(0x10_ffff)).unwrap()))
                .collect();
            inserted(rng, text, &letters)
        }
        9 => renamed(rng, text),
        10 => {
            let mark = rng.pick(&[
                "&a ",
                "*a",
                "!!int ",
                "---\n",
                "...\n",
                "<<: ",
                "# ",
                "\"",
                "'",
                "|\n",
                ">\n",
                "%YAML 1.1\n",
            ]);
            inserted(rng, text, mark)
        }
        _ => with_value_replaced(rng, text),
    }
}

fn boundary(rng: &mut Rng, text: &str) -> usize {
    let mut at = usize::try_from(rng.below(text.len() as u64 + 1)).unwrap();
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

/// One bit of one byte, if that leaves UTF-8.
fn flipped(rng: &mut Rng, text: &str) -> String {
    let mut bytes = text.as_bytes().to_vec();
    if bytes.is_empty() {
        return String::new();
    }
    let at = usize::try_from(rng.below(bytes.len() as u64)).unwrap();
    bytes[at] ^= 1 << rng.below(8);
    match rules::decode(&bytes) {
        Ok(text) => text.to_owned(),
        Err(problems) => {
            assert_places(&problems, text, 0);
            String::from_utf8_lossy(&bytes).into_owned()
        }
    }
}

fn lines(rng: &mut Rng, text: &str) -> (Vec<String>, usize) {
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let at = usize::try_from(rng.below(lines.len() as u64)).unwrap();
    (lines, at)
}

fn without_lines(rng: &mut Rng, text: &str) -> String {
    let (mut lines, at) = lines(rng, text);
    let count = usize::try_from(rng.within(1, 3)).unwrap();
    let end = (at + count).min(lines.len());
    lines.drain(at..end);
    lines.join("\n")
}

fn with_line_twice(rng: &mut Rng, text: &str) -> String {
    let (mut lines, at) = lines(rng, text);
    if let Some(line) = lines.get(at).cloned() {
        lines.insert(at, line);
    }
    lines.join("\n")
}

fn inserted(rng: &mut Rng, text: &str, what: &str) -> String {
    let (before, after) = text.split_at(boundary(rng, text));
    format!("{before}{what}{after}")
}

fn deleted(rng: &mut Rng, text: &str) -> String {
    let (mut from, mut to) = (boundary(rng, text), boundary(rng, text));
    if from > to {
        (from, to) = (to, from);
    }
    to = to.min(from + 20);
    while !text.is_char_boundary(to) {
        to += 1;
    }
    format!("{}{}", &text[..from], &text[to..])
}

/// Two stretches of the text in each other's place.
fn swapped(rng: &mut Rng, text: &str) -> String {
    let mut cuts = [boundary(rng, text), boundary(rng, text), boundary(rng, text)];
    cuts.sort_unstable();
    let [a, b, c] = cuts;
    format!("{}{}{}{}", &text[..a], &text[b..c], &text[a..b], &text[c..])
}

/// Another word for one of the fields.
fn renamed(rng: &mut Rng, text: &str) -> String {
    let field =
        rng.pick(&["name", "limits", "rules", "count", "per", "version", "domain", "match"]);
    let other = rng.pick(&["Name", "limit", "rules", "count", "per", "", "x", "on-outage", "null"]);
    text.replacen(field, other, 1)
}

/// Another value behind one of the colons or equal signs.
fn with_value_replaced(rng: &mut Rng, text: &str) -> String {
    let places: Vec<usize> = text.match_indices([':', '=']).map(|(at, _)| at + 1).collect();
    if places.is_empty() {
        return odd_value(rng);
    }
    let at = rng.pick(&places);
    let rest = &text[at..];
    let end = rest.find(['\n', ',', '}', ']']).unwrap_or(rest.len());
    format!("{} {}{}", &text[..at], odd_value(rng), &rest[end..])
}

fn odd_value(rng: &mut Rng) -> String {
    let digits = usize::try_from(rng.magnitude(400)).unwrap();
    match rng.below(6) {
        0 => "9".repeat(digits + 1),
        1 => format!("-{}", "1".repeat(digits)),
        _ => rng
            .pick(&[
                "null",
                "~",
                "true",
                "off",
                "0",
                "-0",
                "-1",
                "1e400",
                "1.5",
                "NaN",
                ".nan",
                "inf",
                "9223372036854775808",
                "18446744073709551616",
                "0x10",
                "0o7",
                "007",
                "+1",
                "1_000",
                "[]",
                "{}",
                "[[]]",
                "[{}]",
                "{\"a\": 1}",
                "\"\"",
                "''",
                "\"5 per 1m\"",
                "5 per 1m",
                "0 per 1m",
                "\"*\"",
                "[\"*\"]",
                "1979-05-27",
                "\"\\u0000\"",
                "\"\\ud800\"",
                "\t",
                "\u{feff}",
                "10.0.0.1/8",
                "\"10.0.0.0/33\"",
                "{ absent: false }",
                "{ text: a, prefix: b }",
            ])
            .to_owned(),
    }
}

#[test]
fn nesting_ends_at_a_bound_in_every_format() {
    for (format, open, close) in [
        (Format::Json, "[", "]"),
        (Format::Json, "{\"a\":", "}"),
        (Format::Yaml, "[", "]"),
        (Format::Yaml, "{a: ", "}"),
        (Format::Yaml, "- ", ""),
        (Format::Yaml, "? ", ""),
        (Format::Toml, "[", "]"),
        (Format::Toml, "{a=", "}"),
    ] {
        let prefix = if format == Format::Toml { "a=" } else { "" };
        let text = format!("{prefix}{}1{}", open.repeat(10_000), close.repeat(10_000));

        let problems = rules::read(&text, format).unwrap_err();

        assert_places(&problems, &text, 0);
    }
}

#[test]
fn a_text_beyond_the_bound_is_refused_unread() {
    let text = " ".repeat(rules::MAX_TEXT + 1);
    for format in FORMATS {
        let problems = rules::read(&text, format).unwrap_err();
        assert_eq!(problems.to_string(), "1:1: a file of 33554433 bytes is above 33554432");
    }
}

#[test]
fn more_values_than_any_rule_set_has_are_refused() {
    let list = |open: &str, close: &str| format!("{open}{}{close}", "0,".repeat(4_000_001));
    for (format, text) in [(Format::Json, list("[", "0]")), (Format::Toml, list("a=[", "]"))] {
        let problems = rules::read(&text, format).unwrap_err();
        assert!(
            problems.to_string().contains("more than 4000000 values in one file"),
            "{problems}"
        );
    }
}

#[test]
fn aliases_do_not_multiply() {
    let text = "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\n";

    let problems = rules::read(text, Format::Yaml).unwrap_err();

    let hint = "write the value out, or quote a text that begins with `&`";
    assert_eq!(problems.to_string(), format!("1:4: anchors are not read here; {hint}"));
}
