//! `tollgate check`: asks a running server whether a request may pass.

use std::path::PathBuf;

use clap::Args;
use http::{Method, StatusCode};
use serde_json::{Map, Value, json};

use super::client::Client;
use super::{Exit, Failure, answer, wait};
use crate::settings::secret;
use crate::settings::value::Secret;

/// Request to check, and the server to ask.
#[derive(Args, Debug)]
#[command(after_help = "Exit status: 0 if the request is allowed, 1 if it is not, 2 on errors.")]
pub(super) struct CheckCommand {
    /// URL of the HTTP listener, http:// or https://
    #[arg(long, env = "TOLLGATE_URL", default_value = "http://127.0.0.1:8080", value_name = "URL")]
    server: String,
    /// Certificate authorities to trust over https, as PEM [default: those of the system]
    #[arg(long, env = "TOLLGATE_CA_FILE", value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// File that holds the token
    #[arg(long, env = "TOLLGATE_API_TOKEN_FILE", value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Token of the server
    #[arg(long, env = "TOLLGATE_API_TOKEN", hide_env_values = true, value_name = "TEXT")]
    token: Option<Secret>,
    /// Ask without charging
    #[arg(long)]
    peek: bool,
    /// Cost of the request
    #[arg(long, default_value_t = 1, value_name = "COUNT")]
    cost: u64,
    /// Domain of the request
    #[arg(value_name = "DOMAIN")]
    domain: String,
    /// Attributes of the request, such as `ip=203.0.113.9`
    #[arg(value_name = "NAME=VALUE")]
    attributes: Vec<String>,
}

impl CheckCommand {
    pub(super) fn run(&self) -> Result<Exit, Failure> {
        let token = secret("token", &self.token, &self.token_file)?;
        let client = Client::new(&self.server, token, self.ca_file.as_deref())?;
        let mut attributes = Map::new();
        for pair in &self.attributes {
            let (name, value) = pair
                .split_once('=')
                .ok_or_else(|| format!("{pair:?} is not name=value, such as ip=203.0.113.9"))?;
            attributes.insert(name.to_owned(), value.into());
        }
        let body = json!({ "domain": self.domain, "attributes": attributes, "cost": self.cost });
        let path = if self.peek { "/v1/peek" } else { "/v1/check" };
        let json = [("content-type", "application/json")];
        let reply = wait(client.ask(Method::POST, path, &json, body.to_string()))?;
        if reply.status != StatusCode::OK {
            return Err(reply.problem());
        }
        let said: Value = serde_json::from_slice(&reply.body)?;
        let allowed = said.get("allowed").and_then(Value::as_bool) == Some(true);
        let exit = if allowed { Exit::Yes } else { Exit::No };
        answer(exit, &format!("{}\n", serde_json::to_string_pretty(&said)?))
    }
}
