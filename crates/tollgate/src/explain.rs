//! Explains a decision: the rules that apply to a request, the state of their counters, the rule
//! that refuses, and until when. Charges nothing.
//!
//! All values are owned, so they can be kept, printed and sent.

use std::sync::Arc;
use std::time::Duration;

use tollgate_core::rule::{Ask, Judgement, LimitKind, RuleOutcome, RuleSet};
use tollgate_core::{Key, Retry, Store, Verdict};

use crate::Limiter;
use crate::decision::{Blocked, Intent, Outage, Reason, Ruling, Source};

/// The reasons for a decision. [`Limiter::explain`] returns it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Explanation {
    /// The version of the rules.
    pub version: u64,
    /// The verdict that the request would get.
    pub verdict: Verdict,
    /// The reason for the verdict.
    pub reason: Reason,
    /// The source of the answer. The deny cache is skipped.
    pub source: Source,
    /// The outage, if the store does not answer and the counters are those of this process.
    pub outage: Option<Outage>,
    /// The list or rule that refuses without counting, if there is one.
    pub blocked_by: Option<Blocked>,
    /// Every rule of the domain with its outcome, in the order of the file.
    pub rules: Vec<ExplainedRule>,
    /// Every counter of an enforced rule that the request would charge. Counters of shadow rules
    /// are not read.
    pub counters: Vec<ExplainedCounter>,
}

/// A rule with its outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExplainedRule {
    /// Its name.
    pub rule: String,
    /// Its outcome.
    pub outcome: ExplainedOutcome,
}

/// The outcome of a rule for a request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExplainedOutcome {
    /// Its limits are charged.
    Charged,
    /// Its limits are charged, but refuse no request.
    Shadow,
    /// It is switched off.
    Off,
    /// The condition on this attribute does not hold.
    Unmatched {
        /// The attribute.
        attribute: String,
    },
    /// It matches, but the request lacks an attribute that is part of the counter's key.
    Skipped {
        /// The attribute.
        attribute: String,
    },
    /// It matches, but another rule takes its place.
    Replaced {
        /// The other rule.
        by: String,
    },
    /// It refuses without counting.
    Blocks,
    /// It matches, but the request is answered before anything is counted: by a list of the domain,
    /// by a rule that blocks, or because more limits apply than one request may have.
    Spared,
}

/// The state of one counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExplainedCounter {
    /// The rule that it belongs to.
    pub rule: String,
    /// The name of its limit.
    pub limit: String,
    /// The limit as text.
    pub allows: String,
    /// True for the counter of a ban.
    pub is_ban: bool,
    /// The cost of the request.
    pub cost: u64,
    /// Its key in the store; bytes outside of ASCII are escaped.
    pub key: String,
    /// True if it would let the request pass.
    pub passes: bool,
    /// The permits that a request could spend at once.
    pub remaining: u64,
    /// The time after which it would let the request pass; `None` if it does so now, or never will.
    pub clears_after: Option<Duration>,
    /// The time after which it is full again.
    pub full_after: Duration,
}

