//! The vhost-user server with real sockets; guests are rings in this process, behind a frontend of
//! the testkit.

mod lab;
mod switch;

use std::io::{ErrorKind, IoSlice, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use butterfly_io::vhost::features::protocol::{BACKEND_REQ, CONFIG, PAGEFAULT};
use butterfly_io::vhost::features::{IN_ORDER, MQ, MTU, PROTOCOL_FEATURES, RING_PACKED};
use butterfly_io::vhost::request::*;
use butterfly_io::vhost::{NicOptions, PortKey, PortState, ServerError, SocketFile};
use lab::handed_on::HandedOn;
use lab::{A, B, FEATURES, Lab, guest, guest_at};
use rustix::fs::{CWD, RenameFlags};
use rustix::net::SendFlags;
use switch::{PATIENCE, nic, open_fds, silent_helper};
use testkit::over::Over;
use testkit::ring_driver::{Guest, GuestOptions, Shape};
use testkit::vhost_frontend::{Frontend, message, pair};
use testkit::wait_for;
use wire::offload::Offload;

#[test]
fn two_guests_talk_stop_and_talk_again() {
    let lab = Lab::new();
    lab.listen(A);
    lab.listen(B);
    let (mut a, mut b) = (guest(), guest());
    let (mut vmm_a, _vmm_b) = (lab.boot(A, &a), lab.boot(B, &b));
    for mark in 0..100 {
        lab.one_frame(&mut a, &mut b, mark);
        lab.one_frame(&mut b, &mut a, !mark);
    }
    let nics = lab.server().nics();
    let session = nics[0].session.as_ref().unwrap();
    assert_eq!(
        (nics.len(), nics[0].key, nics[0].name.as_str()),
        (2, A, "nic-1")
    );
    assert_eq!(session.features, Some(FEATURES | PROTOCOL_FEATURES));
    assert_eq!(
        (session.rings[0].size, session.rings[1].enabled),
        (256, true)
    );

    // The guest of A stops its driver and starts it where it was.
    assert_eq!(vmm_a.stop().unwrap(), [100, 100]);
    assert_eq!(lab.switch.state_of(A), Some(PortState::Connected));
    assert!(!lab.switch.lock().ports.contains_key(&(A, 0)));
    vmm_a.start(&a, [100, 100]).unwrap();
    lab.one_frame(&mut a, &mut b, 1);
    lab.one_frame(&mut b, &mut a, 2);
}

#[test]
fn rings_of_every_kind_go_on_where_they_stopped() {
    for kind in [IN_ORDER, RING_PACKED, RING_PACKED | IN_ORDER] {
        let lab = Lab::new();
        lab.listen(A);
        lab.listen(B);
        let features = FEATURES | kind;
        let (mut a, mut b) = (
            Guest::new(GuestOptions {
                features,
                ..GuestOptions::default()
            }),
            guest(),
        );
        let _vmm_b = lab.boot(B, &b);
        let mut vmm = lab.connect(A);
        assert_eq!(
            vmm.negotiate(features | PROTOCOL_FEATURES).unwrap(),
            features | PROTOCOL_FEATURES
        );
        vmm.start(&a, [0, 0]).unwrap();
        // More than a lap of either ring.
        for round in 0..2 {
            for mark in 0..=200 {
                lab.one_frame(&mut a, &mut b, mark);
                lab.one_frame(&mut b, &mut a, !mark);
            }
            // The guest stops its driver and starts it where it was: both places, with their wrap
            // counters.
            let bases = [0, 1].map(|ring| vmm.packed_base(ring).unwrap());
            assert_eq!(
                bases,
                [a.receiveq.base(), a.transmitq.base()],
                "round {round}"
            );
            vmm.start(&a, bases.map(|base| base as u16)).unwrap();
        }
        lab.one_frame(&mut a, &mut b, 1);
        lab.one_frame(&mut b, &mut a, 2);
    }
}

/// Who waits for pages can be made to stand still by the VMM whose pages they are. That VMM waits
/// for it, until it is given up, and nobody else does.
#[test]
fn a_helper_that_says_nothing_keeps_its_own_vmm_waiting() {
    const STILL: [PortKey; 3] = [PortKey(3), PortKey(4), PortKey(5)];
    let lab = Lab::new();
    lab.listen(A);
    lab.listen(B);
    let program = silent_helper(&lab.path(""));
    let options = |key: PortKey| NicOptions {
        page_helper: Some(program),
        ..nic(&format!("still-{}", key.0))
    };
    for key in STILL {
        let listens = lab.server().listen(key, &lab.socket(key), options(key));
        listens.unwrap();
    }
    let fds = open_fds();
    let mut still = Vec::new();
    for key in STILL {
        let mut vmm = lab.connect(key);
        if vmm.get(GET_PROTOCOL_FEATURES).unwrap() & PAGEFAULT == 0 {
            println!("skipped: this kernel has no userfaultfd(2), or not for us");
            return;
        }
        vmm.negotiate(FEATURES | PROTOCOL_FEATURES).unwrap();
        vmm.take_everything().unwrap();
        vmm.send(POSTCOPY_ADVISE, &[], &[]).unwrap();
        // Nothing that it says meanwhile is listened to.
        vmm.send(GET_FEATURES, &[], &[]).unwrap();
        still.push(vmm);
    }
    let is_connected = |key| lab.server().nic(key).unwrap().session.is_some();
    let (mut a, mut b) = (guest(), guest());
    let (vmm_a, vmm_b) = (lab.boot(A, &a), lab.boot(B, &b));
    lab.one_frame(&mut a, &mut b, 1);
    assert!(STILL.into_iter().all(is_connected), "they were waited for");
    // One that goes meanwhile is gone: another may come in its place.
    drop(still.remove(0));
    let other = lab.connect(STILL[0]).get(GET_FEATURES);
    assert!(other.unwrap() & PROTOCOL_FEATURES != 0);
    assert!(STILL[1..].iter().all(|key| is_connected(*key)));
    for mut vmm in still {
        assert!(vmm.wait_closed().unwrap());
    }
    drop((vmm_a, vmm_b, a, b));
    // Threads that heard of nobody end by themselves.
    wait_for("all descriptors to be closed", PATIENCE, || {
        Ok((open_fds() == fds).then_some(()))
    })
    .unwrap();
}

#[test]
fn a_guest_of_several_queues_uses_those_that_are_on() {
    let lab = Lab::new();
    let options = NicOptions {
        pairs: 3,
        ..nic("wide")
    };
    lab.server().listen(A, &lab.socket(A), options).unwrap();
    lab.listen(B);
    let mut b = guest();
    let _vmm_b = lab.boot(B, &b);
    let mut pairs: Vec<Guest> = (0..3u64).map(|pair| guest_at(pair << 24)).collect();
    let mut vmm = lab.connect(A);
    vmm.negotiate(FEATURES | PROTOCOL_FEATURES | MQ).unwrap();
    vmm.start_pairs(&pairs).unwrap();
    for mark in 0..20u8 {
        let from = &mut pairs[usize::from(mark) % 3];
        lab.one_frame(from, &mut b, mark);
    }
    // A frame to a queue that is off reaches the others alone: this switch has them all.
    let on = [
        [true, true, true],
        [true, false, true],
        [false, false, true],
        [true, true, false],
    ];
    for (round, on) in on.into_iter().enumerate() {
        for (ring, on) in (0..6).zip(on.into_iter().flat_map(|on| [on, on])) {
            vmm.ring(SET_VRING_ENABLE, ring, u32::from(on)).unwrap();
        }
        let mark = 0x80 + round as u8;
        assert!(b.send(&lab::frame(mark), Offload::default(), &Shape::whole()));
        b.transmitq.publish();
        assert_eq!(lab.switch.turn(), []);
        for (pair, on) in pairs.iter_mut().zip(on) {
            let received: Vec<Vec<u8>> = pair
                .receive()
                .into_iter()
                .map(|received| received.frame)
                .collect();
            let expected = if on { vec![lab::frame(mark)] } else { vec![] };
            assert_eq!(received, expected, "round {round}");
        }
        assert_eq!(b.reclaim(), 1);
    }
    // What a guest leaves in a queue that is off is given back to it and goes nowhere; on again it
    // works as before.
    let third = &mut pairs[2];
    assert!(third.send(&lab::frame(7), Offload::default(), &Shape::whole()));
    third.transmitq.publish();
    lab.switch.turn();
    assert_eq!((b.receive().len(), third.reclaim()), (0, 1));
    for ring in [4, 5] {
        vmm.ring(SET_VRING_ENABLE, ring, 1).unwrap();
    }
    lab.switch.turn();
    assert_eq!(b.receive().len(), 0);
    lab.one_frame(third, &mut b, 8);
}

#[test]
fn a_vmm_that_comes_back_a_hundred_times_works_each_time() {
    let lab = Lab::new();
    lab.listen(A);
    lab.listen(B);
    let (mut a, mut b) = (guest(), guest());
    let _vmm_b = lab.boot(B, &b);
    for round in 0..100 {
        // It has lost count: it says 0, and the guest's driver is somewhere else.
        let vmm = lab.boot(A, &a);
        lab.one_frame(&mut a, &mut b, round);
        lab.one_frame(&mut b, &mut a, round);
        drop(vmm);
        lab.switch.wait_for(A, &PortState::Disconnected);
        assert!(!lab.switch.lock().ports.contains_key(&(A, 0)));
    }
    assert_eq!(
        lab.switch.states_of(A).len(),
        300,
        "connected, up, disconnected"
    );
}

#[test]
fn a_guest_that_reboots_begins_at_zero() {
    let lab = Lab::new();
    lab.listen(A);
    lab.listen(B);
    let (mut a, mut b) = (guest(), guest());
    let (mut vmm, _vmm_b) = (lab.boot(A, &a), lab.boot(B, &b));
    lab.one_frame(&mut a, &mut b, 1);
    vmm.stop().unwrap();
    let mut a = guest();
    vmm.start(&a, [0, 0]).unwrap();
    lab.one_frame(&mut a, &mut b, 2);
    lab.one_frame(&mut b, &mut a, 3);
}

#[test]
fn an_old_vmm_without_protocol_features_is_served() {
    let lab = Lab::new();
    lab.listen(A);
    lab.listen(B);
    let (mut a, mut b) = (guest(), guest());
    let _vmm_b = lab.boot(B, &b);
    let mut vmm = lab.connect(A);
    assert_eq!(vmm.negotiate(FEATURES).unwrap(), FEATURES);
    vmm.start(&a, [0, 0]).unwrap();
    vmm.get(GET_FEATURES).unwrap(); // answered: all before it is done
    lab.one_frame(&mut a, &mut b, 1);
    lab.one_frame(&mut b, &mut a, 2);
}

#[test]
fn a_guest_that_breaks_its_ring_is_stopped_and_mended_by_a_reset() {
    let lab = Lab::new();
    lab.listen(A);
    lab.listen(B);
    let (a, mut b) = (guest(), guest());
    let (mut vmm, _vmm_b) = (lab.boot(A, &a), lab.boot(B, &b));
    a.transmitq.write_available_index(1000);
    let said = lab.switch.turn();
    assert_eq!(said.len(), 1);
    assert_eq!(said[0].0, A);
    // An interrupt that is moved (a guest can do that at any time) does not start it again.
    vmm.ring_fd(SET_VRING_CALL, 1, a.transmitq.call_fd().as_fd())
        .unwrap();
    assert!(
        matches!(lab.switch.state_of(A), Some(PortState::Broken(_))),
        "{:?}",
        lab.switch.states_of(A)
    );
    assert_eq!(lab.switch.turn(), []);

    vmm.stop().unwrap();
    let mut a = guest();
    vmm.start(&a, [0, 0]).unwrap();
    assert_eq!(lab.switch.state_of(A), Some(PortState::Up));
    lab.one_frame(&mut a, &mut b, 1);
    lab.one_frame(&mut b, &mut a, 2);
}

#[test]
fn a_second_vmm_is_refused_and_the_first_does_not_notice() {
    let lab = Lab::new();
    lab.listen(A);
    lab.listen(B);
    let (mut a, mut b) = (guest(), guest());
    let (vmm, _vmm_b) = (lab.boot(A, &a), lab.boot(B, &b));
    for _ in 0..3 {
        assert!(lab.connect(A).wait_closed().unwrap());
    }
    lab.one_frame(&mut a, &mut b, 1);
    // One that comes as the first one goes takes over, whichever of the two is noticed first.
    drop(vmm);
    let _vmm = lab.boot(A, &a);
    lab.one_frame(&mut a, &mut b, 2);
}

#[test]
fn a_message_that_comes_in_pieces_holds_nobody_up() {
    let lab = Lab::new();
    lab.listen(A);
    lab.listen(B);
    let (mut a, mut b) = (guest(), guest());
    let mut slow = lab.connect(A);
    let bytes = message(GET_FEATURES, 1, &[]);
    slow.send_bytes(&bytes[..5], &[]).unwrap();
    let _vmm_b = lab.boot(B, &b);
    slow.send_bytes(&bytes[5..11], &[]).unwrap();
    assert_eq!(lab.server().nics().len(), 2);
    slow.send_bytes(&bytes[11..], &[]).unwrap();
    assert_ne!(slow.reply(GET_FEATURES).unwrap(), [0; 8]);

    // The memory table byte by byte, its descriptor with the first.
    slow.negotiate(FEATURES).unwrap();
    let region = &a.regions()[0];
    let words = [
        1,
        region.guest_addr,
        region.size,
        region.user_addr,
        region.mmap_offset,
    ];
    let table: Vec<u8> = words.into_iter().flat_map(u64::to_ne_bytes).collect();
    let bytes = message(SET_MEM_TABLE, 1, &table);
    slow.send_bytes(&bytes[..1], &[region.fd.as_fd()]).unwrap();
    for byte in &bytes[1..] {
        slow.send_bytes(&[*byte], &[]).unwrap();
    }
    slow.start_ring(0, &a.receiveq, 0).unwrap();
    slow.start_ring(1, &a.transmitq, 0).unwrap();
    slow.get(GET_FEATURES).unwrap();
    lab.one_frame(&mut a, &mut b, 1);
}

#[test]
fn garbage_ends_one_session_and_no_other() {
    let lab = Lab::new();
    lab.listen(A);
    lab.listen(B);
    let (mut a, mut b) = (guest(), guest());
    let _vmm_b = lab.boot(B, &b);
    let null = std::fs::File::open("/dev/null").unwrap();
    let many = [null.as_fd(); 16];
    let garbage: [(&[u8], usize); 6] = [
        (&[0xff; 64], 0),
        (&[0; 12], 0),
        (&message(SET_MEM_TABLE, 1, &[0; 40]), 3),
        (&message(SET_FEATURES, 1, &[0; 8]), 16),
        (&message(GET_FEATURES, 5, &[]), 0),
        (&message(GET_CONFIG, 9, &pair(0, 0)), 1),
    ];
    for (bytes, fds) in garbage {
        let mut vmm = lab.connect(A);
        vmm.send_bytes(bytes, &many[..fds]).unwrap();
        assert!(vmm.wait_closed().unwrap(), "{bytes:02x?}");
    }
    // Half a message, and descriptors for the other half, go with their sender.
    let mut vmm = lab.connect(A);
    vmm.send_bytes(&message(SET_MEM_TABLE, 1, &[0; 40])[..20], &many[..8])
        .unwrap();
    drop(vmm);
    lab.switch.wait_for(A, &PortState::Disconnected);
    let _vmm_a = lab.boot(A, &a);
    lab.one_frame(&mut a, &mut b, 1);
    lab.one_frame(&mut b, &mut a, 2);
}

#[test]
fn a_vmm_that_does_not_read_its_replies_fills_its_own_queue() {
    let lab = Lab::new();
    lab.listen(A);
    lab.listen(B);
    let (mut a, mut b) = (guest(), guest());
    let mut deaf = lab.connect(A);
    deaf.socket().set_nonblocking(true).unwrap();
    let deadline = Instant::now() + PATIENCE;
    let mut asked = 0u64;
    // Until the kernel takes no more, which means that the server has stopped reading.
    let mut refused = 0;
    while refused < 20 {
        assert!(
            Instant::now() < deadline,
            "{asked} questions, and the server still reads"
        );
        match deaf.send(GET_FEATURES, &[], &[]) {
            Ok(()) => (asked, refused) = (asked + 1, 0),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                refused += 1;
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => panic!("{error}"),
        }
    }
    let _vmm_b = lab.boot(B, &b);
    // It reads at last: every answer is there, and the session goes on.
    deaf.socket().set_nonblocking(false).unwrap();
    for _ in 0..asked {
        deaf.reply(GET_FEATURES).unwrap();
    }
    deaf.negotiate(FEATURES).unwrap();
    deaf.start(&a, [0, 0]).unwrap();
    deaf.get(GET_FEATURES).unwrap();
    lab.one_frame(&mut a, &mut b, 1);
}

#[test]
fn a_question_behind_any_number_of_statements_is_answered() {
    let lab = Lab::new();
    lab.listen(A);
    let mut vmm = lab.connect(A);
    for statements in 0..200 {
        let mut bytes = message(SET_OWNER, 1, &[]).repeat(statements);
        bytes.extend(message(GET_FEATURES, 1, &[]));
        // In one piece: the server finds them all there, and its turn ends with any of them.
        vmm.send_bytes(&bytes, &[]).unwrap();
        vmm.reply(GET_FEATURES)
            .unwrap_or_else(|error| panic!("behind {statements} statements: {error}"));
    }
}

#[test]
fn closing_a_nic_ends_its_session_and_frees_its_key() {
    let lab = Lab::new();
    lab.listen(A);
    let a = guest();
    let mut vmm = lab.boot(A, &a);
    assert!(lab.server().close(A));
    assert!(
        !lab.switch.lock().ports.contains_key(&(A, 0)),
        "taken back when close returns"
    );
    assert!(!lab.socket(A).exists());
    assert!(vmm.wait_closed().unwrap());
    assert!(!lab.server().close(A));
    lab.listen(A);
    let _vmm = lab.boot(A, &a);
}

/// As root, who may give files to groups that it is not in.
#[test]
fn a_socket_has_its_group_and_mode_each_time_it_is_made() {
    let lab = Lab::new();
    let path = lab.path("given");
    let file = SocketFile {
        owner: None,
        group: Some(4711),
        mode: Some(0o640),
    };
    for _ in 0..2 {
        lab.server()
            .listen_as(PortKey(9), &path, file, nic("nic-9"))
            .unwrap();
        let made = std::fs::symlink_metadata(&path).unwrap();
        assert_eq!((made.gid(), made.mode() & 0o7777), (4711, 0o640));
        assert!(lab.server().close(PortKey(9)));
    }
}

#[test]
fn a_socket_is_given_to_others_and_taken_back_while_a_vmm_is_connected() {
    let lab = Lab::new();
    let (path, key) = (lab.path("given"), PortKey(9));
    let of = |owner, group, mode| SocketFile { owner, group, mode };
    let is = || {
        let file = std::fs::symlink_metadata(&path).unwrap();
        (file.uid(), file.gid(), file.mode() & 0o7777)
    };
    lab.server().listen(key, &path, nic("nic-9")).unwrap();
    let (made, inode) = (is(), std::fs::symlink_metadata(&path).unwrap().ino());
    let mut vmm = UnixStream::connect(&path).unwrap();
    for (file, expected) in [
        (of(None, Some(4711), Some(0o640)), (made.0, 4711, 0o640)),
        (of(Some(4712), Some(4713), Some(0o660)), (4712, 4713, 0o660)),
        (of(Some(4712), None, Some(0o600)), (4712, made.1, 0o600)),
        (of(None, None, None), made),
    ] {
        lab.server().give(key, file).unwrap().unwrap();
        assert_eq!(is(), expected);
    }
    vmm.set_nonblocking(true).unwrap();
    let still = vmm.read(&mut [0]).unwrap_err();
    assert_eq!(still.kind(), std::io::ErrorKind::WouldBlock);
    // Another file in its place is not given to anybody.
    assert_eq!(std::fs::symlink_metadata(&path).unwrap().ino(), inode);
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "secret").unwrap();
    let before = is();
    let error = lab.server().give(key, of(Some(4712), None, Some(0o666)));
    let error = error.unwrap().unwrap_err().to_string();
    assert!(error.contains(path.to_str().unwrap()), "{error}");
    assert_eq!(is(), before);
    assert!(
        lab.server()
            .give(PortKey(8), of(None, None, None))
            .is_none()
    );
}

