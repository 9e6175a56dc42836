//! `tollgate locks`: lists holders, and releases locks by force.

#![expect(clippy::arithmetic_side_effects, reason = "places in two texts in memory")]

use std::collections::{BTreeSet, HashSet};
use std::io::{BufRead as _, IsTerminal as _, Write as _};
use std::time::Duration;

use clap::Subcommand;
use serde_json::json;
use tollgate::Locks;
use tollgate::locks::{LockHolder, LockKind};
use tollgate::redis::RedisStore;

use super::redis::{LockStoreArgs, chain, plain, whoami};
use super::{Exit, Failure, answer, say, wait};
use crate::settings::value::{LogFormat, LogLevel};
use crate::telemetry::log;

/// Subcommands of `tollgate locks`.
#[derive(Debug, Subcommand)]
pub(super) enum LocksCommand {
    /// List locks with their holders, ages and waiting processes
    List {
        /// Print one JSON object per line
        #[arg(long, env = "TOLLGATE_LOCKS_JSON")]
        json: bool,
        /// Locks to print at most
        #[arg(long, env = "TOLLGATE_LOCKS_MOST", default_value_t = 1_000, value_name = "COUNT")]
        most: usize,
        /// Names to list, with the wildcards * and ?; a name without them also finds a lock of
        /// Redisson [default: all]
        #[arg(value_name = "PATTERN")]
        pattern: Option<String>,
    },
    /// Release a lock by force, and wake the processes that wait for it
    ForceRelease {
        /// Do not ask for confirmation
        #[arg(long)]
        yes: bool,
        /// Reason, for the log
        #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT")]
        reason: String,
        /// Format of the log line: json or text [default: text on a terminal, else json]
        #[arg(long, env = "TOLLGATE_LOG_FORMAT", value_name = "WORD")]
        log_format: Option<LogFormat>,
        /// Name of the lock
        #[arg(value_name = "NAME")]
        name: String,
    },
}

pub(super) fn run(store: &LockStoreArgs, command: &LocksCommand) -> Result<Exit, Failure> {
    wait(async {
        let locks = Locks::new(store.open(None).await?);
        let done = match command {
            LocksCommand::List { json, most, pattern } => {
                let shape = if *json { ListFormat::Json } else { ListFormat::Table };
                list(&locks, pattern.as_deref(), *most, shape).await
            }
            LocksCommand::ForceRelease { yes, reason, log_format, name } => {
                force(&locks, name, reason, *yes, *log_format).await
            }
        };
        done.map_err(|error| chain(&*error).into())
    })
}

/// Output format of a list.
#[derive(Clone, Copy)]
enum ListFormat {
    Json,
    Table,
}

