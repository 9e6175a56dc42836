//! A secret that is said twice: by itself and by its file.

use super::program::{run, serve};
use super::support::{TempDir, check};

fn secret_file(dir: &TempDir, text: &str) -> String {
    let path = dir.path().join("secret");
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_secret_beside_its_file_is_an_error() {
    let dir = TempDir::new();
    let file = secret_file(&dir, "canary-88");
    let file = file.as_str();
    for (args, name) in [
        (&["serve", "--api-token=canary-88", "--api-token-file", file][..], "api-token"),
        (&["serve", "--admin-token=canary-88", "--admin-token-file", file], "admin-token"),
        (&["serve", "--secret=canary-88", "--secret-file", file], "secret"),
        (&["serve", "--store=canary-88", "--store-file", file], "store"),
        (&["serve", "--store-password=canary-88", "--store-password-file", file], "store-password"),
        (&["serve", "--rules-from=canary-88", "--rules-from-file", file], "rules-from"),
        (&["check", "--token=canary-88", "--token-file", file, "shop"], "token"),
        (&["rules", "--token=canary-88", "--token-file", file, "get"], "token"),
        (&["locks", "--store=canary-88", "--store-file", file, "list"], "store"),
    ] {
        // Nothing would run for ever, should it be no error.
        let off = ["--http=off", "--grpc=off", "--resp=off", "--admin=off"];
        let serves = args.first() == Some(&"serve");
        let output = run(&[args, if serves { &off } else { &[] }].concat());
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {told}");
        assert!(told.contains(&format!("--{name} and --{name}-file are both set")), "{told}");
        assert!(!told.contains("canary-88"), "{told}");
    }
}

/// Of two places the first that says either goes before both of the other.
#[test]
fn a_variable_goes_before_the_other_kind_in_the_settings_file() {
    let dir = TempDir::new();
    let config = dir.path().join("tollgate.toml");
    std::fs::write(&config, format!("api-token-file = {:?}\n", secret_file(&dir, "of-the-file")))
        .unwrap();
    let variables = [("TOLLGATE_CONFIG", config.to_str().unwrap()), ("TOLLGATE_API_TOKEN", "said")];
    let program = serve(&[], &variables);
    let with = |token: &str| {
        let head = format!("POST /v1/check\r\nAuthorization: Bearer {token}");
        super::support::ask(program.at[0], &head, r#"{"domain":"shop"}"#).status
    };
    assert_eq!([with("said"), with("of-the-file")], [200, 401]);
    assert_eq!(check(program.at[0], r#"{"domain":"shop"}"#).status, 401);
}