/// Somebody who writes to the folder puts another's file in the place of a socket as soon as that
/// is there: it is not given away in the socket's place.
#[test]
fn a_file_that_is_put_in_a_socket_s_place_is_given_to_nobody() {
    let lab = Lab::new();
    let (path, secret, kept) = (lab.path("given"), lab.path("secret"), lab.path("kept"));
    std::fs::write(&kept, "secret").unwrap();
    let is = || {
        let file = std::fs::symlink_metadata(&kept).unwrap();
        (file.uid(), file.gid(), file.mode())
    };
    let before = is();
    let is_file = |path: &Path| std::fs::symlink_metadata(path).is_ok_and(|it| it.is_file());
    let of = SocketFile {
        owner: Some(4711),
        group: Some(4712),
        mode: Some(0o666),
    };
    let (over, won) = (AtomicBool::new(false), AtomicUsize::new(0));
    let mut given = false;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                // Of no effect while there is nothing to exchange it with.
                let flags = RenameFlags::EXCHANGE;
                if rustix::fs::renameat_with(CWD, &secret, CWD, &path, flags).is_ok() {
                    won.fetch_add(1, Ordering::Relaxed);
                    while is_file(&path) && !over.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                }
            }
        });
        let _over = Over(&over);
        for _ in 0..500 {
            for left in [&path, &secret] {
                let _ = std::fs::remove_file(left);
            }
            let _ = std::fs::hard_link(&kept, &secret);
            let listened = lab.server().listen_as(PortKey(9), &path, of, nic("nic-9"));
            if listened.is_ok() {
                lab.server().close(PortKey(9));
            }
            given |= is() != before;
        }
    });
    assert!(!given, "given away");
    assert_ne!(won.into_inner(), 0, "the attacker never came in between");
}