async fn list(
    locks: &Locks<RedisStore>,
    pattern: Option<&str>,
    most: usize,
    shape: ListFormat,
) -> Result<Exit, Failure> {
    let (mut found, mut more) = (Vec::new(), false);
    match pattern {
        Some(name) if !name.contains(['*', '?']) => found.extend(locks.inspect(name).await?),
        pattern => {
            let (mut cursor, mut seen) = (Some(0), HashSet::new());
            while let (Some(from), false) = (cursor, more) {
                let page = locks.holders(from).await?;
                cursor = page.next;
                for holder in page.holders {
                    let wanted = pattern.is_none_or(|it| matches(it, holder.name.as_str()));
                    // A page may repeat what an earlier one had.
                    if !wanted || !seen.insert(holder.name.clone()) {
                        continue;
                    }
                    more = found.len() >= most;
                    if !more {
                        found.push(holder);
                    }
                }
            }
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    match shape {
        ListFormat::Json => found.iter().try_for_each(|it| say(&format!("{}\n", object(it))))?,
        ListFormat::Table => say(&table(&found))?,
    }
    if more {
        let _ = writeln!(std::io::stderr(), "tollgate: there are more than {most}: see --most");
    }
    Ok(Exit::Yes)
}

async fn force(
    locks: &Locks<RedisStore>,
    name: &str,
    reason: &str,
    yes: bool,
    format: Option<LogFormat>,
) -> Result<Exit, Failure> {
    let Some(shown) = locks.inspect(name).await? else {
        return answer(Exit::No, &format!("nobody holds \"{}\"\n", plain(name)));
    };
    if !yes {
        if !confirmed(&shown)? {
            return Ok(Exit::No);
        }
        let now = locks.inspect(name).await?;
        if now.map(|now| (now.owner, now.fence)) != Some((shown.owner.clone(), shown.fence)) {
            return answer(Exit::No, "somebody else holds it by now: it was left alone\n");
        }
    }
    let Some(holder) = locks.force_release(name, reason).await? else {
        return answer(Exit::No, &format!("nobody holds \"{}\" any more\n", plain(name)));
    };
    // Only now, so that the log is this one line, without messages of the connection.
    log::start(LogLevel::Info, format);
    tracing::warn!(
        audit = true,
        lock = holder.name.as_str(),
        owner = holder.owner,
        fence = holder.fence.map(|fence| fence.get()),
        label = holder.label,
        age_ms = holder.age.map(millis),
        by = whoami(),
        reason,
        "a lock was taken from its holder"
    );
    answer(Exit::Yes, &format!("taken from {}\n", sentence(&holder)))
}

/// Asks at the terminal.
fn confirmed(holder: &LockHolder) -> Result<bool, Failure> {
    if !std::io::stdin().is_terminal() {
        return Err("stdin is not a terminal, so nobody can confirm: use --yes".into());
    }
    let mut out = std::io::stderr();
    let name = plain(holder.name.as_str());
    write!(out, "{name:?} is held by {}.\nTake it? [y/N] ", sentence(holder))?;
    out.flush()?;
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    Ok(["y", "yes"].contains(&line.trim().to_ascii_lowercase().as_str()))
}

/// Holder in words.
fn sentence(holder: &LockHolder) -> String {
    let mut text = plain(&holder.owner);
    if !holder.label.is_empty() {
        text.push_str(&format!(" [{}]", plain(&holder.label)));
    }
    if let Some(age) = holder.age {
        text.push_str(&format!(", for {}", lasting(age)));
    }
    if let Some(fence) = holder.fence {
        text.push_str(&format!(", fence {fence}"));
    }
    text
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

const fn kind(kind: LockKind) -> &'static str {
    match kind {
        LockKind::Reentrant => "reentrant",
        LockKind::Simple => "simple",
    }
}

fn object(holder: &LockHolder) -> serde_json::Value {
    json!({
        "name": holder.name.as_str(),
        "kind": kind(holder.kind),
        "owner": holder.owner,
        "count": holder.depth,
        "age_ms": holder.age.map(millis),
        "left_ms": holder.left.map(millis),
        "fence": holder.fence.map(|fence| fence.get()),
        "waiting_processes": holder.waiting,
        "label": holder.label,
    })
}

fn table(holders: &[LockHolder]) -> String {
    let head = ["NAME", "OWNER", "COUNT", "AGE", "LEFT", "FENCE", "WAITING", "HOLDER"];
    let mut rows = vec![head.map(str::to_owned)];
    rows.extend(holders.iter().map(|holder| {
        let or = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        [
            plain(holder.name.as_str()),
            plain(&holder.owner),
            holder.depth.to_string(),
            or(holder.age.map(lasting)),
            or(holder.left.map(lasting)),
            or(holder.fence.map(|fence| fence.to_string())),
            holder.waiting.to_string(),
            plain(&holder.label),
        ]
    }));
    let mut widths = [0_usize; 8];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    let line = |row: &[String; 8]| {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        let line = cells.collect::<Vec<_>>().join("  ");
        format!("{}\n", line.trim_end())
    };
    rows.iter().map(line).collect()
}

/// A length of time in its two largest units.
fn lasting(span: Duration) -> String {
    let seconds = span.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m{}s", seconds % 60),
        (0, _, _) => format!("{hours}h{}m", minutes % 60),
        _ => format!("{days}d{}h", hours % 24),
    }
}

/// True if a name matches a pattern, in which * is any text and ? any character.
fn matches(pattern: &str, name: &str) -> bool {
    let name: Vec<char> = name.chars().collect();
    // Lengths of the beginnings of the name that the pattern matches so far.
    let mut lengths = BTreeSet::from([0]);
    for wanted in pattern.chars() {
        let one_more = |length: &usize| {
            let next = name.get(*length).filter(|next| wanted == '?' || wanted == **next);
            next.map(|_| length + 1)
        };
        lengths = match wanted {
            '*' => lengths.first().map(|least| *least..=name.len()).into_iter().flatten().collect(),
            _ => lengths.iter().filter_map(one_more).collect(),
        };
    }
    lengths.contains(&name.len())
}

#[cfg(test)]
mod tests {
    use tollgate::locks::LockName;

    use super::*;

    #[test]
    fn patterns_match_as_people_expect() {
        for (pattern, yes, no) in [
            ("*", "anything", "\u{0}"),
            ("order:*", "order:", "orders"),
            ("*:eu", "a:b:eu", "a:eu:b"),
            ("a*b*c", "a1b2b3c", "a1b2"),
            ("?", "щ", "ab"),
            ("a?c*", "abcd", "acd"),
        ] {
            assert!(matches(pattern, yes), "{pattern} {yes}");
            assert!(pattern == "*" || !matches(pattern, no), "{pattern} {no}");
        }
        let slow = format!("{}b", "a*".repeat(200));
        assert!(!matches(&slow, &"a".repeat(1_024)), "no pattern takes for ever");
    }

    #[test]
    fn times_and_texts_are_for_people() {
        let span = |seconds| lasting(Duration::from_secs(seconds));
        assert_eq!(
            [span(0), span(59), span(61), span(3_700), span(90_000)],
            ["0s", "59s", "1m1s", "1h1m", "1d1h"]
        );
        assert_eq!(plain("a\u{1b}[2Jщ\n\u{202e}"), "a\\u{1b}[2Jщ\\n\\u{202e}");
    }

    #[test]
    fn a_table_is_aligned_and_says_what_is_not_known() {
        let holder = LockHolder {
            name: LockName::new("a\nb").unwrap(),
            kind: LockKind::Reentrant,
            owner: "java:1".to_owned(),
            depth: 2,
            left: Some(Duration::from_secs(20)),
            fence: None,
            age: None,
            label: String::new(),
            waiting: 3,
        };
        assert_eq!(
            table(&[holder]),
            "NAME  OWNER   COUNT  AGE  LEFT  FENCE  WAITING  HOLDER\n\
             a\\nb  java:1  2      -    20s   -      3\n"
        );
    }
}
