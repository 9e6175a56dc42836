//! JSON into a request.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};

use crate::protocols::grpc::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use crate::protocols::grpc::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
use crate::protocols::grpc::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use crate::protocols::grpc::proto::envoy::r#type::v3::RateLimitUnit;

/// Error in a JSON request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadJson(String);

impl fmt::Display for BadJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadJson {}

/// Reads a request.
///
/// # Errors
///
/// When the text is not JSON, or has an unknown field.
pub fn read(text: &str) -> Result<RateLimitRequest, BadJson> {
    let tree: Tree = serde_json::from_str(text).map_err(|error| BadJson(error.to_string()))?;
    let mut asked = RateLimitRequest::default();
    for (name, value) in tree.fields("the request")? {
        match name.as_str() {
            "domain" => asked.domain = value.text(&name)?,
            "hitsAddend" | "hits_addend" => asked.hits_addend = value.number(&name)?,
            "descriptors" => asked.descriptors = value.each(&name, descriptor)?,
            _ => return Err(unknown(&name)),
        }
    }
    Ok(asked)
}

fn descriptor(tree: Tree) -> Result<RateLimitDescriptor, BadJson> {
    let mut asked = RateLimitDescriptor::default();
    for (name, value) in tree.fields("a descriptor")? {
        match name.as_str() {
            "entries" => asked.entries = value.each(&name, entry)?,
            "limit" => asked.limit = Some(limit(value)?),
            "hitsAddend" | "hits_addend" => asked.hits_addend = Some(value.number(&name)?),
            "isNegativeHits" | "is_negative_hits" => asked.is_negative_hits = value.flag(&name)?,
            _ => return Err(unknown(&name)),
        }
    }
    Ok(asked)
}

fn entry(tree: Tree) -> Result<Entry, BadJson> {
    let mut entry = Entry::default();
    for (name, value) in tree.fields("an entry")? {
        match name.as_str() {
            "key" => entry.key = value.text(&name)?,
            "value" => entry.value = value.text(&name)?,
            _ => return Err(unknown(&name)),
        }
    }
    Ok(entry)
}

fn limit(tree: Tree) -> Result<RateLimitOverride, BadJson> {
    let mut limit = RateLimitOverride::default();
    for (name, value) in tree.fields("a limit")? {
        match name.as_str() {
            "requestsPerUnit" | "requests_per_unit" => {
                limit.requests_per_unit = value.number(&name)?;
            }
            "unit" => limit.unit = value.unit()?,
            _ => return Err(unknown(&name)),
        }
    }
    Ok(limit)
}

fn unknown(name: &str) -> BadJson {
    let shown: String = name.chars().take(40).collect();
    BadJson(format!("unknown field {shown:?}"))
}

/// Any JSON, in which no field is twice.
enum Tree {
    Null,
    Bool(bool),
    /// As far as it is whole and not negative.
    Number(Option<u64>),
    Text(String),
    List(Vec<Self>),
    Map(Vec<(String, Self)>),
}

impl Tree {
    /// The fields that are there.
    fn fields(self, what: &str) -> Result<impl Iterator<Item = (String, Self)>, BadJson> {
        match self {
            Self::Map(fields) => {
                Ok(fields.into_iter().filter(|(_, value)| !matches!(value, Self::Null)))
            }
            _ => Err(BadJson(format!("{what} is not an object"))),
        }
    }

    fn each<T>(
        self,
        name: &str,
        read: impl Fn(Self) -> Result<T, BadJson>,
    ) -> Result<Vec<T>, BadJson> {
        match self {
            Self::List(items) => items.into_iter().map(read).collect(),
            _ => Err(BadJson(format!("`{name}` is not a list"))),
        }
    }

    fn text(self, name: &str) -> Result<String, BadJson> {
        match self {
            Self::Text(text) => Ok(text),
            _ => Err(BadJson(format!("`{name}` is not a string"))),
        }
    }

    fn flag(&self, name: &str) -> Result<bool, BadJson> {
        match self {
            Self::Bool(flag) => Ok(*flag),
            _ => Err(BadJson(format!("`{name}` is neither true nor false"))),
        }
    }

    fn number<N: TryFrom<u64>>(&self, name: &str) -> Result<N, BadJson> {
        let number = match self {
            Self::Number(number) => *number,
            Self::Text(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                digits.parse().ok()
            }
            _ => None,
        };
        let fits = number.and_then(|number| N::try_from(number).ok());
        fits.ok_or_else(|| BadJson(format!("`{name}` is not a whole number in range")))
    }

    /// The number of a unit, which need not be one that is known.
    fn unit(&self) -> Result<i32, BadJson> {
        if let Self::Text(name) = self {
            let unit = RateLimitUnit::from_str_name(name);
            return unit.map(i32::from).ok_or_else(|| BadJson("unknown name of `unit`".into()));
        }
        let number: u32 = self.number("unit")?;
        i32::try_from(number).map_err(|_| BadJson("unknown number of `unit`".into()))
    }
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Tree;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Tree, E> {
        Ok(Tree::Null)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Tree, E> {
        Ok(Tree::Bool(flag))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Tree, E> {
        Ok(Tree::Number(Some(number)))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Tree, E> {
        Ok(Tree::Number(u64::try_from(number).ok()))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Tree, E> {
        Ok(Tree::Number(None))
    }

    fn visit_str<E>(self, text: &str) -> Result<Tree, E> {
        Ok(Tree::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Tree, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Tree::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Tree, A::Error> {
        let mut fields: Vec<(String, Tree)> = Vec::new();
        while let Some(name) = entries.next_key::<String>()? {
            // No message has more fields, so the search below stays short.
            if fields.len() >= 16 {
                return Err(A::Error::custom("too many fields"));
            }
            if fields.iter().any(|(known, _)| *known == name) {
                return Err(A::Error::custom("a field is repeated"));
            }
            fields.push((name, entries.next_value()?));
        }
        Ok(Tree::Map(fields))
    }
}
