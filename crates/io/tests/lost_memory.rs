//! A VMM that takes the memory away under a running port stops that port, and nothing else.

mod common;

use std::fs::File;
use std::os::fd::OwnedFd;

use butterfly_io::frame::Batch;
use butterfly_io::guest_memory::{GuestMemory, MemoryError, MissingPages, RegionSpec};
use butterfly_io::port::{Port, PortError, TransmitError};
use butterfly_io::vhost::port::VhostPort;
use butterfly_io::vhost::queue::NotifyFd;
use common::*;
use testkit::ring_driver::{Guest, GuestOptions, Shape, USER_BASE};
use wire::offload::Offload;

fn lost() -> PortError {
    PortError::Broken {
        what: "the file that holds the guest's memory was cut short while it was in use".into(),
    }
}

/// Pages are given back.
const HOLE: rustix::fs::FallocateFlags =
    rustix::fs::FallocateFlags::PUNCH_HOLE.union(rustix::fs::FallocateFlags::KEEP_SIZE);

fn truncate(guest: &Guest, len: u64) {
    let fd = guest.regions().remove(0).fd;
    File::from(fd).set_len(len).unwrap();
}

#[test]
fn memory_that_is_gone_before_the_switch_looks() {
    for keep in [0, 0x1000] {
        let mut pair = Pair::with_features(PLAIN, PLAIN);
        pair.from
            .send(&pattern(60), Offload::default(), &Shape::whole());
        pair.from.transmitq.publish();
        truncate(&pair.from, keep);
        let mut errors = Vec::new();
        for _ in 0..3 {
            errors.extend(pair.poll().error);
        }
        assert_eq!(errors, [lost()], "reported once");
        assert!(!pair.from_port.is_up() && pair.to_port.is_up());
    }
}

#[test]
fn memory_that_goes_between_the_judgement_and_the_copy() {
    let mut pair = Pair::with_features(PLAIN, PLAIN);
    let mut other = Pair::with_features(PLAIN, PLAIN);
    pair.from
        .send(&pattern(9000), Offload::default(), &Shape::cut(&[12, 300]));
    pair.from.transmitq.publish();
    assert_eq!(pair.from_port.receive(&mut pair.batch), Ok(1));
    truncate(&pair.from, 0);
    // The head is ours; the body is zeros now. The copy itself is what faults.
    assert_eq!(pair.to_port.transmit(&pair.batch, 0), Ok(()));
    assert_eq!(pair.to_port.flush(), Ok(()));
    pair.from_port.complete(&mut pair.batch);
    let frame = pair.one().frame;
    assert_eq!(frame[..256], pattern(256));
    assert_eq!(frame[300..], [0; 8700]);
    assert_eq!(pair.from_port.receive(&mut pair.batch), Err(lost()));
    assert_eq!(pair.from_port.receive(&mut pair.batch), Ok(0));

    other
        .from
        .send(&pattern(60), Offload::default(), &Shape::whole());
    assert_eq!(other.turn(), Turn::ok(1), "others are not concerned");
    assert_eq!(other.one().frame, pattern(60));
}

#[test]
fn a_receiver_whose_memory_goes() {
    let mut pair = Pair::with_features(PLAIN, PLAIN);
    truncate(&pair.to, 0);
    pair.from
        .send(&pattern(60), Offload::default(), &Shape::whole());
    assert_eq!(pair.turn().error, Some(lost()));
    assert!(pair.from_port.is_up() && !pair.to_port.is_up());
    assert_eq!(pair.from.reclaim(), 1);
    // A port that is made of the same is stopped before a frame is written into it.
    let Port::Vhost(port) = pair.to_port else {
        unreachable!("a guest's port");
    };
    pair.to_port = VhostPort::new(port.into_parts()).into();
    assert!(!pair.to_port.is_up());
    pair.from
        .send(&pattern(60), Offload::default(), &Shape::whole());
    let turn = pair.turn();
    assert_eq!(turn.sent, [Err(TransmitError::Down)]);
    assert_eq!(turn.error, Some(lost()));
}

