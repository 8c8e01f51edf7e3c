//! packet_trace: what a NIC sends and is sent, with the reason beside what was dropped.

use std::path::Path;

use dataplane::Trace;

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
    let trace_a = Trace::open(folder.path(), &path("a"), "a").unwrap();
    let trace_b = Trace::open(folder.path(), &path("b"), "b").unwrap();
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