impl<S: Store + 'static> Limiter<S> {
    /// Explains the answer of [`Limiter::admit`], rule by rule and counter by counter. Charges
    /// nothing. It evaluates every rule of the domain, so use it for diagnosis and not for every
    /// request.
    ///
    /// ```
    /// use tollgate::{Ask, EmbeddedStore, ExplainedOutcome, Limiter, rules};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(EmbeddedStore::new());
    /// limiter.set_rules(rules::load(
    ///     "
    /// version: 1
    /// domain: shop
    /// rules:
    ///   - { name: usual, by: [user], limits: [1 per 1h] }
    ///   - { name: gold, match: { plan: gold }, by: [user], limits: [9 per 1h], replaces: [usual] }
    /// ",
    ///     rules::Format::Yaml,
    /// )?)?;
    ///
    /// let explained = limiter.explain(&Ask::new("shop").with("user", "alice")?.with("plan", "gold")?).await;
    ///
    /// assert_eq!(explained.rules[0].outcome, ExplainedOutcome::Replaced { by: "gold".into() });
    /// assert_eq!(explained.rules[1].outcome, ExplainedOutcome::Charged);
    /// assert_eq!(explained.counters[0].allows, "9 per 1h (token-bucket)");
    /// assert_eq!(explained.counters[0].key, "r4:shop4:gold2:1ht5:alice");
    /// assert_eq!(explained.counters[0].remaining, 9);
    /// # Ok(()) }
    /// ```
    pub async fn explain(&self, ask: &Ask<'_>) -> Explanation {
        let rules = self.rules();
        let admission = self.admit_by(ask, Intent::Peek, Arc::clone(&rules)).await;
        let ruling = admission.ruling();
        Explanation {
            version: rules.version(),
            verdict: ruling.verdict(),
            reason: ruling.reason(),
            source: ruling.source(),
            outage: admission.outage(),
            blocked_by: ruling.blocked_by().cloned(),
            rules: outcomes(&rules, ask, ruling),
            counters: self.counters(&rules, ask, ruling),
        }
    }

    fn counters(&self, rules: &RuleSet, ask: &Ask<'_>, ruling: &Ruling) -> Vec<ExplainedCounter> {
        let Judgement::Charges(charges) = rules.judge(ask, &self.shared.secret) else {
            return Vec::new();
        };
        let rows = charges.enforced().iter().zip(ruling.findings());
        rows.map(|(charge, finding)| {
            let decision = finding.decision;
            ExplainedCounter {
                rule: charge.rule.name().to_owned(),
                limit: charge.limit.name().to_owned(),
                allows: charge.limit.text().to_owned(),
                is_ban: charge.limit.kind() == LimitKind::Ban,
                cost: charge.cost,
                key: shown(charges.key(charge)),
                passes: decision.passes(),
                remaining: decision.remaining,
                clears_after: match decision.verdict {
                    Verdict::Deny(Retry::After(retry)) => Some(retry),
                    _ => None,
                },
                full_after: decision.reset_after,
            }
        })
        .collect()
    }
}

fn outcomes(rules: &RuleSet, ask: &Ask<'_>, ruling: &Ruling) -> Vec<ExplainedRule> {
    let counted = matches!(ruling.reason(), Reason::Limits | Reason::NoRule);
    let listed = ruling.reason() == Reason::Exempt
        || matches!(ruling.blocked_by(), Some(Blocked::List { .. }));
    let shown = |outcome: &RuleOutcome<'_>, shadow: bool| match outcome {
        RuleOutcome::Charges if !counted => ExplainedOutcome::Spared,
        RuleOutcome::Blocks(_) if listed => ExplainedOutcome::Spared,
        RuleOutcome::Charges if shadow => ExplainedOutcome::Shadow,
        RuleOutcome::Charges => ExplainedOutcome::Charged,
        RuleOutcome::Off => ExplainedOutcome::Off,
        RuleOutcome::Unmatched { attribute } => {
            ExplainedOutcome::Unmatched { attribute: (*attribute).to_owned() }
        }
        RuleOutcome::Skipped { attribute } => {
            ExplainedOutcome::Skipped { attribute: (*attribute).to_owned() }
        }
        RuleOutcome::Replaced { by } => ExplainedOutcome::Replaced { by: by.name().to_owned() },
        RuleOutcome::Blocks(_) => ExplainedOutcome::Blocks,
    };
    let considered = rules.explain(ask).into_iter();
    considered
        .map(|considered| {
            let shadow = considered.rule.mode() == tollgate_core::rule::declaration::Mode::Shadow;
            ExplainedRule {
                rule: considered.rule.name().to_owned(),
                outcome: shown(&considered.outcome, shadow),
            }
        })
        .collect()
}

fn shown(key: Key<'_>) -> String {
    key.as_bytes().escape_ascii().to_string()
}
