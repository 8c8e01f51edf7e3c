//! Which programs checks may run. A client of the API names a program; what it may name is what the
//! administrator has put into one folder, which nobody else can write to. So a client chooses among
//! programs, and brings none.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use sys::confine::{Limits, UNLIMITED};
use tokio::process;

use crate::check::{CheckError, Command, error};

/// What one check's program may have. Its time is the check's.
pub(crate) const LIMITS: Limits = Limits {
    memory: 512 << 20,
    data: UNLIMITED,
    cpu_secs: 60,
    file: 1 << 20,
    files: 64,
    processes: 256,
};

/// Starts a program of the operator's: it is killed when this process ends, however it does.
///
/// # Errors
/// Those of [`Command::spawn`](process::Command::spawn).
pub fn start(command: process::Command) -> io::Result<process::Child> {
    let runtime = tokio::runtime::Handle::current();
    sys::child::start(command, process::Command::as_std_mut, move |mut command| {
        let _in_runtime = runtime.enter();
        command.spawn()
    })
}

/// The folder of programs, if there is one.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Programs {
    folder: Option<PathBuf>,
}

impl Programs {
    /// The programs of a folder. Fails when it is none, or when others could put programs into it.
    pub fn of(folder: &Path) -> Result<Programs, String> {
        let told = |why: &dyn std::fmt::Display| {
            format!("{} cannot hold programs of checks: {why}", folder.display())
        };
        let real = folder.canonicalize().map_err(|e| told(&e))?;
        let meta = real.metadata().map_err(|e| told(&e))?;
        if !meta.is_dir() {
            return Err(told(&"it is no folder"));
        }
        ours(&meta).map_err(|why| told(&format!("{} {why}", real.display())))?;
        nobody_else_replaces(&real).map_err(|why| told(&why))?;
        Ok(Programs { folder: Some(real) })
    }

    /// The program that a check may run, or why it may not.
    pub(crate) fn program(&self, command: &Command) -> Result<PathBuf, CheckError> {
        let named = command.0.first().map_or("", String::as_str);
        let refused = |why: String| error("command.words", named, why);
        let Some(folder) = &self.folder else {
            let why = "is not run: this daemon runs no programs (--check-programs says of which \
                       folder it may)";
            return Err(refused(why.into()));
        };
        let real = Path::new(named)
            .canonicalize()
            .map_err(|e| refused(format!("cannot be run: {e}")))?;
        if real.parent() != Some(folder) {
            return Err(refused(format!("is not in {}", folder.display())));
        }
        let meta = real
            .metadata()
            .map_err(|e| refused(format!("cannot be run: {e}")))?;
        if !meta.is_file() || meta.mode() & 0o111 == 0 {
            return Err(refused("is no program".into()));
        }
        ours(&meta).map_err(|why| refused(why.into()))?;
        Ok(real)
    }
}

/// Whether nobody but root and this process's user can put something else in the place of a file or
/// folder: who can write to a folder above it could. The path is absolute, and has no links.
///
/// # Errors
/// The end of a sentence that names the folder.
pub fn nobody_else_replaces(path: &Path) -> Result<(), String> {
    for above in path.ancestors().skip(1) {
        let told = |why: &dyn std::fmt::Display| format!("{} {why}", above.display());
        let meta = above
            .metadata()
            .map_err(|e| told(&format!("cannot be read: {e}")))?;
        // In a sticky folder, as /tmp, nobody can replace what is another's.
        if meta.mode() & 0o1000 == 0 {
            ours(&meta).map_err(|why| told(&why))?;
        }
    }
    Ok(())
}

/// Nobody but root and ourselves can change it.
fn ours(meta: &std::fs::Metadata) -> Result<(), &'static str> {
    let own = rustix::process::geteuid().as_raw();
    if meta.uid() != 0 && meta.uid() != own {
        Err("is another user's")
    } else if meta.mode() & 0o022 != 0 {
        Err("can be written by others")
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_client_chooses_among_the_folder_s_programs_and_brings_none() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().canonicalize().unwrap().join(name);
        let mode = |path: &Path, mode: u32| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        std::fs::create_dir_all(at("checks/inner")).unwrap();
        for (name, bits) in [
            ("checks/good", 0o755),
            ("checks/loose", 0o777),
            ("checks/text", 0o644),
            ("checks/inner/deep", 0o755),
            ("outside", 0o755),
        ] {
            std::fs::write(at(name), "#!/bin/sh\n").unwrap();
            mode(&at(name), bits);
        }
        symlink(at("outside"), at("checks/link")).unwrap();
        symlink(at("checks/good"), at("alias")).unwrap();

        let programs = Programs::of(&at("checks")).unwrap();
        let asked = |programs: &Programs, path: PathBuf| {
            let command = Command(vec![path.display().to_string()]);
            programs.program(&command).map_err(|e| e.why)
        };
        let refused = |name: &str| asked(&programs, at(name)).unwrap_err();
        assert_eq!(asked(&programs, at("checks/good")), Ok(at("checks/good")));
        assert_eq!(asked(&programs, at("alias")), Ok(at("checks/good")));
        assert_eq!(
            asked(&programs, at("checks/inner/../good")),
            Ok(at("checks/good"))
        );
        let elsewhere = format!("is not in {}", at("checks").display());
        for name in [
            "outside",
            "checks/link",
            "checks/inner/deep",
            "checks/../outside",
        ] {
            assert_eq!(refused(name), elsewhere, "{name}");
        }
        assert_eq!(asked(&programs, "/bin/sh".into()), Err(elsewhere));
        assert_eq!(refused("checks/loose"), "can be written by others");
        assert_eq!(refused("checks/text"), "is no program");
        assert_eq!(refused("checks/inner"), "is no program");
        assert!(refused("checks/none").starts_with("cannot be run: "));

        let off = asked(&Programs::default(), at("checks/good")).unwrap_err();
        assert!(off.contains("this daemon runs no programs"), "{off}");
        mode(&at("checks"), 0o775);
        let error = Programs::of(&at("checks")).unwrap_err();
        assert!(error.ends_with("can be written by others"), "{error}");
        mode(&at("checks"), 0o755);
        mode(&at(""), 0o777);
        assert!(Programs::of(&at("checks")).is_err(), "the folder above");
        assert!(Programs::of(&at("none")).is_err() && Programs::of(&at("outside")).is_err());
    }
}
