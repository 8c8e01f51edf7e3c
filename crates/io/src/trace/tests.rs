use std::os::unix::fs::{PermissionsExt, symlink};
use std::time::{Duration, Instant};

use wire::offload::Offload;

use super::*;

/// A folder that has room.
fn folder(path: &Path) -> Folder {
    Folder::new(path, Some(u64::MAX))
}

/// The file once it has as many bytes.
fn of_length(path: &Path, length: usize) -> Vec<u8> {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let bytes = std::fs::read(path).unwrap();
        if bytes.len() >= length {
            return bytes;
        }
        assert!(
            Instant::now() < deadline,
            "{} of {length} bytes",
            bytes.len()
        );
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The file of a trace that has lost frames, once its thread has ended: the last block is the
/// statistics'.
fn complete(path: &Path) -> Vec<u8> {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let bytes = std::fs::read(path).unwrap();
        let is_statistics = |at: usize| bytes[at..at + 8] == [5, 0, 0, 0, 52, 0, 0, 0];
        if bytes.len() > 52 && is_statistics(bytes.len() - 52) {
            return bytes;
        }
        assert!(
            Instant::now() < deadline,
            "no statistics at the end of {} bytes",
            bytes.len()
        );
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// What the statistics at the end say: frames offered, frames lost.
fn statistics(bytes: &[u8]) -> (u64, u64) {
    let number = |from_end: usize| {
        let at = bytes.len() - from_end;
        u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
    };
    (number(28), number(16))
}

#[test]
fn a_file_holds_the_frames_in_order_with_direction_and_reason() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("nic.pcapng");
    let trace = Trace::open(&folder(dir.path()), &path, "nic-1").unwrap();
    assert_eq!(
        std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o600
    );

    let sent: Vec<u8> = (0..400u16).map(|byte| byte as u8).collect();
    let mut batch = Batch::new();
    let index = batch.push_bytes(&sent, Offload::default()).unwrap();
    let took = trace.record(
        Direction::Outbound,
        &batch,
        index,
        None,
        1_700_000_000_000_000_001,
    );
    assert_eq!(took, Effort::copy(400));
    let clone = trace.clone();
    clone.record_bytes(
        Direction::Inbound,
        &[7; 60],
        Some("no_rule"),
        1_700_000_000_000_000_002,
    );
    drop((trace, clone));

    let mut expected = Vec::new();
    pcapng::section_header(&mut expected, APPLICATION);
    pcapng::interface(&mut expected, "nic-1", 0);
    let first = PacketBlock {
        interface: 0,
        time_ns: 1_700_000_000_000_000_001,
        frame_len: 400,
        data: &sent,
        direction: Some(Direction::Outbound),
        comment: None,
    };
    pcapng::packet(&mut expected, &first);
    let second = PacketBlock {
        time_ns: 1_700_000_000_000_000_002,
        frame_len: 60,
        data: &[7; 60],
        direction: Some(Direction::Inbound),
        comment: Some("dropped: no_rule"),
        ..first
    };
    pcapng::packet(&mut expected, &second);
    assert_eq!(of_length(&path, expected.len()), expected);

    // Switched on again it goes on behind: another section, and nothing was written at "off".
    let again = Trace::open(&folder(dir.path()), &path, "nic-1").unwrap();
    again.record_bytes(
        Direction::Inbound,
        &[7; 60],
        Some("no_rule"),
        1_700_000_000_000_000_002,
    );
    drop(again);
    pcapng::section_header(&mut expected, APPLICATION);
    pcapng::interface(&mut expected, "nic-1", 0);
    pcapng::packet(&mut expected, &second);
    assert_eq!(of_length(&path, expected.len()), expected);
}

#[test]
fn a_file_has_one_writer() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.pcap");
    let first = Trace::open(&folder(dir.path()), &path, "a").unwrap();
    let error = Trace::open(&folder(dir.path()), &path, "b")
        .unwrap_err()
        .to_string();
    assert!(error.contains("is written by another trace"), "{error}");
    // One that is ended is waited for.
    first.record_bytes(Direction::Inbound, &[7; 60], None, 0);
    drop(first);
    drop(Trace::open(&folder(dir.path()), &path, "a").unwrap());
    let whole = wire::pcap::HEADER_LEN + 16 + 60;
    assert_eq!(of_length(&path, whole).len(), whole);
}

#[test]
fn a_pcap_goes_on_in_its_file_as_the_original_s() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("nic.pcap");
    let mut expected = Vec::new();
    pcap::header(&mut expected);
    for frame in [[1; 60], [2; 60], [3; 60]] {
        let trace = Trace::open(&folder(dir.path()), &path, "nic-1").unwrap();
        trace.record_bytes(Direction::Outbound, &frame, Some("no_rule"), 5_000_001_000);
        drop(trace);
        pcap::packet(&mut expected, 5_000_001_000, &frame);
        assert_eq!(of_length(&path, expected.len()), expected);
    }
    // On and off again: nothing is added.
    drop(Trace::open(&folder(dir.path()), &path, "nic-1").unwrap());
    assert_eq!(std::fs::read(&path).unwrap(), expected);
}

