//! A secret that is said to the server comes out nowhere (C30).

use std::io::{Read as _, Write as _};
use std::time::Duration;

use super::program::{rules, run, serve};
use super::support::{TempDir, Wire, ask, connect};

const CANARY: &str = "canary-5d20";
const FLEET: &str = "5d205d205d205d205d205d205d205d20";

/// Everything that anybody can ask for, with every secret set: tokens, the password of Redis, the
/// fleet's secret, and values that are wrong.
#[test]
fn no_output_of_any_listener_holds_a_secret() {
    let dir = TempDir::new();
    let token = dir.path().join("token");
    std::fs::write(&token, format!("{CANARY}-admin\n")).unwrap();
    let url = format!("redis://user:{CANARY}-redis@127.0.0.1:1/0");
    let program = serve(
        &[
            "--rules",
            &rules(&dir),
            "--log-level=trace",
            "--admin-token-file",
            token.to_str().unwrap(),
        ],
        &[
            ("TOLLGATE_STORE", url.as_str()),
            ("TOLLGATE_STORE_PASSWORD", "canary-5d20-password"),
            ("TOLLGATE_API_TOKEN", "canary-5d20-api"),
            ("TOLLGATE_SECRET", FLEET),
        ],
    );
    let (http, resp, admin) = (program.at[0], program.at[1], program.at[2]);
    let api = format!("Authorization: Bearer {CANARY}-api");
    let sign = format!("Authorization: Bearer {CANARY}-admin");
    let json = "Content-Type: application/json";
    let body = r#"{"domain":"shop","attributes":{"user":"u","ip":"203.0.113.66"}}"#;
    let mut outputs = vec![("stdout".to_owned(), program.said.clone())];

    let mut events = connect(admin);
    write!(events, "GET /v1/events HTTP/1.1\r\nHost: {admin}\r\n{sign}\r\n\r\n").unwrap();
    let mut heard = [0; 4096];
    let length = events.read(&mut heard).unwrap();
    let mut heard = heard[..length].to_vec();
    for (at, head, body) in [
        (http, format!("POST /v1/check\r\n{api}"), body),
        (http, format!("POST /v1/peek\r\n{api}"), body),
        (http, format!("POST /v1/reserve\r\n{api}"), body),
        (http, format!("POST /v1/commit\r\n{api}"), r#"{"reservation":"x"}"#),
        (http, format!("POST /v1/check\r\nAuthorization: Bearer {CANARY}-wrong"), body),
        (http, format!("POST /v1/check\r\n{api}"), "{"),
        (http, format!("GET /v1/auth\r\n{api}"), ""),
        (http, "GET /readyz".to_owned(), ""),
        (http, "GET /openapi.json".to_owned(), ""),
        (http, "GET /docs".to_owned(), ""),
        (http, format!("GET /nowhere\r\n{api}"), ""),
        (admin, format!("GET /v1/rules\r\n{sign}"), ""),
        (admin, format!("PUT /v1/rules\r\n{sign}\r\n{json}\r\nIf-Match: \"1\""), "{}"),
        (admin, format!("POST /v1/rules/check\r\n{sign}\r\n{json}"), "{}"),
        (admin, format!("POST /v1/explain\r\n{sign}\r\n{json}"), body),
        (admin, format!("GET /v1/refusals\r\n{sign}"), ""),
        (admin, format!("GET /v1/refusals/top\r\n{sign}"), ""),
        (admin, format!("GET /v1/status\r\n{sign}"), ""),
        (admin, format!("GET /v1/log-level\r\n{sign}"), ""),
        (admin, format!("GET /metrics\r\n{sign}"), ""),
        (admin, format!("GET /v1/status\r\nAuthorization: Bearer {CANARY}-wrong"), ""),
    ] {
        let reply = ask(at, &head, body);
        assert!(reply.status > 0, "{head}");
        let named = head.lines().next().unwrap().to_owned();
        outputs.push((named, format!("{}\n{}", reply.head, reply.body)));
    }
    events.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let _ = events.read_to_end(&mut heard);
    assert!(heard.starts_with(b"HTTP/1.1 200"), "{}", heard.escape_ascii());
    outputs.push(("events".to_owned(), String::from_utf8_lossy(&heard).into_owned()));

    let mut client = Wire::new(resp);
    client.0.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    for command in [
        &["AUTH", "canary-5d20-wrong"][..],
        &["HELLO", "3", "AUTH", "default", "canary-5d20-api"],
        &["INFO"],
        &["COMMAND"],
        &["CL.THROTTLE", "k", "0", "1", "60"],
        &["TG.CHECK", "shop", "1", "user", "u"],
        &["NOTHING"],
    ] {
        client.command(command);
    }
    let said = client.rest();
    assert!(said.starts_with(b"-WRONGPASS"), "{}", said.escape_ascii());
    outputs.push(("resp".to_owned(), String::from_utf8_lossy(&said).into_owned()));
    drop(events);

    let (code, log) = program.end();
    assert_eq!(code, Some(0));
    outputs.push(("log".to_owned(), log));
    for (what, text) in &outputs {
        assert!(!text.contains(CANARY), "{what}: {text}");
        assert!(!text.contains(&FLEET[..16]), "{what}: {text}");
    }
}

/// The environment is where secrets are; help and errors are where they would show.
#[test]
fn help_and_errors_hold_no_secret_of_the_environment() {
    for args in [&["serve", "--help"][..], &["rules", "--help"], &["serve", "--http=nonsense"]] {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_tollgate"));
        for name in ["STORE", "STORE_PASSWORD", "SECRET", "API_TOKEN", "ADMIN_TOKEN"] {
            command.env(format!("TOLLGATE_{name}"), CANARY);
        }
        let output = command.args(args).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        assert!(!text.is_empty() && !String::from_utf8_lossy(&text).contains(CANARY), "{args:?}");
    }
    assert!(run(&["--version"]).status.success());
}
