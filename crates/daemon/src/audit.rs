//! The audit log: a line for every change and for every attempt that was refused, in the log and,
//! as JSON, in the file of `--audit`.
//!
//! A [`Record`] begins when a request is let in and is written when nobody holds it any more, which
//! is before the client has its answer: also where the client went away and the change was made all
//! the same. In a line is first who, what and how it ended, then what changed, and last the
//! arguments: what cuts a long line off takes those.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use api::v1;
use control::Changed;
use prost::Message;
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::Value;

use crate::access::{Peer, Who};
use crate::lines::Lines;
use crate::logging::cut;
use crate::v1::render;

/// Bytes of a request's arguments that are recorded; of longer ones only how long they were.
pub const ARGUMENTS_MAX: usize = 64 << 10;
/// The same, as JSON.
const ARGUMENTS_JSON_MAX: usize = 256 << 10;
/// Changes of a request that are listed.
const LISTED: usize = 1000;
/// Bytes of what has changed in them, and of what was removed.
const DETAILS_MAX: usize = 64 << 10;
/// Bytes of the sentence that the client got, which may name a value of its own of any length.
const WHY_MAX: usize = 4 << 10;
/// Where lines in the log come from.
pub const AUDIT: &str = "butterfly_audit";
/// Letters of what was asked for by who was not let in.
const REQUEST_MAX: usize = 256;
/// Attempts of one peer that are recorded in [`WINDOW`] and have come to nothing: refused by role,
/// by part, since they cannot be, or since nobody waited for their answer, or of what is there
/// already. Whoever may not do anything, or asks for the same again and again, must not fill the
/// disk either, or keep those of others out of it.
const REFUSED_MAX: u32 = 120;
/// Peers that are told apart by that in one window; the others are counted as one.
const PEERS_MAX: usize = 1024;
/// The same of hosts of which nobody is let in, and such hosts: who has many addresses must neither
/// fill the disk nor take the room of others.
const STRANGER_REFUSED_MAX: u32 = 20;
const STRANGERS_MAX: usize = 64;
/// Bytes of the arguments of a request that came to nothing that are recorded.
const REFUSED_ARGUMENTS_MAX: usize = 4 << 10;
const WINDOW: Duration = Duration::from_secs(60);
/// Bytes of one peer's changes in a window of which the arguments and all details are recorded. Of
/// more it is recorded that they were made, and of what.
const WHOLE_MAX: usize = 16 << 20;

/// Where records go. Cheap to clone.
#[derive(Clone)]
pub struct Audit(Arc<Shared>);

struct Shared {
    path: Option<PathBuf>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    file: Option<Lines>,
    /// Lines that could not be written since the start, and since the log said so.
    lost: u64,
    lost_unsaid: u64,
    window: Option<Instant>,
    /// What each peer that is let in was refused in it, and each host of strangers; the empty name
    /// is all others.
    refused: BTreeMap<String, u32>,
    strangers: BTreeMap<String, u32>,
    refused_unsaid: u64,
    /// Bytes of what each peer has changed in it.
    changed: BTreeMap<String, usize>,
}

impl State {
    /// Whether another refusal of a peer's is recorded; how many were not, before it.
    fn records_refusal(&mut self, peer: &Peer, is_let_in: bool) -> Option<u64> {
        self.go_on();
        let (is_known, mut name) = match host_of_nameless(peer) {
            Some(host) => (is_let_in, host),
            None => (true, peer.shown()),
        };
        let (counts, names_max, most) = match is_known {
            true => (&mut self.refused, PEERS_MAX, REFUSED_MAX),
            false => (&mut self.strangers, STRANGERS_MAX, STRANGER_REFUSED_MAX),
        };
        if counts.len() >= names_max && !counts.contains_key(&name) {
            name = String::new();
        }
        let count = counts.entry(name).or_default();
        if *count >= most {
            self.refused_unsaid += 1;
            return None;
        }
        *count += 1;
        Some(std::mem::take(&mut self.refused_unsaid))
    }

    /// Whether a change of a peer's is recorded whole, in so many bytes.
    fn records_whole(&mut self, peer: &Peer, bytes: usize) -> bool {
        self.go_on();
        let all = self.changed.entry(peer.shown()).or_default();
        *all = all.saturating_add(bytes);
        *all <= WHOLE_MAX
    }

