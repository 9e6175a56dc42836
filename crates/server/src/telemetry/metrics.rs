//! Metrics: writes the server's counts in the text format of Prometheus.
//!
//! Labels are protocols, listeners, outcomes, and the names of rules, of which there are at most
//! [`MAX_RULES`](super::counts::MAX_RULES); never a key, an address or a user.
//!
//! A metric without labels is a row of `metrics!`: its doc comment is its help text.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::listener::Listener;
use crate::state::{Connections, Readiness, ServerState};
use crate::store::AnyStore;

use super::counts::Outcome;
use super::latency::BOUNDS;

/// Writes metrics without labels: kind, name and value of each, with its help text as a comment.
macro_rules! metrics {
    ($page:expr => $(#[doc = $help:literal] $kind:ident $name:ident = $value:expr;)+) => {$(
        $page.head(stringify!($name), stringify!($kind), $help.trim_start());
        $page.row(stringify!($name), &[], $value.value());
    )+};
}

/// Value of a metric without labels.
trait MetricValue {
    fn value(&self) -> u64;
}

impl MetricValue for u64 {
    fn value(&self) -> u64 {
        *self
    }
}

impl MetricValue for usize {
    fn value(&self) -> u64 {
        Self::try_into(*self).unwrap_or(u64::MAX)
    }
}

/// 1 for true.
impl MetricValue for bool {
    fn value(&self) -> u64 {
        (*self).into()
    }
}

impl MetricValue for AtomicU64 {
    fn value(&self) -> u64 {
        self.load(Ordering::Relaxed)
    }
}

/// All metrics of a server, in the text format.
pub fn text(server: &ServerState) -> String {
    let mut page = Page(String::with_capacity(4096));
    requests(server, &mut page);
    latencies(server, &mut page);
    listeners(server, &mut page);
    tls(server, &mut page);
    limiter(server, &mut page);
    rules(server, &mut page);
    store(server, &mut page);
    page.0
}

fn requests(server: &ServerState, page: &mut Page) {
    page.head("tollgate_requests_total", "counter", "Requests by outcome.");
    let protocols = server.counts.protocols();
    for (protocol, counts) in &protocols {
        for (outcome, count) in Outcome::ALL.iter().zip(counts) {
            let labels = [("protocol", protocol.name()), ("outcome", outcome.name())];
            page.row("tollgate_requests_total", &labels, *count);
        }
    }
    page.head("tollgate_requests_offered_total", "counter", "Requests that have ended.");
    for (protocol, counts) in &protocols {
        let offered = counts.iter().fold(0_u64, |sum, count| sum.wrapping_add(*count));
        page.row("tollgate_requests_offered_total", &[("protocol", protocol.name())], offered);
    }
    page.head("tollgate_rule_requests_total", "counter", "Requests that a rule applied to.");
    for (domain, rule, counts) in server.counts.rules() {
        for (outcome, count) in
            ["allowed", "refused", "degraded", "refused-by-another"].iter().zip(counts)
        {
            let labels = [("domain", &*domain), ("rule", &*rule), ("outcome", outcome)];
            page.row("tollgate_rule_requests_total", &labels, count);
        }
    }
}

fn latencies(server: &ServerState, page: &mut Page) {
    const NAME: &str = "tollgate_request_duration_seconds";
    page.head(NAME, "histogram", "Time from reading a request to its decision.");
    for (protocol, seen) in server.counts.latencies() {
        let protocol = ("protocol", protocol.name());
        for (bound, count) in BOUNDS.iter().zip(seen.at_most) {
            page.row(&format!("{NAME}_bucket"), &[protocol, ("le", bound)], count);
        }
        let (whole, part) = (seen.nanos / 1_000_000_000, seen.nanos % 1_000_000_000);
        page.line(&format!("{NAME}_sum"), &[protocol], &format_args!("{whole}.{part:09}"));
        page.row(&format!("{NAME}_count"), &[protocol], seen.at_most[14]);
    }
}

fn limiter(server: &ServerState, page: &mut Page) {
    let stats = server.limiter.stats();
    metrics! { page =>
        /// Refusals from the deny cache, without asking the store.
        counter tollgate_deny_cache_refusals_total = stats.deny_cache_refusals;
        /// Refusals by a local guard.
        counter tollgate_guard_refusals_total = stats.local_guard_refusals;
        /// Requests that a shadow rule would have refused.
        counter tollgate_shadow_refused_total = stats.shadow_refused;
        /// Debts of outages settled with the store.
        counter tollgate_debts_settled_total = stats.settled_debts;
        /// Releases, credits and refusals that never reached the store.
        counter tollgate_lost_jobs_total = stats.lost_jobs;
        /// Nodes that share the store, as last counted.
        gauge tollgate_nodes = stats.nodes;
    }
}

