//! packet_trace: what a NIC sends and is sent, with the reason beside what was dropped.

use std::path::Path;
use std::sync::Arc;

use dataplane::limits::{Limit, Limits, Meters};
use dataplane::trial::{By, Outcome, Stage};
use dataplane::{DropReason, RuleSlot, Trace};
use io::trace::Folder;
use wire::offload::Offload;

use crate::lab::*;

pub fn count(file: &[u8], what: &[u8]) -> usize {
    file.windows(what.len())
        .filter(|window| *window == what)
        .count()
}

/// A trace that nobody records to any more, with `last` in it.
pub fn finished(path: &Path, last: &[u8]) -> Vec<u8> {
    for _ in 0..500 {
        let file = std::fs::read(path).unwrap();
        if count(&file, last) > 0 {
            return file;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("the trace {} is not complete after 5 s", path.display());
}

#[test]
fn a_trace_holds_what_passed_and_what_did_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let (mut lab, a, b) = Lab::pair(vec![allow_in(UDP, 53)]);
    let trace_a = Trace::open(&Folder::new(folder.path(), None), &path("a"), "a").unwrap();
    let trace_b = Trace::open(&Folder::new(folder.path(), None), &path("b"), "b").unwrap();
    lab.configure(a, |config| config.trace = Some(trace_a.clone()));
    lab.configure(b, |config| config.trace = Some(trace_b.clone()));
    let asked = udp(a, b, Family::V4, 1, 53);
    let answer = udp(b, a, Family::V4, 53, 1);
    let refused = udp(a, b, Family::V4, 1, 54);
    lab.passes(a, b, asked.clone());
    lab.passes(b, a, answer.clone());
    lab.send(a, refused.clone());
    lab.send(a, refused[..13].to_vec());
    for nic in [a, b] {
        lab.configure(nic, |config| config.trace = None);
    }
    assert_eq!((trace_a.lost(), trace_b.lost()), (0, 0));
    // The files are complete when the last one who records is gone; the writer's thread ends a
    // little later.
    drop((trace_a, trace_b, lab));
    let file_a = finished(&path("a"), b"dropped: truncated");
    let file_b = finished(&path("b"), b"dropped: no_ingress_rule");
    for file in [&file_a, &file_b] {
        let frames = [&asked, &answer, &refused].map(|frame| count(file, frame));
        assert_eq!(frames, [1, 1, 1]);
        assert_eq!(count(file, b"dropped: no_ingress_rule"), 1);
    }
    assert_eq!(count(&file_b, b"dropped: truncated"), 0);
}

/// Of a receiver alone, whose sender's frames take the fast path: what begins a flow there and what
/// is refused there is in its trace, and a trial knows the flow.
#[test]
fn a_receivers_trace_and_a_trial_know_what_began_on_the_fast_path() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("b");
    let (mut lab, a, b) = Lab::pair(vec![allow_in(UDP, 53)]);
    let trace = Trace::open(&Folder::new(folder.path(), None), &path, "b").unwrap();
    let connections = Some(Limit { rate: 1, burst: 1 });
    let limits = Limits {
        connections,
        ..Limits::default()
    };
    lab.configure(b, |config| {
        config.trace = Some(trace.clone());
        config.meters = Meters::new(Limits::default(), limits).map(Arc::new);
    });
    let asked = udp(a, b, Family::V4, 1, 53);
    let refused = udp(a, b, Family::V4, 1, 54);
    let too_many = udp(a, b, Family::V4, 2, 53);
    let answer = udp(b, a, Family::V4, 53, 1);
    let by = |lab: &mut Lab, from: Nic, frame: &[u8]| {
        let report = lab.tried(from.slot, frame).unwrap();
        let [target] = &report.targets[..] else {
            panic!("{report:?}");
        };
        (target.by, target.flow.is_some(), target.verdict)
    };
    assert_eq!(
        by(&mut lab, a, &asked),
        (By::Rules, false, Outcome::Pass),
        "a trial before it takes nothing of the limit"
    );
    for frame in [&asked, &refused, &too_many] {
        lab.queue(a, frame.clone(), Offload::default());
    }
    lab.sim.run();
    assert_eq!(lab.received(b), std::slice::from_ref(&asked));
    let flow = By::Flow([None, Some(RuleSlot(0))]);
    for (from, frame) in [(a, &asked), (b, &answer)] {
        assert_eq!(by(&mut lab, from, frame), (flow, true, Outcome::Pass));
    }
    let verdict = Outcome::Dropped {
        stage: Stage::Remember,
        reason: DropReason::ConnectionLimit,
        at_target: true,
    };
    assert_eq!(by(&mut lab, a, &too_many), (By::Rules, false, verdict));
    lab.passes(b, a, answer.clone());
    lab.configure(b, |config| config.trace = None);
    assert_eq!(trace.lost(), 0);
    drop((trace, lab));
    let file = finished(&path, &answer);
    for frame in [&asked, &refused, &too_many, &answer] {
        assert_eq!(count(&file, frame), 1);
    }
    assert_eq!(count(&file, b"dropped: no_ingress_rule"), 1);
    assert_eq!(count(&file, b"dropped: connection_limit"), 1);
}