    /// Begins a window when the one before it is over.
    fn go_on(&mut self) {
        let now = Instant::now();
        if self.window.is_none_or(|begun| now - begun >= WINDOW) {
            self.window = Some(now);
            self.refused.clear();
            self.strangers.clear();
            self.changed.clear();
        }
    }
}

/// The host of who is known by no name: nobody is to keep those elsewhere out of the log. Of IPv6
/// it is the network, of which one host may have all addresses.
fn host_of_nameless(peer: &Peer) -> Option<String> {
    if !matches!(peer.who, Who::Unknown | Who::V0Tcp) {
        return None;
    }
    let address = peer.address.as_deref();
    let address = address.and_then(|address| address.parse::<SocketAddr>().ok());
    let host = address.map(|address| match address.ip().to_canonical() {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("{:x}/64", ip.to_bits() >> 64),
    });
    Some(host.unwrap_or_default())
}

impl Audit {
    /// Records go to the log, and to this file. The error is a sentence.
    pub fn open(path: Option<PathBuf>) -> Result<Audit, String> {
        let file = path
            .as_deref()
            .map(|path| Lines::open(path, FILE))
            .transpose()?;
        Ok(Audit(Arc::new(Shared {
            path,
            state: Mutex::new(State {
                file,
                ..State::default()
            }),
        })))
    }

    /// Records go to the log alone.
    pub fn none() -> Audit {
        Audit(Arc::new(Shared {
            path: None,
            state: Mutex::default(),
        }))
    }

    /// Opens the file by its name again, for whoever has moved it away; the old one is kept where
    /// that fails.
    pub fn reopen(&self) -> Result<Option<String>, String> {
        let Some(path) = &self.0.path else {
            return Ok(None);
        };
        let file = Lines::open(path, FILE)?;
        self.lock().file = Some(file);
        Ok(Some(format!("{}: opened anew", path.display())))
    }

    /// Lines that could not be written since the start.
    pub fn lost(&self) -> u64 {
        self.lock().lost
    }

    /// A request that was let in; written when it is dropped.
    pub fn begin(&self, api: &'static str, peer: &Peer, request: &'static str) -> Arc<Record> {
        Arc::new(Record {
            audit: self.clone(),
            line: Mutex::new(Line {
                request: request.to_owned(),
                ..Line::new(api, peer)
            }),
        })
    }

    /// An attempt that was refused by who asked.
    pub fn refused(&self, api: &'static str, peer: &Peer, request: &str, why: &str) {
        let Some(unsaid) = self.lock().records_refusal(peer, false) else {
            return;
        };
        self.write(&Line {
            request: request.chars().take(REQUEST_MAX).collect(),
            result: Some("refused".into()),
            why: cut(why, WHY_MAX).into_owned(),
            unsaid,
            ..Line::new(api, peer)
        });
    }