fn rules(server: &ServerState, page: &mut Page) {
    let (rules, envoy) = (&server.rules, &server.envoy);
    metrics! { page =>
        /// Version of the rules that apply.
        gauge tollgate_rules_version = server.limiter.rules().version();
        /// Times that new rules were applied.
        counter tollgate_rules_applied_total = rules.applied;
        /// Times that rules were rejected.
        counter tollgate_rules_rejected_total = rules.rejected;
        /// 1 if the current rules of the source do not apply.
        gauge tollgate_rules_trouble = rules.error().is_some();
        /// Requests of unknown domains, which pass.
        counter tollgate_unknown_domain_total = server.counts.unknown_domain;
        /// 1 if the last good rules cannot be saved in --state-dir.
        gauge tollgate_state_trouble = server.save_error().is_some();
        /// Sets of Envoy's rules applied so far; the last one applies.
        gauge tollgate_envoy_rules_version = server.limiter.envoy_rules().version();
        /// Times that Envoy's files were rejected.
        counter tollgate_envoy_rules_rejected_total = envoy.rejected;
        /// 1 if the current Envoy files do not apply.
        gauge tollgate_envoy_rules_trouble = envoy.error().is_some();
        /// Calls of unknown domains, which pass.
        counter tollgate_envoy_unknown_domain_total = envoy.unknown_domain;
        /// 1 if the server is ready for requests.
        gauge tollgate_ready = server.readiness() == Readiness::Ready;
    }
}

fn listeners(server: &ServerState, page: &mut Page) {
    let mut each = |name, kind, help, read: fn(&Connections) -> &AtomicU64| {
        page.head(name, kind, help);
        for listener in Listener::ALL {
            let count = read(&server.connections[listener]).value();
            page.row(name, &[("listener", listener.name())], count);
        }
    };
    each("tollgate_connections", "gauge", "Open connections.", |it| &it.open);
    each("tollgate_connections_total", "counter", "Connections served.", |it| &it.accepted);
    let help = "Connections rejected by --max-connections.";
    each("tollgate_connections_turned_away_total", "counter", help, |it| &it.rejected);
    let help = "Connections closed because the client was too slow.";
    each("tollgate_connections_timed_out_total", "counter", help, |it| &it.timed_out);
    const NAME: &str = "tollgate_wrong_tokens_total";
    page.head(NAME, "counter", "Missing or wrong tokens and passwords.");
    for listener in Listener::ALL {
        page.row(NAME, &[("listener", listener.name())], server.failed_logins.count(listener));
    }
}

fn tls(server: &ServerState, page: &mut Page) {
    let Some(tls) = &server.tls else { return };
    metrics! { page =>
        /// Certificates loaded.
        counter tollgate_tls_loads_total = tls.loaded;
        /// Times that the files had no usable pair.
        counter tollgate_tls_loads_rejected_total = tls.rejected;
        /// Handshakes that failed.
        counter tollgate_tls_handshakes_failed_total = tls.failed;
        /// Handshakes that took too long.
        counter tollgate_tls_handshakes_timed_out_total = tls.timed_out;
        /// 1 if the current files are not in use.
        gauge tollgate_tls_trouble = tls.error().is_some();
    }
}

fn store(server: &ServerState, page: &mut Page) {
    let store = server.limiter.store();
    metrics! { page =>
        /// 1 if the store answers.
        gauge tollgate_store_up = store.is_up();
    }
    match store {
        AnyStore::Embedded(store) => {
            let stats = store.stats();
            metrics! { page =>
                /// Keys that have a counter.
                gauge tollgate_keys = stats.keys;
                /// Bytes of the tables.
                gauge tollgate_table_bytes = stats.table_bytes;
                /// Charges that found the store full.
                counter tollgate_keys_overflowed_total = stats.overflowed;
                /// Idle keys dropped to make room.
                counter tollgate_keys_reclaimed_total = stats.reclaimed;
            }
        }
        AnyStore::Redis(store, _) => {
            let stats = store.stats();
            metrics! { page =>
                /// Runs of the script.
                counter tollgate_redis_runs_total = stats.runs;
                /// Requests sent in them.
                counter tollgate_redis_requests_total = stats.requests;
                /// Stored values in an unknown format.
                counter tollgate_redis_poisoned_total = stats.poisoned;
                /// Decisions on which script and server disagreed; always 0.
                counter tollgate_redis_twin_mismatches_total = stats.twin_mismatches;
                /// Calls that were not answered in time.
                counter tollgate_redis_timeouts_total = stats.timeouts;
                /// Connections made beyond the first.
                counter tollgate_redis_reconnects_total = stats.reconnects;
                /// 1 if calls fail at once.
                gauge tollgate_redis_breaker_open = stats.breaker_open;
            }
        }
    }
}

struct Page(String);

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        // Writing into a string does not fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn row(&mut self, name: &str, labels: &[(&str, &str)], value: u64) {
        self.line(name, labels, &value);
    }

    fn line(&mut self, name: &str, labels: &[(&str, &str)], value: &dyn std::fmt::Display) {
        self.0.push_str(name);
        for (at, (label, text)) in labels.iter().enumerate() {
            self.0.push_str(if at == 0 { "{" } else { "," });
            let _ = write!(self.0, "{label}=\"");
            for letter in text.chars() {
                match letter {
                    '\\' => self.0.push_str("\\\\"),
                    '"' => self.0.push_str("\\\""),
                    '\n' => self.0.push_str("\\n"),
                    letter => self.0.push(letter),
                }
            }
            self.0.push('"');
        }
        if !labels.is_empty() {
            self.0.push('}');
        }
        let _ = writeln!(self.0, " {value}");
    }
}