/// Sockets that a process before has made are given away, too, but not another of its own in their
/// place, which is another NIC's.
#[test]
fn a_socket_that_was_handed_over_is_known_among_others() {
    let lab = Lab::new();
    let (path, other) = (lab.path("handed"), lab.path("other"));
    let handed = UnixListener::bind(&path).unwrap();
    let _another = UnixListener::bind(&other).unwrap();
    let key = PortKey(9);
    lab.server()
        .listen_by(key, &path, handed.into(), nic("nic-9"))
        .unwrap();
    let of = SocketFile {
        owner: Some(4711),
        ..SocketFile::default()
    };
    lab.server().give(key, of).unwrap().unwrap();
    assert_eq!(std::fs::symlink_metadata(&path).unwrap().uid(), 4711);
    std::fs::rename(&other, &path).unwrap();
    let error = lab.server().give(key, of).unwrap().unwrap_err();
    assert!(matches!(error, ServerError::Replaced { .. }), "{error}");
    assert_ne!(std::fs::symlink_metadata(&path).unwrap().uid(), 4711);
}

#[test]
fn sockets_are_made_where_they_can_be_and_say_why_not() {
    let lab = Lab::new();
    let listen = |path: &PathBuf| lab.server().listen(PortKey(9), path, nic("nic-9"));

    let long = lab.path(&"x".repeat(108));
    let error = listen(&long).unwrap_err();
    assert!(matches!(error, ServerError::Path { .. }), "{error}");
    assert!(
        error.to_string().contains(long.to_str().unwrap()),
        "{error}"
    );
    let error = listen(&lab.path("none/socket")).unwrap_err();
    assert!(matches!(error, ServerError::Directory { .. }), "{error}");

    let file = lab.path("file");
    std::fs::write(&file, "keep me").unwrap();
    let error = listen(&file).unwrap_err();
    assert!(matches!(error, ServerError::NotASocket { .. }), "{error}");
    assert_eq!(std::fs::read(&file).unwrap(), b"keep me");

    let used = lab.path("used");
    let other = UnixListener::bind(&used).unwrap();
    let error = listen(&used).unwrap_err();
    assert!(matches!(error, ServerError::InUse { .. }), "{error}");
    assert!(used.exists());
    drop(other); // its file stays: stale now
    listen(&used).unwrap();
    UnixStream::connect(&used).unwrap();
    let error = listen(&lab.path("other")).unwrap_err();
    assert!(matches!(error, ServerError::KeyInUse { .. }), "{error}");
    assert!(!lab.path("other").exists());
    let error = lab.server().listen(B, &used, nic("nic-2")).unwrap_err();
    assert!(
        matches!(error, ServerError::InUse { .. }),
        "our own is one that is listened on: {error}"
    );

    // What somebody has put in the socket's place is not ours to remove.
    std::fs::remove_file(&used).unwrap();
    let _theirs = UnixListener::bind(&used).unwrap();
    assert!(lab.server().close(PortKey(9)));
    assert!(std::fs::metadata(&used).unwrap().file_type().is_socket());
}

