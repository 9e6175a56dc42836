//! Rejects paths in which rules and routers would count different segments.
//!
//! Rules see the canonical path. A router behind the layer reads the path as the client sent it. If
//! the canonical path has fewer segments, the two differ: `/users/..` is `/` to a rule, and the user
//! `..` to axum's `/users/{id}`, so a request would get around that route's limit. No honest client
//! sends such paths.
//!
//! `tollgate_core::rule::path` defines the canonical path: change them together.

/// True if every segment of the path is also one of the canonical path. A slash at the end is none.
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

/// True for `.` and `..`, percent-encoded or not.
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
    fn dots_and_empty_segments_are_not_kept() {
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
    fn kept_paths_have_as_many_segments_in_canonical_form() {
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
