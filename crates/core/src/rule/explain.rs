//! Explains why each rule of a domain applies to an ask or does not.
//!
//! It looks at every rule, without the index, and builds no keys: use it for diagnosis, not for
//! requests. It describes the logic of `matching.rs` and `judge.rs`; change them together.

use super::active::ActiveRule;
use super::ask::Ask;
use super::ask_view::AskView;
use super::charges::BlockedBy;
use super::declaration::Mode;
use super::domain::ActiveDomain;
use super::matching::{ApplicableRule, Match, replacers};

/// A rule with its outcome for an ask.
#[derive(Clone, Copy, Debug)]
pub struct RuleExplanation<'s> {
    /// The rule.
    pub rule: &'s ActiveRule,
    /// Its outcome.
    pub outcome: RuleOutcome<'s>,
}

/// The outcome of a rule for an ask.
#[derive(Clone, Copy, Debug)]
pub enum RuleOutcome<'s> {
    /// It is switched off.
    Off,
    /// The condition on this attribute does not hold. It is the first that fails.
    Unmatched {
        /// The attribute, as declared.
        attribute: &'s str,
    },
    /// It matches, but the ask lacks this attribute of `by`, and such asks are skipped.
    Skipped {
        /// The attribute, as declared.
        attribute: &'s str,
    },
    /// It matches, but this rule replaces it.
    Replaced {
        /// The other rule, which matches as well.
        by: &'s ActiveRule,
    },
    /// It refuses without counting. In shadow mode it only would.
    Blocks(BlockedBy<'s>),
    /// Its limits are charged.
    Charges,
}

/// A rule that applies unless another replaces it, or the outcome of one that does not.
type RuleResult<'s> = Result<ApplicableRule<'s>, RuleOutcome<'s>>;

/// Considers every rule of the domain, in the order of their declaration.
pub(super) fn explain<'s>(domain: &'s ActiveDomain, ask: &Ask<'_>) -> Vec<RuleExplanation<'s>> {
    let view = AskView::new(domain, ask);
    let found = domain.rules.iter().enumerate().map(|(at, rule)| find(rule, at, &view));
    let found: Vec<RuleResult<'s>> = found.collect();
    let applied: Vec<_> = found.iter().filter_map(|one| one.ok()).collect();
    let replacers = replacers(&applied);
    let outcome = |one: RuleResult<'s>| match one {
        Err(outcome) => outcome,
        Ok((found, missing)) => match (found.replaced_by(&replacers), found.block(missing)) {
            (Some(by), _) => RuleOutcome::Replaced { by },
            (None, Some(block)) => RuleOutcome::Blocks(block),
            (None, None) => RuleOutcome::Charges,
        },
    };
    let rules = domain.rules.iter().zip(found);
    rules.map(|(rule, one)| RuleExplanation { rule, outcome: outcome(one) }).collect()
}

fn find<'s>(rule: &'s ActiveRule, position: usize, view: &AskView<'_>) -> RuleResult<'s> {
    if rule.mode() == Mode::Off {
        return Err(RuleOutcome::Off);
    }
    let found = Match::of(rule, position, view).map_err(|failed| {
        let declared = rule.declaration.matches.get(failed);
        RuleOutcome::Unmatched { attribute: declared.map_or("", |(name, _)| name) }
    })?;
    match found.missing(view) {
        Some(attribute) if !found.applies(Some(attribute)) => {
            Err(RuleOutcome::Skipped { attribute })
        }
        missing => Ok((found, missing)),
    }
}
