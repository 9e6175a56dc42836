//! Path templates: `/orders/{id}`, `/static/{*rest}`.
//!
//! A template matches a [`PathSegments`]: the segments of a canonical path as the application sees
//! them, that is, decoded, without `;parameters`, without empty ones, and in lower case if the
//! domain ignores case. Keys are built from the same segments, so paths that match alike also count
//! alike.
//!
//! `path.rs` refuses malformed paths, and `trie.rs` finds the matching templates among many.

use std::cmp::Ordering;

use smallvec::SmallVec;

use super::declaration::PathCase;
use super::path::{self, hex};

/// A path in the form that templates match.
#[derive(Clone, Debug)]
pub(super) struct PathSegments {
    text: SmallVec<[u8; 192]>,
    /// The start and end of each segment. A canonical path has at most 8192 bytes.
    segments: SmallVec<[(u16, u16); 16]>,
}

impl PathSegments {
    /// No path. Inlined, because otherwise its empty room is copied to its destination.
    #[inline(always)]
    pub(super) fn none() -> Self {
        Self { text: SmallVec::new(), segments: SmallVec::new() }
    }

    /// The segments of a canonical path.
    pub(super) fn new(canonical: &[u8], case: PathCase) -> Self {
        let mut route = Self::none();
        route.read(canonical, case);
        route
    }

    /// Reads the segments of a canonical path into this empty value.
    pub(super) fn read(&mut self, canonical: &[u8], case: PathCase) {
        if !self.read_undecoded(canonical) {
            self.segments.clear();
            for segment in canonical.split(|byte| *byte == b'/') {
                self.text.push(b'/');
                self.push_decoded(segment);
            }
        }
        if case == PathCase::Insensitive {
            self.text.make_ascii_lowercase();
        }
    }

    /// Reads a path that needs no decoding, as most do. Returns false for any other path; then it
    /// has read segments, but no text.
    fn read_undecoded(&mut self, canonical: &[u8]) -> bool {
        let mut start = 0;
        for (at, byte) in (0_u16..).zip(canonical) {
            match byte {
                b'/' => {
                    if at > start {
                        self.segments.push((start, at));
                    }
                    start = at + 1;
                }
                b';' | b'%' => return false,
                _ => {}
            }
        }
        let end = u16::try_from(canonical.len()).unwrap_or(u16::MAX);
        if end > start {
            self.segments.push((start, end));
        }
        self.text.extend_from_slice(canonical);
        true
    }

    fn push_decoded(&mut self, segment: &[u8]) {
        let place = |len: usize| u16::try_from(len).unwrap_or(u16::MAX);
        let start = place(self.text.len());
        let mut bytes = segment.iter().copied().take_while(|byte| *byte != b';');
        while let Some(byte) = bytes.next() {
            let byte = match byte {
                b'%' => match (bytes.next().and_then(hex), bytes.next().and_then(hex)) {
                    (Some(high), Some(low)) => high << 4 | low,
                    _ => byte,
                },
                _ => byte,
            };
            self.text.push(byte);
        }
        let end = place(self.text.len());
        if end > start {
            self.segments.push((start, end));
        }
    }

    /// The number of segments.
    pub(super) fn len(&self) -> usize {
        self.segments.len()
    }

    /// The segment at this position.
    #[inline]
    pub(super) fn segment(&self, at: usize) -> Option<&[u8]> {
        let (start, end) = *self.segments.get(at)?;
        self.text.get(usize::from(start)..usize::from(end))
    }

    /// The segments from this index on.
    pub(super) fn segments(&self, from: usize) -> impl Iterator<Item = &[u8]> {
        (from..self.len()).filter_map(|at| self.segment(at))
    }
}

/// A pattern of paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Template {
    text: String,
    pieces: Vec<TemplateSegment>,
}

/// One segment of a template. Segments are ordered, the most specific first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TemplateSegment {
    /// Exactly this segment.
    Literal(Box<[u8]>),
    /// Any one segment.
    Capture(Box<str>),
    /// All further segments, or none. Only at the end.
    Rest(Box<str>),
}

impl Template {
    /// The longest template.
    pub(super) const MAX_LEN: usize = 1024;

    /// The most segments of a template. No route is that deep.
    pub(super) const MAX_PIECES: usize = 64;

    /// Parses a template, or returns the mistake with a hint.
    pub(super) fn parse(text: &str, case: PathCase) -> Result<Self, TemplateError> {
        let Some(inner) = text.strip_prefix('/') else {
            return Err(TemplateError::new("does not begin with `/`", None));
        };
        if text.len() > Self::MAX_LEN {
            return Err(TemplateError::new("is longer than 1024 bytes", None));
        }
        let inner = inner.strip_suffix('/').unwrap_or(inner);
        let mut pieces: Vec<TemplateSegment> = Vec::new();
        for segment in inner.split('/').filter(|_| !inner.is_empty()) {
            if let Some(TemplateSegment::Rest(_)) = pieces.last() {
                let hint = "only the last segment may be `{*rest}`";
                return Err(TemplateError::new("continues after `{*…}`", Some(hint)));
            }
            let piece = TemplateSegment::parse(segment, case)?;
            if piece.name().is_some_and(|name| pieces.iter().any(|p| p.name() == Some(name))) {
                return Err(TemplateError::new("captures one name twice", None));
            }
            pieces.push(piece);
        }
        if pieces.len() > Self::MAX_PIECES {
            return Err(TemplateError::new("has more than 64 segments", None));
        }
        let text = if inner.is_empty() { "/".to_owned() } else { format!("/{inner}") };
        Ok(Self { text, pieces })
    }

