//! A rule in the layout `rate_limit_config:*`, which tutorials on rate limiting with Redis use: eight
//! fields of a hash (`id`, `ruleName`, `limitType`, …), or the same as JSON.
//!
//! Pure: fields in, one of our rules or an error out. `docs/rules.md` has the table of the conversion;
//! change them together.

use std::time::Duration;

use serde_json::Value as Json;
use tollgate::rules::declaration::{Limitation, Mode, Pattern, Rule, Value};
use tollgate::{Algorithm, Quota};
use tollgate::{FixedWindow, LeakyMeter, SlidingLog, TokenBucket};

use crate::rules::record::shown;

/// The fields, in the order in which they are read.
pub(crate) const FIELDS: [&str; 8] = [
    "id",
    "ruleName",
    "limitType",
    "limitTarget",
    "limitCount",
    "timeWindow",
    "enabled",
    "strategy",
];

/// The longest value of a field. A target may be a path.
pub(crate) const MAX_FIELD: usize = 1_024;

/// One rule as it is stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fields([Option<String>; FIELDS.len()]);

impl Fields {
    /// From the values of a hash, in the order of [`FIELDS`].
    ///
    /// # Errors
    ///
    /// When a value is no text.
    pub(crate) fn of_hash(values: Vec<Option<Vec<u8>>>) -> Result<Self, String> {
        let mut fields = Self::default();
        for ((place, name), value) in fields.0.iter_mut().zip(FIELDS).zip(values) {
            let Some(bytes) = value else { continue };
            let text = String::from_utf8(bytes)
                .map_err(|error| format!("`{name}` is {:?}: not UTF-8", shown(error.as_bytes())))?;
            *place = Some(unquoted(&text));
        }
        Ok(fields)
    }

    /// From a message: an object, of which other fields are ignored.
    ///
    /// # Errors
    ///
    /// When it is no object, or a field is neither a text, a number nor a truth, or too long.
    pub(crate) fn of_json(message: &str) -> Result<Self, String> {
        let value: Json = serde_json::from_str(message)
            .map_err(|error| format!("neither RELOAD_ALL nor a rule as JSON: {error}"))?;
        let object = value.as_object().ok_or("not a JSON object")?;
        let mut fields = Self::default();
        for (place, name) in fields.0.iter_mut().zip(FIELDS) {
            let text = match object.get(name) {
                None | Some(Json::Null) => continue,
                Some(Json::String(text)) => text.clone(),
                Some(value @ (Json::Number(_) | Json::Bool(_))) => value.to_string(),
                Some(_) => return Err(format!("`{name}` is a list or an object")),
            };
            if text.len() > MAX_FIELD {
                return Err(format!("`{name}` has more than {MAX_FIELD} bytes"));
            }
            *place = Some(text);
        }
        Ok(fields)
    }

    fn get(&self, name: &str) -> Option<&str> {
        let at = FIELDS.iter().position(|field| *field == name)?;
        self.0.get(at)?.as_deref().map(str::trim).filter(|text| !text.is_empty())
    }

    pub(crate) fn id(&self) -> Option<&str> {
        self.get("id")
    }

    /// True if no field is there: then the hash is not a rule.
    pub(crate) fn are_empty(&self) -> bool {
        self.0.iter().all(Option::is_none)
    }

    /// The rule that this is. It is called by its id, which stays when it is renamed; `otherwise` by
    /// the end of its key.
    ///
    /// # Errors
    ///
    /// The field that is missing or invalid.
    pub(crate) fn rule(&self, otherwise: &str) -> Result<Rule, String> {
        let mut rule = Rule::new(self.id().unwrap_or(otherwise));
        self.aim(&mut rule)?;
        let algorithm = self.algorithm()?;
        let (count, seconds) = (self.whole("limitCount")?, self.whole("timeWindow")?);
        if count == 0 {
            // Nothing may pass: then there is nothing to count.
            rule.block = true;
            rule.by.clear();
        } else {
            let quota = Quota::new(count, Duration::from_secs(seconds))
                .map_err(|error| format!("{count} in {seconds} s is not a limit: {error}"))?;
            let limit = Limitation { name: None, quota, algorithm: Some(algorithm) };
            rule.limits.push(limit);
        }
        if !self.is_enabled()? {
            rule.mode = Mode::Off;
        }
        Ok(rule)
    }

