//! Compiles proto/ into Rust and into descriptor sets, without a protoc on the machine, and finds
//! out which version this is.

use std::path::{Path, PathBuf};
use std::process::Command;

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
    version()
}

/// `BUTTERFLY_VERSION`, as `0.1.0 (0123456789ab)` with the commit. A release alone has one, that of
/// the variable `BUTTERFLY_COMMIT` or else of the working tree: it is built anew for every commit,
/// and a build for tests should not be.
fn version() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-env-changed=BUTTERFLY_COMMIT");
    let named = std::env::var("BUTTERFLY_COMMIT").ok();
    let commit = match named.filter(|commit| !commit.is_empty()) {
        None if std::env::var("PROFILE")? == "release" => {
            // Written to by every commit and every checkout.
            for path in ["HEAD", "logs/HEAD"] {
                let path = git(&["rev-parse", "--path-format=absolute", "--git-path", path]);
                let path = path.filter(|path| Path::new(path).exists());
                path.inspect(|path| println!("cargo:rerun-if-changed={path}"));
            }
            git(&["rev-parse", "--short=12", "HEAD"])
        }
        named => named,
    };
    let number = std::env::var("CARGO_PKG_VERSION")?;
    let version = commit.map_or(number.clone(), |commit| format!("{number} ({commit})"));
    println!("cargo:rustc-env=BUTTERFLY_VERSION={version}");
    Ok(())
}

/// What git says; nothing where there is no git, or no repository.
fn git(words: &[&str]) -> Option<String> {
    let output = Command::new("git").args(words).output().ok()?;
    let said = String::from_utf8(output.stdout).ok()?;
    let said = said.trim();
    (output.status.success() && !said.is_empty()).then(|| said.to_owned())
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
