//! What a machine boots: the image's initramfs as it is, or with more archives behind it, which the
//! kernel unpacks one after the other.

use super::machine::Machine;
use crate::image::{Image, path, repository};
use crate::{Result, process};
use std::fs::File;
use std::io::{Seek, Write, copy};
use std::path::{Path, PathBuf};

/// The initramfs of a machine, made in `dir` unless the image's own will do.
pub(super) fn of(image: &Image, machine: &Machine, dir: &Path) -> Result<PathBuf> {
    let mut archives = vec![image.initramfs.clone()];
    if machine.tools {
        archives.push(image.tools.clone());
    }
    if !machine.programs.is_empty() {
        archives.push(pack(&machine.programs, dir)?);
    }
    if archives.len() == 1 {
        return Ok(image.initramfs.clone());
    }
    let whole = dir.join("initrd.img");
    join(&archives, &whole).map_err(|e| format!("cannot write {}: {e}", whole.display()))?;
    Ok(whole)
}

fn pack(programs: &[PathBuf], dir: &Path) -> Result<PathBuf> {
    let script = repository().join("tools/guest-programs.sh");
    let archive = dir.join("programs.cpio");
    let mut words = vec![path(&script)?, path(&archive)?];
    for program in programs {
        words.push(path(program)?);
    }
    process::run(&words)?;
    Ok(archive)
}

/// An archive that is not compressed has to begin at a multiple of four bytes; zeros between two
/// are skipped.
fn join(archives: &[PathBuf], whole: &Path) -> std::io::Result<()> {
    let mut out = File::create(whole)?;
    for archive in archives {
        copy(&mut File::open(archive)?, &mut out)?;
        let odd = (out.stream_position()? % 4) as usize;
        out.write_all(&[0; 4][..(4 - odd) % 4])?;
    }
    Ok(())
}
