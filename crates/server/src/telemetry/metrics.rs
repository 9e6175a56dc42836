//! Counts as Prometheus reads them.
//!
//! Labels are protocols, listeners, outcomes, and the names of rules, of which there are at most
//! [`MAX_RULES`](super::counts::MAX_RULES); never a key, an address or a user.

use std::fmt::Write as _;
use std::sync::atomic::Ordering;

use crate::listener::Listener;
use crate::state::{Readiness, ServerState};
use crate::store::AnyStore;

use super::counts::Outcome;
use super::latency::BOUNDS;

/// All metrics of a server, in the text format.
pub fn text(server: &ServerState) -> String {
    let mut page = Page(String::with_capacity(4096));
    requests(server, &mut page);
    latencies(server, &mut page);
    connections(server, &mut page);
    wrong_tokens(server, &mut page);
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
    page.counter(
        "tollgate_deny_cache_refusals_total",
        "Refusals from the deny cache, without asking the store.",
        stats.cached,
    );
    page.counter("tollgate_guard_refusals_total", "Refusals by a local guard.", stats.guarded);
    page.counter(
        "tollgate_shadow_refused_total",
        "Requests that a shadow rule would have refused.",
        stats.shadow_refused,
    );
    page.counter(
        "tollgate_debts_settled_total",
        "Debts of outages settled with the store.",
        stats.debited,
    );
    page.counter(
        "tollgate_lost_jobs_total",
        "Releases, credits and refusals that never reached the store.",
        stats.lost_jobs,
    );
    page.gauge("tollgate_nodes", "Nodes that share the store, as last counted.", stats.nodes);
}

fn rules(server: &ServerState, page: &mut Page) {
    let rules = &server.rules;
    page.gauge(
        "tollgate_rules_version",
        "Version of the rules that apply.",
        server.limiter.rules().version(),
    );
    page.counter(
        "tollgate_rules_applied_total",
        "Times that new rules were applied.",
        rules.applied.load(Ordering::Relaxed),
    );
    page.counter(
        "tollgate_rules_rejected_total",
        "Times that rules were rejected.",
        rules.rejected.load(Ordering::Relaxed),
    );
    page.gauge(
        "tollgate_rules_trouble",
        "1 if the current rules of the authority do not apply.",
        u64::from(rules.trouble().is_some()),
    );
    page.counter(
        "tollgate_unknown_domain_total",
        "Requests of unknown domains, which pass.",
        server.counts.unknown_domain.load(Ordering::Relaxed),
    );
    page.gauge(
        "tollgate_state_trouble",
        "1 if the last good rules cannot be saved in --state-dir.",
        u64::from(server.state_trouble().is_some()),
    );
    envoy_rules(server, page);
    page.gauge(
        "tollgate_ready",
        "1 if the server is ready for requests.",
        u64::from(server.readiness() == Readiness::Ready),
    );
}

fn envoy_rules(server: &ServerState, page: &mut Page) {
    let envoy = &server.envoy;
    page.gauge(
        "tollgate_envoy_rules_version",
        "Sets of Envoy's rules applied so far; the last one applies.",
        server.limiter.envoy_rules().version(),
    );
    page.counter(
        "tollgate_envoy_rules_rejected_total",
        "Times that Envoy's files were rejected.",
        envoy.rejected.load(Ordering::Relaxed),
    );
    page.gauge(
        "tollgate_envoy_rules_trouble",
        "1 if the current Envoy files do not apply.",
        u64::from(envoy.trouble().is_some()),
    );
    page.counter(
        "tollgate_envoy_unknown_domain_total",
        "Calls of unknown domains, which pass.",
        envoy.unknown_domain.load(Ordering::Relaxed),
    );
}

