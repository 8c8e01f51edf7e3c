//! The benchmark of restarts, `make bench-restart`, in its smallest form: everything happens once
//! to guests, containers and hosts.

use std::fs;
use std::time::Duration;

use butterfly_tests::lab::check;
use butterfly_tests::program;
use butterfly_tests::trials;
use testkit::{Result, process};

const SCENES: [&str; 4] = ["split", "packed64", "tap", "overlay"];
const EVENTS: [&str; 4] = ["quiet", "kill", "upgrade", "restart"];
const WITHIN: Duration = Duration::from_secs(240);

fn main() {
    trials::run_each(trials![
        every_event_is_measured_and_no_connection_is_lost,
        a_scene_that_there_is_not_is_refused,
    ]);
}

fn every_event_is_measured_and_no_connection_is_lost() -> Result<()> {
    let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
    let own = folder.path().join("own");
    fs::create_dir(&own).map_err(|e| e.to_string())?;
    let place = format!("TMPDIR={}", own.display());
    let out = folder.path().join("out").display().to_string();
    let bench = program("butterfly-bench");
    let mut words = vec!["env", &place, &bench, "restart", "--out", &out];
    words.extend(["--rounds", "1", "--events", "1", "--connections", "200"]);
    words.extend(SCENES.iter().flat_map(|scene| ["--only", scene]));
    let said = process::run_within(&words, WITHIN, &folder.path().join("log"))?;
    let pairs = said.lines().last().unwrap_or_default();
    let figure = |name: &str| -> Result<f64> {
        let mut all = pairs.split(' ').filter_map(|pair| pair.split_once('='));
        let found = all.find(|(own, _)| *own == name);
        let (_, value) = found.ok_or_else(|| format!("no {name} in\n{said}"))?;
        value.parse().map_err(|e| format!("{name}={value}: {e}"))
    };
    for scene in SCENES {
        for event in EVENTS {
            let name = format!("{event}_{scene}");
            let [middle, most] = [
                figure(&format!("{name}_p50_ms"))?,
                figure(&format!("{name}_max_ms"))?,
            ];
            check(
                most > 0.0 && middle <= most,
                &format!("{name}: {middle} of {most} ms"),
            )?;
            let lost = figure(&format!("{name}_lost_connections"))?;
            check(lost == 0.0, &format!("{name}: {lost} connections are lost"))?;
        }
    }
    let data = fs::read_to_string(format!("{out}/restart.tsv")).map_err(|e| e.to_string())?;
    check(data.contains("\nkill_split_p99\tbutterfly\tms\t"), &data)?;
    // Neither folders nor processes of its own.
    let left = fs::read_dir(&own).map_err(|e| e.to_string())?.count();
    check(left == 0, &format!("{left} entries are left in {place}"))?;
    let running = process::run(&["ps", "-eo", "args"])?;
    let ours = own.display().to_string();
    let still: Vec<&str> = running
        .lines()
        .filter(|line| line.contains(&ours))
        .collect();
    check(still.is_empty(), &format!("{still:?} still run"))
}

fn a_scene_that_there_is_not_is_refused() -> Result<()> {
    let bench = program("butterfly-bench");
    let done = process::output(&[&bench, "restart", "--only", "splits"])?;
    let said = String::from_utf8_lossy(&done.stderr);
    check(
        !done.status.success() && said.contains("no scene 'splits', but split, packed,"),
        &said,
    )
}
