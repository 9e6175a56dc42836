//! `tollgate serve`: the server, from its settings to its end.

use std::fmt::Write as _;
use std::path::Path;

use tokio::signal::unix::{SignalKind, signal};

use super::{Exit, Failure, say};
use crate::accept;
use crate::listener::Listener;
use crate::settings::{Options, Settings};
use crate::telemetry::log;
use crate::{Server, ServerState};

pub(super) fn run(config: Option<&Path>, options: Options) -> Result<Exit, Failure> {
    let options = match config {
        Some(path) => options.over(Options::read(path)?),
        None => options,
    };
    let settings = options.resolve()?;
    let level = log::start(settings.log_level, settings.log_format);
    enough_descriptors(&settings);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        // Before anything listens, so that a signal that comes early is not missed.
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut hangup = signal(SignalKind::hangup())?;
        let server = Server::start(settings, level).await?;
        say(&greeting(&server))?;
        loop {
            tokio::select! {
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
                _ = hangup.recv() => {
                    tracing::info!("SIGHUP: reloading the rules and the certificate");
                    server.reload().await;
                }
            }
        }
        // SIGTERM or SIGINT.
        tracing::info!("stopping: not ready, draining");
        server.stop().await;
        tracing::info!("ended");
        Ok(Exit::Yes)
    })
}

/// Warns if the process may open fewer files than `--max-connections` needs: then the clients of one
/// listener could keep all others out.
fn enough_descriptors(settings: &Settings) {
    /// For files, listeners, connections to Redis, and clients of other listeners.
    const OTHERS: usize = 128;
    let wanted = settings.max_connections.saturating_add(OTHERS);
    let wanted = u64::try_from(wanted).unwrap_or(u64::MAX);
    if let Some(descriptors) = accept::raise_descriptors().filter(|have| *have < wanted) {
        tracing::warn!(
            descriptors,
            wanted,
            "fewer descriptors than one listener may have connections: raise `ulimit -Hn`, or lower \
             --max-connections"
        );
    }
}

/// Banner: addresses of the listeners, and commands to try.
fn greeting(server: &Server) -> String {
    let state: &ServerState = server.state();
    let rules = state.limiter.rules();
    let from = state.rules.source();
    let mut text = String::new();
    // Writing into a string does not fail.
    let _ = writeln!(
        text,
        "tollgate {} on the {} store; rules: {from}, version {}",
        env!("CARGO_PKG_VERSION"),
        state.limiter.store().name(),
        rules.version(),
    );
    for listener in Listener::ALL {
        let (name, scheme) = (listener.name(), listener.scheme(state.tls.is_some()));
        let _ = match server.address(listener) {
            Some(at) => writeln!(text, "  {name:<6} {scheme}://{at}  {}", listener.serves()),
            None => writeln!(text, "  {name:<6} off"),
        };
    }
    let (insecure, plain) =
        if state.tls.is_some() { ("k", "-insecure") } else { ("", "-plaintext") };
    let token = match state.settings.api_token {
        // As a variable of the shell that started the server, or to be filled in.
        Some(_) if std::env::var_os("TOLLGATE_API_TOKEN").is_some() => {
            r#" -H "Authorization: Bearer $TOLLGATE_API_TOKEN""#
        }
        Some(_) => r#" -H "Authorization: Bearer <the API token>""#,
        None => "",
    };
    if let Some(address) = server.address(Listener::Http) {
        let web = Listener::Http.scheme(state.tls.is_some());
        let domains = &rules.declaration().domains;
        let domain = domains.first().map_or("shop", |domain| domain.name.as_str());
        let _ = writeln!(
            text,
            "try: curl -s{insecure}{token} {web}://{address}/v1/check -d '{{\"domain\":\"{domain}\",\"attributes\":\
             {{\"ip\":\"203.0.113.9\",\"method\":\"POST\",\"path\":\"/login\"}}}}'",
        );
    }
    let envoy = state.limiter.envoy_rules();
    if let (Some(address), Some(domain)) = (server.address(Listener::Grpc), envoy.domains().min()) {
        let _ = writeln!(
            text,
            "try: grpcurl {plain}{token} -d '{{\"domain\":\"{domain}\",\"descriptors\":[{{\"entries\":\
             [{{\"key\":\"remote_address\",\"value\":\"203.0.113.9\"}}]}}]}}' {address} \
             envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
        );
    }
    text
}