    fn write(&self, line: &Line) {
        let mut text = line.text();
        tracing::info!(target: AUDIT, "{text}");
        let mut state = self.lock();
        let Some(file) = &mut state.file else { return };
        text.push('\n');
        match file.append(text.as_bytes()).1 {
            Ok(()) if state.lost_unsaid > 0 => {
                let lost = std::mem::take(&mut state.lost_unsaid);
                drop(state);
                tracing::error!("the audit file is written to again; {lost} lines were lost");
            }
            Ok(()) => (),
            Err(e) => {
                state.lost += 1;
                state.lost_unsaid += 1;
                let first = state.lost_unsaid == 1;
                drop(state);
                if first {
                    let path = self.0.path.as_deref().unwrap_or(Path::new(""));
                    tracing::error!(
                        "the audit file {} cannot be written to: {e}; lines are lost until it can",
                        path.display()
                    );
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What messages call its file.
const FILE: &str = "audit file";

/// What is known of one request, until it is written.
pub struct Record {
    audit: Audit,
    line: Mutex<Line>,
}

struct Line {
    api: &'static str,
    peer: Peer,
    request: String,
    arguments: Option<Value>,
    arguments_bytes: usize,
    changes: Vec<v1::Change>,
    removed: Vec<v1::Nic>,
    details: Vec<String>,
    more: usize,
    /// Room for details, and how many had none.
    room: usize,
    more_details: usize,
    result: Option<String>,
    why: String,
    /// Something may be otherwise than it was, whatever came of the request.
    may_have_had_effect: bool,
    unsaid: u64,
}

impl Record {
    /// What was asked for; `None`: more than is recorded.
    pub fn arguments(&self, arguments: Option<Value>, bytes: usize) {
        let mut line = self.lock();
        (line.arguments, line.arguments_bytes) = (arguments, bytes);
    }

    /// From here on something may be otherwise than it was: what comes of it is recorded, also
    /// where it fails half-way, or its client has gone away.
    pub fn takes_effect(&self) {
        self.lock().may_have_had_effect = true;
    }

    /// What it has come to, where that is no change of what is declared.
    pub fn detail(&self, detail: String) {
        let mut line = self.lock();
        match line.has_room(detail.len()) {
            true => line.details.push(detail),
            false => line.more_details += 1,
        }
    }

    /// What an operation of the controller has changed.
    pub fn changed(&self, changed: &Changed) {
        let mut line = self.lock();
        line.may_have_had_effect = true;
        line.more += changed.more;
        for nic in changed.removed.iter().take(LISTED) {
            let nic = render::nic(nic);
            match line.has_room(nic.encoded_len()) {
                true => line.removed.push(nic),
                false => line.more_details += 1,
            }
        }
        let changes = render::changes(&changed.diff);
        let room = LISTED.saturating_sub(line.changes.len());
        line.more += changes.len().saturating_sub(room);
        for mut change in changes.into_iter().take(room) {
            let of_change = change.details.len();
            change.details = std::mem::take(&mut change.details)
                .into_iter()
                .take_while(|detail| line.has_room(detail.len()))
                .collect();
            line.more_details += of_change - change.details.len();
            line.changes.push(change);
        }
    }

    /// How it ended: `ok`, or a code and the sentence.
    pub fn ended(&self, result: &str, why: &str) {
        let mut line = self.lock();
        (line.result, line.why) = (Some(result.to_owned()), cut(why, WHY_MAX).into_owned());
    }

    /// What was done is undone since.
    pub fn undone(&self, why: &str) {
        let is_ok = self.lock().result.as_deref() == Some("ok");
        if is_ok {
            self.ended("error", why);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let line = self.line.get_mut();
        let line = line.unwrap_or_else(PoisonError::into_inner);
        if line.came_to_nothing() {
            let Some(unsaid) = self.audit.lock().records_refusal(&line.peer, true) else {
                return;
            };
            line.unsaid = unsaid;
            if line.arguments_bytes > REFUSED_ARGUMENTS_MAX {
                line.arguments = None;
            }
        } else {
            let mut state = self.audit.lock();
            line.unsaid = std::mem::take(&mut state.refused_unsaid);
            let bytes = line.arguments_bytes + DETAILS_MAX - line.room;
            if !line.peer.is_ours() && !state.records_whole(&line.peer, bytes) {
                line.leave_values_out();
            }
        }
        self.audit.write(line);
    }
}

impl Line {
    fn new(api: &'static str, peer: &Peer) -> Line {
        Line {
            api,
            peer: peer.clone(),
            request: String::new(),
            arguments: None,
            arguments_bytes: 0,
            changes: Vec::new(),
            removed: Vec::new(),
            details: Vec::new(),
            more: 0,
            room: DETAILS_MAX,
            more_details: 0,
            result: None,
            why: String::new(),
            may_have_had_effect: false,
            unsaid: 0,
        }
    }

    /// Takes it of what room there is for details; once there is none, there is none for others.
    fn has_room(&mut self, bytes: usize) -> bool {
        let left = self.room.checked_sub(bytes);
        self.room = left.unwrap_or(0);
        left.is_some()
    }

    /// Nothing has come of it: it was answered by a refusal, its client went away before the end,
    /// or all that it asked for was there already.
    fn came_to_nothing(&self) -> bool {
        !self.may_have_had_effect
    }

    /// Leaves out all values that may be long, and counts them.
    fn leave_values_out(&mut self) {
        self.arguments = None;
        self.more_details += self.removed.len() + self.details.len();
        self.removed.clear();
        self.details.clear();
        for change in &mut self.changes {
            self.more_details += change.details.len();
            change.details.clear();
        }
    }

    fn text(&self) -> String {
        // Of a map of texts and values nothing can fail.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The arguments, unless they are longer as JSON than is recorded.
    fn arguments(&self) -> Option<&Value> {
        let arguments = self.arguments.as_ref();
        arguments.filter(|arguments| arguments.to_string().len() <= ARGUMENTS_JSON_MAX)
    }
}

/// The keys in this order.
impl Serialize for Line {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut line = serializer.serialize_map(None)?;
        let now = humantime::format_rfc3339_millis(SystemTime::now());
        line.serialize_entry("time", &now.to_string())?;
        line.serialize_entry("api", self.api)?;
        match &self.peer.who {
            Who::Local(user) => {
                line.serialize_entry("uid", &user.uid)?;
                line.serialize_entry("gid", &user.gid)?;
                if let Some(pid) = user.pid {
                    line.serialize_entry("pid", &pid)?;
                }
            }
            Who::Certificate { names } => line.serialize_entry("certificate", names)?,
            Who::V0Tcp => line.serialize_entry("v0_tcp", &true)?,
            Who::PageToken => line.serialize_entry("page_token", &true)?,
            Who::Unknown => (),
        }
        if let Some(address) = &self.peer.address {
            line.serialize_entry("address", address)?;
        }
        line.serialize_entry("request", &self.request)?;
        // Whoever went away before the end has had no answer.
        let result = self.result.as_deref().unwrap_or("unanswered");
        line.serialize_entry("result", result)?;
        if !self.why.is_empty() {
            line.serialize_entry("why", &self.why)?;
        }
        for (name, count) in [
            ("unsaid", self.unsaid),
            ("more", self.more as u64),
            ("more_details", self.more_details as u64),
        ] {
            if count > 0 {
                line.serialize_entry(name, &count)?;
            }
        }
        if !self.changes.is_empty() {
            line.serialize_entry("changes", &in_json("Change", &self.changes))?;
        }
        if !self.removed.is_empty() {
            line.serialize_entry("removed", &in_json("Nic", &self.removed))?;
        }
        if !self.details.is_empty() {
            line.serialize_entry("details", &self.details)?;
        }
        match self.arguments() {
            Some(arguments) => line.serialize_entry("arguments", arguments)?,
            None if self.arguments_bytes > 0 => {
                line.serialize_entry("arguments_bytes", &self.arguments_bytes)?;
            }
            None => (),
        }
        line.end()
    }
}

/// Messages of v1 of this name.
fn in_json<M: Message>(name: &str, messages: &[M]) -> Vec<Value> {
    let value = |message: &M| api::json::of_v1(name, &message.encode_to_vec());
    let values = messages.iter().map(value);
    values.map(Option::unwrap_or_default).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use control::model::{Direction, GroupId, Peer as RulePeer, Ports, Rule, RuleMatch};
    use control::{Diff, GroupChange, GroupDiff};
    use serde_json::json;
    use std::fs::OpenOptions;
    use std::os::unix::fs::PermissionsExt;

    fn peer() -> Peer {
        Peer {
            who: Who::Certificate {
                names: vec!["blue\n".into()],
            },
            address: Some("192.0.2.1:7".into()),
        }
    }

    fn lines(path: &Path) -> Vec<Value> {
        let text = std::fs::read_to_string(path).unwrap();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    #[test]
    fn a_record_is_a_line_that_only_we_read_and_a_rotated_file_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.json");
        let audit = Audit::open(Some(path.clone())).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600);
        let record = audit.begin("v1", &peer(), "PutNic");
        record.arguments(Some(json!({"nic": {"id": "a"}})), 10);
        let held = record.clone();
        record.ended("ok", "");
        drop(record);
        assert_eq!(lines(&path).len(), 0, "an operation goes on");
        drop(held);
        let line = &lines(&path)[0];
        assert_eq!(line["certificate"], json!(["blue\n"]));
        assert_eq!(line["address"], "192.0.2.1:7");
        assert_eq!(line["arguments"]["nic"]["id"], "a");
        assert_eq!(line["result"], "ok");
        assert!(line["time"].as_str().unwrap().ends_with('Z'));

        let rotated = dir.path().join("audit.json.1");
        std::fs::rename(&path, &rotated).unwrap();
        audit.reopen().unwrap();
        drop(audit.begin("v0", &peer(), "nic_add"));
        assert_eq!((lines(&rotated).len(), lines(&path).len()), (1, 1));
        assert_eq!(lines(&path)[0]["result"], "unanswered");
    }

    #[test]
    fn refused_attempts_are_bounded_and_counted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.json");
        let audit = Audit::open(Some(path.clone())).unwrap();
        for _ in 0..REFUSED_MAX + 50 {
            audit.refused("v1", &peer(), "Shutdown", "needs admin");
        }
        assert_eq!(lines(&path).len(), REFUSED_MAX as usize);
        audit.lock().window = Instant::now().checked_sub(WINDOW);
        audit.refused("v1", &peer(), "Shutdown", "needs admin");
        let last = lines(&path).pop().unwrap();
        assert_eq!(
            (&last["unsaid"], &last["result"]),
            (&json!(50), &json!("refused"))
        );
    }

    #[test]
    fn strangers_of_one_host_keep_no_others_out() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.json");
        let audit = Audit::open(Some(path.clone())).unwrap();
        let refuse = |peer: &Peer| {
            let size = || std::fs::metadata(&path).unwrap().len();
            let before = size();
            audit.refused("v1", peer, "connect", "no certificate");
            size() > before
        };
        let from = |address: String| Peer {
            address: Some(address),
            ..Peer::unknown()
        };
        for port in 1..=STRANGER_REFUSED_MAX {
            assert!(refuse(&from(format!("192.0.2.1:{port}"))));
        }
        assert!(!refuse(&from("192.0.2.1:999".into())));
        // As a socket of both families has it.
        assert!(!refuse(&from("[::ffff:192.0.2.1]:7".into())));
        assert!(refuse(&from("[::ffff:192.0.2.2]:7".into())));
        let by_key = |address: &str| Peer {
            who: Who::V0Tcp,
            ..from(address.into())
        };
        assert!(refuse(&by_key("192.0.2.3:7")));
        for host in 1..=STRANGER_REFUSED_MAX {
            assert!(refuse(&from(format!("[2001:db8::{host:x}]:7"))));
        }
        assert!(!refuse(&from("[2001:db8::ffff:1]:7".into())));
        assert!(refuse(&from("[2001:db8:0:1::1]:7".into())));
        // However many addresses somebody has, it is so many lines, and not those of who is known.
        for network in 2..STRANGERS_MAX + STRANGER_REFUSED_MAX as usize {
            refuse(&from(format!("[2001:db8:0:{network:x}::1]:7")));
        }
        assert!(!refuse(&from("198.51.100.1:7".into())));
        assert!(refuse(&peer()));
        // Nor those of who is let in by the key alone.
        assert!(!refuse(&by_key("198.51.100.1:7")));
        let before = lines(&path).len();
        let record = audit.begin("v0", &by_key("198.51.100.1:7"), "nic_add");
        record.ended("PERMISSION_DENIED", "not yours");
        drop(record);
        assert_eq!(lines(&path).len(), before + 1);
    }

    /// One who is let in, and asks for what cannot be or is not his.
    #[test]
    fn requests_that_are_refused_are_bounded_as_those_that_are_not_let_in() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.json");
        let audit = Audit::open(Some(path.clone())).unwrap();
        let ask = |peer: &Peer, result: &str| {
            let record = audit.begin("v1", peer, "PutNic");
            let arguments = "x".repeat(ARGUMENTS_MAX - 100);
            record.arguments(Some(json!(arguments)), arguments.len());
            record.ended(result, "not yours");
        };
        for _ in 0..2 * REFUSED_MAX {
            ask(&peer(), "PERMISSION_DENIED");
        }
        let size = std::fs::metadata(&path).unwrap().len();
        assert_eq!(lines(&path).len(), REFUSED_MAX as usize);
        assert!(size < 100 << 10, "{size}");
        assert_eq!(lines(&path)[0]["arguments_bytes"], ARGUMENTS_MAX - 100);
        // Who goes away before the answer is one of them.
        drop(audit.begin("v1", &peer(), "PutNic"));
        assert_eq!(lines(&path).len(), REFUSED_MAX as usize);
        // What another one was refused is recorded all the same, and what one has changed.
        let other = Peer::unknown();
        audit.refused("v1", &other, "Shutdown", "needs admin");
        assert_eq!(lines(&path).pop().unwrap()["unsaid"], REFUSED_MAX + 1);
        // What was there already is no change.
        ask(&peer(), "ok");
        assert_eq!(lines(&path).len(), REFUSED_MAX as usize + 1);
        let record = audit.begin("v1", &peer(), "PutGroup");
        record.changed(&group_changed(1));
        record.ended("ok", "");
        drop(record);
        let last = lines(&path).pop().unwrap();
        assert_eq!(
            (&last["result"], &last["unsaid"]),
            (&json!("ok"), &json!(1))
        );
    }

    /// Of a group, of which so many rules are new.
    fn group_changed(rules: u16) -> Changed {
        let rule = |port: u16| {
            let ports = RuleMatch::Ports(Ports {
                start: port,
                end: port,
            });
            Rule::new(Direction::Ingress, Some(6), ports, RulePeer::Any).unwrap()
        };
        let diff = Diff {
            groups: vec![GroupChange {
                id: GroupId::new("web").unwrap(),
                diff: GroupDiff {
                    rules_added: (0..rules).map(rule).collect(),
                    ..Default::default()
                },
            }],
            ..Default::default()
        };
        Changed {
            diff,
            ..Default::default()
        }
    }

    #[test]
    fn of_many_large_changes_it_is_recorded_that_they_were_made() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.json");
        let audit = Audit::open(Some(path.clone())).unwrap();
        let arguments = "x".repeat(ARGUMENTS_MAX);
        let change = |peer: &Peer| {
            let record = audit.begin("v1", peer, "PutGroup");
            record.changed(&group_changed(1));
            record.arguments(Some(json!(arguments)), ARGUMENTS_MAX);
            record.ended("ok", "");
            drop(record);
            lines(&path).pop().unwrap()
        };
        let is_whole = |line: &Value| {
            assert_eq!(line["changes"][0]["group"], "web");
            line["arguments"].is_string() && line["changes"][0]["details"].is_array()
        };
        assert!(is_whole(&change(&peer())));
        audit.lock().changed.insert(peer().shown(), WHOLE_MAX);
        let cut = change(&peer());
        assert!(!is_whole(&cut));
        assert_eq!(
            (&cut["arguments_bytes"], &cut["more_details"]),
            (&json!(ARGUMENTS_MAX), &json!(1))
        );
        // Nobody else's, and not for ever.
        assert!(is_whole(&change(&Peer::unknown())));
        audit.lock().window = Instant::now().checked_sub(WINDOW);
        assert!(is_whole(&change(&peer())));
    }

    /// What is carried out is recorded also where its client went away, or where it failed
    /// half-way, however much that client was refused before.
    #[test]
    fn what_may_have_had_an_effect_is_no_refusal() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.json");
        let audit = Audit::open(Some(path.clone())).unwrap();
        for _ in 0..REFUSED_MAX + 1 {
            audit.refused("v1", &peer(), "Shutdown", "needs admin");
        }
        let arguments = "x".repeat(REFUSED_ARGUMENTS_MAX + 1);
        let forgetting = audit.begin("v1", &peer(), "DeleteFlows");
        forgetting.arguments(Some(json!(arguments)), arguments.len());
        forgetting.takes_effect();
        forgetting.detail("connections forgotten: 12".into());
        drop(forgetting);
        let reading = audit.begin("v1", &peer(), "Reload");
        reading.takes_effect();
        reading.ended("FAILED_PRECONDITION", "one file cannot be read");
        drop(reading);
        // Something broken was tried again, which is no change of what is declared.
        let trying = audit.begin("v1", &peer(), "PutNic");
        trying.changed(&Changed::default());
        drop(trying);
        drop(audit.begin("v1", &peer(), "PutNic"));
        let lines = lines(&path);
        assert_eq!(lines.len(), REFUSED_MAX as usize + 3);
        let [forgetting, reading, trying] = lines.last_chunk().unwrap();
        assert_eq!(forgetting["result"], "unanswered");
        assert_eq!(forgetting["details"], json!(["connections forgotten: 12"]));
        assert_eq!(forgetting["arguments"], json!(arguments));
        assert_eq!(reading["result"], "FAILED_PRECONDITION");
        assert_eq!(trying["request"], "PutNic");
    }

