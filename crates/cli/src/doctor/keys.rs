//! Files of keys that everybody can read, which a daemon refuses when it starts: those that the
//! daemon here was told of, and its settings by now.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use api::shell;

use super::{Daemon, Findings, Level};

/// Where the service has its settings.
const SETTINGS: &str = "/etc/butterfly/butterflyd.ini";
/// Options whose value is a file that must not be everybody's.
const OPTIONS: [&str; 4] = ["-k", "--key", "--tls-key", "--page-token"];
/// The same in settings.
const KEYS: [&str; 2] = ["encryption_key_path", "page-token"];

pub fn examine(daemon: &Daemon, findings: &mut Findings) {
    let line = daemon
        .pid
        .and_then(|pid| fs::read(format!("/proc/{pid}/cmdline")).ok())
        .unwrap_or_default();
    let line = String::from_utf8_lossy(&line).into_owned();
    let words: Vec<&str> = line.split_terminator('\0').collect();
    let settings = values(&words, &["-c", "--config"]).pop();
    let settings = fs::read_to_string(settings.unwrap_or(SETTINGS)).unwrap_or_default();
    let mut files = values(&words, &OPTIONS);
    files.extend(said(&settings));
    files.sort_unstable();
    files.dedup();
    for file in files {
        look_at(file, findings);
    }
}

fn look_at(file: &str, findings: &mut Findings) {
    // One that cannot be looked at may be for the daemon alone, as it should be.
    let Ok(meta) = fs::metadata(Path::new(file)) else {
        return;
    };
    match meta.mode() & 0o007 {
        0 => findings.ok("keys", file, "it is not for everybody to read".into()),
        _ => findings.add(
            "keys",
            Level::Problem,
            file,
            format!(
                "everybody can read it (mode {:o}): a daemon that starts refuses it",
                meta.mode() & 0o7777
            ),
            format!("chmod o= {}", shell::word(file)),
        ),
    }
}

/// The values of these options on a command line, behind them or behind `=`.
fn values<'a>(words: &[&'a str], options: &[&str]) -> Vec<&'a str> {
    let next = words.iter().skip(1).map(Some).chain([None]);
    let value = |(word, next): (&&'a str, Option<&&'a str>)| {
        let joined = word.split_once('=');
        match joined.filter(|(name, _)| name.starts_with("--") && options.contains(name)) {
            Some((_, value)) => Some(value),
            None => next.filter(|_| options.contains(word)).copied(),
        }
    };
    words.iter().zip(next).filter_map(value).collect()
}

/// The files of keys that settings name.
fn said(settings: &str) -> Vec<&str> {
    settings.lines().filter_map(of_line).collect()
}

fn of_line(line: &str) -> Option<&str> {
    let (key, value) = line.split_once('=')?;
    let is_key = KEYS.contains(&key.trim());
    // A comment begins behind a blank.
    let end = value.find(" ;").or_else(|| value.find(" #"));
    let value = value[..end.unwrap_or(value.len())].trim();
    (is_key && !value.is_empty()).then_some(value)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn keys_are_found_by_option_and_setting() {
        let words = [
            "butterflyd",
            "-k",
            "/a",
            "--tls-key=/b",
            "-s",
            "/c",
            "--key",
        ];
        assert_eq!(values(&words, &OPTIONS), ["/a", "/b"]);
        let settings = "[security]\nencryption_key_path = /d ; -k\n;page-token = /e\n\
                        page-token=\nakey = /f\n";
        assert_eq!(said(settings), ["/d"]);
    }

    #[test]
    fn one_that_everybody_can_read_is_a_problem() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        fs::write(&path, "").unwrap();
        let level = |mode| {
            fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            let mut findings = Findings::default();
            look_at(path.to_str().unwrap(), &mut findings);
            findings.0.remove(0).level
        };
        assert_eq!(level(0o440), Level::Ok);
        assert_eq!(level(0o444), Level::Problem);
        let mut findings = Findings::default();
        look_at("/nonexistent/key", &mut findings);
        assert!(findings.0.is_empty());
    }
}
