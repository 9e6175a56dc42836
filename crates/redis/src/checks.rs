//! What is looked at once, when the first connection is made.
use std::fmt;

use crate::config::Config;
use crate::error::ConnectError;
use crate::link::Wire;

/// Something about the server that works, but not as it should.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Warning {}

impl fmt::Display for Warning {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {}
    }
}

pub(crate) async fn run(_wire: &Wire, _config: &Config) -> Result<Vec<Warning>, ConnectError> {
    Ok(Vec::new())
}
