//! `--state-dir`: one that cannot be used, and what is in it that cannot.

use super::program::{rules, serve};
use super::support::{TempDir, ask, metric};

#[test]
fn a_directory_that_cannot_be_used_is_told_until_it_can() {
    let dir = TempDir::new();
    let state = dir.path().join("state");
    let args = ["--rules", &rules(&dir), "--rules-poll=10ms", "--state-dir"];
    let program = serve(&[&args[..], &[state.to_str().unwrap()]].concat(), &[]);
    let admin = program.at[2];
    let save_error = || ask(admin, "GET /v1/status", "").json()["state_trouble"].clone();

    assert_eq!(metric(admin, "tollgate_state_trouble"), 1);
    let told = save_error();
    let told = told.as_str().unwrap();
    assert!(
        told.starts_with("cannot write ") && told.contains("state/rules.last-good.yaml: "),
        "{told}"
    );
    assert_eq!(metric(admin, "tollgate_rules_trouble"), 0, "the rules themselves are well");

    std::fs::create_dir(&state).unwrap();
    for _ in 0..3_000 {
        if metric(admin, "tollgate_state_trouble") == 0 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert_eq!(save_error(), serde_json::Value::Null);
    let kept = std::fs::read_to_string(state.join("rules.last-good.yaml")).unwrap();
    assert!(kept.starts_with("version: 1\n"), "{kept}");
    let (_, log) = program.end();
    assert_eq!(log.matches("cannot save the last good rules").count(), 1, "once: {log}");
}

#[test]
fn a_directory_without_rules_to_keep_is_tried_at_the_start() {
    let dir = TempDir::new();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let program = serve(&["--state-dir", file.to_str().unwrap()], &[]);
    assert_eq!(metric(program.at[2], "tollgate_state_trouble"), 1);
    let fine = serve(&["--state-dir", dir.path().to_str().unwrap()], &[]);
    assert_eq!(metric(fine.at[2], "tollgate_state_trouble"), 0);
    assert!(!dir.path().join("rules.last-good.yaml.new").exists(), "nothing is left");
}

#[test]
fn garbage_that_was_kept_is_named_and_ignored() {
    for (garbage, why) in [
        (&b"version: ["[..], "1:"),
        (b"\xff\xfe", "not UTF-8"),
        (b"version: 1\ndomain: shop\nrule: []\n", "unknown field `rule`"),
    ] {
        let (dir, state) = (TempDir::new(), TempDir::new());
        let kept = state.path().join("rules.last-good.yaml");
        std::fs::write(&kept, garbage).unwrap();
        let args = ["--rules", &rules(&dir), "--state-dir", state.path().to_str().unwrap()];
        let program = serve(&args, &[]);
        assert_eq!(ask(program.at[0], "GET /readyz", "").status, 200);

        let (_, log) = program.end();
        let line =
            log.lines().find(|line| line.contains("ignored the last good rules")).expect(&log);
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(line["file"], kept.to_str().unwrap());
        assert!(line["error"].as_str().unwrap().contains(why), "{line}");
        let now = std::fs::read_to_string(&kept).unwrap();
        assert!(now.contains("login-per-ip"), "what applies has its place: {now}");
    }
}

#[test]
fn garbage_of_envoys_files_is_named_as_well() {
    let (dir, state) = (TempDir::new(), TempDir::new());
    let broken = dir.path().join("edge.yaml");
    std::fs::write(&broken, "domain: [").unwrap();
    std::fs::write(state.path().join("envoy.last-good.json"), "{}").unwrap();
    let args = ["--envoy-rules", broken.to_str().unwrap(), "--state-dir"];
    let program = serve(&[&args[..], &[state.path().to_str().unwrap()]].concat(), &[]);
    let (_, log) = program.end();
    let line = log.lines().find(|line| line.contains("ignored the last good rules")).expect(&log);
    assert!(line.contains("envoy.last-good.json"), "{line}");
}
