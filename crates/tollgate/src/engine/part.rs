//! A part or a multiple of a limit, for a counter in this process.

use tollgate_core::{Limit, Quota};

/// This process's part of a limit that so many share, rounded up; `None` if so little cannot be
/// represented.
pub(crate) fn share_of(limit: &Limit, nodes: u64) -> Option<Limit> {
    scaled(limit, 1, nodes.max(1))
}

/// So many thousandths of a limit, rounded up.
pub(crate) fn thousandths_of(limit: &Limit, thousandths: u32) -> Option<Limit> {
    scaled(limit, u64::from(thousandths), 1000)
}

fn scaled(limit: &Limit, times: u64, parts: u64) -> Option<Limit> {
    let quota = limit.quota();
    let part = |whole: u64| {
        let product = u128::from(whole).saturating_mul(u128::from(times));
        u64::try_from(product.div_ceil(u128::from(parts.max(1)))).unwrap_or(u64::MAX).max(1)
    };
    let scaled = Quota::new(part(quota.count().get()), quota.period()).ok()?;
    let scaled = if quota.has_own_burst() {
        scaled.with_burst(part(quota.burst().get())).unwrap_or(scaled)
    } else {
        scaled
    };
    let limit_of = |quota| Limit::new(limit.algorithm(), quota).ok();
    let scaled = limit_of(scaled)?;
    Some(scaled.with_revision(limit.revision()).with_on_full(limit.on_full()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_core::algorithm::{FixedWindow, TokenBucket};

    #[test]
    fn parts_are_rounded_up_and_never_nothing() {
        let limit = Limit::new(TokenBucket, "10 per 1s burst 3".parse().unwrap()).unwrap();
        let window = Limit::new(FixedWindow::default(), "2 per 1m".parse().unwrap()).unwrap();

        let quota = |limit: Option<Limit>| limit.unwrap().quota().to_string();

        assert_eq!(quota(share_of(&limit, 4)), "3 per 1s burst 1");
        assert_eq!(quota(share_of(&window, 1000)), "1 per 1m");
        assert_eq!(quota(thousandths_of(&limit, 1200)), "12 per 1s burst 4");
    }
}