#[test]
fn a_new_session_after_the_loss_works() {
    for _ in 0..30 {
        let mut pair = Pair::with_features(PLAIN, PLAIN);
        pair.from
            .send(&pattern(60), Offload::default(), &Shape::whole());
        assert_eq!(pair.turn(), Turn::ok(1));
        truncate(&pair.from, 0);
        assert_eq!(pair.poll().error, Some(lost()));
        drop(Port::from(pair.to.port()));
    }
}

/// A VMM shares memory that it does not use: what would be made of it for the first who touches it
/// would be charged to the switch.
#[test]
fn pages_that_are_missing_are_not_made_for_us() {
    for populated in [false, true] {
        let mut pair = Pair::with_features(PLAIN, PLAIN);
        let file = File::from(pair.to.regions().remove(0).fd);
        let blocks = || std::os::unix::fs::MetadataExt::blocks(&file.metadata().unwrap());
        match populated {
            // The rings are there, the buffers are not.
            false => {
                let rings = [&pair.to.receiveq, &pair.to.transmitq].map(|ring| {
                    ring.desc_at + testkit::ring_driver::queue::Queue::bytes(ring.size)
                });
                let from = rings.into_iter().max().unwrap().next_multiple_of(4096) as u64;
                let len = file.metadata().unwrap().len() - from;
                rustix::fs::fallocate(&file, HOLE, from, len).unwrap();
            }
            true => {
                let len = file.metadata().unwrap().len();
                rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, len).unwrap();
            }
        }
        let before = blocks();
        let parts = pair.to.port_parts_with(MissingPages::Refused);
        pair.to_port = VhostPort::new(parts).into();
        pair.from
            .send(&pattern(9000), Offload::default(), &Shape::whole());
        let turn = pair.turn();
        assert_eq!(blocks(), before, "pages were made");
        if populated {
            assert_eq!(turn, Turn::ok(1));
            assert_eq!(pair.one().frame, pattern(9000));
            continue;
        }
        // The copy itself is what faults: the port's next look finds it out.
        let error = turn
            .error
            .or_else(|| pair.to_port.receive(&mut Batch::new()).err());
        let Some(PortError::Broken { what }) = error else {
            panic!("{error:?}");
        };
        assert!(what.contains("has no page where one was used"), "{what}");
        assert!(pair.from_port.is_up() && !pair.to_port.is_up());
        assert_eq!(pair.from.reclaim(), 1);
        assert_eq!(blocks(), before, "pages were made");
    }
}

/// A guest that sends from where nothing is, and one that gives back what was there.
#[test]
fn pages_that_are_given_back_are_not_made_again() {
    let mut pair = Pair::with_features(PLAIN, PLAIN);
    let file = File::from(pair.from.regions().remove(0).fd);
    let parts = pair.from.port_parts_with(MissingPages::Refused);
    pair.from_port = VhostPort::new(parts).into();
    pair.from
        .send(&pattern(60), Offload::default(), &Shape::whole());
    assert_eq!(pair.turn(), Turn::ok(1));
    pair.one();
    pair.from
        .send(&pattern(60), Offload::default(), &Shape::whole());
    pair.from.transmitq.publish();
    let len = file.metadata().unwrap().len();
    rustix::fs::fallocate(&file, HOLE, 0, len).unwrap();
    let blocks = || std::os::unix::fs::MetadataExt::blocks(&file.metadata().unwrap());
    assert_eq!(blocks(), 0);
    let errors: Vec<_> = (0..3).filter_map(|_| pair.poll().error).collect();
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert_eq!(blocks(), 0, "pages were made");
    assert!(pair.to_port.is_up() && !pair.from_port.is_up());
}

