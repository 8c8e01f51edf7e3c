//! The fuzz targets in the ordinary tests: the seeds, everything that once went wrong, what
//! campaigns have kept, and random inputs.

use std::fs;
use std::path::Path;

use fuzzing::{TARGETS, kept, seeds};

/// Random inputs a target; each is a seed with changes or all random. FUZZ_INPUTS says another
/// number: a campaign where there is no fuzzer.
const RANDOM: usize = 2_000;

/// Of the target that has a whole daemon in it.
const RANDOM_WHOLE: usize = 300;

/// Enough to cover much; the fuzzer has longer ones.
const LEN_MAX: u64 = 400;

fn target(name: &str) -> fn(&[u8]) {
    let found = TARGETS.iter().find(|(known, _)| *known == name);
    found.unwrap_or_else(|| panic!("no target '{name}'")).1
}

/// Knuth's generator of 64 bits: the same inputs in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }
}

/// Which input it was is said when it goes wrong.
fn run(name: &str, data: &[u8]) {
    let result = std::panic::catch_unwind(|| target(name)(data));
    if let Err(panic) = result {
        eprintln!("{name} with {data:?}");
        std::panic::resume_unwind(panic);
    }
}

fn random(name: &str) {
    random_some(name, RANDOM);
}

fn random_some(name: &str, count: usize) {
    let said = std::env::var("FUZZ_INPUTS").ok();
    let count = said.map_or(count, |said| said.parse().expect("FUZZ_INPUTS is a number"));
    let seeds: Vec<Vec<u8>> = seeds::all()
        .into_iter()
        .filter(|(of, _)| *of == name)
        .map(|(_, seed)| seed)
        .collect();
    assert!(!seeds.is_empty(), "no seeds for '{name}'");
    for seed in &seeds {
        run(name, seed);
    }
    let mut random = Random(0x0bad_5eed);
    for round in 0..count {
        let mut data = if round % 4 == 0 {
            (0..random.next() % LEN_MAX)
                .map(|_| random.next() as u8)
                .collect()
        } else {
            let mut data = seeds[random.next() as usize % seeds.len()].clone();
            if round % 4 == 3 {
                data.extend(&seeds[random.next() as usize % seeds.len()]);
            }
            data
        };
        for _ in 0..random.next() % 6 {
            if data.is_empty() {
                break;
            }
            let at = random.next() as usize % data.len();
            match random.next() % 4 {
                0 => data.truncate(at),
                1 => data.insert(at, random.next() as u8),
                _ => data[at] = random.next() as u8,
            }
        }
        run(name, &data);
    }
}

#[test]
fn frames() {
    random("frames");
}

#[test]
fn rings() {
    random("rings");
}

#[test]
fn session() {
    random("session");
}

#[test]
fn round() {
    random("round");
}

#[test]
fn tunnel() {
    random("tunnel");
}

#[test]
fn netlink() {
    random("netlink");
}

#[test]
fn v0() {
    random("v0");
}

#[test]
fn text() {
    random("text");
}

#[test]
fn v1() {
    random("v1");
}

#[test]
fn decoded() {
    random("decoded");
}

#[test]
fn dns() {
    random("dns");
}

#[test]
fn http() {
    random("http");
}

#[test]
fn page() {
    random("page");
}

#[test]
fn access() {
    random("access");
}

#[test]
fn cni() {
    random("cni");
}

#[test]
fn keeper() {
    random("keeper");
}

#[test]
fn stored() {
    random("stored");
}

#[test]
fn zmtp() {
    random("zmtp");
}

#[test]
fn filter() {
    random("filter");
}

#[test]
fn whole() {
    random_some("whole", RANDOM_WHOLE);
}

/// One folder a target; its name says which.
#[test]
fn regressions() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/regressions");
    let readme =
        fs::read_to_string(folder.join("README.md")).expect("a page that says what each file is");
    for (name, _) in TARGETS {
        let Ok(files) = fs::read_dir(folder.join(name)) else {
            continue;
        };
        for file in files {
            let path = file.expect("a readable folder").path();
            let file = path
                .file_name()
                .expect("a file")
                .to_string_lossy()
                .into_owned();
            assert!(
                readme.contains(&format!("{name}/{file}")),
                "{name}/{file} is not in the README"
            );
            run(name, &fs::read(&path).expect("a readable file"));
        }
    }
}

/// A file for each target: what campaigns have kept of it (`fuzz/keep.sh`).
#[test]
fn kept_inputs() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/inputs");
    let files = fs::read_dir(&folder).expect("what campaigns have kept");
    assert_eq!(files.count(), TARGETS.len(), "one of each target");
    for (name, _) in TARGETS {
        let file = format!("{name}.inputs");
        let bytes = fs::read(folder.join(&file)).unwrap_or_else(|e| panic!("{file}: {e}"));
        let inputs = kept::unpack(&bytes).unwrap_or_else(|why| panic!("{file}: {why}"));
        assert_eq!(
            kept::pack(inputs.clone()),
            bytes,
            "{file} is not as it is packed"
        );
        for input in inputs {
            run(name, &input);
        }
    }
}
