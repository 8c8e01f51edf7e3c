//! What is installed beside the programs is what the programs take.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use butterfly_tests::trials::run_each;
use butterfly_tests::{Daemon, program, trials};
use testkit::image::repository;
use testkit::{PATIENCE, Result, other_program, wait_for};

fn main() {
    run_each(trials![
        the_settings_file_is_understood,
        a_domain_s_metadata_says_what_a_nic_is_and_nothing_else,
        a_guest_that_runs_does_not_end_by_its_hook,
        every_nic_of_a_domain_that_has_ended_is_deleted,
        a_nic_that_is_somebody_else_s_by_now_is_left_alone,
        what_the_daemon_may_make_yet_stays_a_domain_s,
        a_domain_has_no_nic_of_another_s,
        a_nic_that_somebody_uses_becomes_no_domain_s,
        what_is_not_known_to_be_free_becomes_no_domain_s,
        a_daemon_says_which_nics_are_to_be_had,
        whose_nics_are_is_root_s_alone_to_write,
        whose_nics_are_is_known_when_the_host_has_started_again,
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
        let hook = Libvirt::new()?.hook(FIRST, "prepare", &nic, 0)?;
        Ok(match hook.is_well {
            true => Ok(hook.called),
            false if hook.called.is_empty() => Err(hook.why),
            false => Err(format!("it called {}: {}", hook.called, hook.why)),
        })
    };
    let made = start("id='vm1' ip='10.0.0.11 fd00::11' sg='friends web' mtu='1450'")?;
    assert_eq!(
        made.as_deref(),
        Ok("--json\nnic\nlist\n--unmade\n--json\nnic\nlist\n\
            nic\nadd\n--replace\n--vni=7\n--mac=52:54:00:00:00:11\n--id=vm1\n--ip=10.0.0.11\n\
            --ip=fd00::11\n--sg=friends\n--sg=web\n--mtu=1450\n")
    );
    let divides = "is an option on a command line, or divides it";
    for (attributes, why) in [
        ("id='vm1' sg='friends + shutdown --yes'", divides),
        ("id='vm1' ip='10.0.0.11 + shutdown --yes'", divides),
        ("id='vm1' sg='friends --bypass-filtering'", divides),
        ("id='+'", divides),
        ("id='--help'", divides),
        ("id='../vm1'", "cannot be part of a file's name"),
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
    let libvirt = Libvirt::new()?;
    let hook_of_two = libvirt.hook(FIRST, "reconnect", TWO, 1)?;
    assert!(hook_of_two.is_well, "{}", hook_of_two.why);
    for nic in ["vm1", "vm2"] {
        let tried = format!("nic\nadd\n--replace\n--id={nic}\n");
        assert!(
            hook_of_two.called.contains(&tried),
            "{}",
            hook_of_two.called
        );
    }
    let unknown = libvirt.hook(FIRST, "reconnect", "<b:nic id='vm1' colour='red'/>", 0)?;
    assert!(
        unknown.is_well && unknown.called.is_empty(),
        "{}",
        unknown.called
    );
    assert!(unknown.why.contains("has no vni, mac"), "{}", unknown.why);
    // One that is there is in use.
    libvirt.is_there(&runs())?;
    let there = libvirt.hook(FIRST, "reconnect", TWO, 0)?;
    assert_eq!(there.called, "--json\nnic\nlist\n".repeat(2));
    // Nor does it end where the NIC is another's, which stays so.
    let other = libvirt.hook(SECOND, "reconnect", ONE, 0)?;
    assert!(other.is_well, "{}", other.why);
    assert_eq!(other.called, "--json\nnic\nlist\n");
    assert!(other.why.contains(FIRST), "{}", other.why);
    Ok(())
}

fn every_nic_of_a_domain_that_has_ended_is_deleted() -> Result<()> {
    let libvirt = Libvirt::new()?;
    let made = libvirt.hook(FIRST, "prepare", TWO, 0)?;
    assert!(made.is_well, "{}", made.why);
    // The daemon is away.
    let failed = libvirt.hook(FIRST, "release", TWO, 3)?;
    assert_eq!(failed.called, "nic\ndel\nvm1\nnic\ndel\nvm2\n");
    assert!(!failed.is_well);
    // What could not be deleted is still its own, and nobody else's: it starts with it.
    let other = libvirt.hook(SECOND, "prepare", ONE, 0)?;
    assert!(
        !other.is_well && other.called.is_empty(),
        "{}",
        other.called
    );
    libvirt.is_there(&shown("NIC_KIND_VHOST_USER", "PORT_STATE_DOWN", "null"))?;
    let again = libvirt.hook(FIRST, "prepare", TWO, 0)?;
    assert!(again.is_well, "{}", again.why);
    assert!(again.called.contains(ADDED), "{}", again.called);
    let failed = libvirt.hook(FIRST, "release", TWO, 3)?;
    assert!(!failed.is_well);
    let ended = libvirt.hook(FIRST, "release", TWO, 0)?;
    assert_eq!(ended.called, failed.called);
    assert!(ended.is_well, "{}", ended.why);
    let again = libvirt.hook(FIRST, "release", TWO, 0)?;
    assert_eq!(again.called, "");
    Ok(())
}

/// A host has stopped amid a guest, somebody has deleted its NIC, and made one of that id since.
fn a_nic_that_is_somebody_else_s_by_now_is_left_alone() -> Result<()> {
    let libvirt = Libvirt::new()?;
    let made = libvirt.hook(FIRST, "prepare", ONE, 0)?;
    assert!(made.is_well, "{}", made.why);
    libvirt.is_there(&runs())?;
    let again = libvirt.hook(FIRST, "prepare", ONE, 0)?;
    assert!(
        !again.is_well && again.why.contains("PORT_STATE_UP"),
        "{}",
        again.why
    );
    assert!(!again.called.contains("nic\nadd\n"), "{}", again.called);
    // libvirt says that the domain has ended.
    let ended = libvirt.hook(FIRST, "release", ONE, 0)?;
    assert!(ended.is_well && ended.called.is_empty(), "{}", ended.called);
    Ok(())
}

/// What the daemon has not answered in time it may make yet, when the domain was refused to start.
fn what_the_daemon_may_make_yet_stays_a_domain_s() -> Result<()> {
    let libvirt = Libvirt::new()?;
    let late = libvirt.hook_by(&libvirt.butterfly(3, 0), FIRST, "prepare", ONE)?;
    assert!(!late.is_well);
    assert!(late.called.contains(ADDED), "{}", late.called);
    assert!(!late.called.contains("nic\ndel\n"), "{}", late.called);
    let other = libvirt.hook(SECOND, "prepare", ONE, 0)?;
    assert!(
        !other.is_well && other.called.is_empty(),
        "{}",
        other.called
    );
    let ended = libvirt.hook(FIRST, "release", ONE, 0)?;
    assert_eq!(ended.called, "nic\ndel\nvm1\n");
    let other = libvirt.hook(SECOND, "prepare", ONE, 0)?;
    assert!(other.is_well, "{}", other.why);
    Ok(())
}

/// Two domains with one id, as those of XML that was copied; libvirt says of a domain that was
/// refused to start that it has ended.
fn a_domain_has_no_nic_of_another_s() -> Result<()> {
    let libvirt = Libvirt::new()?;
    let first = libvirt.hook(FIRST, "prepare", ONE, 0)?;
    assert!(first.is_well, "{}", first.why);
    let second = libvirt.hook(SECOND, "prepare", ONE, 0)?;
    assert!(
        !second.is_well && second.called.is_empty(),
        "{}",
        second.called
    );
    for named in [FIRST, SECOND, "'vm1'"] {
        assert!(second.why.contains(named), "{}", second.why);
    }
    let released = libvirt.hook(SECOND, "release", ONE, 0)?;
    assert_eq!(released.called, "");
    // What it had made before it was refused goes again, and is nobody's.
    let own_first = format!("<b:nic id='vm2' vni='7' mac='52:54:00:00:00:12'/>{ONE}");
    let second = libvirt.hook(SECOND, "prepare", &own_first, 0)?;
    assert!(!second.is_well);
    assert_eq!(
        second.called,
        "--json\nnic\nlist\n--unmade\n--json\nnic\nlist\n\
         nic\nadd\n--replace\n--id=vm2\n--vni=7\n--mac=52:54:00:00:00:12\nnic\ndel\nvm2\n"
    );
    let released = libvirt.hook(SECOND, "release", &own_first, 0)?;
    assert_eq!(released.called, "");
    // Nor does one that the daemon has refused stay its own.
    let refused = libvirt.hook_by(&libvirt.butterfly(1, 0), SECOND, "prepare", &own_first)?;
    assert!(!refused.is_well);
    assert!(
        refused.called.ends_with("nic\ndel\nvm2\n"),
        "{}",
        refused.called
    );
    let released = libvirt.hook(SECOND, "release", &own_first, 0)?;
    assert_eq!(released.called, "");
    // The first comes by a move, starts, and ends; then the id is to be had.
    for operation in ["migrate", "prepare"] {
        let again = libvirt.hook(FIRST, operation, ONE, 0)?;
        assert!(again.is_well, "{}", again.why);
    }
    let ended = libvirt.hook(FIRST, "release", ONE, 0)?;
    assert_eq!(ended.called, "nic\ndel\nvm1\n");
    let second = libvirt.hook(SECOND, "prepare", ONE, 0)?;
    assert!(second.is_well, "{}", second.why);
    Ok(())
}

/// A NIC may be there that no hook has made.
fn a_nic_that_somebody_uses_becomes_no_domain_s() -> Result<()> {
    let libvirt = Libvirt::new()?;
    let firmware = shown("NIC_KIND_VHOST_USER", "PORT_STATE_DOWN", "{\"rings\":[]}");
    let container = shown("NIC_KIND_VETH", "PORT_STATE_DOWN", "null");
    // A hook that is killed while it looks has taken nothing.
    let killed = libvirt.hook_by("#!/bin/sh\nkill -9 $PPID\n", FIRST, "prepare", ONE)?;
    assert!(!killed.is_well);
    for (there, why) in [
        (runs(), "PORT_STATE_UP"),
        (firmware, "a VMM is connected"),
        (container, "NIC_KIND_VETH"),
    ] {
        libvirt.is_there(&there)?;
        let refused = libvirt.hook(FIRST, "prepare", ONE, 0)?;
        assert!(!refused.is_well);
        assert!(refused.why.contains(why), "{}", refused.why);
        assert_eq!(
            refused.called,
            "--json\nnic\nlist\n--unmade\n--json\nnic\nlist\n--json\nnic\nshow\nvm1\n"
        );
        let released = libvirt.hook(FIRST, "release", ONE, 0)?;
        assert_eq!(released.called, "");
    }
    libvirt.is_there(&shown("NIC_KIND_VHOST_USER", "PORT_STATE_DOWN", "null"))?;
    let taken = libvirt.hook(FIRST, "prepare", ONE, 0)?;
    assert!(taken.is_well, "{}", taken.why);
    assert!(taken.called.contains(ADDED), "{}", taken.called);
    // A guest runs that was started with a hook which wrote nothing down.
    let libvirt = Libvirt::new()?;
    libvirt.is_there(&runs())?;
    libvirt.hook(FIRST, "reconnect", ONE, 0)?;
    let second = libvirt.hook(SECOND, "prepare", ONE, 0)?;
    assert!(
        !second.is_well && second.why.contains(FIRST),
        "{}",
        second.why
    );
    let ended = libvirt.hook(FIRST, "release", ONE, 0)?;
    assert_eq!(ended.called, "nic\ndel\nvm1\n");
    Ok(())
}

/// A question that the daemon refuses is no answer, and what it could not make is somebody's.
fn what_is_not_known_to_be_free_becomes_no_domain_s() -> Result<()> {
    let libvirt = Libvirt::new()?;
    let is_nobody_s = |operation: &str, why: &str| -> Result<()> {
        let hook = libvirt.hook(FIRST, operation, ONE, 0)?;
        // A guest that runs does not end by it.
        assert_eq!(hook.is_well, operation == "reconnect");
        assert!(hook.why.contains(why), "{}", hook.why);
        assert!(!hook.called.contains(ADDED), "{}", hook.called);
        let released = libvirt.hook(FIRST, "release", ONE, 0)?;
        assert_eq!(released.called, "");
        Ok(())
    };
    libvirt.write("unmade", r#"["vm1"]"#)?;
    for operation in ["prepare", "restore", "migrate", "reconnect"] {
        is_nobody_s(operation, "butterfly nic del vm1")?;
    }
    libvirt.write("unmade", "[]")?;
    for of_another_version in ["", "null", "{\"nics\":[]}"] {
        libvirt.write("list", of_another_version)?;
        is_nobody_s("prepare", "nic list: ")?;
    }
    // What the daemon says is read from files here: so it refuses to say it.
    let refuses = libvirt.dir.path().join("list");
    std::fs::remove_file(&refuses).map_err(|e| e.to_string())?;
    is_nobody_s("prepare", "nic list: ")?;
    libvirt.write("list", "[]")?;
    // Its own a domain gets anew.
    let made = libvirt.hook(FIRST, "prepare", ONE, 0)?;
    assert!(made.is_well, "{}", made.why);
    libvirt.write("unmade", r#"["vm1"]"#)?;
    for operation in ["prepare", "reconnect"] {
        let again = libvirt.hook(FIRST, operation, ONE, 0)?;
        assert!(again.is_well, "{}", again.why);
        assert!(again.called.contains(ADDED), "{}", again.called);
    }
    Ok(())
}

/// The hook reads what a daemon says of NICs that were made by hand.
fn a_daemon_says_which_nics_are_to_be_had() -> Result<()> {
    let mut daemon = Daemon::start(&["--store", "{dir}/store", "--trace-dir", "{dir}"])?;
    let libvirt = Libvirt::new()?;
    let butterfly = format!(
        "#!/bin/sh\nexec {} -e {} \"$@\"\n",
        program("butterfly"),
        daemon.endpoint()
    );
    let hook = |operation: &str| libvirt.hook_by(&butterfly, FIRST, operation, ONE);
    let by_hand = "nic add --id vm1 --vni 8 --mac 52:54:00:00:00:99";
    daemon.cli(by_hand)?;
    let is_connected = |is: bool| {
        wait_for("the daemon to see its VMM", PATIENCE, || {
            let shown = daemon.json("nic show vm1")?;
            Ok((shown[0]["queues"]["session"].is_object() == is).then_some(()))
        })
    };
    // It says nothing yet.
    let vmm = UnixStream::connect(daemon.socket("vm1")).map_err(|e| e.to_string())?;
    is_connected(true)?;
    let refused = hook("prepare")?;
    assert!(!refused.is_well);
    assert!(
        refused.why.contains("a VMM is connected"),
        "{}",
        refused.why
    );
    drop(vmm);
    is_connected(false)?;
    let taken = hook("prepare")?;
    assert!(taken.is_well, "{}", taken.why);
    assert_eq!(daemon.json("nic details vm1")?[0]["nic"]["vni"], 7);
    let ended = hook("release")?;
    assert!(ended.is_well, "{}", ended.why);
    assert_eq!(daemon.cli("nic list")?, "");

    daemon.cli(by_hand)?;
    let trace = daemon.dir().join("vm1.pcap");
    daemon.cli(&format!(
        "nic update vm1 --packet-trace true --trace-path {}",
        trace.display()
    ))?;
    daemon.kill()?;
    std::fs::write(&trace, "no trace of ours").map_err(|e| e.to_string())?;
    daemon.restart()?;
    assert_eq!(daemon.cli("nic list")?, "");
    let refused = hook("prepare")?;
    assert!(!refused.is_well);
    let why = "could not be made when the daemon started";
    assert!(refused.why.contains(why), "{}", refused.why);
    assert_eq!(daemon.cli("nic list --unmade")?.trim(), "vm1");
    Ok(())
}

fn whose_nics_are_is_root_s_alone_to_write() -> Result<()> {
    let libvirt = Libvirt::new()?;
    let refused = |why: &str| -> Result<()> {
        let hook = libvirt.hook(FIRST, "prepare", ONE, 0)?;
        assert!(!hook.is_well && hook.called.is_empty(), "{}", hook.called);
        assert!(hook.why.contains(why), "{}", hook.why);
        Ok(())
    };
    let (folder, elsewhere) = (libvirt.holders(), libvirt.dir.path().join("elsewhere"));
    std::fs::create_dir(&elsewhere).map_err(|e| e.to_string())?;
    std::os::unix::fs::symlink(&elsewhere, &folder).map_err(|e| e.to_string())?;
    refused("whose NICs are is not to be had")?;
    std::fs::remove_file(&folder).map_err(|e| e.to_string())?;
    std::fs::create_dir(&folder).map_err(|e| e.to_string())?;
    std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o770))
        .map_err(|e| e.to_string())?;
    refused("is not root's alone")
}

/// NICs in the daemon's store outlive a start of the host, and no guest runs with them then.
fn whose_nics_are_is_known_when_the_host_has_started_again() -> Result<()> {
    let libvirt = Libvirt::new()?;
    for domain in [FIRST, SECOND] {
        libvirt.domain(domain, ONE)?;
    }
    let folder = libvirt.dir.path();
    other_program::write(folder, "butterfly", &libvirt.butterfly(0, 0))?;
    // Each start has an empty /run.
    let starts = format!(
        "cd {}\nmount -t tmpfs tmpfs /var/lib || exit 9\n\
         start() {{\n\
         mount -t tmpfs tmpfs /run || exit 9\n\
         /usr/bin/python3 {} vm1 prepare begin - < $1\n\
         code=$?\n\
         umount /run || exit 9\n\
         return $code\n\
         }}\n\
         start {FIRST} || exit 9\nstart {SECOND}",
        folder.display(),
        repository().join("packaging/libvirt-hook").display()
    );
    let said = Command::new("unshare")
        .args(["--mount", "sh", "-c", &starts])
        .env("BUTTERFLY", folder.join("butterfly"))
        .env_remove("BUTTERFLY_HOLDERS")
        .output()
        .map_err(|e| format!("unshare: {e}"))?;
    let why = String::from_utf8_lossy(&said.stderr);
    assert_eq!(said.status.code(), Some(1), "{why}");
    assert!(why.contains(&format!("is of domain {FIRST}")), "{why}");
    Ok(())
}

/// UUIDs of two domains.
const FIRST: &str = "4dea22b3-1d52-d8f3-2516-782e98ab3fa0";
const SECOND: &str = "c7a5fdbd-edaf-9455-926a-d65c16db1809";

/// NICs of a domain's metadata.
const ONE: &str = "<b:nic id='vm1' vni='7' mac='52:54:00:00:00:11'/>";
const TWO: &str = "<b:nic id='vm1' vni='7' mac='52:54:00:00:00:11'/>\
                   <b:nic id='vm2' vni='7' mac='52:54:00:00:00:12'/>";

/// How the first of them is made, in lines.
const ADDED: &str = "nic\nadd\n--replace\n--id=vm1\n";

/// What `butterfly nic show` says of a NIC.
fn shown(kind: &str, state: &str, session: &str) -> String {
    format!(
        r#"[{{"nic":{{"nic":{{"kind":"{kind}"}},"state":"{state}"}},"queues":{{"session":{session}}}}}]"#
    )
}

/// And of one whose guest runs.
fn runs() -> String {
    shown("NIC_KIND_VHOST_USER", "PORT_STATE_UP", r#"{"rings":[]}"#)
}

/// What libvirt's hook has done.
struct Hook {
    is_well: bool,
    /// The words of the commands that it called, a line each.
    called: String,
    why: String,
}

/// A host whose libvirtd calls the hook.
struct Libvirt {
    dir: tempfile::TempDir,
}

impl Libvirt {
    /// With a `butterfly` that has no NIC.
    fn new() -> Result<Libvirt> {
        let dir = tempfile::tempdir().map_err(|e| format!("cannot make a folder: {e}"))?;
        let libvirt = Libvirt { dir };
        for list in ["list", "unmade"] {
            libvirt.write(list, "[]")?;
        }
        Ok(libvirt)
    }

    /// Where the hook writes down whose NICs are.
    fn holders(&self) -> PathBuf {
        self.dir.path().join("holders")
    }

    /// From now on both NICs are there, of which `butterfly nic show` says this.
    fn is_there(&self, shown: &str) -> Result<()> {
        self.write("list", r#"["vm1","vm2"]"#)?;
        self.write("shown", shown).map(drop)
    }

    fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let file = self.dir.path().join(name);
        std::fs::write(&file, text).map_err(|e| format!("{}: {e}", file.display()))?;
        Ok(file)
    }

    /// The XML of a domain with these NICs, in a file that is named by its UUID.
    fn domain(&self, uuid: &str, nics: &str) -> Result<PathBuf> {
        let xml = format!(
            "<domain><uuid>{uuid}</uuid>\
             <metadata><b:nics xmlns:b='https://butterfly/libvirt/1'>{nics}</b:nics></metadata>\
             </domain>"
        );
        self.write(uuid, &xml)
    }

    /// A `butterfly` that adds and deletes with these exit codes.
    fn butterfly(&self, add: u8, del: u8) -> String {
        format!(
            "#!/bin/sh\ncd {}\nprintf '%s\\n' \"$@\" >> called\ncase \"$*\" in\n\
             '--json nic list') exec cat list ;;\n\
             '--json nic list --unmade') exec cat unmade ;;\n\
             '--json nic show '*) exec cat shown ;;\n\
             'nic add '*) exit {add} ;;\n\
             'nic del '*) exit {del} ;;\nesac\nexit 2\n",
            self.dir.path().display()
        )
    }

    /// Runs the hook for a domain with these NICs. What its `butterfly` is to change ends with that
    /// exit code.
    fn hook(&self, uuid: &str, operation: &str, nics: &str, code: u8) -> Result<Hook> {
        self.hook_by(&self.butterfly(code, code), uuid, operation, nics)
    }

    /// Runs it with this script for its `butterfly`.
    fn hook_by(&self, script: &str, uuid: &str, operation: &str, nics: &str) -> Result<Hook> {
        let butterfly = other_program::write(self.dir.path(), "butterfly", script)?;
        let called = self.write("called", "")?;
        let xml = self.domain(uuid, nics)?;
        let xml = std::fs::File::open(&xml).map_err(|e| e.to_string())?;
        let part = if operation == "release" {
            "end"
        } else {
            "begin"
        };
        let hook = Command::new("/usr/bin/python3")
            .arg(repository().join("packaging/libvirt-hook"))
            .args(["vm1", operation, part, "-"])
            .env("BUTTERFLY", &butterfly)
            .env("BUTTERFLY_HOLDERS", self.holders())
            .stdin(Stdio::from(xml))
            .output()
            .map_err(|e| format!("python3: {e}"))?;
        Ok(Hook {
            is_well: hook.status.success(),
            called: std::fs::read_to_string(&called).map_err(|e| e.to_string())?,
            why: String::from_utf8_lossy(&hook.stderr).into_owned(),
        })
    }
}
