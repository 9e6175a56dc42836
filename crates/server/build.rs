//! Compiles the protocols, without `protoc`, and keeps their description for reflection.

use std::env;
use std::error::Error;
use std::fs;
use std::path::Path;

use prost::Message;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = protox::compile(["envoy/service/ratelimit/v3/rls.proto"], ["proto"])?;
    let out = env::var("OUT_DIR")?;
    fs::write(Path::new(&out).join("rls.bin"), files.encode_to_vec())?;
    tonic_prost_build::configure()
        .build_client(false)
        .include_file("protocols.rs")
        .compile_fds(files)?;
    Ok(())
}
