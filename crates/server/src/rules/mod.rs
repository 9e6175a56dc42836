//! The rule source: rules that change while the server runs, by a reload.
//!
//! Rules have one source: a file, a set in Redis, hashes in Redis that another system writes, or
//! otherwise the admin API. A new set is read and checked whole before it replaces the one that applies; an
//! invalid one changes nothing but [`RuleSource::error`]. The last good rules can be kept in a directory,
//! for a start at which the source has none.
//!
//! | Part | Does |
//! |---|---|
//! | `file`, `watch` | a file: reads and writes it, reloads it when it changes |
//! | `stored`, `record` | a set in Redis, and its errors |
//! | `hashes` | rules that another system keeps as hashes |
//! | `last_good` | the last good rules, in a directory |
//! | `connection`, `change_notices` | the connection to Redis, and messages over another |

mod change_notices;
mod connection;
mod file;
pub(crate) mod hashes;
mod last_good;
mod record;
mod stored;
mod watch;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use tollgate::RuleSet;
use tollgate::redis::ConnectError;
use tollgate::rules::{self, Format, Problems};
use tollgate::{Limiter, StaleRules};

use crate::envoy::DomainOwnership;
use crate::settings::Settings;
use crate::settings::rules_from::RulesLayout;
use crate::state::ServerState;
use crate::store::AnyStore;
use crate::sync::lock;
pub(crate) use file::{hash, read_at_most};
use hashes::Hashes;
pub(crate) use last_good::LastGood;
use stored::StoredSet;

pub use watch::follow;
pub(crate) use watch::{follow_dirs, reload, start};

/// Source of the rules, and its state.
#[derive(Debug, Default)]
pub struct RuleSource {
    kind: RuleSourceKind,
    last_good: LastGood,
    /// Hash of the last read, so that the same bytes are not checked twice.
    last_read_hash: Mutex<Option<u64>>,
    /// Error of the source's current rules.
    error: Mutex<Option<String>>,
    /// Hash of the error that was logged last, so that it is logged once.
    last_logged_error: Mutex<Option<u64>>,
    /// Set if the next reload from Redis must check everything again.
    recheck_all: AtomicBool,
    missing: AtomicBool,
    /// Domains that Envoy's files define.
    domain_ownership: Mutex<DomainOwnership>,
    /// Times that new rules were applied.
    pub applied: AtomicU64,
    /// Times that rules were rejected.
    pub rejected: AtomicU64,
}

/// The kind of the source, with its state.
#[derive(Debug, Default)]
enum RuleSourceKind {
    File(PathBuf, Format),
    Stored(StoredSet),
    Hashes(Hashes),
    /// The admin API alone; only `last_good` keeps them.
    #[default]
    Memory,
}

/// Error of rules that were rejected.
#[derive(Debug)]
pub enum RulesError {
    /// They cannot be read from where they are.
    Unreadable(String),
    /// They are invalid, at these places.
    Invalid(Problems),
    /// Their version is not above the one that applies.
    Stale(StaleRules),
    /// Another version applies than the caller expected.
    Conflict {
        /// The version that applies.
        present: u64,
    },
    /// Another version is stored than the caller expected, and it is damaged.
    Damaged {
        /// The version that is kept.
        present: u64,
        /// Its error.
        why: String,
    },
    /// They cannot be written to where they are kept.
    Unwritable(String),
    /// A domain of theirs is in a file for Envoy; with both places.
    Taken(String),
    /// Their storage does not answer.
    Unreachable(String),
    /// A message about them is invalid.
    Message(String),
    /// Another system writes them.
    NotOurs(String),
}

impl fmt::Display for RulesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(why)
            | Self::Unwritable(why)
            | Self::Unreachable(why)
            | Self::Message(why)
            | Self::Taken(why)
            | Self::NotOurs(why) => f.write_str(why),
            Self::Invalid(problems) => problems.fmt(f),
            Self::Stale(stale) => stale.fmt(f),
            Self::Conflict { present } => {
                write!(f, "version {present} of the rules applies now: read them again")
            }
            Self::Damaged { present, why } => write!(
                f,
                "version {present} is stored but damaged, and does not apply ({why}): replace it with a \
                 version above {present}, with If-Match: \"{present}\", as `tollgate rules put \
                 --expect {present}` does"
            ),
        }
    }
}

impl std::error::Error for RulesError {}

/// Versions before and after a change of rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RulesChange {
    /// The version before.
    pub from: u64,
    /// The version from now on.
    pub to: u64,
}

