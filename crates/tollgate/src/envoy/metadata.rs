//! Free-form metadata of a rule: returned with answers, never interpreted.

/// A free-form value.
#[derive(Clone, Debug, PartialEq)]
pub enum Metadata {
    /// No value.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number, as the protocol knows them.
    Number(f64),
    /// A text.
    Text(String),
    /// A list.
    List(Vec<Self>),
    /// Fields with unique names, in the order of the file.
    Map(Vec<(String, Self)>),
}

impl Metadata {
    /// Adds the fields of another value. If both have a field, the first value stays; maps are
    /// merged.
    ///
    /// ```
    /// use tollgate::envoy::Metadata::{self, Map, Text};
    ///
    /// let map = |fields: &[(&str, &str)]| {
    ///     Map(fields.iter().map(|(key, value)| (key.to_string(), Text(value.to_string()))).collect())
    /// };
    /// let mut first = map(&[("team", "pay")]);
    /// first.merge(&map(&[("team", "shop"), ("tier", "1")]));
    ///
    /// assert_eq!(first, map(&[("team", "pay"), ("tier", "1")]));
    /// ```
    pub fn merge(&mut self, other: &Self) {
        let (Self::Map(mine), Self::Map(theirs)) = (self, other) else { return };
        for (key, value) in theirs {
            match mine.iter_mut().find(|(known, _)| known == key) {
                Some((_, known)) => known.merge(value),
                None => mine.push((key.clone(), value.clone())),
            }
        }
    }
}
