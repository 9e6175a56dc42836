//! The program itself: settings, signals, secrets.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, Command, Output, Stdio};

use super::lock::until;
use super::support::{RULES, TempDir, Wire, ask, check, connect, metric};

/// A program that runs until this is dropped.
pub(crate) struct Program {
    pub(crate) child: Child,
    /// Where it says that it listens: HTTP, RESP, admin, gRPC.
    pub(crate) at: Vec<SocketAddr>,
    pub(crate) said: String,
}

/// The program with an empty environment but for free ports: a test must pass beside a server that
/// listens on the default ones. Flags go before these variables.
fn tollgate() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.env_clear();
    for listener in ["HTTP", "GRPC", "RESP", "ADMIN"] {
        command.env(format!("TOLLGATE_{listener}"), "127.0.0.1:0");
    }
    command
}

pub(crate) fn run(args: &[&str]) -> Output {
    tollgate().args(args).output().unwrap()
}

/// Starts `serve`, and reads where it listens.
pub(crate) fn serve(args: &[&str], variables: &[(&str, &str)]) -> Program {
    let mut command = tollgate();
    command.arg("serve").args(args).envs(variables.iter().copied());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let said: Vec<String> = lines.by_ref().take(6).map(|line| line.unwrap()).collect();
    Program { child, at: addresses(&said), said: said.join("\n") }
}

/// The addresses that a greeting names: HTTP, RESP, admin, gRPC.
fn addresses(said: &[String]) -> Vec<SocketAddr> {
    let of = |name: &str| {
        let line = said.iter().find(|line| line.trim_start().starts_with(name))?;
        line.split("://").nth(1)?.split(' ').next()?.parse().ok()
    };
    ["http ", "resp ", "admin ", "grpc "].into_iter().filter_map(of).collect()
}

