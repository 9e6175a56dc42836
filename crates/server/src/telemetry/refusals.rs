//! Recent refusals, and the keys refused most.
//!
//! The last refusals are in a ring; the most refused keys in a space-saving sketch, which keeps as
//! many counters as it has places and gives the place of the least to a newcomer. A count is never
//! below the truth, and at most `error` above it. Both are for people who ask why: they show values
//! of attributes, so only the admin listener shows them, and no log and no metric does.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::Mutex;

use serde::Serialize;
use tollgate::{Ask, Attribute};
use tollgate::{Blocked, Reason, Ruling};

use super::counts::Protocol;

use crate::rules::hash;
use crate::sync::lock;

/// Refusals that are remembered.
pub const MAX_RECENT: usize = 256;

/// Keys that are counted.
pub const MAX_KEYS: usize = 256;

/// Longest text of a key.
const MAX_TEXT: usize = 128;

/// One refusal, and why.
#[derive(Clone, Debug, Serialize)]
pub struct RefusalRecord {
    /// Time in microseconds since 1970 by the store's clock; as far as its last answer tells, if it
    /// was not asked, and 0 if it never answered.
    pub at_us: u64,
    /// By which protocol.
    pub protocol: &'static str,
    /// In which domain.
    pub domain: String,
    /// Reason.
    pub reason: &'static str,
    /// By which rule, if it was one.
    pub rule: Option<String>,
    /// By which of its limits; none for a ban.
    pub limit: Option<String>,
    /// Attributes that the rule counts by, with the values of this request.
    pub key: String,
    /// After how many milliseconds asking again can help; none if it never does.
    pub retry_after_ms: Option<u64>,
    /// By which version of the rules.
    pub rules_version: u64,
}

/// A key and how often it was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RefusedKey {
    /// In which domain.
    pub domain: String,
    /// By which rule.
    pub rule: String,
    /// The key, in words.
    pub key: String,
    /// Upper bound of the count.
    pub count: u64,
    /// Largest possible excess of `count`.
    pub error: u64,
}

/// Recent refusals, and the keys refused most.
#[derive(Debug, Default)]
pub struct RefusalLog {
    recent: Mutex<VecDeque<RefusalRecord>>,
    top: Mutex<SpaceSaving>,
}

/// The sketch. Hashes are apart from their rows, so that looking for one reads little.
#[derive(Debug, Default)]
struct SpaceSaving {
    hashes: Vec<u64>,
    rows: Vec<RefusedKey>,
}

impl RefusalLog {
    /// Remembers a refusal that stands for `weight` of them.
    pub fn add(&self, refusal: RefusalRecord, weight: u64) {
        let rule = refusal.rule.as_deref().unwrap_or(refusal.reason);
        self.count(&refusal.domain, rule, &refusal.key, weight);
        let mut recent = lock(&self.recent);
        if recent.len() >= MAX_RECENT {
            recent.pop_front();
        }
        recent.push_back(refusal);
    }

    fn count(&self, domain: &str, rule: &str, key: &str, weight: u64) {
        let hash = hash(&(domain, rule, key));
        let mut top = lock(&self.top);
        let same = |row: &RefusedKey| row.key == key && row.rule == rule && row.domain == domain;
        let at = top.hashes.iter().position(|known| *known == hash);
        if let Some(row) = at.and_then(|at| top.rows.get_mut(at)).filter(|row| same(row)) {
            row.count = row.count.saturating_add(weight);
            return;
        }
        let mut error = 0;
        if top.rows.len() >= MAX_KEYS {
            let rows = top.rows.iter().enumerate();
            if let Some((least, count)) =
                rows.map(|(at, row)| (at, row.count)).min_by_key(|it| it.1)
            {
                top.rows.swap_remove(least);
                top.hashes.swap_remove(least);
                error = count;
            }
        }
        top.hashes.push(hash);
        top.rows.push(RefusedKey {
            domain: domain.to_owned(),
            rule: rule.to_owned(),
            key: key.to_owned(),
            count: error.saturating_add(weight),
            error,
        });
    }

    /// The last refusals, the latest first.
    pub fn recent(&self, most: usize) -> Vec<RefusalRecord> {
        let recent = lock(&self.recent);
        recent.iter().rev().take(most).cloned().collect()
    }

