//! A disk that fails behind a change: what v0 answers then, and what is recorded.

use super::*;
use std::path::Path;
use std::sync::atomic::Ordering;

use api::text_format;
use control::{Controller, HostSettings};
use serde_json::{Value, json};

use crate::audit::Audit;
use crate::logging::LogControl;
use crate::nowhere::{Disk, Nowhere};
use crate::stored::Stored;
use crate::upgrade::Changes;

/// The daemon as far as v0 sees it, over a disk, with its records in a file.
fn handler(disk: &Disk, audit: &Path) -> Handler {
    let stored = Stored::over(disk.store(), Changes::default());
    let controller = Controller::new(
        HostSettings::default(),
        Box::new(Nowhere),
        Arc::new(Nowhere),
    )
    .with_journal(stored.journal());
    let operations = Operations::new(controller, LogControl::detached(), || 0);
    let operations = operations.with_store(Some(stored));
    let audit = Audit::open(Some(audit.to_owned())).unwrap();
    Handler::new(Gate::of(None, audit), Arc::new(operations))
}

/// Asks for these in one frame; of each answer whether it was done, and what is said.
fn ask(handler: &Handler, requests: &[&str]) -> Vec<(bool, String)> {
    ask_for(handler, requests, false)
}

/// As [`ask`], for a client that has gone or not.
fn ask_for(handler: &Handler, requests: &[&str], client_gone: bool) -> Vec<(bool, String)> {
    let message = |request| format!("messages {{ revision: 6 message_0 {{ {request} }} }} ");
    let requests = requests.iter().map(|one| format!("request {{ {one} }}"));
    let frame: String = requests.map(message).collect();
    let frame = text_format::parse(&frame).unwrap().encode_to_vec();
    let client_gone = AtomicBool::new(client_gone);
    let answer = handler.answer(&Peer::unknown(), &frame, &client_gone);
    let answer = Messages::decode(answer.bytes.as_slice()).unwrap();
    let responses = answer.messages.into_iter();
    let each = responses.map(|one| {
        let status = one.message_0.unwrap().response.unwrap().status;
        let why = status.error.and_then(|error| error.description);
        (status.status, why.unwrap_or_default())
    });
    each.collect()
}

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    let line = |line| serde_json::from_str(line).unwrap();
    text.lines().map(line).collect()
}

#[test]
fn what_a_failing_disk_undoes_is_not_recorded_as_done() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.json");
    let disk = Disk::default();
    let handler = handler(&disk, &path);
    let groups = || handler.operations.control().group_ids().len();
    assert_eq!(
        ask(&handler, &["sg_add { id: 'kept' }"]),
        [(true, String::new())]
    );
    disk.failing.store(1, Ordering::Relaxed);
    let requests = [
        "sg_add { id: 'lost' }",
        "sg_member_add { sg_id: 'kept' member: 'nonsense' }",
        "app_config { log_level: 'debug' }",
    ];
    for (done, why) in ask(&handler, &requests) {
        assert!(!done && why.contains("cannot be recorded"), "{why}");
    }
    assert_eq!(groups(), 1);
    assert!(ask(&handler, &["sg_add { id: 'late' }"])[0].0);
    assert_eq!(groups(), 2);

    let lines = lines(&path);
    let of = |key: &str| -> Vec<Value> { lines.iter().map(|line| line[key].clone()).collect() };
    let requests = ["sg_add", "sg_add", "sg_member_add", "app_config", "sg_add"];
    assert_eq!(of("request"), requests);
    assert_eq!(of("result"), ["ok", "error", "error", "error", "ok"]);
    let why = |line: usize| lines[line]["why"].as_str().unwrap();
    assert!(why(1).contains("cannot be recorded"), "{}", why(1));
    assert_eq!(lines[1]["changes"][0]["group"], "lost");
    // It was refused before, by what it says.
    assert!(why(2).contains("nonsense"), "{}", why(2));
    assert!(why(3).contains("cannot be recorded"), "{}", why(3));
    assert_eq!(lines[3]["details"], json!(["log level: none -> debug"]));
}

