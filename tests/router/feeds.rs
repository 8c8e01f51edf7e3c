//! Who else changes the kernel's tables: a routing daemon, and a client of DHCP. Nobody tells the
//! router.

use std::path::Path;

use butterfly_tests::bird::{self, Bird};
use butterfly_tests::lab::check;
use testkit::process::Process;
use testkit::{PATIENCE, Result, wait_for};

use crate::Stage;

/// What the router receives becomes its kernel's routes.
const RECEIVER: &str = "
protocol kernel { ipv4 { import none; export all; }; }
protocol kernel { ipv6 { import none; export all; }; }
protocol bgp { local 10.2.0.1 as 65001; neighbor 10.2.0.2 as 65002; connect retry time 1;
               connect delay time 1; error wait time 1, 2;
               ipv4 { import all; export none; }; ipv6 { import all; export none; }; }";

/// What the west has.
const ANNOUNCER: &str = "
protocol static four { ipv4; route 198.51.100.0/24 blackhole; }
protocol static six { ipv6; route 2001:db8:f::/48 blackhole; }
protocol bgp { local 10.2.0.2 as 65002; neighbor 10.2.0.1 as 65001; connect retry time 1;
               connect delay time 1; error wait time 1, 2;
               hold time 3;
               ipv4 { import none; export all; }; ipv6 { import none; export all;
               next hop address 2001:db8:2::2; }; }";

/// An address in each of its networks.
const TOLD: [&str; 2] = ["198.51.100.1", "2001:db8:f::1"];

/// Routes by BGP come, go and come again; their speaker dies.
pub fn bird_feeds_it(stage: &mut Stage) -> Result<()> {
    if !bird::is_here() {
        return Ok(());
    }
    stage.take_both()?;
    let hosts = &stage.hosts;
    hosts.west.ok(
        "ip addr add 198.51.100.1/32 dev lo && ip addr add 2001:db8:f::1/128 dev lo && \
         ip link set lo up",
    )?;
    let _receiver = Bird::start(&hosts.router, "10.2.0.1", RECEIVER)?;
    let mut announcer = Bird::start(&hosts.west, "10.2.0.2", ANNOUNCER)?;
    let gone = |to: &str| {
        wait_for(&format!("no route to {to}"), PATIENCE, || {
            Ok(stage.route(to).is_err().then_some(()))
        })
    };
    let is_fast = |to: &str, family: &str| -> Result<()> {
        stage.treated(to, "fast")?;
        let route = stage.route(to)?;
        check(
            route["protocol"] == "bird",
            &format!("the route is BIRD's: {route}"),
        )?;
        let before = stage.counter("east0", family, "forwarded")?;
        hosts.east.ok(&format!("ping -q -i 0.002 -c 100 {to}"))?;
        let grown = stage.counter("east0", family, "forwarded")? - before;
        check(
            grown == 100,
            &format!("{grown} of 100 packets go the fast way"),
        )
    };
    is_fast(TOLD[0], "ipv4")?;
    is_fast(TOLD[1], "ipv6")?;
    // One is taken back under traffic, and the other does not mind.
    hosts.pinging(|| {
        announcer.run("disable four")?;
        gone(TOLD[0])
    })?;
    is_fast(TOLD[1], "ipv6")?;
    announcer.run("enable four")?;
    is_fast(TOLD[0], "ipv4")?;
    announcer.kill();
    TOLD.iter().try_for_each(|to| gone(to))
}

/// Beyond whoever gives the router its address.
const BEYOND: &str = "203.0.113.1";

