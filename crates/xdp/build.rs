//! Compiles every `bpf/NAME.bpf.c` to `$OUT_DIR/NAME.bpf.o`, for XDP, and those of [`AT_TC`] a
//! second time to `NAME.tc.o`, for tc ingress (`bpf/lib/context.h`); those of [`ONLY_AT_TC`] for
//! that alone. `src/objects.rs` embeds them, so that nobody needs clang who only runs what was
//! built. `CLANG` names another compiler.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Sources that are good for both places.
const AT_TC: [&str; 6] = ["again", "balancer", "drop", "pass", "probe", "router"];
/// Sources that are for tc ingress alone.
const ONLY_AT_TC: [&str; 4] = ["arrival", "arrival_blind", "cable", "cable_blind"];

fn main() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bpf");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    println!("cargo::rerun-if-changed={}", sources.display());
    println!("cargo::rerun-if-env-changed=CLANG");
    let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let entries = std::fs::read_dir(&sources).expect("bpf/ is part of the source tree");
    for entry in entries {
        let path = entry.expect("bpf/ can be listed").path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let Some(stem) = name.strip_suffix(".bpf.c") else {
            continue;
        };
        let only_at_tc = ONLY_AT_TC.contains(&stem);
        if !only_at_tc {
            compile(
                &clang,
                &sources,
                &path,
                &[],
                &out.join(format!("{stem}.bpf.o")),
            );
        }
        if only_at_tc || AT_TC.contains(&stem) {
            let point = ["-DBUTTERFLY_TC"];
            compile(
                &clang,
                &sources,
                &path,
                &point,
                &out.join(format!("{stem}.tc.o")),
            );
        }
    }
}

/// `-g`: libbpf needs the BTF of the maps. `-mcpu=v3`: 32-bit operations and wide jumps, understood
/// since Linux 5.1.
fn compile(clang: &str, include: &Path, source: &Path, defines: &[&str], object: &Path) {
    let mut command = Command::new(clang);
    command
        .args([
            "-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-Wextra", "-Werror",
        ])
        .args(["-fno-stack-protector", "-Wno-unused-parameter"])
        .args(defines)
        .arg("-I")
        .arg(include);
    // Debian keeps asm/types.h here, where `-target bpf` does not look.
    for triple in ["x86_64-linux-gnu", "aarch64-linux-gnu"] {
        let multiarch = Path::new("/usr/include").join(triple);
        if multiarch.exists() {
            command.arg("-idirafter").arg(multiarch);
        }
    }
    command.arg("-c").arg(source).arg("-o").arg(object);
    let status = command.status().unwrap_or_else(|error| {
        panic!("cannot run {clang}, which compiles bpf/ (Debian: clang): {error}");
    });
    assert!(status.success(), "{clang} refused {}", source.display());
}
