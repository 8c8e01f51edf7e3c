//! What is installed beside the programs is what the programs take.

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use butterfly_tests::trials::run_each;
use butterfly_tests::{Daemon, trials};
use testkit::Result;
use testkit::image::repository;

fn main() {
    run_each(trials![
        the_settings_file_is_understood,
        a_domain_s_metadata_says_what_a_nic_is_and_nothing_else,
        a_guest_that_runs_does_not_end_by_its_hook,
        every_nic_of_a_domain_that_has_ended_is_deleted,
    ])
}

/// Every setting that the file shows commented out is one that the daemon knows, with a value that
/// it takes.
fn the_settings_file_is_understood() -> Result<()> {
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

/// Whoever may define a domain writes its metadata; libvirtd's hook is root.
fn a_domain_s_metadata_says_what_a_nic_is_and_nothing_else() -> Result<()> {
    let start = |attributes: &str| -> Result<std::result::Result<String, String>> {
        let nic = format!("<b:nic vni='7' mac='52:54:00:00:00:11' {attributes}/>");
        let hook = hook("prepare", "begin", &nic, 0)?;
        Ok(match hook.is_well {
            true => Ok(hook.called),
            false if hook.called.is_empty() => Err(hook.why),
            false => Err(format!("it called {}: {}", hook.called, hook.why)),
        })
    };
    let made = start("id='vm1' ip='10.0.0.11 fd00::11' sg='friends web' mtu='1450'")?;
    assert_eq!(
        made.as_deref(),
        Ok(
            "nic\nadd\n--replace\n--vni=7\n--mac=52:54:00:00:00:11\n--id=vm1\n--ip=10.0.0.11\n\
            --ip=fd00::11\n--sg=friends\n--sg=web\n--mtu=1450\n"
        )
    );
    let divides = "is an option on a command line, or divides it";
    for (attributes, why) in [
        ("id='vm1' sg='friends + shutdown --yes'", divides),
        ("id='vm1' ip='10.0.0.11 + shutdown --yes'", divides),
        ("id='vm1' sg='friends --bypass-filtering'", divides),
        ("id='+'", divides),
        ("id='--help'", divides),
        (
            "id='vm1' endpoint='tcp://192.0.2.1'",
            "'endpoint' is no attribute of a nic",
        ),
        (
            "id='vm1' type='veth' netns='1'",
            "'type' is no attribute of a nic",
        ),
    ] {
        match start(attributes)? {
            Err(said) if said.contains(why) && !said.contains("called") => (),
            other => return Err(format!("{attributes}: {other:?}")),
        }
    }
    Ok(())
}

/// libvirtd that has started ends a guest for which the hook fails; the daemon may just be away, or
/// the metadata be of another version.
fn a_guest_that_runs_does_not_end_by_its_hook() -> Result<()> {
    let two = "<b:nic id='vm1' vni='7' mac='52:54:00:00:00:11'/>\
               <b:nic id='vm2' vni='7' mac='52:54:00:00:00:12'/>";
    let hook_of_two = hook("reconnect", "begin", two, 1)?;
    assert!(hook_of_two.is_well, "{}", hook_of_two.why);
    for nic in ["vm1", "vm2"] {
        let tried = format!("nic\nadd\n--replace\n--id={nic}\n");
        assert!(
            hook_of_two.called.contains(&tried),
            "{}",
            hook_of_two.called
        );
    }
    let unknown = hook("reconnect", "begin", "<b:nic id='vm1' colour='red'/>", 0)?;
    assert!(
        unknown.is_well && unknown.called.is_empty(),
        "{}",
        unknown.called
    );
    assert!(unknown.why.contains("has no vni, mac"), "{}", unknown.why);
    // One that is there is in use.
    let there = hook("reconnect", "begin", two, 0)?;
    assert_eq!(there.called, "nic\ndetails\nvm1\nnic\ndetails\nvm2\n");
    Ok(())
}

fn every_nic_of_a_domain_that_has_ended_is_deleted() -> Result<()> {
    let two = "<b:nic id='vm1' vni='7' mac='52:54:00:00:00:11'/>\
               <b:nic id='vm2' vni='7' mac='52:54:00:00:00:12'/>";
    let hook = hook("release", "end", two, 1)?;
    assert_eq!(hook.called, "nic\ndel\nvm1\nnic\ndel\nvm2\n");
    assert!(!hook.is_well);
    Ok(())
}

/// What libvirt's hook has done.
struct Hook {
    is_well: bool,
    /// The words of the commands that it called, a line each.
    called: String,
    why: String,
}

/// Runs the hook for a domain with these NICs. Its `butterfly` ends with that exit code.
fn hook(operation: &str, part: &str, nics: &str, code: u8) -> Result<Hook> {
    let dir = tempfile::tempdir().map_err(|e| format!("cannot make a folder: {e}"))?;
    let [butterfly, called, xml] = ["butterfly", "called", "xml"].map(|name| dir.path().join(name));
    let script = format!(
        "#!/bin/sh\nprintf '%s\\n' \"$@\" >> {}\nexit {code}\n",
        called.display()
    );
    let domain = format!(
        "<domain><metadata><b:nics xmlns:b='https://butterfly/libvirt/1'>{nics}</b:nics>\
         </metadata></domain>"
    );
    for (file, text) in [
        (&butterfly, script.as_str()),
        (&called, ""),
        (&xml, &domain),
    ] {
        std::fs::write(file, text).map_err(|e| format!("{}: {e}", file.display()))?;
    }
    std::fs::set_permissions(&butterfly, PermissionsExt::from_mode(0o755))
        .map_err(|e| e.to_string())?;
    let xml = std::fs::File::open(&xml).map_err(|e| e.to_string())?;
    let hook = Command::new("/usr/bin/python3")
        .arg(repository().join("packaging/libvirt-hook"))
        .args(["vm1", operation, part, "-"])
        .env("BUTTERFLY", &butterfly)
        .stdin(Stdio::from(xml))
        .output()
        .map_err(|e| format!("python3: {e}"))?;
    Ok(Hook {
        is_well: hook.status.success(),
        called: std::fs::read_to_string(&called).map_err(|e| e.to_string())?,
        why: String::from_utf8_lossy(&hook.stderr).into_owned(),
    })
}
