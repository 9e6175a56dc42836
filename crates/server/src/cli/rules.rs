//! `tollgate rules`: reads, replaces, compares and follows the rules of a running server.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use http::{Method, StatusCode};
use http_body_util::BodyExt as _;
use tollgate::redis::Config;
use tollgate::rules::{self as files, Format};

use super::client::{Client, ServerReply};
use super::{AdminServer, Exit, Failure, answer, diff, say, wait};
use crate::rules::hashes;
use crate::settings::secret;
use crate::settings::value::Secret;

/// Subcommands of `tollgate rules`.
#[derive(Debug, Subcommand)]
pub(super) enum RulesCommand {
    /// Print the rules that apply
    Get {
        /// yaml, json or toml
        #[arg(long, default_value = "yaml", value_name = "FORMAT")]
        format: String,
    },
    /// Replace the rules, unless somebody else has replaced them meanwhile
    Put {
        /// Version to replace [default: the one that applies]
        #[arg(long, value_name = "VERSION")]
        expect: Option<u64>,
        /// Author of the change, for the log and for readers of the rules in Redis
        #[arg(long, value_name = "NAME")]
        author: Option<String>,
        /// Rule file
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Print the differences from a file
    Diff {
        /// Rule file
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Print every change of the rules, until interrupted
    Watch,
    /// Print rule hashes of another system in Redis as YAML; needs no server
    Import(Import),
}

/// Hashes to import.
#[derive(Args, Debug)]
pub(super) struct Import {
    /// URL of the Redis that holds the hashes
    #[arg(long, env = "TOLLGATE_IMPORT_FROM", hide_env_values = true, value_name = "URL")]
    from: Secret,
    /// Key pattern of the hashes
    #[arg(long, default_value = "rate_limit_config:*", value_name = "PATTERN")]
    pattern: String,
    /// Domain of the printed rules
    #[arg(long, default_value = "default", value_name = "DOMAIN")]
    domain: String,
    /// Version of the printed rules
    #[arg(long, default_value_t = 1, value_name = "VERSION")]
    as_version: u64,
}

impl Import {
    async fn run(&self) -> Result<Exit, Failure> {
        let config = Config::new(self.from.expose())?;
        let yaml = hashes::import(config, &self.pattern, &self.domain, self.as_version).await?;
        answer(Exit::Yes, &yaml)
    }
}

pub(super) fn run(server: &AdminServer, command: &RulesCommand) -> Result<Exit, Failure> {
    let token = secret("token", &server.token, &server.token_file)?;
    let client = Client::new(&server.admin, token, server.ca_file.as_deref())?;
    wait(async {
        match command {
            RulesCommand::Get { format } => answer(Exit::Yes, &get(&client, format).await?.text()),
            RulesCommand::Put { expect, author, file } => {
                put(&client, *expect, author.as_deref(), file).await
            }
            RulesCommand::Import(import) => import.run().await,
            RulesCommand::Diff { file } => {
                let reply = get(&client, "yaml").await?;
                let (text, format) = read(file)?;
                let declared = files::read(&text, format)
                    .map_err(|problems| problems.in_file(file.display().to_string()))?;
                let difference = diff::diff(&reply.text(), &files::write(&declared, Format::Yaml));
                answer(if difference.is_empty() { Exit::Yes } else { Exit::No }, &difference)
            }
            RulesCommand::Watch => watch(&client).await,
        }
    })
}

async fn get(client: &Client, format: &str) -> Result<ServerReply, Failure> {
    let path = format!("/v1/rules?format={format}");
    let reply = client.ask(Method::GET, &path, &[], "").await?;
    if reply.status == StatusCode::OK { Ok(reply) } else { Err(reply.problem()) }
}

fn read(path: &Path) -> Result<(String, Format), Failure> {
    let name = path.display();
    let bytes = std::fs::read(path).map_err(|error| format!("{name}: {error}"))?;
    let text = files::decode(&bytes).map_err(|problems| problems.in_file(name.to_string()))?;
    Ok((text.to_owned(), Format::of_path(path).unwrap_or(Format::Yaml)))
}

async fn put(
    client: &Client,
    expect: Option<u64>,
    author: Option<&str>,
    path: &Path,
) -> Result<Exit, Failure> {
    let (text, format) = read(path)?;
    let kind = match format {
        Format::Json => "application/json",
        Format::Toml => "application/toml",
        _ => "application/yaml",
    };
    let expected = match expect {
        Some(version) => format!("\"{version}\""),
        None => {
            let reply = get(client, "yaml").await?;
            let tag = reply.headers.get("etag").and_then(|tag| tag.to_str().ok());
            tag.ok_or("the server did not send the version of its rules")?.to_owned()
        }
    };
    let author = author.unwrap_or_default();
    let headers =
        [("content-type", kind), ("if-match", expected.as_str()), ("x-tollgate-author", author)];
    let reply = client.ask(Method::PUT, "/v1/rules", &headers, text).await?;
    match reply.status {
        StatusCode::OK => answer(Exit::Yes, &format!("{}\n", reply.text())),
        StatusCode::CONFLICT | StatusCode::BAD_REQUEST => {
            answer(Exit::No, &format!("{}\n", reply.problem()))
        }
        _ => Err(reply.problem()),
    }
}

async fn watch(client: &Client) -> Result<Exit, Failure> {
    let reply = client.send(Method::GET, "/v1/events", &[], bytes::Bytes::new()).await?;
    if reply.status() != StatusCode::OK {
        return Err(format!("the server answered {}", reply.status()).into());
    }
    let mut body = reply.into_body();
    let mut text = String::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        text.push_str(&String::from_utf8_lossy(&data));
        while let Some(end) = text.find("\n\n") {
            let event: String = text.drain(..end.saturating_add(2)).collect();
            if event.starts_with("event: rules") {
                let line = event.trim_end().replace("event: ", "").replace("\ndata: ", " ");
                say(&format!("{line}\n"))?;
            }
        }
    }
    Err("the server closed the connection".into())
}