    #[test]
    fn what_is_undone_is_not_recorded_as_done() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.json");
        let audit = Audit::open(Some(path.clone())).unwrap();
        for (result, why) in [("ok", ""), ("error", "no such NIC")] {
            let record = audit.begin("v0", &peer(), "nic_add");
            record.ended(result, why);
            record.undone("the disk");
        }
        let told = |line: &Value| (line["result"].clone(), line["why"].clone());
        let told: Vec<_> = lines(&path).iter().map(told).collect();
        let error = |why: &str| (json!("error"), json!(why));
        assert_eq!(told, [error("the disk"), error("no such NIC")]);
    }

    #[test]
    fn a_line_is_bounded_whatever_was_asked_for_and_changed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.json");
        let audit = Audit::open(Some(path.clone())).unwrap();
        audit.refused("page", &peer(), &"/x".repeat(30 << 10), "a wrong token");
        assert_eq!(
            lines(&path)[0]["request"].as_str().unwrap().len(),
            REQUEST_MAX
        );
        let long = audit.begin("v1", &peer(), "PutNic");
        // Control characters are six bytes of JSON each.
        let arguments = "\u{1}".repeat(ARGUMENTS_MAX);
        long.arguments(Some(json!(arguments)), ARGUMENTS_MAX);
        long.ended("ok", &"x".repeat(1 << 20));
        drop(long);
        let line = lines(&path).pop().unwrap();
        assert_eq!(line["arguments_bytes"], ARGUMENTS_MAX);
        assert!(line.to_string().len() < 2 * WHY_MAX);
        let record = audit.begin("v1", &peer(), "PutGroup");
        record.changed(&group_changed(10_000));
        drop(record);
        let line = lines(&path).pop().unwrap();
        let details = line["changes"][0]["details"].as_array().unwrap().len();
        assert!((100..9_000).contains(&details), "{details}");
        assert_eq!(line["more_details"], 10_000 - details);
        assert!(line.to_string().len() < 2 * DETAILS_MAX);
    }

    /// /dev/full takes nothing; what is asked of the daemon goes on.
    #[test]
    fn a_full_disk_is_counted_and_stops_nothing() {
        let full = OpenOptions::new().append(true).open("/dev/full").unwrap();
        let audit = Audit::open(None).unwrap();
        audit.lock().file = Some(Lines::of(full));
        drop(audit.begin("v1", &peer(), "PutNic"));
        drop(audit.begin("v1", &peer(), "PutNic"));
        assert_eq!(audit.lost(), 2);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.json");
        audit.lock().file = Some(Lines::open(&path, FILE).unwrap());
        drop(audit.begin("v1", &peer(), "PutNic"));
        assert_eq!((audit.lost(), audit.lock().lost_unsaid), (2, 0));
        assert_eq!(lines(&path).len(), 1);
    }

    #[test]
    fn a_link_and_another_s_file_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let precious = dir.path().join("precious");
        std::fs::write(&precious, "precious").unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&precious, &link).unwrap();
        let hard = dir.path().join("hard");
        std::fs::write(dir.path().join("other"), "").unwrap();
        std::fs::hard_link(dir.path().join("other"), &hard).unwrap();
        std::fs::set_permissions(&precious, PermissionsExt::from_mode(0o666)).unwrap();
        for refused in [&link, &precious, &hard, &dir.path().to_owned()] {
            assert!(Audit::open(Some(refused.clone())).is_err(), "{refused:?}");
        }
        assert_eq!(std::fs::read_to_string(&precious).unwrap(), "precious");
    }
}
