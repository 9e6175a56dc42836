//! All files together: an immutable set of one version.

use std::collections::HashMap;
use std::sync::Arc;

use super::call::Entry;
use super::read::{self, DuplicateDomain, MAX_FILES};
use super::rule::EnvoyRule;
use super::tree::{DescriptorTree, FoundRule};
use crate::rules::problem::Position;
use crate::rules::{self, Format, Problems};

/// The rules of one or several files of envoyproxy/ratelimit, one domain each.
///
/// ```
/// use tollgate::envoy::EnvoyRules;
///
/// let problems = EnvoyRules::load(1, [("shop.yaml", "domain: shop\ndescriptor: []\n")]).unwrap_err();
/// assert_eq!(problems.to_string(), "shop.yaml:2:1: unknown key `descriptor`; did you mean `descriptors`?");
/// ```
#[derive(Clone, Default)]
pub struct EnvoyRules {
    pub(super) version: u64,
    pub(super) domains: HashMap<Arc<str>, DescriptorTree>,
    pub(super) rules: Vec<EnvoyRule>,
    pub(super) descriptors: usize,
}

impl EnvoyRules {
    /// No rules, of version 0: no domain is known.
    pub fn empty() -> Self {
        Self::default()
    }

    /// Reads files, each with a name for messages, as rules of this version. Each domain must be in
    /// one file only.
    ///
    /// # Errors
    ///
    /// With all problems of the first file that has any.
    pub fn load<'t>(
        version: u64,
        files: impl IntoIterator<Item = (&'t str, &'t str)>,
    ) -> Result<Self, Problems> {
        Self::read(version, files, DuplicateDomain::Refuse)
    }

    /// Reads files as [`EnvoyRules::load`] does, but allows several files for one domain, as with
    /// the reference's `MERGE_DOMAIN_CONFIG`.
    ///
    /// # Errors
    ///
    /// As [`EnvoyRules::load`].
    pub fn load_merging<'t>(
        version: u64,
        files: impl IntoIterator<Item = (&'t str, &'t str)>,
    ) -> Result<Self, Problems> {
        Self::read(version, files, DuplicateDomain::Merge)
    }

    fn read<'t>(
        version: u64,
        files: impl IntoIterator<Item = (&'t str, &'t str)>,
        duplicates: DuplicateDomain,
    ) -> Result<Self, Problems> {
        let mut set = Self { version, ..Self::default() };
        for (number, (name, text)) in files.into_iter().enumerate() {
            let read = if number >= MAX_FILES {
                Err(Problems::one(Position::START, format!("more than {MAX_FILES} files"), None))
            } else {
                let text = text.strip_prefix('\u{feff}').unwrap_or(text);
                rules::parse(text, Format::Yaml)
                    .and_then(|root| read::file(&mut set, text, &root, duplicates))
            };
            read.map_err(|problems| problems.in_file(name))?;
        }
        Ok(set)
    }

    /// The version of the rules, which rises with every change.
    pub const fn version(&self) -> u64 {
        self.version
    }

    /// True if a file has this domain.
    pub fn has_domain(&self, domain: &str) -> bool {
        self.domains.contains_key(domain)
    }

    /// The domains, in no order.
    pub fn domains(&self) -> impl Iterator<Item = &str> {
        self.domains.keys().map(|domain| &**domain)
    }

    /// All rules, in the order of the files.
    pub fn rules(&self) -> &[EnvoyRule] {
        &self.rules
    }

    /// Finds the rule that these entries lead to.
    ///
    /// ```
    /// use tollgate::envoy::{EnvoyRules, Entry};
    ///
    /// let file = "
    /// domain: shop
    /// descriptors:
    ///   - { key: path, value: /login*, rate_limit: { unit: minute, requests_per_unit: 5 } }
    ///   - { key: path, rate_limit: { unit: second, requests_per_unit: 100 } }
    /// ";
    /// let rules = EnvoyRules::load(1, [("shop.yaml", file)])?;
    /// let path = |value| rules.find("shop", &[Entry { key: "path", value }]).map(|rule| rule.path());
    ///
    /// assert_eq!(path("/login/sms"), Some("path_/login*"));
    /// assert_eq!(path("/"), Some("path"));
    /// assert_eq!(rules.find("shop", &[Entry { key: "user", value: "eve" }]).map(|rule| rule.path()), None);
    /// # Ok::<(), tollgate::rules::Problems>(())
    /// ```
    pub fn find(&self, domain: &str, entries: &[Entry<'_>]) -> Option<&EnvoyRule> {
        self.search(domain, entries).and_then(|found| self.rules.get(found.rule))
    }

    pub(super) fn search(&self, domain: &str, entries: &[Entry<'_>]) -> Option<FoundRule<'_>> {
        self.domains.get(domain)?.find(entries)
    }
}

opaque_debug! {
    EnvoyRules: |it| version = it.version, domains = it.domains.len(), rules = it.rules.len()
}
