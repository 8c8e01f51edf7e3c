use std::os::unix::fs::{PermissionsExt, symlink};
use std::time::{Duration, Instant};

use wire::offload::Offload;

use super::*;

/// The file once its thread has ended: the last block is the statistics'.
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
    let path = dir.path().join("nic.pcap");
    let trace = Trace::create(&path, "nic-1").unwrap();
    assert_eq!(
        std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o600
    );

    let sent: Vec<u8> = (0..400u16).map(|byte| byte as u8).collect();
    let mut batch = Batch::new();
    let index = batch.push_bytes(&sent, Offload::default()).unwrap();
    trace.record(
        Direction::Outbound,
        &batch,
        index,
        None,
        1_700_000_000_000_000_001,
    );
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
    file::statistics(&mut expected, 1_700_000_000_000_000_002, 2, 0);
    assert_eq!(complete(&path), expected);
}

#[test]
fn statistics_golden_bytes() {
    let mut out = vec![0xa5];
    file::statistics(&mut out, 0x0102_0304_0506_0708, 9, 2);
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
    let path = dir.path().join("busy.pcap");
    let trace = Trace::create(&path, "busy").unwrap();
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
fn a_file_of_our_own_is_overwritten_and_no_link_is_followed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("again.pcap");
    std::fs::write(&path, [0xa5; 5000]).unwrap();
    drop(Trace::create(&path, "again").unwrap());
    assert_eq!(statistics(&complete(&path)), (0, 0));
    assert!(complete(&path).len() < 300, "nothing of the old file is left");

    let precious = dir.path().join("precious");
    std::fs::write(&precious, "keep me").unwrap();
    let link = dir.path().join("link.pcap");
    symlink(&precious, &link).unwrap();
    Trace::create(&link, "link").unwrap_err();
    symlink(dir.path().join("nowhere"), dir.path().join("dangling.pcap")).unwrap();
    Trace::create(&dir.path().join("dangling.pcap"), "dangling").unwrap_err();
    let hard = dir.path().join("hard.pcap");
    std::fs::hard_link(&precious, &hard).unwrap();
    let error = Trace::create(&hard, "hard").unwrap_err();
    assert!(error.to_string().contains("hard.pcap' exists"), "{error}");
    assert_eq!(std::fs::read(&precious).unwrap(), b"keep me");

    Trace::create(dir.path(), "directory").unwrap_err();
    Trace::create(&dir.path().join("none/x.pcap"), "nowhere").unwrap_err();
}

#[test]
fn a_full_disk_ends_the_trace_and_nothing_else() {
    // Every write to it fails for want of space.
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let trace = Trace::start(BufWriter::new(full), Path::new("/dev/full"), 0).unwrap();
    for time in 0..100 {
        trace.record_bytes(Direction::Inbound, &[1; 1000], None, time);
    }
    let deadline = Instant::now() + Duration::from_secs(20);
    while trace.lost() == 0 {
        assert!(Instant::now() < deadline, "no frame was counted as lost");
        std::thread::sleep(Duration::from_millis(2));
    }
}