#[test]
fn statistics_golden_bytes() {
    let mut out = vec![0xa5];
    pcapng::statistics(&mut out, 0, 0x0102_0304_0506_0708, 9, 2);
    #[rustfmt::skip]
    assert_eq!(out, [
        0xa5,
        5, 0, 0, 0, 52, 0, 0, 0, 0, 0, 0, 0, 4, 3, 2, 1, 8, 7, 6, 5,
        4, 0, 8, 0, 9, 0, 0, 0, 0, 0, 0, 0,
        7, 0, 8, 0, 2, 0, 0, 0, 0, 0, 0, 0,
        0, 0, 0, 0, 52, 0, 0, 0,
    ]);
}

#[test]
fn frames_that_find_no_room_are_counted_in_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("busy.pcapng");
    let trace = Trace::open(&folder(dir.path()), &path, "busy").unwrap();
    let frame = vec![1; 60_000];
    // Faster than any disk, though not while others have the processor: 16 MiB wait at most.
    let mut count = 0;
    while count < 20_000 && trace.lost() == 0 {
        trace.record_bytes(Direction::Inbound, &frame, None, count);
        count += 1;
    }
    let lost = trace.lost();
    assert!(lost > 0, "1.2 GB found room in a queue of 16 MiB");
    drop(trace);
    let bytes = complete(&path);
    assert_eq!(statistics(&bytes), (count, lost));
    let kept = (count - lost) as usize;
    assert!(
        bytes.len() > kept * 60_000 && bytes.len() < kept * 60_100 + 200,
        "{kept} frames are in the file"
    );
}

#[test]
fn only_a_trace_of_our_own_in_the_folder_is_gone_on_with_and_no_link_is_followed() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let open = |name: &str| Trace::open(&folder(dir.path()), &at(name), "nic");
    let refused = |name: &str| open(name).unwrap_err().to_string();
    // Anything that is no trace stays as it is: a text, the other format, a trace that was cut.
    std::fs::write(at("text.pcap"), "keep me").unwrap();
    let why = format!(
        "'{}' exists and is not a pcap file of Ethernet frames that could go on",
        at("text.pcap").display()
    );
    assert_eq!(refused("text.pcap"), why);
    drop(open("ours.pcapng").unwrap());
    let whole = std::fs::read(at("ours.pcapng")).unwrap();
    std::fs::write(at("other.pcap"), &whole).unwrap();
    std::fs::write(at("cut.pcapng"), &whole[..whole.len() - 4]).unwrap();
    let mut foreign = Vec::new();
    pcapng::section_header(&mut foreign, "another program");
    std::fs::write(at("foreign.pcapng"), &foreign).unwrap();
    for name in ["other.pcap", "cut.pcapng", "foreign.pcapng"] {
        let before = std::fs::read(at(name)).unwrap();
        assert!(refused(name).contains("could go on"), "{name}");
        assert_eq!(std::fs::read(at(name)).unwrap(), before, "{name}");
    }

    std::fs::write(at("precious"), "keep me").unwrap();
    symlink(at("precious"), at("link.pcap")).unwrap();
    symlink(at("nowhere"), at("dangling.pcap")).unwrap();
    std::fs::create_dir(at("folder")).unwrap();
    symlink(at("folder"), at("elsewhere")).unwrap();
    for name in [
        "link.pcap",
        "dangling.pcap",
        "elsewhere/x.pcap",
        "none/x.pcap",
        "folder",
    ] {
        open(name).unwrap_err();
    }
    std::fs::hard_link(at("precious"), at("hard.pcap")).unwrap();
    assert!(refused("hard.pcap").contains("hard.pcap' exists"));
    assert_eq!(std::fs::read(at("precious")).unwrap(), b"keep me");
    assert!(!at("nowhere").exists() && !at("folder/x.pcap").exists());
    drop(open("folder/x.pcap").unwrap());

    // Outside of the folder, by any spelling.
    let outside = tempfile::tempdir().unwrap();
    for path in [
        outside.path().join("x.pcap"),
        at("../x.pcap"),
        at("folder/../../x.pcap"),
    ] {
        let error = Trace::open(&folder(dir.path()), &path, "nic").unwrap_err();
        assert!(error.to_string().contains("is not beneath"), "{error}");
    }
}

