//! One daemon and three guests, booted once for a test binary: `a`, `b` and `c` in VNI 42, with the
//! addresses 10.0.0.1 to 10.0.0.3 and fd00::1 to fd00::3. Each trial starts from [`Lab::reset`]: no
//! groups, no other NICs, nothing running in the guests.

use crate::Daemon;
use crate::trials::Stage;
use std::time::{Duration, Instant};
use testkit::image::Image;
use testkit::qemu::{Guest, Machine, Nic, Wire};
use testkit::{PATIENCE, Result, wait_for};

/// The network of the three guests.
pub const VNI: u32 = 42;

/// The names of the guests and of their NICs.
pub const NAMES: [&str; 3] = ["a", "b", "c"];

/// How long a download has to stand still until it counts as stopped.
const STILL: Duration = Duration::from_millis(1500);

/// A daemon and three guests.
#[derive(Debug)]
pub struct Lab {
    /// The daemon.
    pub daemon: Daemon,
    /// `a`, `b`, `c`.
    pub guests: Vec<Guest>,
}

impl Stage for Lab {
    fn start(options: &[&str]) -> Result<Self> {
        let image = Image::ready()?;
        let daemon = Daemon::start(options)?;
        let mut machines = Vec::new();
        for (index, name) in NAMES.into_iter().enumerate() {
            daemon.cli(&nic_add(index))?;
            let nic = Nic::new(Wire::VhostUser(daemon.socket(name)), &mac(index));
            machines.push(Machine::named(name).with(nic));
        }
        let guests =
            Guest::start_all(&image, &machines).map_err(|e| format!("{e}\n{}", daemon.dump()))?;
        Ok(Self { daemon, guests })
    }

    fn reset(&mut self) -> Result<()> {
        let ids = |list: &str| -> Result<Vec<String>> {
            Ok(self
                .daemon
                .cli(list)?
                .split_whitespace()
                .map(str::to_owned)
                .collect())
        };
        for nic in ids("nic list")?
            .iter()
            .filter(|nic| !NAMES.contains(&nic.as_str()))
        {
            self.daemon.cli(&format!("nic del {nic}"))?;
        }
        for group in ids("sg list")? {
            self.daemon.cli(&format!("sg del {group}"))?;
        }
        for index in 0..NAMES.len() {
            self.daemon.cli(&nic_add(index))?;
        }
        let mut jobs = Vec::new();
        for (index, guest) in self.guests.iter().enumerate() {
            jobs.push(guest.begin(&address_command(index), Duration::from_secs(20))?);
        }
        for job in jobs {
            let output = job.wait()?;
            if output.code != 0 {
                return Err(format!("cannot reset a guest:\n{}", output.text));
            }
        }
        Ok(())
    }

    fn is_running(&mut self) -> bool {
        self.daemon.is_running()
    }

    fn dump(&self) -> String {
        self.daemon.dump()
    }
}

impl Lab {
    /// Runs `butterfly`.
    pub fn cli(&self, line: &str) -> Result<String> {
        self.daemon.cli(line)
    }

    /// Guest `a`.
    pub fn a(&self) -> &Guest {
        &self.guests[0]
    }

    /// Guest `b`.
    pub fn b(&self) -> &Guest {
        &self.guests[1]
    }

    /// Guest `c`.
    pub fn c(&self) -> &Guest {
        &self.guests[2]
    }
}

/// The MAC of guest number `index`.
pub fn mac(index: usize) -> String {
    format!("52:54:00:00:00:{:02x}", index + 10)
}

fn nic_add(index: usize) -> String {
    let (name, mac, last) = (NAMES[index], mac(index), index + 1);
    format!("nic add --replace --id {name} --mac {mac} --vni {VNI} --ip 10.0.0.{last} fd00::{last}")
}

/// A guest's network as it was after its start, whatever a trial did to it.
pub fn address_command(index: usize) -> String {
    let (mac, last) = (mac(index), index + 1);
    format!(
        "killall -9 guest ping udhcpc udhcpd 2>/dev/null; rm -f /tmp/*; ip link set eth0 down; \
         sysctl -w net.ipv4.ip_forward=0 >/dev/null; ip link set eth0 address {mac} mtu 1500; \
         ip addr flush dev eth0; ip link set eth0 up; ip neigh flush dev eth0; \
         ip addr add 10.0.0.{last}/24 dev eth0; \
         ip addr add fd00::{last}/64 dev eth0; echo 1 > /proc/sys/net/ipv4/route/flush"
    )
}