#[test]
fn other_options_are_for_the_next_session() {
    let lab = Lab::new();
    let options = |mtu| NicOptions {
        offloads: false,
        mtu,
        ..nic("nic-1")
    };
    lab.server()
        .listen(A, &lab.socket(A), options(None))
        .unwrap();
    let offered = |vmm: &mut Frontend| {
        vmm.send(GET_FEATURES, &[], &[]).unwrap();
        u64::from_ne_bytes(vmm.reply(GET_FEATURES).unwrap())
    };
    let mut vmm = lab.connect(A);
    let before = offered(&mut vmm);
    assert!(lab.server().change(A, options(Some(9000))));
    assert_eq!(
        offered(&mut vmm),
        before,
        "a session keeps what it was told"
    );
    drop(vmm);
    assert_eq!(offered(&mut lab.connect(A)), before | MTU);
    assert!(!lab.server().change(B, options(None)), "nobody of that key");
}

fn link(up: bool) -> NicOptions {
    NicOptions {
        link_up: up,
        ..nic("nic-1")
    }
}

/// A VMM that reads the configuration space here, and can be told of changes.
fn vmm_with_channel(lab: &Lab) -> (Frontend, UnixStream) {
    lab.listen(A);
    let mut vmm = lab.connect(A);
    vmm.take_everything().unwrap();
    let channel = vmm.channel().unwrap();
    (vmm, channel)
}

