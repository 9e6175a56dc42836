//! Signals by name, and the choice of those that are passed on.

use std::str::FromStr;
use std::task::Poll;

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};

/// Signals that people name.
const NAMES: [(&str, Signal); 9] = [
    ("HUP", Signal::HUP),
    ("INT", Signal::INT),
    ("QUIT", Signal::QUIT),
    ("KILL", Signal::KILL),
    ("USR1", Signal::USR1),
    ("USR2", Signal::USR2),
    ("TERM", Signal::TERM),
    ("STOP", Signal::STOP),
    ("ABRT", Signal::ABORT),
];

/// A signal as it is written on a command line: `TERM`, `SIGTERM` or `15`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SignalName(pub(super) Signal);

impl FromStr for SignalName {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let upper = text.to_ascii_uppercase();
        let name = upper.strip_prefix("SIG").unwrap_or(&upper);
        let by_name = NAMES.iter().find(|(known, _)| *known == name).map(|(_, signal)| *signal);
        let number = || text.parse().ok().and_then(Signal::from_named_raw);
        by_name.or_else(number).map(Self).ok_or(
            "not a signal: write HUP, INT, QUIT, KILL, USR1, USR2, TERM, STOP, ABRT or a number",
        )
    }
}

/// The name of a signal, or its number.
pub(super) fn name(signal: Signal) -> String {
    let known = NAMES.iter().find(|(_, known)| *known == signal);
    known.map_or_else(|| signal.as_raw().to_string(), |(name, _)| (*name).to_owned())
}

/// Exit status of a command that this signal ended, as in shells.
pub(super) fn status(signal: i32) -> u8 {
    u8::try_from(signal.saturating_add(128)).unwrap_or(u8::MAX)
}

/// Signals that a terminal sends to its whole foreground, the command included.
const FROM_THE_TERMINAL: [Signal; 3] = [Signal::INT, Signal::QUIT, Signal::TSTP];

/// The signals that come to this process, from when this is made.
pub(super) struct Signals(Vec<(Signal, unix::Signal)>);

impl Signals {
    /// Signals that were ignored at the start stay ignored, here and for the command: `nohup`, and
    /// shells that start something in the background, mean that.
    pub(super) fn new() -> std::io::Result<Self> {
        let ignored = ignored();
        let wanted = [
            Signal::HUP,
            Signal::INT,
            Signal::QUIT,
            Signal::TERM,
            Signal::USR1,
            Signal::USR2,
            Signal::TSTP,
        ];
        let mut heard = Vec::new();
        for signal in wanted {
            let number = signal.as_raw();
            let bit = u32::try_from(number).ok().and_then(|number| number.checked_sub(1));
            let is_ignored = bit.and_then(|bit| 1_u64.checked_shl(bit)).unwrap_or(0) & ignored != 0;
            if !is_ignored {
                heard.push((signal, unix::signal(SignalKind::from_raw(number))?));
            }
        }
        Ok(Self(heard))
    }

    /// The next one.
    pub(super) async fn next(&mut self) -> Signal {
        std::future::poll_fn(|context| {
            for (signal, heard) in &mut self.0 {
                if heard.poll_recv(context).is_ready() {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// True if a signal is passed on to the command. A stop signal is not: a stopped command would hold
/// the lock for ever.
pub(super) fn is_passed_on(signal: Signal, foreground: bool) -> bool {
    signal != Signal::TSTP && !(foreground && FROM_THE_TERMINAL.contains(&signal))
}

/// Bit mask of ignored signals.
fn ignored() -> u64 {
    // Elsewhere than on Linux nothing is known to be.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_named_in_every_usual_way() {
        for text in ["TERM", "SIGTERM", "term", "15"] {
            assert_eq!(text.parse(), Ok(SignalName(Signal::TERM)), "{text}");
        }
        for text in ["", "SIG", "0", "-1", "99", "SOON"] {
            assert!(text.parse::<SignalName>().is_err(), "{text}");
        }
        assert_eq!(name(Signal::INT), "INT");
        assert_eq!([status(9), status(15), status(i32::MAX)], [137, 143, 255]);
    }

    #[test]
    fn what_the_terminal_sends_to_all_is_not_sent_twice() {
        assert!(is_passed_on(Signal::INT, false));
        assert!(!is_passed_on(Signal::INT, true));
        assert!(is_passed_on(Signal::TERM, true));
        assert!(!is_passed_on(Signal::TSTP, false));
    }
}