    fn algorithm(&self) -> Result<Algorithm, String> {
        let text = self.get("strategy").ok_or("`strategy` is missing")?;
        match word(text).as_str() {
            "TOKEN_BUCKET" => Ok(TokenBucket.into()),
            "FIXED_WINDOW" => Ok(FixedWindow::default().into()),
            // Their sorted set of requests is our log.
            "SLIDING_WINDOW" | "SLIDING_LOG" => Ok(SlidingLog.into()),
            "LEAKY_BUCKET" => Ok(LeakyMeter.into()),
            _ => Err(format!(
                "`strategy` is {:?}, which is not one of TOKEN_BUCKET, FIXED_WINDOW, \
                 SLIDING_WINDOW, SLIDING_LOG, LEAKY_BUCKET",
                shown(text.as_bytes())
            )),
        }
    }

    /// Sets the matches of the rule, and the attributes it counts by.
    fn aim(&self, rule: &mut Rule) -> Result<(), String> {
        let text = self.get("limitType").ok_or("`limitType` is missing")?;
        let target = self.get("limitTarget").filter(|target| !is_all(target));
        let attribute = match word(text).as_str() {
            "GLOBAL" => return Ok(()),
            "SERVICE" => "service",
            "INTERFACE" | "API" | "URL" | "URI" | "PATH" => "path",
            "IP" | "CLIENT_IP" => "ip",
            "USER" | "USER_ID" => "user",
            _ => {
                return Err(format!(
                    "`limitType` is {:?}, which is not one of GLOBAL, SERVICE, INTERFACE (API, URL, \
                     PATH), IP, USER",
                    shown(text.as_bytes())
                ));
            }
        };
        let Some(target) = target else {
            // No particular one: each by itself.
            rule.by.push(attribute.to_owned());
            return Ok(());
        };
        let mut value = target;
        if attribute == "path"
            && let Some((method, path)) = target.split_once([' ', ':'])
            && path.trim_start().starts_with('/')
        {
            let method = Pattern::Any(vec![Value::Text(method.to_ascii_uppercase())]);
            rule.matches.push(("method".to_owned(), method));
            value = path.trim_start();
        }
        let value = pattern(value)?;
        rule.matches.insert(0, (attribute.to_owned(), Pattern::Any(vec![value])));
        Ok(())
    }

    fn is_enabled(&self) -> Result<bool, String> {
        match self.get("enabled").map(str::to_ascii_lowercase).as_deref() {
            None | Some("true" | "1") => Ok(true),
            Some("false" | "0") => Ok(false),
            Some(other) => {
                Err(format!("`enabled` is {:?}: neither true nor false", shown(other.as_bytes())))
            }
        }
    }

    fn whole(&self, name: &str) -> Result<u64, String> {
        let text = self.get(name).ok_or_else(|| format!("`{name}` is missing"))?;
        let plain = text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse()
            .ok()
            .filter(|_| plain)
            .ok_or_else(|| format!("`{name}` is {:?}: not a whole number", shown(text.as_bytes())))
    }
}

/// Pattern of a target: its text, or a prefix if it ends with `*` or `**`.
fn pattern(target: &str) -> Result<Value, String> {
    let stem = target.trim_end_matches('*');
    if stem.contains('*') {
        let target = shown(target.as_bytes());
        return Err(format!("`limitTarget` is {target:?}: `*` is only allowed at the end"));
    }
    Ok(if stem.len() < target.len() {
        Value::Prefix(stem.to_owned())
    } else {
        Value::Text(target.to_owned())
    })
}

fn is_all(target: &str) -> bool {
    matches!(target, "*" | "**" | "/*" | "/**") || target.eq_ignore_ascii_case("all")
}

fn word(text: &str) -> String {
    text.to_ascii_uppercase().replace('-', "_")
}

/// Without the quotes that some serialisers of Java put around every text.
pub(super) fn unquoted(text: &str) -> String {
    if text.starts_with('"')
        && text.len() > 1
        && let Ok(inner) = serde_json::from_str::<String>(text)
    {
        return inner;
    }
    text.to_owned()
}

#[cfg(test)]
mod tests {
    use tollgate::RuleSet;
    use tollgate::rules::declaration::{Declaration, Domain};
    use tollgate::rules::{Format, write};

    use super::*;

