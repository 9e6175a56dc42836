//! From an ask to a judgement: a block, or the charges with their keys.
//!
//! The order is lists (`block`, then `exempt`), then rules. Nothing here allocates, except for
//! unusual asks with many attributes, long paths or long keys.
//!
//! `explain.rs` describes the same for each rule; change them together.

use super::active::{ActiveBan, ActiveLimit};
use super::ask::{Ask, Attribute};
use super::ask_view::AskView;
use super::charges::{BlockedBy, ByteRange, Charges, Judgement, RuleCharge};
use super::declaration::Mode;
use super::domain::ActiveDomain;
use super::key::{Buffer, KeySecret, TokenWriter, verbatim};
use super::matching::{ApplicableRule, ApplicableRules, Match, find_applicable, replacers};
use crate::Request;

/// Judges an ask by the rules of a domain. Writes the judgement in place, because charges are too
/// large to be moved for every ask.
pub(super) fn judge<'s>(
    domain: &'s ActiveDomain,
    ask: &Ask<'_>,
    secret: &KeySecret,
    judgement: &mut Judgement<'s>,
) {
    let mut view = AskView::of_cost(ask.own_cost());
    view.read(domain, ask);
    if let Some(subject) = domain.block.find(&view) {
        *judgement = Judgement::Blocked(BlockedBy::List(subject));
        return;
    }
    if let Some(subject) = domain.exempt.find(&view) {
        *judgement = Judgement::Exempt(subject);
        return;
    }
    let mut applied = ApplicableRules::new();
    find_applicable(domain, &view, &mut applied);
    if domain.has_replacers {
        let replacers = replacers(&applied);
        applied.retain(|(found, _)| found.replaced_by(&replacers).is_none());
    }
    *judgement = Judgement::Charges(Charges::none());
    let Judgement::Charges(charges) = judgement else { return };
    let mut writer = ChargeWriter { domain, view: &view, secret, charges };
    let (mut enforced, mut has_shadow) = (0_usize, false);
    for (found, missing) in &applied {
        match (found.block(*missing), found.rule.mode()) {
            (Some(block), Mode::Shadow) => {
                let earlier = writer.charges.shadow_block;
                writer.charges.shadow_block = earlier.or(Some(block));
            }
            (Some(block), Mode::Enforce | Mode::Off) => {
                *judgement = Judgement::Blocked(block);
                return;
            }
            (None, Mode::Shadow) => has_shadow = true,
            (None, Mode::Enforce | Mode::Off) => {
                enforced += found.rule.charge_count();
                // A later rule may still block.
                if enforced <= Request::MAX_CHARGES {
                    writer.charge(found);
                }
            }
        }
    }
    if enforced > Request::MAX_CHARGES {
        *judgement = Judgement::TooMany { charges: enforced };
        return;
    }
    writer.charges.enforced = writer.charges.list.len();
    if has_shadow {
        writer.charge_shadow(&applied);
    }
    writer.partition();
}

/// Writes charges and their keys.
pub(super) struct ChargeWriter<'w, 'v, 's> {
    pub(super) domain: &'s ActiveDomain,
    pub(super) view: &'w AskView<'v>,
    pub(super) secret: &'w KeySecret,
    pub(super) charges: &'w mut Charges<'s>,
}

impl<'w, 's> ChargeWriter<'w, '_, 's> {
    /// Adds the charges of the shadow rules that do not block.
    fn charge_shadow(&mut self, applied: &[ApplicableRule<'s>]) {
        for (found, missing) in applied {
            if found.rule.mode() == Mode::Shadow && found.block(*missing).is_none() {
                self.charge(found);
            }
        }
    }

    fn tokens(&self, verbatim: usize) -> TokenWriter<'w> {
        TokenWriter { verbatim, ipv6_prefix: self.domain.ipv6_prefix, secret: self.secret }
    }

    /// Adds the charges of a rule; for a shadow rule, all or none.
    pub(super) fn charge(&mut self, found: &Match<'s>) {
        let rule = found.rule;
        let shadow = self.charges.list.len().saturating_sub(self.charges.enforced);
        if rule.mode() == Mode::Shadow && shadow + rule.charge_count() > Request::MAX_CHARGES {
            self.charges.shadow_left_out += rule.charge_count();
            return;
        }
        let value = rule.cost.and_then(|slot| self.view.text(slot));
        let cost = rule.cost(self.view.cost, value);
        for limit in &rule.limits {
            let key = self.key(found, limit);
            self.charges.list.push(RuleCharge { rule, limit, cost, key, refusals: None });
        }
        if let Some(ban) = &rule.ban {
            self.charge_ban(found, ban);
        }
    }

    /// Asks for the ban of a rule.
    fn charge_ban(&mut self, found: &Match<'s>, ban: &'s ActiveBan) {
        let [key, refusals] = [&ban.ban, &ban.refusals].map(|limit| self.key(found, limit));
        let (rule, limit, refusals) = (found.rule, &ban.ban, Some(refusals));
        self.charges.list.push(RuleCharge { rule, limit, cost: 1, key, refusals });
    }

    #[inline(always)]
    fn key(&mut self, found: &Match<'s>, limit: &ActiveLimit) -> ByteRange {
        let tokens = self.tokens(found.rule.verbatim);
        let bytes = &mut self.charges.bytes;
        let start = bytes.len();
        bytes.extend_from_slice(&limit.head);
        found.write(self.view, tokens, bytes);
        ByteRange::since(start, bytes)
    }

    pub(super) fn partition(&mut self) {
        if self.domain.partition.is_empty() {
            return;
        }
        let tokens = self.tokens(verbatim(self.domain.partition.len()));
        let bytes = &mut self.charges.bytes;
        let start = bytes.len();
        for slot in &self.domain.partition {
            tokens.value(bytes, self.view.value(*slot));
        }
        self.charges.partition = Some(ByteRange::since(start, bytes));
    }
}

impl TokenWriter<'_> {
    /// Writes the token of an attribute's value, or of its absence.
    #[inline(always)]
    pub(super) fn value(&self, buffer: &mut Buffer, value: Option<Attribute<'_>>) {
        match value {
            Some(Attribute::Text(text)) => self.text(buffer, text),
            Some(Attribute::Address(address)) => self.address(buffer, address),
            None => Self::absent(buffer),
        }
    }
}
