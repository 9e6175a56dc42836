//! The source of Envoy's rules while the server runs: files that are reloaded when they change, beside the
//! rules of `crate::rules`.
//!
//! Both kinds are applied to one limiter on one store. Domain ownership: a domain belongs to one of them. The
//! second set that defines it is rejected, with an error that names both places (`DomainOwnership`). Invalid files change
//! nothing, as with the other rules. Files of envoyproxy/ratelimit have no version, so the server counts
//! the sets that it applies.
//!
//! `files` reads the files, `watch` reloads them.

mod files;
mod watch;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use tollgate::Limiter;
use tollgate::RuleSet;
use tollgate::envoy::EnvoyRules;

use crate::rules::{LastGood, RuleSource, hash};
use crate::settings::Settings;
use crate::settings::envoy::EnvoyDomains;
use crate::store::AnyStore;
use crate::sync::lock;
use files::EnvoyFile;

pub(crate) use watch::{follow, reload};

/// Source of Envoy's rules, and its state.
#[derive(Debug, Default)]
pub struct EnvoyRuleSource {
    paths: Vec<PathBuf>,
    domains: EnvoyDomains,
    last_good: LastGood,
    state: Mutex<EnvoyState>,
    missing: AtomicBool,
    /// Times that new rules were applied.
    pub applied: AtomicU64,
    /// Times that rules were rejected.
    pub rejected: AtomicU64,
    /// Calls for a domain that no file defines.
    pub unknown_domain: AtomicU64,
}

#[derive(Debug, Default)]
struct EnvoyState {
    /// Hash of the last read, so that the same files are not checked twice.
    last_read_hash: Option<u64>,
    /// Hash of the files that apply.
    applied_hash: Option<u64>,
    /// Names of the files that apply.
    files: Vec<String>,
    /// Error of the current files.
    error: Option<String>,
}

impl EnvoyRuleSource {
    pub(crate) fn new(settings: &Settings) -> Self {
        let dir = settings.state_dir.as_ref().filter(|_| !settings.envoy.rules.is_empty());
        Self {
            paths: settings.envoy.rules.clone(),
            domains: settings.envoy.domains,
            last_good: LastGood::new(dir, "envoy.last-good.json"),
            missing: AtomicBool::new(!settings.envoy.rules.is_empty()),
            ..Self::default()
        }
    }

    /// The files and directories that are watched.
    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// The files whose rules apply.
    pub fn files(&self) -> Vec<String> {
        self.state().files.clone()
    }

    /// True if rules are configured, and none were ever loaded.
    pub fn are_missing(&self) -> bool {
        self.missing.load(Ordering::Relaxed)
    }

    /// Error of the current files, if they do not apply.
    pub fn error(&self) -> Option<String> {
        self.state().error.clone()
    }

    /// The first rules: those of the files, else the last good ones.
    pub(crate) fn start(&self, limiter: &Limiter<AnyStore>, beside: &RuleSource) {
        if self.paths.is_empty() {
            return;
        }
        let last_good = self.last_good.read();
        let Err(error) = self.reload(limiter, beside) else { return };
        tracing::error!(error, "cannot use Envoy's rules");
        let Some(last_good) = last_good else {
            tracing::warn!("no rules for Envoy yet: not ready");
            return;
        };
        let files =
            serde_json::from_slice::<Vec<EnvoyFile>>(&last_good).map_err(|it| it.to_string());
        match files.and_then(|files| self.apply(&mut self.state(), limiter, beside, &files)) {
            Ok(()) => tracing::info!("applied the last good rules for Envoy"),
            Err(error) => self.last_good.log_ignored(&error),
        }
        self.state().error = Some(error);
    }