#[test]
fn a_full_disk_ends_the_trace_and_nothing_else() {
    // Every write to it fails for want of space.
    let full = std::fs::OpenOptions::new()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let trace = Trace::start(
        &folder(Path::new("/dev")),
        BufWriter::new(full),
        Path::new("/dev/full"),
        0,
        Format::Pcapng,
    )
    .unwrap();
    for time in 0..100 {
        trace.record_bytes(Direction::Inbound, &[1; 1000], None, time);
    }
    let deadline = Instant::now() + Duration::from_secs(20);
    while trace.lost() == 0 {
        assert!(Instant::now() < deadline, "no frame was counted as lost");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A crash or a full disk cuts the last packet: it goes, and the next ones can be read.
#[test]
fn a_pcap_whose_last_packet_was_cut_goes_on_behind_the_whole_ones() {
    let dir = tempfile::tempdir().unwrap();
    let mut whole = Vec::new();
    wire::pcap::header(&mut whole);
    wire::pcap::packet(&mut whole, 1_000_000_000, &[1; 60]);
    let mut two = whole.clone();
    wire::pcap::packet(&mut two, 2_000_000_000, &[2; 60]);
    for cut in whole.len()..=two.len() {
        let path = dir.path().join(format!("cut-{cut}.pcap"));
        std::fs::write(&path, &two[..cut]).unwrap();
        let trace = Trace::open(&folder(dir.path()), &path, "nic-1").unwrap();
        trace.record_bytes(Direction::Inbound, &[3; 60], None, 3_000_000_000);
        drop(trace);
        let mut expected = if cut == two.len() {
            two.clone()
        } else {
            whole.clone()
        };
        wire::pcap::packet(&mut expected, 3_000_000_000, &[3; 60]);
        assert_eq!(of_length(&path, expected.len()), expected, "{cut}");
    }
    // What is broken in the middle is nobody's to cut off.
    let path = dir.path().join("broken.pcap");
    let mut broken = two.clone();
    broken[whole.len() - 76 + 10] = 0xff;
    std::fs::write(&path, &broken).unwrap();
    let error = Trace::open(&folder(dir.path()), &path, "nic-1")
        .err()
        .unwrap();
    assert!(
        error.to_string().contains("has a packet that is broken"),
        "{error}"
    );
    assert_eq!(std::fs::read(&path).unwrap(), broken);
}

fn size_of(dir: &Path) -> u64 {
    let files = std::fs::read_dir(dir).unwrap();
    files
        .map(|file| file.unwrap().metadata().unwrap().len())
        .sum()
}

/// Waits until a trace's file has all that is to come, and its statistics.
fn ended(trace: Trace, path: &Path) {
    drop(trace);
    // Its file is free for the next one when its thread has ended.
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let file = File::open(path).unwrap();
        if rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_ok() {
            return;
        }
        assert!(Instant::now() < deadline, "the trace does not end");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// NICs whose guests send on and on, and a daemon that is started again and again.
#[test]
fn traces_take_no_more_of_the_disk_than_their_folder_may_and_nothing_is_deleted() {
    const MOST: u64 = 1 << 20;
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    // What is no trace does not count.
    std::fs::write(at("another"), vec![7; 4 << 20]).unwrap();
    let others = size_of(dir.path());
    let fill = |folder: &Folder, name: &str| {
        let trace = Trace::open(folder, &at(name), "nic").unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        while folder.warning().is_none() {
            trace.record_bytes(Direction::Inbound, &[1; 1000], None, 1);
            assert!(Instant::now() < deadline, "it is never full");
        }
        let warning = folder.warning().unwrap();
        assert!(warning.contains("--trace-dir-max): 1;"), "{warning}");
        let lost = folder.lost();
        assert!(lost > 0);
        ended(trace, &at(name));
        assert_eq!(folder.warning(), None);
        assert!(folder.lost() >= lost, "what was lost is not forgotten");
    };
    let folder = Folder::new(dir.path(), Some(MOST));
    fill(&folder, "first.pcap");
    let first = std::fs::read(at("first.pcap")).unwrap();
    // All but a piece, and no more than there may be.
    let taken = size_of(dir.path()) - others;
    assert!(
        taken <= MOST + 200 && taken > MOST - 3 * folder::PIECE,
        "{taken}"
    );
    // Neither another NIC's nor the next daemon's, and by no other name.
    fill(&folder, "second.pcapng");
    for name in ["second.pcapng", "third.pcap", "fourth"] {
        fill(&Folder::new(dir.path(), Some(MOST)), name);
    }
    let taken = size_of(dir.path()) - others;
    assert!(taken <= MOST + 2000, "{taken}");
    assert_eq!(std::fs::read(at("first.pcap")).unwrap(), first);
    // Where somebody has moved some away there is room again.
    std::fs::remove_file(at("first.pcap")).unwrap();
    let folder = Folder::new(dir.path(), Some(MOST));
    fill(&folder, "fifth.pcapng");
    let taken = size_of(dir.path()) - others;
    assert!(taken <= MOST + 2000 && taken > MOST / 2, "{taken}");
}