impl RuleSource {
    pub(crate) fn new(settings: &Settings) -> Result<Self, ConnectError> {
        let kind = match (&settings.rules, &settings.rules_from) {
            (Some(path), _) => {
                RuleSourceKind::File(path.clone(), Format::of_path(path).unwrap_or(Format::Yaml))
            }
            (None, Some(from)) => {
                let config = connection::config(settings, from)?;
                match from.layout {
                    RulesLayout::Set => RuleSourceKind::Stored(StoredSet::new(from, config)),
                    RulesLayout::Hashes => RuleSourceKind::Hashes(Hashes::new(from, config)),
                }
            }
            (None, None) => RuleSourceKind::Memory,
        };
        let last_good = LastGood::new(settings.state_dir.as_ref(), "rules.last-good.yaml");
        let missing = !matches!(kind, RuleSourceKind::Memory);
        Ok(Self { kind, last_good, missing: AtomicBool::new(missing), ..Self::default() })
    }

    /// Source of the rules, for people.
    pub fn source(&self) -> String {
        match &self.kind {
            RuleSourceKind::File(path, _) => path.display().to_string(),
            RuleSourceKind::Stored(stored) => format!("{} in Redis", stored.key()),
            RuleSourceKind::Hashes(hashes) => format!("{} in Redis", hashes.pattern()),
            RuleSourceKind::Memory => "none".to_owned(),
        }
    }

    /// The file that is watched, if rules come from one.
    pub fn file(&self) -> Option<&Path> {
        match &self.kind {
            RuleSourceKind::File(path, _) => Some(path),
            _ => None,
        }
    }

    /// True if rules are configured, and none were ever loaded.
    pub fn are_missing(&self) -> bool {
        self.missing.load(Ordering::Relaxed)
    }

    /// Error of the source's current rules, if they do not apply.
    pub fn error(&self) -> Option<String> {
        lock(&self.error).clone()
    }

    /// Applies the rules that applied when a server last ran here. First of all, as versions only
    /// rise: an older file must not undo them.
    pub(crate) fn apply_last_good(&self, limiter: &Limiter<AnyStore>) {
        let Some(bytes) = self.last_good.read() else { return };
        let loaded = rules::decode(&bytes).and_then(|text| rules::load(text, Format::Yaml));
        let applied = loaded.map_err(RulesError::Invalid).and_then(|set| self.apply(limiter, set));
        match applied {
            Ok(applied) => tracing::info!(version = applied.to, "applied the last good rules"),
            Err(error) => self.last_good.log_ignored(&error),
        }
    }

    /// Reason why the last good rules cannot be saved.
    pub fn save_error(&self) -> Option<String> {
        self.last_good.save_error()
    }

    /// Tries again to save the last good rules, if that went wrong.
    pub(crate) fn retry_save(&self, limiter: &Limiter<AnyStore>) {
        if self.last_good.save_error().is_some() && limiter.rules().version() > 0 {
            self.save_last_good(limiter);
        }
    }

    fn save_last_good(&self, limiter: &Limiter<AnyStore>) {
        self.last_good.save(&rules::write(limiter.rules().declaration(), Format::Yaml));
    }

    /// Reads the file, if there is one, and applies its rules if they are new and valid. `None` if it has
    /// not changed.
    ///
    /// # Errors
    ///
    /// When the rules are invalid. The previous ones still apply.
    pub fn reload_file(
        &self,
        limiter: &Limiter<AnyStore>,
    ) -> Result<Option<RulesChange>, RulesError> {
        let RuleSourceKind::File(path, format) = &self.kind else { return Ok(None) };
        let mut last_read_hash = lock(&self.last_read_hash);
        let read = file::read(path);
        // A file that cannot be read is reported once.
        let hash = match &read {
            Ok(text) => hash(text),
            Err(error) => hash(&error.to_string()),
        };
        if last_read_hash.replace(hash) == Some(hash) {
            return Ok(None);
        }
        let name = path.display().to_string();
        let loaded = read.and_then(|text| {
            rules::load(&text, *format)
                .map_err(|problems| RulesError::Invalid(problems.in_file(name)))
        });
        let applied = loaded.and_then(|set| self.apply_if_changed(limiter, set));
        self.note_rejection(applied)
    }

    /// Applies rules of the source. `None` if they apply already.
    fn apply_if_changed(
        &self,
        limiter: &Limiter<AnyStore>,
        set: RuleSet,
    ) -> Result<Option<RulesChange>, RulesError> {
        // The same version again is no edit: a restart, or a comment.
        if set.version() == limiter.rules().version()
            && set.declaration() == limiter.rules().declaration()
        {
            self.note_applied(limiter);
            return Ok(None);
        }
        self.apply(limiter, set).map(Some)
    }