/// Changes wait for each other for a moment only, where each of them takes long; what changes
/// nothing waits for nobody.
#[test]
fn changes_that_take_long_do_not_wait_for_many() {
    let dir = tempfile::tempdir().unwrap();
    let handler = handler(&Disk::default(), &dir.path().join("audit.json"));
    let mut together = Together::begin(&handler.operations, 0);
    let (begun, late) = (together.begun, together.begun + TOGETHER_FOR);
    assert!(!together.is_full(late));
    together.changed_by.push(Caller::seeing(&Peer::unknown()));
    assert!(!together.is_full(begun));
    assert!(!together.is_full(late - Duration::from_millis(1)));
    assert!(together.is_full(late));
    let many = vec![Caller::seeing(&Peer::unknown()); TOGETHER_MAX - 1];
    together.changed_by.extend(many);
    assert!(together.is_full(begun));
}

/// What waits for the disk together is bounded, and each is answered and recorded once.
#[test]
fn a_frame_of_many_changes_is_settled_in_parts() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.json");
    let handler = handler(&Disk::default(), &path);
    let count = 2 * TOGETHER_MAX + 1;
    let requests: Vec<String> = (0..count)
        .map(|id| format!("sg_add {{ id: 'g{id}' }}"))
        .collect();
    let requests: Vec<&str> = requests.iter().map(String::as_str).collect();
    let answers = ask(&handler, &requests);
    assert_eq!(answers.len(), count);
    assert!(answers.iter().all(|(done, _)| *done));
    let lines = lines(&path);
    assert_eq!(lines.len(), count);
    assert!(lines.iter().all(|line| line["result"] == "ok"));
}

/// An answer that is too long to be sent has cost what it has cost: the next request is not carried
/// out.
#[test]
fn what_was_made_in_vain_counts() {
    let of_bytes = |bytes| respond(requests::refused("x".repeat(bytes)), Some("7".into()));
    let mut reply = Reply::for_requests(2);
    reply.push(of_bytes(5));
    assert!(!reply.is_full());
    reply.push(of_bytes(REPLY_MAX));
    assert!(reply.is_full());
    let why = |message: &Message| {
        let message = message.message_0.clone().unwrap();
        assert_eq!(message.message_id.as_deref(), Some("7"));
        let error = message.response.unwrap().status.error.unwrap();
        error.description.unwrap()
    };
    assert_eq!(why(&reply.messages[0]), "xxxxx");
    let said = why(&reply.messages[1]);
    assert!(said.starts_with("the answer has 335"), "{said}");
    let left = why(&not_answered(of_bytes(5)));
    assert!(left.starts_with("not carried out"), "{left}");
}

#[test]
fn a_frame_exports_connections_so_often_and_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let handler = handler(&Disk::default(), &dir.path().join("audit.json"));
    let mut requests = vec!["nic_export: 'nobody'"; requests::EXPORTS_MAX + 2];
    requests.push("sg_add { id: 'g' }");
    let answers = ask(&handler, &requests);
    let (exports, rest) = answers.split_at(requests::EXPORTS_MAX);
    assert!(exports.iter().all(|(_, why)| why.contains("nobody")));
    let refused = |(done, why): &(bool, String)| !done && why.starts_with("not carried out");
    assert!(rest[..2].iter().all(refused), "{rest:?}");
    assert!(rest[2].0, "what is no export is carried out: {rest:?}");
    // The next frame has as many again.
    assert!(ask(&handler, &requests)[0].1.contains("nobody"));
}

#[test]
fn nothing_is_looked_for_where_nobody_waits_and_changes_are_made() {
    let dir = tempfile::tempdir().unwrap();
    let handler = handler(&Disk::default(), &dir.path().join("audit.json"));
    let requests = [
        "sg_list: true",
        "nic_export: 'nobody'",
        "sg_add { id: 'g' }",
        "app_status: true",
    ];
    let answers = ask_for(&handler, &requests, true);
    let done: Vec<bool> = answers.iter().map(|(done, _)| *done).collect();
    assert_eq!(done, [false, false, true, false]);
    for asked in [0, 1, 3] {
        let why = &answers[asked].1;
        assert_eq!(why, "not carried out: the client has hung up");
    }
    assert_eq!(handler.operations.control().group_ids().len(), 1);
}
