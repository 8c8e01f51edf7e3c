//! What stays in a BPF file system: items, what a kill leaves of them, and programs.

use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use butterfly_xdp as xdp;
use butterfly_xdp::{Feature, Interfaces, Mode, PinError, Pins, Program, objects};
use sys::handed::Handed;
use testkit::netns::Namespace;
use testkit::wait_for;

/// A folder of its own, which goes with it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let name = format!("butterfly-test-{}-{name}", std::process::id());
        Folder(Path::new("/sys/fs/bpf").join(name))
    }

    /// Another test's child has what is open here too, until it is another program.
    fn pins(&self) -> Pins {
        let free = || match Pins::open(&self.0) {
            Err(PinError::Taken(_)) => Ok(None),
            opened => Ok(Some(opened.unwrap())),
        };
        wait_for("pins that nobody else has", Duration::from_secs(10), free).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Ok(pins) = Pins::open(&self.0) {
            pins.remove().unwrap();
        }
    }
}

/// An item with so many maps.
fn item(note: &[u8], maps: usize) -> Handed {
    let map = |_| {
        let program = Program::load("pass", objects::PASS, |_| Ok(())).unwrap();
        let map = program.map("chain").unwrap();
        map.as_fd().try_clone_to_owned().unwrap()
    };
    Handed {
        note: note.to_owned(),
        fds: (0..maps).map(map).collect(),
    }
}

fn of(pins: &Pins) -> Vec<(String, Vec<u8>, usize)> {
    let items = pins.items().unwrap().into_iter();
    items
        .map(|(name, item)| (name, item.note, item.fds.len()))
        .collect()
}

#[test]
fn items_are_there_for_the_next_process() {
    let folder = Folder::new("items");
    let long: Vec<u8> = (0..300_000u32).flat_map(u32::to_ne_bytes).collect();
    let pins = folder.pins();
    pins.hold("maps", &item(b"a note", 2)).unwrap();
    pins.hold("xdp eth0.7", &item(b"", 1)).unwrap();
    pins.hold("tables", &item(&long, 0)).unwrap();
    let taken = Pins::open(&folder.0).unwrap_err();
    assert!(matches!(taken, PinError::Taken(_)), "{taken}");
    drop(pins);
    let pins = folder.pins();
    let all = [
        ("maps".to_owned(), b"a note".to_vec(), 2),
        ("tables".to_owned(), long, 0),
        ("xdp eth0.7".to_owned(), Vec::new(), 1),
    ];
    assert_eq!(of(&pins), all);
    pins.hold("maps", &item(b"another", 1)).unwrap();
    pins.release("tables").unwrap();
    pins.release("what is not there").unwrap();
    drop(pins);
    let pins = folder.pins();
    let all = [
        ("maps".to_owned(), b"another".to_vec(), 1),
        ("xdp eth0.7".to_owned(), Vec::new(), 1),
    ];
    assert_eq!(of(&pins), all);
    pins.remove().unwrap();
    assert!(!folder.0.exists());
}

/// Whatever a process was about when it was killed: an item is the one or the other, and whole.
#[test]
fn what_a_kill_leaves_is_put_right() {
    let folder = Folder::new("kill");
    let pins = folder.pins();
    let at = |name: &str| folder.0.join(name);
    for (name, note) in [("one", &b"old"[..]), ("two", b"old"), ("three", b"old")] {
        pins.hold(name, &item(note, 1)).unwrap();
    }
    // Written, and the other not removed; or in part.
    for name in ["one", "two"] {
        pins.hold("new", &item(b"new", 2)).unwrap();
        fs::rename(at("new"), at(&format!("{name}~"))).unwrap();
    }
    fs::remove_file(at("two").join("note")).unwrap();
    // Written in part.
    pins.hold("three~", &item(b"new", 1)).unwrap();
    fs::remove_file(at("three~").join("note")).unwrap();
    // Removed in part.
    pins.hold("four", &item(b"gone", 2)).unwrap();
    fs::remove_file(at("four").join("note")).unwrap();
    let all = [
        ("one", &b"new"[..], 2),
        ("three", b"old", 1),
        ("two", b"new", 2),
    ];
    let all = all.map(|(name, note, fds)| (name.to_owned(), note.to_owned(), fds));
    for _ in 0..2 {
        assert_eq!(of(&pins), all);
    }
    let mut files: Vec<_> = fs::read_dir(&folder.0)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    files.sort();
    assert_eq!(files, ["one", "three", "two"]);
}

#[test]
fn a_folder_of_another_file_system_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let refused = Pins::open(&folder.path().join("pins")).unwrap_err();
    let said = refused.to_string();
    assert!(said.contains("is in no BPF file system"), "{said}");
    let refused = Pins::open(Path::new("/proc/nowhere")).unwrap_err();
    assert!(matches!(refused, PinError::NoBpfFs(_)), "{refused}");
}

/// Points, and the programs behind them in the chain, are there while nobody is; who comes next has
/// its own in their place.
#[test]
fn programs_go_on() {
    let folder = Folder::new("programs");
    let namespace = Namespace::new().unwrap();
    namespace
        .ok("ip link add left type veth peer name right; ip link set left up; ip link set right up")
        .unwrap();
    let ifindex = namespace.ifindex("left").unwrap();
    let id = || {
        let said = namespace.ok("ip -d link show left").unwrap();
        let mut words = said
            .split_whitespace()
            .skip_while(|word| *word != "prog/xdp");
        words.nth(2).map(str::to_owned)
    };
    let run = |points| {
        let pass = Program::load_both("pass", objects::PASS, objects::tc::PASS, |_| Ok(()));
        let drops = Program::load_both("drop", objects::DROP, objects::tc::DROP, |_| Ok(()));
        let (pass, drops) = (pass.unwrap(), drops.unwrap());
        let pins = folder.pins();
        let mut interfaces = Interfaces::handed(points);
        interfaces.keep_points(move |name, item| match item {
            Some(item) => pins.hold(name, &item).unwrap(),
            None => pins.release(name).unwrap(),
        });
        let generic = Some(Mode::Generic);
        for (feature, program) in [(Feature::Balancer, &pass), (Feature::Router, &drops)] {
            interfaces.add(ifindex, feature, program, generic).unwrap();
        }
        let first = xdp::run(&pass, &[0; 64], 0, 1).unwrap();
        assert_eq!(
            first.verdict,
            xdp::Verdict::Drop,
            "the second one is reached"
        );
        interfaces
    };
    namespace
        .inside(|| {
            // As when the process is killed.
            drop(run(Default::default()));
            let left = id().expect("a program");
            let mut items = folder.pins().items().unwrap();
            let kept = ["chain xdp load balancer", "chain xdp router"];
            let kept = kept.map(str::to_owned);
            assert!(
                kept.iter().all(|name| items.contains_key(name)),
                "{items:?}"
            );
            items.retain(|name, _| !kept.contains(name));
            assert_eq!(
                items.keys().collect::<Vec<_>>(),
                [&format!("xdp {ifindex}")]
            );
            let mut next = run(items);
            assert_eq!(
                id().as_ref(),
                Some(&left),
                "the one before's until it is taken over"
            );
            next.take_over().unwrap();
            assert_ne!(id().expect("a program"), left);
            next.remove(ifindex, Feature::Balancer);
            next.remove(ifindex, Feature::Router);
            drop(next);
            assert_eq!(id(), None);
            assert!(folder.pins().items().unwrap().is_empty());
        })
        .unwrap();
}
