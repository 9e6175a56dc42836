//! Declarations that are written read back equal.

use tollgate::rules::{self, Format};
use tollgate_core::testing::Rng;

use crate::generate::{Texts, declaration};

pub(crate) const FORMATS: [Format; 3] = [Format::Yaml, Format::Toml, Format::Json];

#[test]
fn every_declaration_reads_back_equal_from_every_format() {
    for seed in 0..3_000 {
        let texts = if seed % 2 == 0 { Texts::Realistic } else { Texts::Arbitrary };
        let declared = declaration(&mut Rng::new(seed), texts);
        for format in FORMATS {
            let text = rules::write(&declared, format);

            let read = rules::read(&text, format);

            assert_eq!(read.as_ref(), Ok(&declared), "seed {seed}, {format:?}:\n{text}");
        }
    }
}

#[test]
fn written_text_does_not_change_when_it_is_read_and_written_again() {
    for seed in 0..300 {
        let declared = declaration(&mut Rng::new(seed), Texts::Arbitrary);
        for format in FORMATS {
            let text = rules::write(&declared, format);

            let again = rules::write(&rules::read(&text, format).unwrap(), format);

            assert_eq!(again, text, "seed {seed}, {format:?}");
        }
    }
}

#[test]
fn a_set_loads_equal_from_every_format() {
    for seed in 0..500 {
        let declared = declaration(&mut Rng::new(seed), Texts::Realistic);
        for format in FORMATS {
            let text = rules::write(&declared, format);
            match rules::load(&text, format) {
                Ok(set) => assert_eq!(set.declaration(), &declared, "seed {seed}, {format:?}"),
                Err(problems) => panic!("seed {seed}, {format:?}: {problems}\n{text}"),
            }
        }
    }
}