/// CONFIG_CHANGE_MSG that asks for an acknowledgement, and the acknowledgement.
const CHANGED: [u32; 3] = [2, 9, 0];
const ACK: [u32; 5] = [2, 5, 8, 0, 0];

fn next(channel: &mut UnixStream) -> [u32; 3] {
    let mut bytes = [0; 12];
    channel.read_exact(&mut bytes).unwrap();
    [0, 4, 8].map(|at| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap()))
}

fn say(channel: &mut UnixStream, words: &[u32]) {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    channel.write_all(&bytes).unwrap();
}

/// Waits for the end, whether or not all that was said before was read.
fn is_closed(channel: &mut UnixStream) -> bool {
    match channel.read(&mut [0; 1]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    }
}

fn nothing_came(channel: &UnixStream) -> bool {
    channel.set_nonblocking(true).unwrap();
    let error = (&*channel).read(&mut [0; 1]).unwrap_err();
    channel.set_nonblocking(false).unwrap();
    error.kind() == ErrorKind::WouldBlock
}

#[test]
fn a_vmm_is_told_of_the_link_once_at_a_time() {
    let lab = Lab::new();
    let (mut vmm, mut channel) = vmm_with_channel(&lab);
    assert_eq!(vmm.config(6, 2).unwrap(), [1, 0]);
    assert!(nothing_came(&channel));
    assert!(lab.server().change(A, link(false)));
    assert_eq!(next(&mut channel), CHANGED);
    assert_eq!(vmm.config(6, 2).unwrap(), [0, 0]);
    // More changes while it thinks: it is told once more, when it has acknowledged, in whatever
    // pieces.
    for up in [true, false, true] {
        lab.server().change(A, link(up));
    }
    assert!(nothing_came(&channel));
    say(&mut channel, &ACK[..2]);
    assert_eq!(lab.server().nics().len(), 1);
    say(&mut channel, &ACK[2..]);
    assert_eq!(next(&mut channel), CHANGED);
    assert_eq!(vmm.config(6, 2).unwrap(), [1, 0]);
    say(&mut channel, &ACK);
    // Other options are not told, and a channel may be replaced by another.
    let mut second = vmm.channel().unwrap();
    assert!(is_closed(&mut channel));
    assert!(nothing_came(&second));
    lab.server().change(A, link(false));
    assert_eq!(next(&mut second), CHANGED);
}

