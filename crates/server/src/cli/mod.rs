//! The command line.
//!
//! `serve` is the server; the other commands ask a running one, or need none. Exit status: 0 for yes,
//! 1 for no (refused, invalid, different), 2 on errors. `lock` exits with the status of its command, or
//! with one of its own.

mod check;
mod client;
mod diff;
mod lock;
mod locks;
mod redis;
mod rules;
mod serve;
mod trust;

use std::ffi::OsString;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, CommandFactory as _, Parser, Subcommand};
use tollgate::rules::{self as files, Format};

use crate::settings::Options;
use crate::settings::value::Secret;

/// Limits for a fleet of services over HTTP, gRPC and the Redis protocol, by one set of rules; and locks.
#[derive(Debug, Parser)]
#[command(name = "tollgate", version, about, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve limits over HTTP, gRPC and the Redis protocol
    Serve(Box<ServeCommand>),
    /// Check rule files for errors
    CheckRules {
        /// Check them together, as files of envoyproxy/ratelimit
        #[arg(long)]
        envoy: bool,
        /// Files to check
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// Ask a running server whether a request is allowed
    Check(check::CheckCommand),
    /// Read, replace and watch the rules of a running server
    Rules {
        #[command(flatten)]
        server: AdminServer,
        #[command(subcommand)]
        command: rules::RulesCommand,
    },
    /// Run a command under a lock, as flock(1) does, across machines
    Lock(Box<lock::LockCommand>),
    /// List locks and their holders, and release locks by force
    Locks {
        #[command(flatten)]
        store: redis::LockStoreArgs,
        #[command(subcommand)]
        command: locks::LocksCommand,
    },
    /// Run a command that ends with its parent
    #[command(hide = true)]
    Exec {
        /// The parent
        parent: i32,
        /// Command to run, and its arguments
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<OsString>,
    },
    /// Print completions for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page
    Man,
}

#[derive(Args, Debug)]
struct ServeCommand {
    /// TOML file of settings, with the names of the flags as keys
    #[arg(long, env = "TOLLGATE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    options: Options,
}

/// Admin listener to ask.
#[derive(Args, Debug)]
struct AdminServer {
    /// URL of the admin API, http:// or https://
    #[arg(
        long,
        global = true,
        env = "TOLLGATE_ADMIN_URL",
        default_value = "http://127.0.0.1:9091",
        value_name = "URL"
    )]
    admin: String,
    /// Certificate authorities to trust over https, as PEM [default: those of the system]
    #[arg(long, global = true, env = "TOLLGATE_CA_FILE", value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// File that holds the token
    #[arg(long, global = true, env = "TOLLGATE_ADMIN_TOKEN_FILE", value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Token of the server
    #[arg(
        long,
        global = true,
        env = "TOLLGATE_ADMIN_TOKEN",
        hide_env_values = true,
        value_name = "TEXT"
    )]
    token: Option<Secret>,
}

/// Answer of a command, as its exit status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exit {
    Yes,
    No,
}

/// Error of a command that has no answer.
type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Runs the program with its arguments and environment.
pub fn run() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Serve(serve) => serve::run(serve.config.as_deref(), serve.options),
        Command::CheckRules { files, envoy: true } => check_envoy_rules(&files),
        Command::CheckRules { files, envoy: false } => check_rules(&files),
        Command::Check(check) => check.run(),
        Command::Rules { server, command } => rules::run(&server, &command),
        Command::Lock(lock) => return lock.run(),
        Command::Locks { store, command } => locks::run(&store, &command),
        Command::Exec { parent, command } => return lock::exec(parent, &command),
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "tollgate", &mut std::io::stdout());
            Ok(Exit::Yes)
        }
        Command::Man => man(),
    };
    match done {
        Ok(Exit::Yes) => ExitCode::SUCCESS,
        Ok(Exit::No) => ExitCode::from(1),
        Err(error) => {
            complain(&error.to_string());
            ExitCode::from(2)
        }
    }
}

/// Reports an error. It may quote a name that would write over the terminal.
fn complain(text: &str) {
    let lines: Vec<String> = text.lines().map(redis::plain).collect();
    // A closed stderr is no reason to fail.
    let _ = writeln!(std::io::stderr(), "tollgate: {}", lines.join("\n"));
}

fn check_rules(paths: &[PathBuf]) -> Result<Exit, Failure> {
    let mut answer = Exit::Yes;
    for path in paths {
        let name = path.display().to_string();
        let bytes = std::fs::read(path).map_err(|error| format!("{name}: {error}"))?;
        let format = Format::of_path(path).unwrap_or(Format::Yaml);
        match files::decode(&bytes).and_then(|text| files::load(text, format)) {
            Ok(set) => {
                let (version, rules) = (set.version(), set.rules().count());
                let domains = set.declaration().domains.len();
                say(&format!("{name}: version {version}, {rules} rules in {domains} domains\n"))?;
            }
            Err(problems) => {
                answer = Exit::No;
                say(&format!("{}\n", problems.in_file(name)))?;
            }
        }
    }
    Ok(answer)
}

/// Together, as a domain may be in one of them only.
fn check_envoy_rules(paths: &[PathBuf]) -> Result<Exit, Failure> {
    match crate::envoy::check(paths) {
        Ok(set) => {
            let (rules, domains) = (set.rules().len(), set.domains().count());
            answer(Exit::Yes, &format!("{rules} rules in {domains} domains\n"))
        }
        Err(why) => answer(Exit::No, &format!("{why}\n")),
    }
}

fn man() -> Result<Exit, Failure> {
    let mut page = Vec::new();
    clap_mangen::Man::new(Cli::command()).render(&mut page)?;
    for command in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
        page.extend_from_slice(b"\n");
        clap_mangen::Man::new(command.clone()).render(&mut page)?;
    }
    std::io::stdout().write_all(&page)?;
    Ok(Exit::Yes)
}

/// Prints to stdout; a reader that has left ends the program quietly.
fn say(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Prints to stdout, and ends with this status.
fn answer(exit: Exit, text: &str) -> Result<Exit, Failure> {
    say(text)?;
    Ok(exit)
}

/// Runs a future to its end, on this thread.
fn wait<T>(future: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(future)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed_and_every_setting_has_a_variable() {
        Cli::command().debug_assert();
        let command = Cli::command();
        let serve = command.find_subcommand("serve").unwrap();
        for argument in serve.get_arguments().filter(|argument| argument.get_id() != "help") {
            let name = argument.get_long().unwrap().replace('-', "_").to_ascii_uppercase();
            let variable = argument.get_env().unwrap().to_str().unwrap();
            assert_eq!(variable, format!("TOLLGATE_{name}"));
        }
    }
}
