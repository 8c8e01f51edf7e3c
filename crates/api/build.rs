//! Compiles proto/ into Rust and into descriptor sets, without a protoc on the machine.

use std::path::{Path, PathBuf};

use prost::Message;

const V0: &[&str] = &[
    "butterfly/v0/message.proto",
    "butterfly/v0/message_v0.proto",
    "butterfly/v0/encrypted.proto",
];
const V1: &[&str] = &[
    "butterfly/v1/butterfly.proto",
    "butterfly/v1/balancer.proto",
    "butterfly/v1/router.proto",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The variable of this run, not that of the build script's own compilation: two working trees
    // may share a target directory, and would compile each other's proto/.
    let protos = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?).join("../../proto");
    println!("cargo:rerun-if-changed={}", protos.display());
    compile(&protos, V0, "v0")?;
    compile(&protos, V1, "v1")?;
    Ok(())
}

/// `<name>.rs`, a module tree that includes the generated files, and `<name>.desc`, the descriptor
/// set.
fn compile(protos: &Path, files: &[&str], name: &str) -> Result<(), Box<dyn std::error::Error>> {
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    let descriptors = protox::compile(files, [protos])?;
    std::fs::write(
        out.join(format!("{name}.desc")),
        descriptors.encode_to_vec(),
    )?;
    tonic_prost_build::configure()
        .out_dir(&out)
        .include_file(format!("{name}.rs"))
        .compile_fds(descriptors)?;
    Ok(())
}