#[test]
fn a_channel_that_is_not_read_costs_nobody_anything() {
    let lab = Lab::new();
    lab.listen(B);
    lab.listen(A);
    let mut b = guest();
    let _vmm_b = lab.boot(B, &b);
    let mut vmm = lab.connect(A);
    // Without acknowledgements, so that nothing but the socket's room ends it; and blocking, and
    // small.
    vmm.set(SET_PROTOCOL_FEATURES, CONFIG | BACKEND_REQ)
        .unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    rustix::net::sockopt::set_socket_send_buffer_size(&theirs, 1).unwrap();
    vmm.send(SET_BACKEND_REQ_FD, &[], &[theirs.as_fd()])
        .unwrap();
    vmm.get(GET_FEATURES).unwrap();
    for round in 0..5000 {
        assert!(lab.server().change(A, link(round % 2 == 0)));
    }
    let mut a = guest();
    vmm.negotiate(FEATURES).unwrap();
    vmm.start(&a, [0, 0]).unwrap();
    vmm.get(GET_FEATURES).unwrap();
    lab.one_frame(&mut a, &mut b, 1);
    // Whenever it reads, what it reads are whole messages.
    let mut told = Vec::new();
    drop((vmm, theirs));
    lab.switch.wait_for(A, &PortState::Disconnected);
    (&ours).read_to_end(&mut told).unwrap();
    let one: Vec<u8> = [2u32, 1, 0]
        .iter()
        .flat_map(|word| word.to_ne_bytes())
        .collect();
    assert!(!told.is_empty() && told.chunks(12).all(|bytes| bytes == one));
}