/// The handler is for guest memory, not a way to survive anything else.
#[test]
fn a_bus_error_of_others_still_ends_the_process() {
    const CHILD: &str = "BUTTERFLY_TEST_BUS_ERROR";
    if std::env::var_os(CHILD).is_some() {
        let _guest = Guest::new(GuestOptions::default());
        let file = rustix::fs::memfd_create("empty", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        // SAFETY: a new mapping of a file that has no bytes; reading it faults, which is the point.
        unsafe {
            use rustix::mm::{MapFlags, ProtFlags};
            let page = rustix::mm::mmap(
                std::ptr::null_mut(),
                4096,
                ProtFlags::READ,
                MapFlags::SHARED,
                &file,
                0,
            )
            .unwrap();
            page.cast::<u8>().read_volatile();
        }
        unreachable!("a bus error that nobody handles ends the process");
    }
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_bus_error_of_others_still_ends_the_process"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&child.status),
        Some(7),
        "{child:?}"
    );
}

#[test]
fn a_region_that_is_no_memory_is_refused() {
    let guest = Guest::new(GuestOptions::default());
    let spec = |change: fn(&mut RegionSpec)| {
        let mut spec = guest.regions().remove(0);
        change(&mut spec);
        GuestMemory::new(vec![spec])
            .map(|_| ())
            .unwrap_err()
            .to_string()
    };
    let at = "memory region at guest address 0x40000000";
    let wraps = "wraps around, or is not whole pages of 4096";
    assert_eq!(
        spec(|s| s.size = 0),
        format!("{at}: size 0x0 is empty, {wraps}")
    );
    assert_eq!(
        spec(|s| s.size += 4096),
        format!("{at} ends at 0x401000 of a file of 0x400000 bytes")
    );
    assert_eq!(
        spec(|s| s.mmap_offset = 4096),
        format!("{at} ends at 0x401000 of a file of 0x400000 bytes")
    );
    assert_eq!(
        spec(|s| s.guest_addr = u64::MAX - 4095),
        format!(
            "memory region at guest address 0xfffffffffffff000: guest address 0xfffffffffffff000 \
             is empty, {wraps}"
        )
    );
    assert_eq!(
        spec(|s| s.user_addr = u64::MAX - 4096),
        format!("{at}: user address 0xffffffffffffefff is empty, {wraps}")
    );
    assert_eq!(
        spec(|s| s.mmap_offset = u64::MAX),
        format!("{at}: file offset 0xffffffffffffffff is empty, {wraps}")
    );
    let no_memory = format!("{at} is not in a memfd or a file on tmpfs or hugetlbfs");
    for path in ["/dev/zero", "/proc/self/status", "/"] {
        let mut region = guest.regions().remove(0);
        region.fd = File::open(path).unwrap().into();
        assert_eq!(
            GuestMemory::new(vec![region]).unwrap_err().to_string(),
            no_memory,
            "{path}"
        );
    }
    let mut read_only = guest.regions().remove(0);
    let path = format!(
        "/proc/self/fd/{}",
        std::os::fd::AsRawFd::as_raw_fd(&read_only.fd)
    );
    read_only.fd = File::open(path).unwrap().into();
    assert!(matches!(
        GuestMemory::new(vec![read_only]),
        Err(MemoryError::File { .. })
    ));
}

#[test]
fn regions_that_overlap_or_are_too_many_are_refused() {
    let guest = Guest::new(GuestOptions {
        second_region: Some(0x10000),
        ..GuestOptions::default()
    });
    let mut regions = guest.regions();
    regions[1].guest_addr -= 4096;
    assert_eq!(
        GuestMemory::new(regions).unwrap_err().to_string(),
        "memory regions at guest address 0x40000000 and 0x4000f000 overlap"
    );
    let mut regions = guest.regions();
    regions[0].user_addr = regions[1].user_addr + 1;
    assert_eq!(
        GuestMemory::new(regions).unwrap_err().to_string(),
        "memory regions at user address 0x7f1200010000 and 0x7f1200010001 overlap"
    );
    assert_eq!(
        GuestMemory::new(Vec::new()).unwrap_err().to_string(),
        "memory table has 0 regions; 1 to 512 are possible"
    );
}

fn no_eventfd() -> NotifyFd {
    OwnedFd::from(File::open("/dev/zero").unwrap()).into()
}