    /// The keys that are refused most.
    pub fn top(&self, most: usize) -> Vec<RefusedKey> {
        let mut top = lock(&self.top).rows.clone();
        top.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.key.cmp(&b.key)));
        top.truncate(most);
        top
    }
}

impl RefusalRecord {
    /// Record of a ruling that refuses.
    pub fn new(
        protocol: Protocol,
        ask: &Ask<'_>,
        ruling: &Ruling,
        retry_after_ms: Option<u64>,
    ) -> Self {
        let by = ruling.refusing();
        let blocker = ruling.blocked_by().and_then(|blocked| match blocked {
            Blocked::Rule { rule } | Blocked::Missing { rule, .. } => Some(rule.clone()),
            _ => None,
        });
        let rule = by.and_then(|finding| finding.rule);
        let key = rule.map(|rule| key(ask, rule.by())).unwrap_or_default();
        Self {
            at_us: ruling.at().as_micros(),
            protocol: protocol.name(),
            domain: cut(ask.domain()),
            reason: reason(ruling.reason()),
            rule: rule.map(|rule| rule.name().to_owned()).or(blocker),
            limit: by.and_then(|finding| finding.limit).map(|limit| limit.name().to_owned()),
            key,
            retry_after_ms,
            rules_version: ruling.version(),
        }
    }
}

/// The name of a reason in answers and records.
pub const fn reason(reason: Reason) -> &'static str {
    match reason {
        Reason::Limits => "limits",
        Reason::NoRule => "no-rule",
        Reason::UnknownDomain => "unknown-domain",
        Reason::Exempt => "exempt",
        Reason::Blocked => "blocked",
        Reason::TooManyLimits => "too-many-limits",
        _ => "other",
    }
}

/// `ip=203.0.113.9 user=alice`, cut short.
fn key(ask: &Ask<'_>, by: &[String]) -> String {
    let mut text = String::new();
    for name in by {
        let between = if text.is_empty() { "" } else { " " };
        // Writing into a string does not fail.
        let _ = match ask.attribute(name) {
            Some(Attribute::Address(address)) => write!(text, "{between}{name}={address}"),
            Some(Attribute::Text(bytes)) => {
                let bytes = bytes.get(..bytes.len().min(MAX_TEXT)).unwrap_or_default();
                write!(text, "{between}{name}={}", bytes.escape_ascii())
            }
            // Captured from the path by the rule itself.
            None => write!(text, "{between}{name}"),
        };
    }
    cut(&text)
}

/// The beginning of a text.
pub(crate) fn cut(text: &str) -> String {
    text.get(..text.floor_char_boundary(MAX_TEXT)).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(key: &str) -> RefusalRecord {
        RefusalRecord {
            at_us: 0,
            protocol: "http",
            domain: "shop".to_owned(),
            reason: "limits",
            rule: Some("r".to_owned()),
            limit: None,
            key: key.to_owned(),
            retry_after_ms: None,
            rules_version: 1,
        }
    }

    #[test]
    fn the_ring_forgets_the_oldest() {
        let refusals = RefusalLog::default();
        for number in 0..=MAX_RECENT {
            refusals.add(refusal(&number.to_string()), 1);
        }
        let recent = refusals.recent(usize::MAX);
        assert_eq!(recent.len(), MAX_RECENT);
        assert_eq!(recent.first().map(|refusal| refusal.key.clone()), Some(MAX_RECENT.to_string()));
        assert_eq!(recent.last().map(|refusal| refusal.key.as_str()), Some("1"));
    }

    #[test]
    fn a_flood_of_keys_does_not_hide_the_heaviest_and_no_count_is_too_low() {
        let refusals = RefusalLog::default();
        for number in 0..5_000 {
            refusals.add(refusal(&number.to_string()), 1);
            if number % 4 == 0 {
                refusals.add(refusal("heavy"), 2);
            }
        }
        let top = refusals.top(MAX_KEYS + 1);
        assert_eq!(top.len(), MAX_KEYS);
        let heavy = top.first().unwrap();
        assert_eq!(heavy.key, "heavy");
        assert!(heavy.count >= 2_500 && heavy.count - heavy.error <= 2_500, "{heavy:?}");
    }
}
