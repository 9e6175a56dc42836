//! Tests of the helpers that the tests of other crates use, in one program.

mod clock;
mod proxy;
mod server;
mod tls;