#[test]
fn nonsense_on_a_channel_closes_it_and_the_session_goes_on() {
    let lab = Lab::new();
    let (mut vmm, mut channel) = vmm_with_channel(&lab);
    let garbage: [&[u32]; 5] = [
        &[0],
        &ACK, // of nothing
        &[2, 1, 0],
        &[2, 5, 16, 0, 0, 0, 0],
        &[u32::MAX; 64],
    ];
    for (round, words) in garbage.into_iter().enumerate() {
        if round > 2 {
            lab.server().change(A, link(round % 2 == 0));
            assert_eq!(next(&mut channel), CHANGED);
        }
        say(&mut channel, words);
        assert!(is_closed(&mut channel), "round {round}");
        channel = vmm.channel().unwrap();
    }
    // Descriptors that come along, our own socket among them, are not kept.
    lab.server().change(A, link(true));
    lab.server().change(A, link(false));
    let (own, bytes) = ([vmm.socket().as_fd()], 2u32.to_ne_bytes());
    let parts = [IoSlice::new(&bytes)];
    sys::fd_message::send(&channel, &parts, &own, SendFlags::empty()).unwrap();
    drop(channel);
    vmm.get(GET_FEATURES).unwrap();
    // The session's own end cannot be the channel.
    let own = vmm.socket().try_clone().unwrap();
    let error = vmm
        .call(SET_BACKEND_REQ_FD, &[], &[own.as_fd()])
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    drop(own);
    assert!(vmm.wait_closed().unwrap());
    drop(vmm);
    lab.switch.wait_for(A, &PortState::Disconnected);
}