    /// Records the error of a reload. A repeated error becomes `None`: it was logged.
    fn note_rejection(
        &self,
        reloaded: Result<Option<RulesChange>, RulesError>,
    ) -> Result<Option<RulesChange>, RulesError> {
        let Err(error) = reloaded else { return reloaded };
        let text = error.to_string();
        // An invalid message says nothing about the rules themselves.
        if !matches!(error, RulesError::Message(_)) {
            let hash = hash(&text);
            *lock(&self.error) = Some(text);
            let mut last_logged_error = lock(&self.last_logged_error);
            if last_logged_error.replace(hash) == Some(hash) {
                return Ok(None);
            }
        }
        if !matches!(error, RulesError::Unreachable(_)) {
            self.count_rejected();
        }
        Err(error)
    }

    /// Counts rules that were rejected.
    fn count_rejected(&self) {
        self.rejected.fetch_add(1, Ordering::Relaxed);
    }

    /// Replaces the rules of a file or of the admin API, if version `expected` applies.
    ///
    /// # Errors
    ///
    /// When they are invalid, or another version applies, or they cannot be saved. Nothing changed then.
    pub fn put(
        &self,
        limiter: &Limiter<AnyStore>,
        expected: u64,
        text: &str,
        format: Format,
    ) -> Result<RulesChange, RulesError> {
        let set = rules::load(text, format).map_err(|problems| {
            self.count_rejected();
            RulesError::Invalid(problems)
        })?;
        // Held to the end: of two who write at once, the second sees what the first wrote.
        let mut last_read_hash = lock(&self.last_read_hash);
        let present = limiter.rules().version();
        if present != expected {
            return Err(RulesError::Conflict { present });
        }
        if set.version() <= present {
            return Err(RulesError::Stale(StaleRules { present, offered: set.version() }));
        }
        // Before anything is written; `apply` asks again, while nobody can swap.
        self.domain_ownership().check_free(&set, None).map_err(RulesError::Taken)?;
        if let RuleSourceKind::File(path, file_format) = &self.kind {
            let on_disk = file::read(path).ok().map(|text| hash(&text));
            if on_disk.is_some() && on_disk != *last_read_hash {
                // Somebody edited the file, and it was not reloaded yet.
                return Err(RulesError::Conflict { present });
            }
            let text = if *file_format == format {
                text.to_owned()
            } else {
                rules::write(set.declaration(), *file_format)
            };
            file::replace(path, &text)?;
            *last_read_hash = Some(hash(&text));
        }
        self.apply(limiter, set)
    }

    fn apply(&self, limiter: &Limiter<AnyStore>, set: RuleSet) -> Result<RulesChange, RulesError> {
        let (from, to) = (limiter.rules().version(), set.version());
        let ownership = self.domain_ownership();
        ownership.check_free(&set, self.file()).map_err(RulesError::Taken)?;
        limiter.set_rules(set).map_err(RulesError::Stale)?;
        drop(ownership);
        self.applied.fetch_add(1, Ordering::Relaxed);
        self.note_applied(limiter);
        Ok(RulesChange { from, to })
    }

    /// The domains of Envoy's rules; rules of neither kind are swapped while this is held.
    pub(crate) fn domain_ownership(&self) -> MutexGuard<'_, DomainOwnership> {
        lock(&self.domain_ownership)
    }

    /// Has rejected rules checked again at the next reload.
    pub(crate) fn recheck_rejected(&self) {
        if self.error().is_some() {
            *lock(&self.last_read_hash) = None;
            self.recheck_all.store(true, Ordering::Relaxed);
        }
    }

    /// Records that the source's rules apply, and saves them as the last good ones.
    fn note_applied(&self, limiter: &Limiter<AnyStore>) {
        *lock(&self.error) = None;
        *lock(&self.last_logged_error) = None;
        self.missing.store(false, Ordering::Relaxed);
        self.save_last_good(limiter);
    }
}

/// Replaces the rules at their source, if version `expected` is its current one. `by` is the author.
///
/// # Errors
///
/// When they are invalid, or there is another version, or they cannot be saved. Nothing changed then,
/// unless the error says that it may have.
pub async fn put(
    server: &Arc<ServerState>,
    expected: u64,
    text: String,
    format: Format,
    by: &str,
) -> Result<RulesChange, RulesError> {
    match &server.rules.kind {
        RuleSourceKind::File(..) | RuleSourceKind::Memory => {
            stored::blocking(server, move |server| {
                server.rules.put(&server.limiter, expected, &text, format)
            })
            .await
        }
        RuleSourceKind::Stored(stored) => stored.put(server, expected, text, format, by).await,
        RuleSourceKind::Hashes(hashes) => Err(RulesError::NotOurs(format!(
            "the rules are hashes in Redis ({}), which another system writes: change them there, or \
             serve with `--rules-from redis`",
            hashes.pattern()
        ))),
    }
}
