//! What is installed beside the programs is what the programs take.

use butterfly_tests::Daemon;
use libtest_mimic::{Arguments, Failed, Trial};
use testkit::Result;
use testkit::image::repository;

fn main() {
    let trial = Trial::test("the_settings_file_is_understood", || {
        settings().map_err(Failed::from)
    });
    libtest_mimic::run(&Arguments::from_args(), vec![trial]).exit();
}

/// Every setting that the file shows commented out is one that the daemon knows, with a value that
/// it takes.
fn settings() -> Result<()> {
    let path = repository().join("packaging/butterflyd.ini");
    let text = std::fs::read_to_string(&path)
        .map_err(|e| format!("cannot read {}: {e}", path.display()))?;
    let dir = tempfile::tempdir().map_err(|e| format!("cannot make a folder: {e}"))?;
    let key = dir.path().join("key");
    std::fs::write(&key, "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n")
        .map_err(|e| e.to_string())?;
    let access = dir.path().join("access.toml");
    let grant = "[[grant]]\nrole = \"admin\"\nusers = [\"root\"]\n";
    std::fs::write(&access, grant).map_err(|e| e.to_string())?;
    for private in [&key, &access] {
        testkit::process::run(&["chmod", "600", &private.display().to_string()])?;
    }
    // What the settings name is not on this machine.
    let here = |setting: &str| {
        [
            ("/etc/butterfly/key", &key),
            ("/etc/butterfly/access.toml", &access),
            ("/var/lib/butterfly", &dir.path().join("state")),
            ("/run/butterfly-keeper/socket", &dir.path().join("keeper")),
            ("/var/log/butterfly", &dir.path().to_path_buf()),
        ]
        .into_iter()
        .fold(setting.to_owned(), |setting, (path, file)| {
            setting.replace(path, &file.display().to_string())
        })
    };
    // A setting starts right behind its semicolon, a sentence one blank later.
    let uncommented: Vec<String> = text
        .lines()
        .map(|line| match line.strip_prefix(';') {
            Some(setting) if !setting.starts_with(' ') => here(setting),
            _ => line.to_owned(),
        })
        .collect();
    let settings = uncommented
        .iter()
        .filter(|line| line.contains(" = "))
        .count();
    if settings < 7 {
        return Err(format!(
            "only {settings} settings were found in {}",
            path.display()
        ));
    }
    let ini = dir.path().join("butterflyd.ini");
    std::fs::write(&ini, uncommented.join("\n")).map_err(|e| e.to_string())?;
    // The folder, the endpoints and the keeper of the command line win over the file's; the rest is
    // the file's. A keeper in the daemon's folder ends with the test.
    let ini = ini.display().to_string();
    let mut daemon = Daemon::start(&["-c", &ini, "--keeper", "{dir}/keeper"])?;
    daemon.stop()
}
