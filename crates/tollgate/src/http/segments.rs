//! Paths whose segments rules and routers count alike.
//!
//! Rules see a path in its one spelling, and a gateway forwards that one. A layer forwards nothing:
//! the router has read, or will read, the path as the client sent it. Where the one spelling has
//! fewer segments, the two are different paths: `/users/..` is `/` to a rule and the user `..` to
//! axum's `/users/{id}`, and the limit of that route would be got around. No client that means well
//! sends these.
//!
//! `tollgate_core::rule::path` says what the one spelling leaves out: change them together.

/// Whether every segment of the path is one in its one spelling as well. A slash at the end is none.
pub(super) fn are_kept(path: &[u8]) -> bool {
    let path = path.strip_prefix(b"/").unwrap_or(path);
    if path.is_empty() {
        return true;
    }
    let path = path.strip_suffix(b"/").unwrap_or(path);
    path.split(|byte| *byte == b'/').all(is_kept)
}

fn is_kept(segment: &[u8]) -> bool {
    match segment.first() {
        None | Some(b';') => false,
        Some(b'.' | b'%') => !is_dots(segment),
        Some(_) => true,
    }
}

/// Whether this is `.` or `..`, however it is spelt.
fn is_dots(mut segment: &[u8]) -> bool {
    let mut dots = 0_u8;
    while !segment.is_empty() {
        let ([b'.', rest @ ..] | [b'%', b'2', b'e' | b'E', rest @ ..]) = segment else {
            return false;
        };
        segment = rest;
        dots = dots.saturating_add(1);
    }
    dots <= 2
}

#[cfg(test)]
mod tests {
    use tollgate_core::rule::path::canonical;
    use tollgate_core::testing::Rng;

    use super::are_kept;

    #[test]
    fn dots_and_what_is_empty_are_not_kept() {
        for path in ["", "/", "/a", "/a/", "/a/b;c", "/...", "/.a", "/a.", "/%2e%2e%2e", "/%20"] {
            assert!(are_kept(path.as_bytes()), "{path}");
        }
        for path in ["//", "//a", "/a//", "/a//b", "/.", "/a/..", "/%2e", "/.%2E/", "/a/;b", "/;"] {
            assert!(!are_kept(path.as_bytes()), "{path}");
        }
    }

    /// Names without parameters, as templates see them.
    fn names(path: &str) -> Vec<&str> {
        let names = path.split('/').map(|segment| segment.split(';').next().unwrap_or_default());
        names.filter(|name| !name.is_empty()).collect()
    }

    #[test]
    fn what_is_kept_has_as_many_segments_in_its_one_spelling() {
        let mut rng = Rng::new(13);
        let parts = ["/", "/", "/", ".", "%2e", "%2E", ";", "a", "%61", "%3B", "x;y"];
        for _ in 0..20_000 {
            let path: String = (0..rng.below(9)).map(|_| rng.pick(&parts)).collect();
            let path = format!("/{path}");
            let Ok(one) = canonical(&path) else { continue };

            let inner = path.strip_suffix('/').filter(|inner| !inner.is_empty()).unwrap_or(&path);
            let as_sent = if path == "/" { 0 } else { inner.split('/').count() - 1 };

            assert_eq!(are_kept(path.as_bytes()), names(&one).len() == as_sent, "{path} {one}");
        }
    }
}