#[test]
fn rings_that_cannot_be_are_refused() {
    use butterfly_io::vhost::queue::{Queue, QueueSetup};
    let guest = Guest::new(GuestOptions::default());
    let memory = std::sync::Arc::new(GuestMemory::new(guest.regions()).unwrap());
    let refused = |change: fn(&mut QueueSetup)| {
        let mut setup = guest.setup(&guest.transmitq, &memory);
        change(&mut setup);
        Queue::new(setup).unwrap_err().to_string()
    };
    assert_eq!(
        refused(|s| s.size = 0),
        "a queue of 0 entries is not possible; powers of two up to 32768 are"
    );
    assert_eq!(
        refused(|s| s.size = 96),
        "a queue of 96 entries is not possible; powers of two up to 32768 are"
    );
    assert_eq!(
        refused(|s| s.desc = 0x1000),
        "the descriptor table of 4096 bytes at 0x1000 is not in the guest's memory"
    );
    assert_eq!(
        refused(|s| s.avail = USER_BASE + (4 << 20) - 517),
        "the available ring of 518 bytes at 0x7f12003ffdfb is not in the guest's memory"
    );
    assert_eq!(
        refused(|s| s.used = u64::MAX - 3),
        "the used ring of 2054 bytes at 0xfffffffffffffffc is not in the guest's memory"
    );
    assert_eq!(
        refused(|s| s.desc += 8),
        "the descriptor table at 0x7f1200000008 is not aligned to 16"
    );
    assert_eq!(
        refused(|s| s.avail += 1),
        "the available ring at 0x7f1200001001 is not aligned to 2"
    );
    assert_eq!(
        refused(|s| s.used += 2),
        "the used ring at 0x7f1200001242 is not aligned to 4"
    );
    assert_eq!(
        refused(|s| s.kick = Some(no_eventfd())),
        "the kick descriptor is not an eventfd"
    );
    let mut setup = guest.setup(&guest.transmitq, &memory);
    setup.call = Some(no_eventfd());
    assert_eq!(
        Queue::new(setup).unwrap_err().to_string(),
        "the call descriptor is not an eventfd"
    );
}

#[test]
fn packed_rings_that_cannot_be_are_refused() {
    use butterfly_io::vhost::features::RING_PACKED;
    use butterfly_io::vhost::queue::{Begin, Queue, QueueSetup};
    let options = GuestOptions::default();
    let guest = Guest::new(GuestOptions {
        features: options.features | RING_PACKED,
        ..options
    });
    let memory = std::sync::Arc::new(GuestMemory::new(guest.regions()).unwrap());
    let made = |change: fn(&mut QueueSetup)| {
        let mut setup = guest.setup(&guest.transmitq, &memory);
        change(&mut setup);
        Queue::new(setup).map_err(|error| error.to_string())
    };
    let refused = |change| made(change).unwrap_err();
    assert_eq!(
        refused(|s| s.size = 0),
        "a packed queue of 0 entries is not possible; 1 to 32768 are"
    );
    assert_eq!(
        refused(|s| s.size = 32769),
        "a packed queue of 32769 entries is not possible; 1 to 32768 are"
    );
    assert_eq!(
        refused(|s| s.begin = Begin::At(256)),
        "a packed queue of 256 entries cannot begin at entry 256"
    );
    assert_eq!(
        refused(|s| s.desc = USER_BASE + (4 << 20) - 4080),
        "the descriptor ring of 4096 bytes at 0x7f12003ff010 is not in the guest's memory"
    );
    assert_eq!(
        refused(|s| s.desc += 8),
        "the descriptor ring at 0x7f1200000008 is not aligned to 16"
    );
    assert_eq!(
        refused(|s| s.avail = USER_BASE + (4 << 20)),
        "the driver event structure of 4 bytes at 0x7f1200400000 is not in the guest's memory"
    );
    assert_eq!(
        refused(|s| s.used += 2),
        "the device event structure at 0x7f1200001242 is not aligned to 4"
    );
    // Any number of slots will do, and the last of them to begin with.
    let queue = made(|s| (s.size, s.begin) = (77, Begin::At(0x8000 | 76))).unwrap();
    assert_eq!(queue.last_avail(), 0x8000 | 76);
    assert_eq!(queue.into_parts().last_avail, 0x8000 | 76);
}