    /// Reads the files, and applies their rules if they are new and valid. Returns whether it did.
    ///
    /// # Errors
    ///
    /// When the rules are invalid. The previous ones still apply.
    pub(crate) fn reload(
        &self,
        limiter: &Limiter<AnyStore>,
        beside: &RuleSource,
    ) -> Result<bool, String> {
        let mut state = self.state();
        let read = files::read(&self.paths);
        let files_hash = hash(&read);
        // Files rejected for a domain of the other rules are checked again when those change.
        let read_hash = hash(&(files_hash, limiter.rules().version()));
        if state.last_read_hash == Some(read_hash) {
            // The state directory can become usable without a change of the rules.
            if state.applied_hash == Some(files_hash)
                && self.last_good.save_error().is_some()
                && let Ok(files) = &read
            {
                self.save_last_good(files);
            }
            return Ok(false);
        }
        state.last_read_hash = Some(read_hash);
        if state.applied_hash == Some(files_hash) {
            state.error = None;
            return Ok(false);
        }
        let applied = read.and_then(|files| self.apply(&mut state, limiter, beside, &files));
        match applied {
            Ok(()) => state.applied_hash = Some(files_hash),
            Err(error) => {
                self.rejected.fetch_add(1, Ordering::Relaxed);
                state.error = Some(error.clone());
                return Err(error);
            }
        }
        Ok(true)
    }

    fn apply(
        &self,
        state: &mut EnvoyState,
        limiter: &Limiter<AnyStore>,
        beside: &RuleSource,
        files: &[EnvoyFile],
    ) -> Result<(), String> {
        let version = limiter.envoy_rules().version().saturating_add(1);
        let texts = files.iter().map(|file| (file.name.as_str(), file.text.as_str()));
        let loaded = match self.domains {
            EnvoyDomains::Separate => EnvoyRules::load(version, texts),
            EnvoyDomains::Merge => EnvoyRules::load_merging(version, texts),
        };
        let set = loaded.map_err(|problems| problems.to_string())?;
        {
            let mut ownership = beside.domain_ownership();
            let new = DomainOwnership::of(files);
            new.check_free(&limiter.rules(), beside.file())?;
            limiter.set_envoy_rules(set).map_err(|stale| stale.to_string())?;
            *ownership = new;
        }
        // Rules rejected for a domain of Envoy's files may be valid now.
        beside.recheck_rejected();
        self.applied.fetch_add(1, Ordering::Relaxed);
        self.missing.store(false, Ordering::Relaxed);
        state.error = None;
        state.files = files.iter().map(|file| file.name.clone()).collect();
        self.save_last_good(files);
        Ok(())
    }

    /// Reason why the last good rules cannot be saved.
    pub fn save_error(&self) -> Option<String> {
        self.last_good.save_error()
    }

    fn save_last_good(&self, files: &[EnvoyFile]) {
        if let Ok(text) = serde_json::to_string(files) {
            self.last_good.save(&text);
        }
    }

    fn state(&self) -> MutexGuard<'_, EnvoyState> {
        lock(&self.state)
    }
}

/// Reads files, and directories of files, without applying them.
///
/// # Errors
///
/// When they cannot be read, or are invalid.
pub(crate) fn check(paths: &[PathBuf]) -> Result<EnvoyRules, String> {
    let files = files::read(paths)?;
    let texts = files.iter().map(|file| (file.name.as_str(), file.text.as_str()));
    EnvoyRules::load(1, texts).map_err(|problems| problems.to_string())
}

/// Domains that Envoy's files define, with their places. Locked while rules of either kind are
/// swapped, so that of two sets with one domain only one comes to apply.
#[derive(Debug, Default)]
pub(crate) struct DomainOwnership(HashMap<String, String>);

impl DomainOwnership {
    fn of(files: &[EnvoyFile]) -> Self {
        let mut domains = HashMap::new();
        for EnvoyFile { name, text } in files {
            // Loads each file by itself: the combined rules do not say which file defines a domain.
            let Ok(alone) = EnvoyRules::load(1, [(name.as_str(), text.as_str())]) else { continue };
            for domain in alone.domains() {
                let place = || files::place(name, text, domain);
                domains.entry(domain.to_owned()).or_insert_with(place);
            }
        }
        Self(domains)
    }

    /// Checks that the other rules, those of the file `beside`, define none of these domains.
    pub(crate) fn check_free(&self, rules: &RuleSet, beside: Option<&Path>) -> Result<(), String> {
        for domain in &rules.declaration().domains {
            let Some(ours) = self.0.get(&domain.name) else { continue };
            let theirs = match beside {
                Some(path) => {
                    let text = std::fs::read_to_string(path).unwrap_or_default();
                    files::place(&path.display().to_string(), &text, &domain.name)
                }
                None => format!("version {} of the rules", rules.version()),
            };
            return Err(format!(
                "the domain {:?} is defined twice: for Envoy in {ours}, and in {theirs}; rename or \
                 remove one",
                domain.name
            ));
        }
        Ok(())
    }
}
