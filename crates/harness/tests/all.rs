//! What the tests of other crates stand on, in one program.

mod clock;
mod proxy;
mod server;
mod tls;