    /// The text as declared, without a slash at its end.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Its segments.
    pub(super) fn pieces(&self) -> &[TemplateSegment] {
        &self.pieces
    }

    /// True if the path matches.
    pub(super) fn matches(&self, route: &PathSegments) -> bool {
        let mut at = 0_usize;
        for piece in &self.pieces {
            match (piece, route.segment(at)) {
                (TemplateSegment::Rest(_), _) => return true,
                (TemplateSegment::Literal(literal), Some(segment)) if **literal == *segment => {}
                (TemplateSegment::Capture(_), Some(_)) => {}
                _ => return false,
            }
            at += 1;
        }
        at == route.len()
    }

    /// True if the template has a capture of this name.
    pub(super) fn captures(&self, name: &str) -> bool {
        self.pieces.iter().any(|piece| piece.name() == Some(name))
    }

    /// The one segment of a matching path under this name.
    pub(super) fn captured<'r>(&self, name: &str, route: &'r PathSegments) -> Option<&'r [u8]> {
        let is_meant = |piece: &TemplateSegment| matches!(piece, TemplateSegment::Capture(own) if **own == *name);
        route.segment(self.pieces.iter().position(is_meant)?)
    }

    /// The segments of a matching path under `{*rest}`.
    pub(super) fn rest<'r>(&self, route: &'r PathSegments) -> impl Iterator<Item = &'r [u8]> {
        route.segments(self.pieces.len().saturating_sub(1))
    }

    /// Orders templates that match the same path. The more specific comes first, compared from left
    /// to right.
    pub(super) fn precedence(&self, other: &Self) -> Ordering {
        let rank = |piece: Option<&TemplateSegment>| match piece {
            Some(TemplateSegment::Literal(_)) => 0,
            Some(TemplateSegment::Capture(_)) => 1,
            None => 2,
            Some(TemplateSegment::Rest(_)) => 3,
        };
        let longest = self.pieces.len().max(other.pieces.len());
        (0..longest)
            .map(|at| rank(self.pieces.get(at)).cmp(&rank(other.pieces.get(at))))
            .find(|order| order.is_ne())
            .unwrap_or_else(|| self.text.cmp(&other.text))
    }
}

impl TemplateSegment {
    fn parse(segment: &str, case: PathCase) -> Result<Self, TemplateError> {
        let inner = segment.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
        if let Some(inner) = inner {
            let (name, rest) = match inner.strip_prefix('*') {
                Some(name) => (name, true),
                None => (inner, false),
            };
            let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
            if name.is_empty() || name.len() > 64 || !name.bytes().all(fits) {
                let hint = "a name has up to 64 letters, digits, `_` and `-`";
                return Err(TemplateError::new("has a capture without a proper name", Some(hint)));
            }
            return Ok(if rest { Self::Rest(name.into()) } else { Self::Capture(name.into()) });
        }
        let wrong = match segment {
            "" => Some(("has an empty segment", "write one slash")),
            "*" => Some(("has a segment `*`", "write `{name}` for any one segment")),
            "**" => Some(("has a segment `**`", "write `{*rest}` for all that follows")),
            "." | ".." => Some(("has a dot segment", "write the path that it leads to")),
            _ if segment.starts_with(':') => {
                Some(("has a segment that begins with `:`", "write `{name}` for any one segment"))
            }
            _ if segment.contains(['{', '}']) => {
                Some(("captures a part of a segment", "capture the whole: `{name}`"))
            }
            _ if segment.contains(';') => {
                Some(("has `;` parameters", "leave them out: matching ignores them"))
            }
            _ if segment.contains('?') => Some(("has a query", "leave it out: it is not matched")),
            _ => None,
        };
        if let Some((message, hint)) = wrong {
            return Err(TemplateError::new(message, Some(hint)));
        }
        let absolute = format!("/{segment}");
        let canonical = path::canonical(&absolute)
            .map_err(|_| TemplateError::new("has a segment that no path can have", None))?;
        let route = PathSegments::new(canonical.as_bytes(), case);
        match (route.len(), route.segment(0)) {
            (1, Some(literal)) => Ok(Self::Literal(literal.into())),
            _ => Err(TemplateError::new("has a segment that no path can have", None)),
        }
    }

    fn name(&self) -> Option<&str> {
        match self {
            Self::Literal(_) => None,
            Self::Capture(name) | Self::Rest(name) => Some(name),
        }
    }
}

/// A mistake in a template, as the end of a sentence, and a hint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TemplateError {
    pub(super) message: &'static str,
    pub(super) hint: Option<&'static str>,
}

impl TemplateError {
    const fn new(message: &'static str, hint: Option<&'static str>) -> Self {
        Self { message, hint }
    }
}
