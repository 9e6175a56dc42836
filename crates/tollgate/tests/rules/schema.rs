//! The schema and the reader agree, as judged by a validator that is not ours.

use boon::{Compiler, SchemaIndex, Schemas};
use serde_json::Value;
use tollgate::rules::{self, Format};
use tollgate_core::testing::Rng;

use crate::generate::{Texts, declaration};

struct Schema {
    schemas: Schemas,
    index: SchemaIndex,
}

impl Schema {
    fn new() -> Self {
        const URL: &str = "https://schema.test/rules.schema.json";
        let mut schemas = Schemas::new();
        let mut compiler = Compiler::new();
        compiler.add_resource(URL, serde_json::from_str(rules::SCHEMA).unwrap()).unwrap();
        let index = compiler.compile(URL, &mut schemas).unwrap();
        Self { schemas, index }
    }

    fn refusal(&self, json: &str) -> Option<String> {
        let value: Value = serde_json::from_str(json).unwrap();
        self.schemas.validate(&value, self.index).err().map(|error| error.to_string())
    }
}

#[test]
fn the_schema_accepts_what_the_reader_accepts() {
    let schema = Schema::new();
    for seed in 0..1_000 {
        let declared = declaration(&mut Rng::new(seed), Texts::Arbitrary);
        let json = rules::write(&declared, Format::Json);

        assert_eq!(schema.refusal(&json), None, "seed {seed}: {json}");
    }
}

#[test]
fn the_schema_accepts_every_spelling() {
    let schema = Schema::new();
    for rule in [
        r#""limits": ["1_000 PER minute Burst 5"]"#,
        r#""limits": [{ "count": 3, "lease": "30s", "algorithm": "concurrency" }]"#,
        r#""limits": [{ "concurrent": 3, "lease": "30s", "algorithm": "concurrency" }]"#,
        r#""by": "ip", "replaces": "a", "cost": {}, "local-guard": 2"#,
        r#""match": { "a": "*", "b": ["x*"], "c": { "present": true }, "ip": "::/0" }"#,
        r#""match": { "d": { "text": "*" }, "e": [{ "prefix": "" }], "ip": { "absent": true } }"#,
    ] {
        let json =
            format!(r#"{{ "version": 1, "domain": "d", "rules": [{{ "name": "r", {rule} }}] }}"#);

        assert!(rules::read(&json, Format::Json).is_ok(), "{json}");
        assert_eq!(schema.refusal(&json), None, "{json}");
    }
}

#[test]
fn what_a_schema_can_tell_is_refused_by_both() {
    let schema = Schema::new();
    let rules_of = |rule: &str| {
        format!(r#"{{ "version": 1, "domain": "d", "rules": [{{ "name": "r", {rule} }}] }}"#)
    };
    let limit_of = |limit: &str| rules_of(&format!(r#""limits": [{limit}]"#));
    let files = [
        "{}",
        "[]",
        "null",
        r#"{ "version": 1 }"#,
        r#"{ "domain": "d" }"#,
        r#"{ "version": 0, "domain": "d" }"#,
        r#"{ "version": -1, "domain": "d" }"#,
        r#"{ "version": 1.5, "domain": "d" }"#,
        r#"{ "version": 9223372036854775808, "domain": "d" }"#,
        r#"{ "version": "1", "domain": "d" }"#,
        r#"{ "version": 1, "domain": 7 }"#,
        r#"{ "version": 1, "domain": null }"#,
        r#"{ "version": 1, "domain": "d", "domains": [] }"#,
        r#"{ "version": 1, "domains": [], "rules": [] }"#,
        r#"{ "version": 1, "domains": [{}] }"#,
        r#"{ "version": 1, "domain": "d", "rule": [] }"#,
        r#"{ "version": 1, "domain": "d", "rules": {} }"#,
        r#"{ "version": 1, "domain": "d", "rules": [{}] }"#,
        r#"{ "version": 1, "domain": "d", "rules": null }"#,
        r#"{ "version": 1, "domain": "d", "ipv6-prefix": 129 }"#,
        r#"{ "version": 1, "domain": "d", "path-case": "Sensitive" }"#,
        r#"{ "version": 1, "domain": "d", "lists": { "deny": [] } }"#,
        r#"{ "version": 1, "domain": "d", "lists": { "block": ["mallory"] } }"#,
        r#"{ "version": 1, "domain": "d", "lists": { "block": [{ "a": "x", "b": "x" }] } }"#,
        r#"{ "version": 1, "domain": "d", "lists": { "block": [{ "a": "*" }] } }"#,
        &rules_of(r#""limit": []"#),
        &rules_of(r#""limits": "5 per 1m""#),
        &rules_of(r#""mode": false"#),
        &rules_of(r#""on-outage": "locl""#),
        &rules_of(r#""block": "true""#),
        &rules_of(r#""by": 5"#),
        &rules_of(r#""local-guard": 0"#),
        &rules_of(r#""local-guard": "1.2""#),
        &rules_of(r#""cost": 5"#),
        &rules_of(r#""cost": { "default": 2 }"#),
        &rules_of(r#""ban": { "after": 1 }"#),
        &rules_of(r#""ban": { "after": 0, "within": "1m", "for": "1m" }"#),
        &rules_of(r#""match": { "a": 1 }"#),
        &rules_of(r#""match": { "a": ["*"] }"#),
        &rules_of(r#""match": { "a": { "absent": false } }"#),
        &rules_of(r#""match": { "a": { "text": "x", "prefix": "x" } }"#),
        &rules_of(r#""match": { "header": { "x-plan": "gold" } }"#),
        &rules_of(r#""match": { "ip": "localhost" }"#),
        &rules_of(r#""match": []"#),
        &limit_of("5"),
        &limit_of(r#""five per 1m""#),
        &limit_of(r#""5 per""#),
        &limit_of("{}"),
        &limit_of(r#"{ "count": 5 }"#),
        &limit_of(r#"{ "count": 0, "per": "1m" }"#),
        &limit_of(r#"{ "count": 5, "per": 60 }"#),
        &limit_of(r#"{ "count": 5, "per": "" }"#),
        &limit_of(r#"{ "count": 5, "per": "1m", "algorithm": "gcra" }"#),
        &limit_of(r#"{ "count": 5, "per": "1m", "panes": 5 }"#),
        &limit_of(r#"{ "count": 5, "per": "1m", "algorithm": "sliding-log", "anchor": "epoch" }"#),
        &limit_of(r#"{ "count": 5, "per": "1m", "algorithm": "concurrency" }"#),
        &limit_of(r#"{ "count": 5, "concurrent": 5, "lease": "1m" }"#),
        &limit_of(r#"{ "concurrent": 5, "lease": "1m", "algorithm": "smooth" }"#),
        &limit_of(r#"{ "count": 5, "per": "1m", "lease": "1m" }"#),
    ];
    for json in files {
        assert!(rules::read(json, Format::Json).is_err(), "the reader accepts {json}");
        assert!(schema.refusal(json).is_some(), "the schema accepts {json}");
    }
}
