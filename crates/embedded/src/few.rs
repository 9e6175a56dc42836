//! Requests of a few plain takes from different counters that are in their tables: what nearly every
//! request of several charges is.
//!
//! `several.rs` can do all of this and more. Here everything has its place on the stack; what turns out
//! not to be that simple is left to it, with nothing done. Both say the same, by [`answer_plainly`] and
//! by the store suite, which compares them with core.

use tollgate_core::algorithm::bucket::Plain;
use tollgate_core::{Answer, Charge, Clock, Need, Request, Timestamp, Verdict};

use crate::EmbeddedStore;
use crate::fingerprint::Fingerprint;
use crate::shard::Shard;
use crate::slot::Slot;
use crate::sync::Guard;

/// The most charges of a request that comes here.
const FEW: usize = 4;

/// The shards that a request touches, locked, each with its index.
type Held<'s> = [Option<(usize, Guard<'s, Shard>)>; FEW];

/// Decides a request and makes its charges, all or none; false, and nothing done, if it is not one of
/// those that come here.
pub(crate) fn charge<C: Clock>(
    store: &EmbeddedStore<C>,
    request: &Request<'_>,
    answer: &mut Answer,
) -> bool {
    let charges = request.charges();
    if charges.len() > FEW || !charges.iter().all(is_plain) {
        return false;
    }
    let mut prints = [Fingerprint::NONE; FEW];
    for (charge, print) in charges.iter().zip(&mut prints) {
        *print = store.fingerprint(charge);
    }
    let prints = prints.get(..charges.len()).unwrap_or_default();
    if !are_apart(prints) {
        return false;
    }
    let early = store.early();
    let mut held = lock(store, prints);
    let now = moment(store, &mut held, early);
    let (mut takes, mut passes) = ([None; FEW], true);
    for ((charge, print), take) in charges.iter().zip(prints).zip(&mut takes) {
        let shard = find(&mut held, store.index(*print));
        *take = shard.and_then(|shard| shard.take_here(*print, charge, now));
        match take {
            Some((Plain::Pass(_), _)) => {}
            Some((Plain::Refuse(_), _)) => passes = false,
            // A new key may have to make room first, and one at a booth to be called back.
            None => {
                undo(store, &mut held, &takes);
                return false;
            }
        }
    }
    if !passes {
        undo(store, &mut held, &takes);
    }
    drop(held);
    let plains = takes.iter().flatten().map(|(plain, _)| *plain);
    answer_plainly(request, plains, passes, now, answer);
    true
}

/// Undoes what was taken. Nobody has seen it, as the shards are locked.
#[inline(never)]
fn undo<C: Clock>(
    store: &EmbeddedStore<C>,
    held: &mut Held<'_>,
    takes: &[Option<(Plain, Slot)>; FEW],
) {
    for (_, slot) in takes.iter().flatten() {
        if let Some(shard) = find(held, store.index(slot.fingerprint)) {
            shard.restore(*slot);
        }
    }
}

/// Answers plain takes, which were made if all of them pass; no lock is needed for that.
#[inline]
pub(crate) fn answer_plainly(
    request: &Request<'_>,
    takes: impl Iterator<Item = Plain>,
    passes: bool,
    now: Timestamp,
    answer: &mut Answer,
) {
    for (charge, plain) in request.charges().iter().zip(takes) {
        if let (Some(plan), Some(cost)) = (charge.limit().bucket_plan(), charge.plain_cost()) {
            answer.decisions.push(if passes {
                plan.answer_plainly(plain, cost)
            } else {
                plan.peek_plainly(plain, cost)
            });
        }
    }
    answer.at = now;
    (answer.verdict, answer.refused_by) = if passes {
        // All of them must, and do.
        (Verdict::Allow, None)
    } else {
        request.rule(&answer.decisions)
    };
}

fn is_plain(charge: &Charge<'_>) -> bool {
    charge.need() == Need::Must
        && charge.plain_cost().is_some()
        && charge.limit().bucket_plan().is_some()
}

/// Whether no two are of one counter.
pub(crate) fn are_apart(mut prints: &[Fingerprint]) -> bool {
    while let [print, others @ ..] = prints {
        if others.contains(print) {
            return false;
        }
        prints = others;
    }
    true
}

/// Locks every shard that is touched, once, in ascending order.
fn lock<'s, C: Clock>(store: &'s EmbeddedStore<C>, prints: &[Fingerprint]) -> Held<'s> {
    let mut indices = [usize::MAX; FEW];
    for (print, index) in prints.iter().zip(&mut indices) {
        *index = store.index(*print);
    }
    indices.sort_unstable();
    let mut held: Held<'s> = [const { None }; FEW];
    let mut before = usize::MAX;
    // Those that are not needed are at the end, as no shard has the greatest index.
    for (index, held) in indices.into_iter().zip(&mut held).take(prints.len()) {
        if index != before {
            *held = Some((index, store.lock(index)));
            before = index;
        }
    }
    held
}

#[inline]
fn find<'g>(held: &'g mut Held<'_>, index: usize) -> Option<&'g mut Shard> {
    let mut held = held.iter_mut().flatten();
    held.find(|(at, _)| *at == index).map(|(_, shard)| &mut **shard)
}

/// The moment of the decision: never before the last one made in these shards, unless the clock itself
/// may step back.
fn moment<C: Clock>(
    store: &EmbeddedStore<C>,
    held: &mut Held<'_>,
    early: Option<Timestamp>,
) -> Timestamp {
    let Some(early) = early else { return store.clock.now() };
    let now = held.iter().flatten().fold(early, |now, (_, shard)| now.max(shard.latest()));
    for (_, shard) in held.iter_mut().flatten() {
        shard.set_latest(now);
    }
    now
}
