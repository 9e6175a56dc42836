//! The shell lines of the README's quick starts, run as they stand there against the built program.

use std::path::Path;
use std::process::Command;

use tollgate_harness::RedisServer;

use super::program::serve;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Commands of the console blocks below a heading, and the lines that they are said to print.
fn console(page: &str, heading: usize) -> (String, Vec<String>) {
    let section = page.split("\n## ").nth(heading).unwrap();
    let (mut commands, mut printed) = (String::from("set -e\n"), Vec::new());
    for block in section.split("```console\n").skip(1) {
        for line in block.split("```").next().unwrap().lines() {
            match line.strip_prefix("$ ") {
                Some(command) => commands.extend([command, "\n"]),
                None => printed.push(line.to_owned()),
            }
        }
    }
    assert!(commands.lines().count() > 1 && !printed.is_empty(), "{section}");
    (commands, printed)
}

/// True if a line matches the page, where `…` stands for anything.
fn is_like(line: &str, shown: &str) -> bool {
    let mut parts = shown.split('…');
    let first = line.strip_prefix(parts.next().unwrap());
    let rest = parts.try_fold(first, |rest, part| Some(rest?.split_once(part).map(|it| it.1)));
    rest.flatten().is_some_and(|rest| rest.is_empty() || shown.ends_with('…'))
}

/// Runs the commands in one shell, and looks for the lines in their order.
fn runs_as_shown(commands: &str, shown: &[String]) {
    let program = Path::new(env!("CARGO_BIN_EXE_tollgate"));
    let path =
        format!("{}:{}", program.parent().unwrap().display(), std::env::var("PATH").unwrap());
    let output = Command::new("sh").args(["-c", commands]).env("PATH", path).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{commands}: {output:?}");
    let mut lines = printed.lines();
    for line in shown.iter().filter(|line| *line != "…") {
        assert!(lines.any(|printed| is_like(printed, line)), "{line} is not printed: {printed}");
    }
}

/// The README in both languages, whose sections have one order.
fn pages() -> impl Iterator<Item = String> {
    ["README.md", "README.zh-CN.md"]
        .into_iter()
        .map(|name| std::fs::read_to_string(Path::new(ROOT).join(name)).unwrap())
}

/// The sections of both pages: 1 what it does, 2 speed, 3 library, 4 server, 5 lock.
const SERVER: usize = 4;
const LOCK: usize = 5;

#[test]
fn the_quick_start_of_the_server_prints_what_the_readme_shows() {
    for page in pages() {
        let (commands, shown) = console(&page, SERVER);
        let rules = Path::new(ROOT).join("examples/rules/shop.yaml");
        let program = serve(&["--rules", rules.to_str().unwrap()], &[]);
        let [http, resp, ..] = program.at[..] else { panic!("{}", program.said) };
        // Told that it is at a terminal, redis-cli numbers its lines as the page does.
        let commands = commands
            .replace("127.0.0.1:8080", &http.to_string())
            .replace("redis-cli -p 6380", &format!("redis-cli --no-raw -p {}", resp.port()));
        assert!(commands.contains(&http.to_string()) && commands.contains("--no-raw"));

        runs_as_shown(&commands, &shown);
    }
}

#[test]
fn the_quick_start_of_locks_prints_what_the_readme_shows() {
    let redis = RedisServer::start().unwrap();
    for page in pages() {
        let (commands, shown) = console(&page, LOCK);
        let here = commands.replace("redis://127.0.0.1:6379", &redis.url());
        assert_ne!(here, commands);

        runs_as_shown(&here, &shown);
    }
}
