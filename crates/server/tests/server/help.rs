//! The help and the manual, which must agree with the documentation.

use super::program::run;

fn help(args: &[&str]) -> String {
    let output = run(args);
    assert!(output.status.success(), "{args:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn docs(name: &str) -> String {
    let path = format!("{}/../../docs/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(path).unwrap()
}

/// Those of `serve` follow from the names of its flags, which the documentation says.
#[test]
fn every_variable_of_every_other_command_is_documented() {
    let documented = docs("server.md") + &docs("locks.md");
    let on_one_line = |text: String| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let serve = on_one_line(help(&["serve", "--help"]));
    for command in [
        &["check", "--help"][..],
        &["rules", "--help"],
        &["rules", "put", "--help"],
        &["rules", "import", "--help"],
        &["lock", "--help"],
        &["locks", "list", "--help"],
        &["locks", "force-release", "--help"],
    ] {
        let help = on_one_line(help(command));
        let variables = help.split("[env: ").skip(1).map(|rest| {
            let end = rest.find(|letter: char| !letter.is_ascii_uppercase() && letter != '_');
            &rest[..end.unwrap()]
        });
        for variable in variables {
            let known = documented.contains(&format!("`{variable}`"))
                || documented.contains(&format!("`{variable}="))
                || serve.contains(&format!("[env: {variable}="))
                || serve.contains(&format!("[env: {variable}]"));
            assert!(known, "{variable} of {command:?} is in no documentation");
        }
    }
    for variable in ["TOLLGATE_URL", "TOLLGATE_ADMIN_URL", "TOLLGATE_LOCKS_MOST"] {
        assert!(documented.contains(&format!("`{variable}`")), "{variable}");
    }
}

#[test]
fn exit_statuses_are_in_the_help_and_are_so() {
    assert!(
        help(&["check", "--help"])
            .contains("Exit status: 0 if the request is allowed, 1 if it is not, 2")
    );
    let lock = help(&["lock", "--help"]);
    for status in ["128 + n ", "1, or -E ", "2  ", "124 ", "125 ", "126, 127 "] {
        assert!(lock.contains(&format!("\n  {status}")), "{status}: {lock}");
    }
    for wrong in [&["lock", "--nonsense"][..], &["lock", "name"], &["lock", "-w", "soon", "a", "b"]]
    {
        assert_eq!(run(wrong).status.code(), Some(2), "{wrong:?}");
    }
    assert!(docs("locks.md").contains("\n| 2 | the command line is invalid"));
}

#[test]
fn the_manual_names_what_there_is() {
    let manual = help(&["man"]);
    let name = manual.split(".SH NAME\n").nth(1).unwrap().lines().next().unwrap();
    for what in ["limit", "lock", "HTTP", "gRPC", "Redis protocol"] {
        assert!(name.contains(what), "{what}: {name}");
    }
}