impl Program {
    pub(crate) fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &id]).status().unwrap().success());
    }

    /// Ends it, and returns its status and what it logged.
    pub(crate) fn end(mut self) -> (Option<i32>, String) {
        self.signal("TERM");
        let mut log = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
        (self.child.wait().unwrap().code(), log)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn rules(dir: &TempDir) -> String {
    let path = dir.path().join("rules.yaml");
    std::fs::write(&path, RULES).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn serve_says_where_it_listens_and_sigterm_ends_it_well() {
    let dir = TempDir::new();
    let program = serve(&["--rules", &rules(&dir)], &[]);
    assert_eq!(program.at.len(), 4, "{}", program.said);
    assert!(program.said.contains("try: curl -s http://127.0.0.1:"), "{}", program.said);
    assert!(check(program.at[0], r#"{"domain":"shop"}"#).json()["allowed"].as_bool().unwrap());
    let mut client = Wire::new(program.at[1]);
    client.asks(&["PING"], b"+PONG\r\n");
    let mut kept = connect(program.at[0]);
    std::io::Write::write_all(&mut kept, b"GET /readyz HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let mut first = [0; 15];
    kept.read_exact(&mut first).unwrap();

    let (code, log) = program.end();

    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("draining") && log.contains("\"ended\""), "{log}");
    assert_eq!(client.rest(), b"", "closed, not cut");
    let lines: Vec<serde_json::Value> =
        log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.iter().all(|line| line["level"].is_string() && line["timestamp"].is_string()));
}

/// The commands of the banner work as printed, with any settings of the listeners.
#[test]
fn what_it_says_to_try_works() {
    let dir = TempDir::new();
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let (cert, file) = (dir.path().join("tls.crt"), dir.path().join("tls.key"));
    std::fs::write(&cert, params.self_signed(&key).unwrap().pem()).unwrap();
    std::fs::write(&file, key.serialize_pem()).unwrap();
    let tls = ["--tls-cert", cert.to_str().unwrap(), "--tls-key", file.to_str().unwrap()];
    let path = rules(&dir);
    let plain = ["--rules", &path];
    let token = [("TOLLGATE_API_TOKEN", "said-by-the-environment")];
    for args in [plain.to_vec(), [&plain[..], &tls[..]].concat()] {
        for token in [&token[..], &[]] {
            let program = serve(&args, token);
            let line = program.said.lines().find_map(|line| line.strip_prefix("try: ")).unwrap();
            let mut shell = Command::new("sh");
            let output = shell.args(["-c", line]).envs(token.iter().copied()).output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(text.contains("\"allowed\":true"), "{line}: {text}");
        }
    }
}

#[test]
fn sighup_reloads_the_rules() {
    let dir = TempDir::new();
    let path = rules(&dir);
    let program = serve(&["--rules", &path, "--rules-poll", "1h"], &[]);
    std::fs::write(&path, RULES.replacen("version: 1", "version: 2", 1)).unwrap();
    program.signal("HUP");
    for _ in 0..3_000 {
        if check(program.at[0], r#"{"domain":"shop"}"#).json()["rules_version"] == 2 {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("version 2 never applied");
}

#[test]
fn flags_go_before_variables_before_the_file() {
    let dir = TempDir::new();
    let path = rules(&dir);
    let config = dir.path().join("tollgate.toml");
    std::fs::write(
        &config,
        format!("rules = {path:?}\nlog-level = \"error\"\nmax-connections = 7\nfleet = \"file\"\n"),
    )
    .unwrap();
    let config = config.to_str().unwrap();
    let max = |program: &Program| {
        let mut client = Wire::new(program.at[1]);
        client.command(&["INFO"]);
        let mut text = String::new();
        let mut reader = BufReader::new(&client.0);
        while !text.contains("maxclients:") {
            reader.read_line(&mut text).unwrap();
        }
        text.split("maxclients:").nth(1).unwrap().trim().to_owned()
    };

    assert_eq!(max(&serve(&["--config", config], &[])), "7");
    assert_eq!(
        max(&serve(&[], &[("TOLLGATE_CONFIG", config), ("TOLLGATE_MAX_CONNECTIONS", "8")])),
        "8"
    );
    let both = [("TOLLGATE_MAX_CONNECTIONS", "8")];
    assert_eq!(max(&serve(&["--config", config, "--max-connections", "9"], &both)), "9");
}

#[test]
fn what_makes_no_sense_is_told_before_anything_listens() {
    let dir = TempDir::new();
    let config = dir.path().join("bad.toml");
    std::fs::write(&config, "fleet = \"a\"\nadmin-tokn = \"canary-7f3\"\n").unwrap();
    for (args, why) in [
        (&["serve", "--admin", "0.0.0.0:0"][..], "set --admin-token-file"),
        (&["serve", "--store", "http://x"], "redis"),
        (
            &["serve", "--config", config.to_str().unwrap()],
            "bad.toml:2: unknown field `admin-tokn`",
        ),
        (&["serve", "--secret", "short"], "32 hexadecimal digits"),
        (&["serve", "--admin-token-file", "/nowhere/at/all"], "cannot use --admin-token-file"),
        (&["serve", "--trust", "10.0.0.1/8"], "trust"),
        (&["serve", "--drain-timeout", "soon"], "not a duration"),
        (
            &["serve", "--http=off", "--grpc=off", "--resp=off", "--admin=off"],
            "every listener is off: set one of --http, --grpc, --resp, --admin to an address",
        ),
        (&["serve", "--max-connections", "0"], "--max-connections must be greater than 0"),
        (&["serve", "--max-keys", "0"], "--max-keys must be greater than 0"),
        (&["serve", "--store-deadline", "0s"], "--store-deadline must be greater than 0"),
        (&["serve", "--tls-cert", "a.pem"], "--tls-cert is set without --tls-key"),
        (&["serve", "--tls-key", "a.pem"], "--tls-key is set without --tls-cert"),
    ] {
        let output = run(args);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {text}");
        assert!(text.contains(why), "{args:?}: {text}");
        assert!(!text.contains("canary-7f3"), "{text}");
    }
}

/// C30
#[test]
fn no_secret_and_no_key_is_in_anything_that_is_printed() {
    const CANARY: &str = "canary-9c41";
    let dir = TempDir::new();
    let token = dir.path().join("token");
    std::fs::write(&token, format!("{CANARY}-admin\n")).unwrap();
    let url = format!("redis://user:{CANARY}-redis@127.0.0.1:1/0");
    let program = serve(
        &[
            "--rules",
            &rules(&dir),
            "--log-level",
            "trace",
            "--admin-token-file",
            token.to_str().unwrap(),
        ],
        &[
            ("TOLLGATE_STORE", url.as_str()),
            ("TOLLGATE_API_TOKEN", "canary-9c41-api"),
            ("TOLLGATE_SECRET", "00112233445566778899aabbccddeeff"),
        ],
    );
    let api = format!("Authorization: Bearer {CANARY}-api");
    let admin = format!("Authorization: Bearer {CANARY}-admin");
    let user = format!(
        r#"{{"domain":"shop","attributes":{{"user":"{CANARY}-user","ip":"203.0.113.9"}}}}"#
    );
    for _ in 0..5 {
        assert_eq!(ask(program.at[0], &format!("POST /v1/check\r\n{api}"), &user).status, 200);
    }
    ask(program.at[0], &format!("POST /v1/check\r\nAuthorization: Bearer {CANARY}-wrong"), &user);
    ask(program.at[0], &format!("POST /v1/check\r\n{api}"), &format!("{{\"{CANARY}"));
    ask(program.at[2], &format!("GET /v1/status\r\nAuthorization: Bearer {CANARY}-wrong"), "");
    let mut client = Wire::new(program.at[1]);
    client.line(&["AUTH", &format!("{CANARY}-wrong")]);
    client.asks(&["AUTH", &format!("{CANARY}-api")], b"+OK\r\n");
    client.line(&["CL.THROTTLE", &format!("{CANARY}-key"), "1", "1", "60"]);
    let metrics = ask(program.at[2], &format!("GET /metrics\r\n{admin}"), "");
    assert_eq!(metrics.status, 200);
    let status = ask(program.at[2], &format!("GET /v1/status\r\n{admin}"), "");
    let said = program.said.clone();

    let (code, log) = program.end();

    assert_eq!(code, Some(0));
    assert!(log.contains("Redis does not answer"), "{log}");
    assert!(log.contains("HTTP request"), "the log is as loud as can be: {log}");
    for (what, text) in
        [("log", &log), ("metrics", &metrics.body), ("status", &status.body), ("stdout", &said)]
    {
        assert!(!text.contains(CANARY), "{what}: {text}");
        assert!(!text.contains("00112233445566778899"), "{what}: {text}");
    }
}

#[test]
fn the_commands_ask_a_running_server() {
    let dir = TempDir::new();
    let path = rules(&dir);
    let program = serve(&["--rules", &path], &[]);
    let (http, admin) = (format!("http://{}", program.at[0]), format!("http://{}", program.at[2]));
    let text = |output: &Output| String::from_utf8_lossy(&output.stdout).into_owned();

    let yes = run(&["check", "--server", &http, "shop", "user=a", "ip=203.0.113.9"]);
    assert_eq!(yes.status.code(), Some(0), "{}", text(&yes));
    let no = run(&["check", "--server", &http, "shop", "ip=203.0.113.66"]);
    assert_eq!(no.status.code(), Some(1), "{}", text(&no));
    assert!(text(&no).contains("\"reason\": \"blocked\""));
    assert_eq!(run(&["check", "--server", "http://127.0.0.1:1", "shop"]).status.code(), Some(2));

    let got = run(&["rules", "get", "--admin", &admin]);
    assert!(text(&got).starts_with("version: 1\ndomain: shop\n"), "{}", text(&got));
    let new = dir.path().join("new.yaml");
    std::fs::write(
        &new,
        RULES.replacen("version: 1", "version: 2", 1).replace("2 per 1m", "8 per 1m"),
    )
    .unwrap();
    let new = new.to_str().unwrap();
    let differs = run(&["rules", "diff", "--admin", &admin, new]);
    assert_eq!(differs.status.code(), Some(1));
    assert!(
        text(&differs).contains("-       - 2 per 1m\n+       - 8 per 1m\n"),
        "{}",
        text(&differs)
    );
    assert_eq!(run(&["rules", "put", "--admin", &admin, new]).status.code(), Some(0));
    assert_eq!(run(&["rules", "diff", "--admin", &admin, new]).status.code(), Some(0));
    let stale = run(&["rules", "put", "--admin", &admin, "--expect", "1", new]);
    assert_eq!(stale.status.code(), Some(1));
    assert!(text(&stale).contains("409"), "{}", text(&stale));
}

#[test]
fn rule_files_are_checked_without_a_server() {
    let dir = TempDir::new();
    let good = run(&["check-rules", &rules(&dir)]);
    assert_eq!(good.status.code(), Some(0));
    assert!(
        String::from_utf8_lossy(&good.stdout)
            .ends_with("rules.yaml: version 1, 2 rules in 1 domains\n")
    );
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/rules/shop.yaml");
    assert_eq!(run(&["check-rules", example]).status.code(), Some(0));
    let edge = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/rules/envoy");
    let edge = run(&["check-rules", "--envoy", edge]);
    assert_eq!(edge.status.code(), Some(0), "{edge:?}");
    assert_eq!(String::from_utf8_lossy(&edge.stdout), "3 rules in 1 domains\n");
    let bad = dir.path().join("bad.yaml");
    std::fs::write(&bad, "domain: a\nkey: b\n").unwrap();
    let bad = run(&["check-rules", "--envoy", bad.to_str().unwrap()]);
    assert_eq!(bad.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&bad.stdout).contains("bad.yaml:2:1: "), "{bad:?}");
    let bad = dir.path().join("bad.json");
    std::fs::write(&bad, "{\"version\": 1,\n \"domain\": 7}").unwrap();
    let bad = run(&["check-rules", bad.to_str().unwrap()]);
    assert_eq!(bad.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&bad.stdout).contains("bad.json:2:12: "));
    let hostile = run(&["check-rules", "no\u{1b}[31m.yaml"]);
    let told = String::from_utf8(hostile.stderr).unwrap();
    assert!(told.starts_with("tollgate: no\\u{1b}[31m.yaml: "), "for a terminal: {told:?}");
}

#[test]
fn a_log_of_rejected_rules_says_whether_earlier_ones_apply() {
    let dir = TempDir::new();
    let path = rules(&dir);
    let rejected = |program: &Program| metric(program.at[2], "tollgate_rules_rejected_total") > 0;

    let without = serve(&["--rules", &format!("{path}.none")], &[]);
    until("the missing file is rejected", || rejected(&without));
    let (_, log) = without.end();
    assert!(log.contains("rejected the rules; there are none yet"), "{log}");
    assert!(!log.contains("the previous ones still apply"), "{log}");

    let with = serve(&["--rules", &path], &[]);
    std::fs::write(&path, "version: 1\n: :").unwrap();
    until("the broken file is rejected", || rejected(&with));
    let (_, log) = with.end();
    assert!(log.contains("rejected the rules; the previous ones still apply"), "{log}");
}

#[test]
fn completions_and_manual_are_printed() {
    for args in [
        &["completions", "bash"][..],
        &["completions", "fish"],
        &["man"],
        &["--version"],
        &["serve", "--help"],
    ] {
        let output = run(args);
        assert!(output.status.success(), "{args:?}");
        assert!(output.stdout.len() > 10, "{args:?}");
    }
}

#[test]
fn the_log_level_is_changed_while_it_runs() {
    let dir = TempDir::new();
    let program = serve(&["--rules", &rules(&dir), "--log-level", "warn"], &[]);
    let admin = program.at[2];
    let level = |word: &str| {
        ask(admin, "PUT /v1/log-level\r\nContent-Type: application/json", &format!("{word:?}"))
            .status
    };

    ask(program.at[0], "GET /healthz\r\nX-Request-Id: before", "");
    assert_eq!([level("debug"), level("loud")], [200, 400]);
    assert_eq!(ask(admin, "GET /v1/log-level", "").json(), serde_json::json!({ "level": "debug" }));
    let as_said = "PUT /v1/log-level\r\nContent-Type: application/json";
    assert_eq!(ask(admin, as_said, r#"{"level":"trace"}"#).json()["level"], "trace");
    assert_eq!(ask(admin, as_said, r#"{"level":7}"#).status, 400);
    ask(program.at[0], "GET /healthz\r\nX-Request-Id: after", "");

    let (_, log) = program.end();
    assert!(
        !log.contains("\"request\":\"before\"") && log.contains("\"request\":\"after\""),
        "{log}"
    );
    assert!(log.contains("\"audit\":true"), "{log}");
}

/// B24
#[test]
fn when_descriptors_run_out_it_waits_and_goes_on() {
    let dir = TempDir::new();
    let mut shell = Command::new("sh");
    let path = rules(&dir);
    let run = format!(
        "ulimit -n 48; exec {} serve --rules {path} --http=127.0.0.1:0 --resp=127.0.0.1:0 --admin=127.0.0.1:0 --grpc=127.0.0.1:0",
        env!("CARGO_BIN_EXE_tollgate"),
    );
    let mut child =
        shell.args(["-c", &run]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let said: Vec<String> = lines.by_ref().take(6).map(|line| line.unwrap()).collect();
    let program = Program { child, at: addresses(&said), said: String::new() };

    let flood: Vec<_> = (0..120).map(|_| connect(program.at[1])).collect();
    drop(flood);

    Wire::new(program.at[1]).asks(&["PING"], b"+PONG\r\n");
    assert_eq!(ask(program.at[0], "GET /healthz", "").status, 200);
}
