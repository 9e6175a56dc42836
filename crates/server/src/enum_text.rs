//! Macros for enums that have a text form: a word for each variant, in metrics, logs and settings.

/// Defines an enum, the word of each variant, and the list of all.
macro_rules! text_enum {
    ($(#[$doc:meta])* $vis:vis enum $name:ident {
        $($(#[$inner:meta])* $variant:ident = $word:literal),+ $(,)?
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $vis enum $name { $($(#[$inner])* $variant),+ }

        impl $name {
            /// All variants, in order of declaration.
            $vis const ALL: [Self; [$($word),+].len()] = [$(Self::$variant),+];

            /// Returns the variant's text form.
            $vis const fn name(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }
        }
    };
}

/// Implements `FromStr` for each of these: reads it from its word.
macro_rules! impl_from_str {
    ($($name:ident),+) => {$(
        impl std::str::FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let known = Self::ALL.into_iter().find(|known| known.name() == text);
                known.ok_or_else(|| format!("not one of: {}", Self::ALL.map(Self::name).join(" ")))
            }
        }
    )+};
}

/// Implements `Deserialize` for each of these: reads a string of a settings file as a flag is read.
macro_rules! impl_deserialize {
    ($($name:ident),+) => {$(
        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    )+};
}

pub(crate) use {impl_deserialize, impl_from_str, text_enum};