#[test]
fn a_vmm_that_goes_before_a_ring_ran_is_not_taken_again_at_once() {
    let lab = Lab::new();
    lab.listen(A);
    let since = Instant::now();
    for _ in 0..4 {
        lab.connect(A).get(GET_QUEUE_NUM).unwrap();
    }
    assert!(
        since.elapsed() >= Duration::from_millis(200),
        "{:?}",
        since.elapsed()
    );
    // The next one is served all the same.
    let a = guest();
    let _vmm = lab.boot(A, &a);
}

/// One session is as it was when it was made ready, the other one is given once more.
#[test]
fn sessions_are_ready_while_another_process_serves_them() {
    let mut lab = HandedOn::new();
    let left = [A, B].map(|key| (key, lab.left(key)));
    lab.next.prepare(left.into()).unwrap();
    lab.one_frame(&lab.switch.clone(), 1);
    assert!(lab.next_switch.lock().ports.is_empty());

    let yielded = lab.server.give_way().unwrap();
    assert!(lab.switch.lock().ports.is_empty());
    let mut other = lab.left(B);
    other.is_held = false;
    lab.next.take_up(vec![A], vec![(B, other)]).unwrap();
    // Of the other one it is what the process before has had held that is valid. Asked behind the
    // answer, which comes before all that is noted.
    assert_eq!(lab.next.nics().len(), 2);
    assert_eq!(lab.next_kept.names(), ["nic-2"]);
    lab.next.begin();
    for mark in 2..100 {
        lab.one_frame(&lab.next_switch.clone(), mark);
    }
    for vmm in &mut lab.vmms {
        vmm.get(GET_FEATURES).unwrap();
    }
    lab.end(Some(yielded));
}

#[test]
fn what_was_made_ready_and_is_not_named_is_forgotten() {
    let mut lab = HandedOn::new();
    let wrong = |mut left: butterfly_io::vhost::LeftSession| {
        left.fds.truncate(2);
        left
    };
    let left = vec![(A, lab.left(A)), (B, wrong(lab.left(B)))];
    let (key, why) = lab.next.prepare(left).unwrap_err();
    assert_eq!((key, why.0), (B, "lacks a descriptor"));
    let (key, why) = lab.next.take_up(vec![A], vec![]).unwrap_err();
    assert_eq!((key, why.0), (A, "has not come"));
    let left = [A, B].map(|key| (key, lab.left(key)));
    lab.next.prepare(left.into()).unwrap();
    lab.next.take_up(vec![], vec![]).unwrap();
    for key in [A, B] {
        let states = lab.next_switch.states_of(key);
        assert_eq!(states.last(), Some(&PortState::Disconnected));
        assert!(!states.contains(&PortState::Up));
    }
    for mark in 0..100 {
        lab.one_frame(&lab.switch.clone(), mark);
    }
    lab.end(None);
}

/// Who has the NIC's name by then is in another network, where its guest is not to be unasked.
#[test]
fn a_session_that_was_left_goes_on_in_its_own_network_alone() {
    let lab = HandedOn::new();
    let within = |name: &str, network| NicOptions {
        network: Some(network),
        ..nic(name)
    };
    for (key, name) in [(A, "nic-1"), (B, "nic-2")] {
        assert!(lab.server.change(key, within(name, 7)));
    }
    assert!(lab.next.change(A, within("nic-1", 7)));
    assert!(lab.next.change(B, within("nic-2", 42)));
    let left = [A, B].map(|key| (key, lab.left(key)));
    let (key, why) = lab.next.prepare(left.into()).unwrap_err();
    assert_eq!((key, why.0), (B, "is of another network"));
    // Moved there while it runs, it is left so.
    assert!(lab.server.change(B, within("nic-2", 42)));
    let left = [A, B].map(|key| (key, lab.left(key)));
    lab.next.prepare(left.into()).unwrap();
    lab.next.take_up(vec![], vec![]).unwrap();
    lab.end(None);
}

#[test]
fn hundreds_of_nics_are_served_by_one_thread() {
    let lab = Lab::new();
    let keys: Vec<PortKey> = (10..210).map(PortKey).collect();
    for &key in &keys {
        let options = NicOptions {
            offloads: false,
            mtu: None,
            ..nic(&format!("nic-{}", key.0))
        };
        lab.server().listen(key, &lab.socket(key), options).unwrap();
    }
    let mut vmms: Vec<Frontend> = keys.iter().map(|&key| lab.connect(key)).collect();
    for vmm in &mut vmms {
        vmm.send(GET_FEATURES, &[], &[]).unwrap();
    }
    for vmm in &mut vmms {
        assert_eq!(
            u64::from_ne_bytes(vmm.reply(GET_FEATURES).unwrap()),
            0xd_7423_8020
        );
    }
    assert_eq!(
        lab.server()
            .nics()
            .iter()
            .filter(|nic| nic.session.is_some())
            .count(),
        200
    );
}