    /// id, ruleName, limitType, limitTarget, limitCount, timeWindow, enabled, strategy.
    fn fields(values: [&str; 8]) -> Fields {
        let values = values.map(|value| (value != "-").then(|| value.as_bytes().to_vec()));
        Fields::of_hash(values.to_vec()).unwrap()
    }

    fn yaml(values: [&str; 8]) -> String {
        let rule = fields(values).rule("key").unwrap();
        let mut domain = Domain::new("d");
        domain.rules.push(rule);
        let set = RuleSet::new(Declaration { version: 1, domains: vec![domain] }).unwrap();
        let text = write(set.declaration(), Format::Yaml);
        let (_, rules) = text.split_once("rules:\n").unwrap();
        rules.lines().map(str::trim).collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn rules_become_ours() {
        for (values, expected) in [
            (
                ["1", "all", "GLOBAL", "*", "1000", "1", "true", "TOKEN_BUCKET"],
                "- name: \"1\"; limits:; - { count: 1000, per: 1s, algorithm: token-bucket }",
            ),
            (
                ["o", "n", "service", "order", "50", "60", "1", "fixed-window"],
                "- name: o; match: { service: order }; limits:; - { count: 50, per: 1m, algorithm: fixed-window }",
            ),
            (
                ["l", "n", "API", "POST:/login", "5", "60", "true", "SLIDING_WINDOW"],
                "- name: l; match: { path: /login, method: POST }; limits:; - { count: 5, per: 1m, algorithm: sliding-log }",
            ),
            (
                ["w", "n", "INTERFACE", "/api/**", "5", "1", "-", "LEAKY_BUCKET"],
                "- name: w; match: { path: \"/api/*\" }; limits:; - { count: 5, per: 1s, algorithm: leaky-meter }",
            ),
            (
                ["-", "n", "IP", "-", "10", "1", "false", "TOKEN_BUCKET"],
                "- name: key; mode: \"off\"; by: [ip]; limits:; - { count: 10, per: 1s, algorithm: token-bucket }",
            ),
            (
                ["\"q\"", "n", "\"IP\"", "\"203.0.113.7\"", "0", "1", "true", "\"TOKEN_BUCKET\""],
                "- name: q; match: { ip: 203.0.113.7 }; block: true",
            ),
        ] {
            assert_eq!(yaml(values), expected);
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let good = ["1", "n", "IP", "*", "10", "1", "true", "TOKEN_BUCKET"];
        for (at, value, why) in [
            (2, "PLANET", "`limitType` is \"PLANET\""),
            (2, "-", "`limitType` is missing"),
            (3, "10.*.1", "`*` is only allowed at the end"),
            (4, "-5", "`limitCount` is \"-5\": not a whole number"),
            (4, "+5", "not a whole number"),
            (4, "1e3", "not a whole number"),
            (4, "99999999999999999999", "not a whole number"),
            (4, "9999999999999999", "is not a limit"),
            (5, "0", "is not a limit"),
            (5, "-", "`timeWindow` is missing"),
            (6, "maybe", "neither true nor false"),
            (7, "DICE", "`strategy` is \"DICE\", which is not one of TOKEN_BUCKET"),
            (7, "-", "`strategy` is missing"),
            (7, "", "`strategy` is missing"),
            (7, "a\nb", "a\\\\nb"),
        ] {
            let mut values = good;
            values[at] = value;
            let error = fields(values).rule("k").unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        let bytes = vec![Some(b"\xff".to_vec())];
        assert!(Fields::of_hash(bytes).unwrap_err().contains("`id`"));
    }

    #[test]
    fn a_message_is_the_same_rule() {
        let json = r#"{"@class":"x","id":7,"ruleName":"n","limitType":"IP","limitTarget":"*",
            "limitCount":10,"timeWindow":1,"enabled":true,"strategy":"TOKEN_BUCKET","created":[1]}"#;
        let hash = fields(["7", "n", "IP", "*", "10", "1", "true", "TOKEN_BUCKET"]);
        assert_eq!(Fields::of_json(json).unwrap(), hash);
        for wrong in ["", "RELOAD", "[]", "7", r#"{"id":[]}"#, "{", "{\"id\":1e400}"] {
            assert!(Fields::of_json(wrong).is_err(), "{wrong}");
        }
        let long = format!("{{\"id\":\"{}\"}}", "x".repeat(MAX_FIELD + 1));
        assert!(Fields::of_json(&long).is_err());
    }
}
