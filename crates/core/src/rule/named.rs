//! One rule by its name, for callers that choose the rule themselves, such as functions.
//!
//! The conditions of the rule are ignored. Lists, mode, `on-missing` and `block` work as in
//! `judge.rs`.

use super::active::{AttributeId, KeyPart};
use super::ask::{Ask, Attribute};
use super::ask_view::AskView;
use super::charges::{BlockedBy, Charges, Judgement};
use super::declaration::Mode;
use super::domain::ActiveDomain;
use super::judge::ChargeWriter;
use super::key::KeySecret;
use super::matching::Match;
use crate::errors::messages;

/// Judges an ask by one rule.
pub(super) fn judge<'s>(
    domain: &'s ActiveDomain,
    ask: &Ask<'_>,
    rule: &str,
    values: Option<&[&[u8]]>,
    secret: &KeySecret,
) -> Result<Judgement<'s>, NamedRuleError> {
    let position = *domain.names.get(rule).ok_or(NamedRuleError::Rule)?;
    let rule = domain.rules.get(position).ok_or(NamedRuleError::Rule)?;
    let mut view = AskView::new(domain, ask);
    if let Some(values) = values {
        let expected = rule.by().len();
        if values.len() != expected {
            return Err(NamedRuleError::Values { expected, given: values.len() });
        }
        for (value, part) in values.iter().zip(&rule.by) {
            let value = match part {
                KeyPart::Value(AttributeId::IP) => address(value).ok_or(NamedRuleError::Address)?,
                _ => Attribute::Text(value),
            };
            if let KeyPart::Value(slot) = part {
                view.set(*slot, value);
            }
            view.given.push(value);
        }
    }
    if let Some(subject) = domain.block.find(&view) {
        return Ok(Judgement::Blocked(BlockedBy::List(subject)));
    }
    if let Some(subject) = domain.exempt.find(&view) {
        return Ok(Judgement::Exempt(subject));
    }
    let unmatched = Match { rule, position, template: None };
    let found = Match::of(rule, position, &view).unwrap_or(unmatched);
    let missing = found.missing(&view);
    let mut charges = Charges::none();
    if rule.mode() != Mode::Off && found.applies(missing) {
        match found.block(missing) {
            Some(block) if rule.mode() == Mode::Shadow => charges.shadow_block = Some(block),
            Some(block) => return Ok(Judgement::Blocked(block)),
            None => {
                ChargeWriter { domain, view: &view, secret, charges: &mut charges }.charge(&found)
            }
        }
        if rule.mode() == Mode::Enforce {
            charges.enforced = charges.list.len();
        }
    }
    ChargeWriter { domain, view: &view, secret, charges: &mut charges }.partition();
    Ok(Judgement::Charges(charges))
}

fn address(text: &[u8]) -> Option<Attribute<'static>> {
    let address: std::net::IpAddr = std::str::from_utf8(text).ok()?.parse().ok()?;
    Some(Attribute::Address(address.to_canonical()))
}

/// The reason why a named rule cannot judge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NamedRuleError {
    /// The set has no such domain.
    Domain,
    /// The domain has no such rule.
    Rule,
    /// The rule counts by a different number of values.
    Values {
        /// The number of values of `by`.
        expected: usize,
        /// The number of values given.
        given: usize,
    },
    /// The rule counts by `ip`, and the value is not an address.
    Address,
}

messages! { NamedRuleError:
    Self::Domain => "the rules have no such domain";
    Self::Rule => "the domain has no such rule";
    Self::Values { expected, given } =>
        "the rule counts by {expected} values, and {given} are given";
    Self::Address => "the rule counts by `ip`, and the value is not an address";
}
