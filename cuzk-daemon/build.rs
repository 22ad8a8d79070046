//! Compiles the wire protocol in Rust alone: no installed protoc is needed.

use std::error::Error;

const PROTO: &str = "cuzk/v1/proving.proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto/{PROTO}");
    let descriptors = protox::compile([PROTO], ["proto"])?;
    Ok(tonic_prost_build::compile_fds(descriptors)?)
}
