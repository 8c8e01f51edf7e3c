//! Command lines and the requests they make over both APIs: `requests.golden` is the table.
//! `BUTTERFLY_UPDATE_GOLDEN=1` writes it anew; read the difference before it is committed.

mod common;

use common::grpc::GrpcStub;
use common::zmq::ZmqStub;
use common::{Ran, butterfly};

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/requests.golden");

#[test]
fn command_lines_make_these_requests() {
    let dir = tempfile::tempdir().unwrap();
    let (v0, v1) = (ZmqStub::start(dir.path()), GrpcStub::start(dir.path()));
    let state = dir.path().join("state");
    std::fs::write(&state, "connections").unwrap();
    let golden = std::fs::read_to_string(PATH).unwrap();
    let mut table = String::new();
    for line in golden
        .lines()
        .filter(|line| line.starts_with(['#', '$']) || line.is_empty())
    {
        table += &format!("{line}\n");
        let Some(command) = line.strip_prefix("$ butterfly ") else {
            continue;
        };
        let command = command.replace("STATE", &state.display().to_string());
        let over_v0 = told(
            &v0.endpoint,
            &butterfly(&v0.endpoint, &command),
            v0.requests(),
        );
        let over_v1 = told(
            &v1.endpoint,
            &butterfly(&v1.endpoint, &command),
            v1.requests(),
        );
        for (name, lines) in [("v0", over_v0), ("v1", over_v1)] {
            lines
                .iter()
                .for_each(|line| table += &format!("  {name} {line}\n"));
        }
    }
    if std::env::var_os("BUTTERFLY_UPDATE_GOLDEN").is_some() {
        std::fs::write(PATH, &table).unwrap();
        return;
    }
    let unlike = |(a, b): (&str, &str)| (a != b).then(|| format!("- {b}\n+ {a}"));
    let first = table.lines().zip(golden.lines()).find_map(unlike);
    assert!(
        table == golden,
        "tests/requests.golden says otherwise: {}",
        first.unwrap_or_default()
    );
}

/// The requests; of a failure the code and the first sentence, without what differs from run to
/// run.
fn told(endpoint: &str, ran: &Ran, requests: Vec<String>) -> Vec<String> {
    let mut lines: Vec<String> = requests
        .into_iter()
        .map(|request| format!("> {request}"))
        .collect();
    if ran.code != 0 {
        let sentence = ran.stderr.lines().next().unwrap_or_default();
        lines.push(format!(
            "exit {}: {}",
            ran.code,
            sentence.replace(endpoint, "ENDPOINT")
        ));
    }
    lines
}