/// Fails with `what` unless it holds.
pub fn check(holds: bool, what: &str) -> Result<()> {
    if holds {
        Ok(())
    } else {
        Err(format!("it does not hold that {what}"))
    }
}

/// Whether pings from a guest are answered: one answer of three is enough.
pub fn pings(from: &Guest, to: &str) -> Result<bool> {
    from.succeeds(&format!("ping -c 3 -i 0.2 -W 1 {to} >/dev/null"))
}

/// Waits until a command in a guest succeeds, for what needs a moment to be so.
pub fn soon(guest: &Guest, command: &str) -> Result<()> {
    let what = format!("`{command}` to succeed in {}", guest.name());
    wait_for(&what, PATIENCE, || {
        Ok(guest.succeeds(command)?.then_some(()))
    })
}

/// Waits until a program in a guest has written a text to its log, which is there already, and
/// gives the log. One that loads XDP programs takes its time: without KVM the guest's kernel checks
/// them slowly.
pub fn says(guest: &Guest, log: &str, text: &str) -> Result<String> {
    let what = format!("'{text}' in {log} of {}", guest.name());
    let read = || guest.ok(&format!("cat {log}"));
    wait_for(&what, Duration::from_secs(120), || {
        Ok(Some(read()?).filter(|said| said.contains(text)))
    })
    .map_err(|e| format!("{e}:\n{}", read().unwrap_or_else(|e| e)))
}

/// Seconds after which a [`Download`] ends that nobody has ended: longer than a test takes where
/// guests are slow.
const DOWNLOAD_ENDS: u32 = 600;

/// A download that runs in a guest.
#[derive(Debug)]
pub struct Download<'a> {
    guest: &'a Guest,
    progress: String,
}

impl<'a> Download<'a> {
    /// Starts one that ends after [`DOWNLOAD_ENDS`] at the latest, and waits until bytes come.
    /// One from the same place that was started before ends.
    pub fn start(guest: &'a Guest, addr: &str, port: u16) -> Result<Self> {
        Self::start_by(guest, "guest", addr, port)
    }

    /// As [`start`](Self::start), in a network namespace of the guest's.
    pub fn start_in(guest: &'a Guest, namespace: &str, addr: &str, port: u16) -> Result<Self> {
        let program = format!("ip netns exec {namespace} guest");
        Self::start_by(guest, &program, addr, port)
    }

    fn start_by(guest: &'a Guest, program: &str, addr: &str, port: u16) -> Result<Self> {
        let download = Self {
            guest,
            progress: format!("/tmp/download-{addr}-{port}"),
        };
        guest.ok(&format!(
            "kill -9 $(cat {0}.pid 2>/dev/null) 2>/dev/null; rm -f {0}; \
             {program} tcp-get {addr} {port} 0 {DOWNLOAD_ENDS} {0} >/dev/null 2>&1 </dev/null & \
             echo $! >{0}.pid",
            download.progress
        ))?;
        wait_for("a download to begin", PATIENCE, || {
            Ok((download.bytes()? > 0).then_some(()))
        })?;
        Ok(download)
    }

    /// Bytes so far.
    pub fn bytes(&self) -> Result<u64> {
        let text = self
            .guest
            .ok(&format!("cat {} 2>/dev/null || echo 0", self.progress))?;
        text.trim()
            .parse()
            .map_err(|_| format!("the progress is {text:?}"))
    }

    /// Waits until more has come than has now.
    pub fn goes_on(&self) -> Result<()> {
        let before = self.bytes()?;
        wait_for("a download to go on", PATIENCE, || {
            Ok((self.bytes()? > before).then_some(()))
        })
    }

    /// Waits until nothing has come for a while.
    pub fn stops(&self) -> Result<()> {
        let (mut last, mut since) = (self.bytes()?, Instant::now());
        wait_for("a download to stop", PATIENCE + STILL, || {
            let now = self.bytes()?;
            if now != last {
                (last, since) = (now, Instant::now());
            }
            Ok((since.elapsed() >= STILL).then_some(()))
        })
    }
}