/// The east is the provider, who gives the router's `east0` its address and its default route:
/// bound, renewed under traffic, bound to another address.
pub fn addresses_come_by_dhcp(stage: &mut Stage) -> Result<()> {
    stage.take_both()?;
    let hosts = &stage.hosts;
    hosts.router.ok("ip -4 addr flush dev east0")?;
    hosts.east.ok(&format!(
        "ip addr add {BEYOND}/32 dev lo && ip link set lo up"
    ))?;
    check(stage.route(BEYOND).is_err(), "there is no way beyond yet")?;
    let dir = tempfile::tempdir().map_err(|e| format!("cannot make a folder: {e}"))?;
    let server = serve(stage, dir.path(), "10.1.0.100")?;
    let mut client = ask(stage, dir.path())?;
    let reached = |own: &str| -> Result<()> {
        let local = stage.hosts.router.ok("ip -4 addr show east0")?;
        check(
            local.contains(own),
            &format!("the address is {own}: {local}"),
        )?;
        // The provider's way back, which no server of addresses makes.
        hosts
            .east
            .ok(&format!("ip route replace 10.2.0.0/24 via {own}"))?;
        wait_for("an answer from beyond", PATIENCE, || {
            let ping = format!("ping -q -c 1 -W 1 {BEYOND}");
            Ok(hosts.west.succeeds(&ping)?.then_some(()))
        })?;
        // Its neighbour is known by now.
        stage.treated(BEYOND, "fast")?;
        let before = stage.counter("west0", "ipv4", "forwarded")?;
        hosts
            .west
            .ok(&format!("ping -q -i 0.002 -c 100 {BEYOND}"))?;
        let grown = stage.counter("west0", "ipv4", "forwarded")? - before;
        check(
            grown == 100,
            &format!("{grown} of 100 packets go the fast way"),
        )
    };
    events(&client, "bound", 1)?;
    reached("10.1.0.100")?;
    hosts.pinging(|| {
        client.signal("USR1")?;
        events(&client, "renew", 1)
    })?;
    reached("10.1.0.100")?;
    // The provider gives out other addresses now.
    drop(server);
    client.signal("USR2")?;
    events(&client, "deconfig", 2)?;
    wait_for("no way beyond", PATIENCE, || {
        Ok(stage.route(BEYOND).is_err().then_some(()))
    })?;
    let _server = serve(stage, dir.path(), "10.1.0.150")?;
    client.signal("USR1")?;
    events(&client, "bound", 2)?;
    reached("10.1.0.150")?;
    hosts.pinging(|| Ok(()))
}

/// BusyBox's server, in the east, with one address to give.
fn serve(stage: &Stage, dir: &Path, address: &str) -> Result<Process> {
    let config = dir.join("udhcpd.conf");
    let text = format!(
        "start {address}\nend {address}\nmax_leases 1\ninterface eth0\n\
         lease_file {dir}/leases-{address}\npidfile {dir}/pid\n\
         opt subnet 255.255.255.0\nopt router 10.1.0.2\nopt lease 3600\n",
        dir = dir.display()
    );
    std::fs::write(&config, text).map_err(|e| format!("{}: {e}", config.display()))?;
    let leases = dir.join(format!("leases-{address}"));
    std::fs::write(&leases, "").map_err(|e| format!("{}: {e}", leases.display()))?;
    // It asks whether somebody has the address, for so many milliseconds.
    let command = format!("busybox udhcpd -f -a 100 {}", config.display());
    stage.hosts.east.start("udhcpd", &command)
}

/// BusyBox's client, on the router's `east0`. It says what its script is called with.
fn ask(stage: &Stage, dir: &Path) -> Result<Process> {
    let script = dir.join("script");
    // It says so when it is done.
    let text = "#!/bin/sh
case $1 in
    deconfig) ip -4 addr flush dev $interface; ip link set $interface up ;;
    bound | renew) ip addr replace $ip/$mask dev $interface
    ip route replace default via $router dev $interface proto dhcp ;;
esac
echo event $1
";
    std::fs::write(&script, text).map_err(|e| format!("{}: {e}", script.display()))?;
    testkit::process::run(&["chmod", "755", &script.display().to_string()])?;
    let command = format!(
        "busybox udhcpc -f -i east0 -t 100 -T 1 -s {}",
        script.display()
    );
    stage.hosts.router.start("udhcpc", &command)
}

/// Waits until the script was called so often with this.
fn events(client: &Process, event: &str, times: usize) -> Result<()> {
    let called = || {
        let line = format!("event {event}");
        client.log().lines().filter(|said| *said == line).count()
    };
    wait_for(&format!("'{event}' of the DHCP client"), PATIENCE, || {
        Ok((called() >= times).then_some(()))
    })
    .map_err(|e| format!("{e}:\n{}", client.log()))
}
