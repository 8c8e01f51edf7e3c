//! The lab itself, without any switch: two guests joined by QEMU's own wire. When this fails, what
//! fails elsewhere says nothing about us.

use butterfly_tests::trials;
use butterfly_tests::trials::run_each;
use std::time::Duration;
use testkit::Result;
use testkit::image::Image;
use testkit::netns::Namespace;
use testkit::qemu::{Guest, Machine, Nic, Wire};

fn main() {
    run_each(trials![
        two_guests_on_one_wire,
        a_command_that_takes_too_long_is_ended,
        a_namespace_is_gone_with_its_guard,
    ])
}

fn two_guests_on_one_wire() -> Result<()> {
    let dir = tempfile::tempdir().map_err(|e| format!("cannot make a folder: {e}"))?;
    let wire = dir.path().join("wire");
    let image = Image::ready()?;
    let a = Machine::named("a").with(Nic::new(Wire::Listen(wire.clone()), "52:54:00:00:00:0a"));
    let b = Machine::named("b").with(Nic::new(Wire::Connect(wire), "52:54:00:00:00:0b"));
    let guests = Guest::start_all(&image, &[a, b])?;
    let (a, b) = (&guests[0], &guests[1]);
    a.ok("ip addr add 10.0.0.1/24 dev eth0; ip addr add fd00::1/64 dev eth0")?;
    b.ok("ip addr add 10.0.0.2/24 dev eth0; ip addr add fd00::2/64 dev eth0")?;
    // The two emulators may still be connecting their wire.
    let heard = "timeout 20 sh -c 'until ping -c 1 -W 1 10.0.0.2; do sleep 0.2; done'";
    a.ok(&format!("{heard} && ping -c 2 -W 2 fd00::2"))?;

    b.serve("guest tcp-serve 80")?;
    b.serve("guest tcp-sink 81")?;
    b.serve("guest udp-serve 53")?;
    b.serve("guest sctp-serve 9")?;
    a.ok("guest tcp-get 10.0.0.2 80 1000000 10")?;
    a.ok("guest tcp-get fd00::2 80 1000000 10")?;
    a.ok("guest tcp-put 10.0.0.2 81 1000000 10")?;
    a.ok("guest udp-ping 10.0.0.2 53 3 4000")?;
    a.ok("guest sctp-ping 10.0.0.2 9 3 5 && guest sctp-ping fd00::2 9 3 5")?;
    a.ok(
        "guest icmp-ask 10.0.0.2 13 0 2 && guest icmp-ask 10.0.0.2 8 0 2 && \
         guest icmp-ask fd00::2 128 0 2",
    )?;
    for (kind, datagrams) in [("whole", 1), ("later-only", 0), ("overlap", 0), ("tiny", 0)] {
        let udp_in = "awk '/^Udp: [0-9]/ { print $2 + $3 }' /proc/net/snmp";
        let before: u64 = b.ok(udp_in)?.trim().parse().map_err(|e| format!("{e}"))?;
        a.ok(&format!(
            "guest fragments 10.0.0.1 10.0.0.2 53 {kind}; ping -c 1 -W 2 10.0.0.2"
        ))?;
        let after: u64 = b.ok(udp_in)?.trim().parse().map_err(|e| format!("{e}"))?;
        if after - before != datagrams {
            return Err(format!(
                "{kind}: {} datagrams arrived and not {datagrams}",
                after - before
            ));
        }
    }
    Ok(())
}

fn a_command_that_takes_too_long_is_ended() -> Result<()> {
    let guest = Guest::start(&Image::ready()?, &Machine::named("slow"))?;
    let slow = guest.begin("echo before; sleep 20", Duration::from_millis(300))?;
    let quick = guest.run("echo quick", Duration::from_secs(5))?;
    assert_eq!((quick.code, quick.text.as_str()), (0, "quick\n"));
    let slow = slow.wait()?;
    assert_eq!((slow.code, slow.text.as_str()), (124, "before\n"));
    Ok(())
}

fn a_namespace_is_gone_with_its_guard() -> Result<()> {
    let namespace = Namespace::new()?;
    namespace.ok("ip tuntap add eth0 mode tap && ip link set eth0 up")?;
    assert_eq!(namespace.counter("rx_packets")?, 0);
    let pid = namespace.pid();
    drop(namespace);
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    Ok(())
}