fn connections(server: &ServerState, page: &mut Page) {
    type Read = fn(&crate::state::Connections) -> &std::sync::atomic::AtomicU64;
    let rows: [(&str, &str, &str, Read); 4] = [
        ("tollgate_connections", "gauge", "Open connections.", |it| &it.open),
        ("tollgate_connections_total", "counter", "Connections served.", |it| &it.accepted),
        (
            "tollgate_connections_turned_away_total",
            "counter",
            "Connections rejected by --max-connections.",
            |it| &it.turned_away,
        ),
        (
            "tollgate_connections_timed_out_total",
            "counter",
            "Connections closed because the client was too slow.",
            |it| &it.timed_out,
        ),
    ];
    for (name, kind, help, read) in rows {
        page.head(name, kind, help);
        for listener in Listener::ALL {
            let count = read(&server.connections[listener]).load(Ordering::Relaxed);
            page.row(name, &[("listener", listener.name())], count);
        }
    }
}

fn wrong_tokens(server: &ServerState, page: &mut Page) {
    const NAME: &str = "tollgate_wrong_tokens_total";
    page.head(NAME, "counter", "Missing or wrong tokens and passwords.");
    for listener in Listener::ALL {
        page.row(NAME, &[("listener", listener.name())], server.failed_logins.count(listener));
    }
}

fn tls(server: &ServerState, page: &mut Page) {
    let Some(tls) = &server.tls else { return };
    let rows = [
        ("tollgate_tls_loads_total", "Certificates loaded.", &tls.loaded),
        (
            "tollgate_tls_loads_rejected_total",
            "Times that the files had no usable pair.",
            &tls.rejected,
        ),
        ("tollgate_tls_handshakes_failed_total", "Handshakes that failed.", &tls.failed),
        (
            "tollgate_tls_handshakes_timed_out_total",
            "Handshakes that took too long.",
            &tls.timed_out,
        ),
    ];
    for (name, help, count) in rows {
        page.counter(name, help, count.load(Ordering::Relaxed));
    }
    let trouble = u64::from(tls.trouble().is_some());
    page.gauge("tollgate_tls_trouble", "1 if the current files are not in use.", trouble);
}

fn store(server: &ServerState, page: &mut Page) {
    let store = server.limiter.store();
    page.gauge("tollgate_store_up", "1 if the store answers.", u64::from(store.is_up()));
    match store {
        AnyStore::Embedded(store) => {
            let stats = store.stats();
            let count = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
            page.gauge("tollgate_keys", "Keys that have a counter.", count(stats.keys));
            page.gauge("tollgate_table_bytes", "Bytes of the tables.", count(stats.table_bytes));
            page.counter(
                "tollgate_keys_overflowed_total",
                "Charges that found the store full.",
                stats.overflowed,
            );
            page.counter(
                "tollgate_keys_reclaimed_total",
                "Idle keys dropped to make room.",
                stats.reclaimed,
            );
        }
        AnyStore::Redis(store, _) => {
            let stats = store.stats();
            page.counter("tollgate_redis_runs_total", "Runs of the script.", stats.runs);
            page.counter("tollgate_redis_requests_total", "Requests sent in them.", stats.requests);
            page.counter(
                "tollgate_redis_poisoned_total",
                "Stored values in an unknown format.",
                stats.poisoned,
            );
            page.counter(
                "tollgate_redis_twin_mismatches_total",
                "Decisions on which script and server disagreed; always 0.",
                stats.twin_mismatches,
            );
            page.counter(
                "tollgate_redis_timeouts_total",
                "Calls that were not answered in time.",
                stats.timeouts,
            );
            page.counter(
                "tollgate_redis_reconnects_total",
                "Connections made beyond the first.",
                stats.reconnects,
            );
            page.gauge(
                "tollgate_redis_breaker_open",
                "1 if calls fail at once.",
                u64::from(stats.breaker_open),
            );
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

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.head(name, "counter", help);
        self.row(name, &[], value);
    }

    fn gauge(&mut self, name: &str, help: &str, value: u64) {
        self.head(name, "gauge", help);
        self.row(name, &[], value);
    }
}
