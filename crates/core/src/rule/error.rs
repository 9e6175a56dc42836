//! Errors in a declaration, with their places.
//!
//! A [`Place`] counts as the declaration does, so a format can turn it into a line and a column of
//! its text. `check` has the messages.

use std::fmt;

/// The place of an error in a declaration.
///
/// The indices are positions in the [`Declaration`](super::declaration::Declaration); the field has
/// its name in a rule file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Place {
    /// The domain; `None` for the set itself.
    pub domain: Option<usize>,
    /// The rule of the domain.
    pub rule: Option<usize>,
    /// The limit of the rule.
    pub limit: Option<usize>,
    /// The field of the innermost of these, in the spelling of files: `match`, `by`, `on-missing`.
    pub field: Option<&'static str>,
    /// The item of that field: a condition of `match`, an attribute of `by`, a list entry.
    pub item: Option<usize>,
    /// The value of that item, for a condition that accepts several.
    pub value: Option<usize>,
}

impl Place {
    pub(super) const fn field(mut self, field: &'static str) -> Self {
        self.field = Some(field);
        self
    }

    pub(super) const fn item(mut self, item: usize) -> Self {
        self.item = Some(item);
        self
    }

    pub(super) const fn value(mut self, value: usize) -> Self {
        self.value = Some(value);
        self
    }
}

/// Prints the path from the outside in, counted from one: `domain 1, rule 3, by, item 2`.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut comma = "";
        let mut part = |f: &mut fmt::Formatter<'_>, what: &str, index: Option<usize>| {
            let Some(index) = index else { return Ok(()) };
            let comma = std::mem::replace(&mut comma, ", ");
            write!(f, "{comma}{what} {}", index + 1)
        };
        part(f, "domain", self.domain)?;
        part(f, "rule", self.rule)?;
        part(f, "limit", self.limit)?;
        if let Some(field) = self.field {
            let outermost = self.domain.is_none();
            write!(f, "{}{field}", if outermost { "" } else { ", " })?;
        }
        part(f, "item", self.item)?;
        part(f, "value", self.value)
    }
}

/// An error in a declaration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleError {
    place: Place,
    message: String,
    hint: Option<String>,
}

impl RuleError {
    /// The most errors that are reported for one declaration.
    pub const MAX: usize = 100;

    /// The place of the error.
    pub const fn place(&self) -> Place {
        self.place
    }

    /// The message, with the wrong value: a clause without a full stop.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The hint about the fix, if there is one.
    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

/// Prints place, message and hint on one line.
impl fmt::Display for RuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = self.place;
        if place == Place::default() {
            write!(f, "{}", self.message)?;
        } else {
            write!(f, "{place}: {}", self.message)?;
        }
        match &self.hint {
            Some(hint) => write!(f, " ({hint})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for RuleError {}

/// The errors found so far, up to [`RuleError::MAX`].
#[derive(Debug, Default)]
pub(super) struct ErrorReport {
    errors: Vec<RuleError>,
}

impl ErrorReport {
    pub(super) fn add(&mut self, place: Place, message: impl Into<String>) -> AddedError<'_> {
        if self.is_full() {
            return AddedError(None);
        }
        self.errors.push(RuleError { place, message: message.into(), hint: None });
        AddedError(self.errors.last_mut())
    }

    /// True if the report takes no more errors.
    pub(super) const fn is_full(&self) -> bool {
        self.errors.len() >= RuleError::MAX
    }

    /// Returns the checked value if there are no errors.
    pub(super) fn finish<T>(self, checked: T) -> Result<T, Vec<RuleError>> {
        if self.errors.is_empty() { Ok(checked) } else { Err(self.errors) }
    }
}

/// The error that was just added; `None` inside if there were too many.
pub(super) struct AddedError<'r>(Option<&'r mut RuleError>);

impl AddedError<'_> {
    /// Adds a hint about the fix.
    pub(super) fn hint(self, hint: impl Into<String>) {
        self.some_hint(Some(hint.into()));
    }

    pub(super) fn some_hint(self, hint: Option<String>) {
        if let Self(Some(error)) = self {
            error.hint = hint;
        }
    }
}
