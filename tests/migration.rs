//! A guest moves from one host to another and back while it runs: QEMU copies its memory, and the
//! switch tells it what it has written there meanwhile. Its connections go along, with a neighbour
//! that it leaves behind, with one that it comes to, and with one on a third host, and so does what
//! its NIC has counted. Rings are split, and packed.
//!
//! While it moves it sends to the neighbour on the third host, which says how long after QEMU has
//! let it run something of it arrives: what the network adds to its pause, and the guest itself
//! until it sends.
//!
//! The hosts are namespaces with a `butterflyd` each, on one Ethernet; the neighbours are
//! containers. Streams are looked at byte by byte by who reads them, so that a page that was
//! forgotten shows.

use std::net::{Ipv4Addr, UdpSocket};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use butterfly_tests::hosts::{Family, Host, ethernet, mac, serve};
use butterfly_tests::lab::check;
use butterfly_tests::trials;
use butterfly_tests::trials::run_each;
use testkit::image::Image;
use testkit::netns::Namespace;
use testkit::qemu::{Guest, Machine, Nic, Wire};
use testkit::{PATIENCE, Result, wait_for};

/// The guest's network, and the one in which its NIC waits where the guest is not.
const VNI: u32 = 42;
const WAITING: u32 = 4242;

/// What a neighbour sends in a second: so much that there is always some of it on its way.
const RATE: u64 = 3_000_000;

/// The last octets of the addresses of the guest and of its neighbours, which have a name each.
const GUEST: u8 = 1;
const NEIGHBOURS: [u8; 3] = [2, 3, 4];
const NAMES: [&str; 3] = ["left", "right", "third"];

fn main() {
    run_each(trials![
        split_rings,
        packed_rings_without_announcement,
        split_rings_before_their_memory,
        packed_rings_before_their_memory,
    ])
}

/// The guest itself says where it is.
fn split_rings() -> Result<()> {
    moved(|nic| nic, Memory::First, Group::Late)
}

/// Two pairs of queues; QEMU has the switch say where the guest is.
fn packed_rings_without_announcement() -> Result<()> {
    moved(packed_pairs, Memory::First, Group::There)
}

/// Post-copy: what the switch needs of the guest's memory comes as it is needed.
fn split_rings_before_their_memory() -> Result<()> {
    moved(|nic| nic, Memory::Later, Group::There)
}

fn packed_rings_before_their_memory() -> Result<()> {
    moved(packed_pairs, Memory::Later, Group::There)
}

fn packed_pairs(nic: Nic) -> Nic {
    Nic {
        packed: true,
        queue_pairs: 2,
        announce: false,
        ..nic
    }
}

/// When the guest's memory comes to another host: before it runs there (pre-copy), or while it does
/// (post-copy).
#[derive(Clone, Copy, PartialEq)]
enum Memory {
    First,
    Later,
}

/// Whether the guest's group is on the other host when the guest comes.
#[derive(Clone, Copy, PartialEq)]
enum Group {
    There,
    /// It comes afterwards.
    Late,
}

fn moved(kind: fn(Nic) -> Nic, memory: Memory, group: Group) -> Result<()> {
    let (_bridge, namespaces) = ethernet(3)?;
    let started = (1..)
        .zip(namespaces)
        .map(|(host, namespace)| Host::start(namespace, host, Family::V4, &[]));
    let hosts = started.collect::<Result<Vec<_>>>()?;
    let stage = Stage::new(&hosts, kind, memory, group)?;
    stage.trial().map_err(|error| {
        let dumps = hosts.iter().zip(NAMES).map(|(host, name)| host.dump(name));
        format!("{error}\n{}", dumps.collect::<String>())
    })
}

struct Stage<'a> {
    /// The guest moves between the first two.
    hosts: &'a [Host],
    /// One on each host.
    neighbours: Vec<Namespace>,
    image: Image,
    kind: fn(Nic) -> Nic,
    memory: Memory,
    group: Group,
}

impl<'a> Stage<'a> {
    fn new(hosts: &'a [Host], kind: fn(Nic) -> Nic, memory: Memory, group: Group) -> Result<Self> {
        let neighbours = hosts.iter().zip(NAMES).zip(NEIGHBOURS);
        let neighbours = neighbours.map(|((host, name), last)| host.guest(name, VNI, last));
        let stage = Self {
            hosts,
            neighbours: neighbours.collect::<Result<_>>()?,
            image: Image::ready()?,
            kind,
            memory,
            group,
        };
        for host in &hosts[..2] {
            // Nobody is let in: what comes to the guest is what it has asked for.
            host.daemon.cli("sg add closed")?;
            stage.put(host, WAITING)?;
        }
        Ok(stage)
    }

    fn trial(&self) -> Result<()> {
        let served = self.neighbours.iter();
        let served = served.map(|neighbour| serve(neighbour, &format!("tcp-serve 80 {RATE}")));
        let _servers = served.collect::<Result<Vec<_>>>()?;
        self.put(&self.hosts[0], VNI)?;
        let guest = Guest::start(&self.image, &self.machine(&self.hosts[0]))?;
        guest.ok(&format!(
            "ip link set eth0 mtu 1400 up; ip addr add 10.1.0.{GUEST}/24 dev eth0; \
             ip addr add fd01::{GUEST}/64 dev eth0; \
             dd if=/dev/urandom of=/tmp/memory bs=1M count=8 2>/dev/null"
        ))?;
        let memory = guest.ok("md5sum /tmp/memory")?;
        let beats = Beats::start(&guest, &self.neighbours[2], NEIGHBOURS[2])?;
        let streams = NEIGHBOURS.map(|last| Stream::start(&guest, last));
        let streams = streams.into_iter().collect::<Result<Vec<_>>>()?;

        if self.memory == Memory::First {
            self.is_called_off(&guest, &streams)?;
            self.is_called_off_late(&guest, &streams)?;
        }
        let mut guest = guest;
        for [from, to] in [[0, 1], [1, 0]] {
            let is_late = self.group == Group::Late && to == 1;
            let there = &self.hosts[to].daemon;
            if is_late {
                there.cli("sg del closed")?;
            }
            guest = self.moves(guest, from, to, &streams)?;
            if is_late {
                self.nothing_passes(&guest, &streams)?;
                there.cli("sg add closed")?;
            }
            let blackout = beats.since(guest.runs_since()?)?;
            if !is_late {
                // QEMU begins to have it run: its rings, and then its processors.
                let rings = rings_run_since(&there.log())?.duration_since(guest.runs_since()?);
                let ms = |time: Duration| time.as_secs_f64() * 1e3;
                println!(
                    "{}: behind the moment at which it begins to run its rings do after {:.1} ms, \
                     and something of it arrives after {:.1} ms",
                    NAMES[to],
                    rings.map_or_else(|early| -ms(early.duration()), ms),
                    ms(blackout)
                );
            }
            let said = guest.ok("md5sum /tmp/memory")?;
            check(said == memory, &format!("{said} is {memory}"))?;
            for stream in &streams {
                stream.goes_on(&guest)?;
            }
            // The groups are in force there, for new connections as well.
            for neighbour in &self.neighbours {
                let ping = format!("ping -q -c 2 -i 0.2 -W 1 10.1.0.{GUEST}");
                check(!neighbour.succeeds(&ping)?, "nobody is let in")?;
            }
            for last in NEIGHBOURS {
                guest.ok(&format!("guest tcp-get fd01::{last} 80 100000 20"))?;
            }
        }
        Ok(())
    }

    /// Of a guest whose group is not there; its connections wait.
    fn nothing_passes(&self, guest: &Guest, streams: &[Stream]) -> Result<()> {
        let bytes =
            || -> Result<Vec<u64>> { streams.iter().map(|stream| stream.bytes(guest)).collect() };
        let before = bytes()?;
        std::thread::sleep(Duration::from_secs(1));
        check(bytes()? == before, "nothing passes without the group")
    }

    /// A move that is cancelled half-way leaves the guest as it was.
    fn is_called_off(&self, guest: &Guest, streams: &[Stream]) -> Result<()> {
        let other = Guest::to_be_moved_into(&self.image, &self.machine(&self.hosts[1]))?;
        guest.monitor("migrate_set_parameter max-bandwidth 1M")?;
        guest.move_to(&other, false)?;
        guest.is_moved_until("active")?;
        self.logs(&self.hosts[0], true)?;
        for stream in streams {
            stream.goes_on(guest)?;
        }
        guest.monitor("migrate_cancel")?;
        guest.is_moved_until("cancelled")?;
        self.logs(&self.hosts[0], false)?;
        guest.monitor("migrate_set_parameter max-bandwidth 1G")?;
        streams.iter().try_for_each(|stream| stream.goes_on(guest))
    }

    /// A move that is called off when all was handed over but the guest: that comes back first.
    fn is_called_off_late(&self, guest: &Guest, streams: &[Stream]) -> Result<()> {
        let [here, there] = [&self.hosts[0], &self.hosts[1]];
        let other = Guest::to_be_moved_into(&self.image, &self.machine(there))?;
        guest.move_to(&other, true)?;
        guest.is_moved_until("pre-switchover")?;
        let counted = counts(here)?;
        self.hand_over(here, there, NAMES[0])?;
        self.put(there, WAITING)?;
        self.put(here, VNI)?;
        let state = state(here, "guest");
        let back = format!("flows import guest {}", state.display());
        here.daemon.cli(&back)?;
        let again = counts(here)?;
        check(
            again.sent == counted.sent && again.received == counted.received,
            &format!("nothing is counted twice: {counted:?}, then {again:?}"),
        )?;
        guest.monitor("migrate_cancel")?;
        guest.is_moved_until("cancelled")?;
        self.logs(here, false)?;
        streams.iter().try_for_each(|stream| stream.goes_on(guest))
    }

    /// The guest moves while its streams go on; when it stands still, its NIC is handed over.
    fn moves(&self, guest: Guest, from: usize, to: usize, streams: &[Stream]) -> Result<Guest> {
        let other = Guest::to_be_moved_into(&self.image, &self.machine(&self.hosts[to]))?;
        if self.memory == Memory::Later {
            for machine in [&guest, &other] {
                machine.monitor("migrate_set_capability postcopy-ram on")?;
            }
        }
        // So slow that it does not stand still, and answers, while its streams are looked at.
        guest.monitor("migrate_set_parameter max-bandwidth 1M")?;
        guest.move_to(&other, true)?;
        streams
            .iter()
            .try_for_each(|stream| stream.goes_on(&guest))?;
        if self.memory == Memory::Later {
            // So slow that it takes some seconds, and not so slow that what is asked for waits for
            // long behind what is not.
            guest.monitor("migrate_set_parameter max-postcopy-bandwidth 24M")?;
            guest.monitor("migrate_start_postcopy")?;
        } else {
            guest.monitor("migrate_set_parameter max-bandwidth 60M")?;
        }
        guest.is_moved_until("pre-switchover")?;
        self.hand_over(&self.hosts[from], &self.hosts[to], NAMES[from])?;
        guest.move_on()?;
        if self.memory == Memory::Later {
            guest.is_moved_until("postcopy-active")?;
            // What is said to a machine before is lost.
            wait_for("the guest to run there", PATIENCE, || {
                let status = other.monitor("info status")?;
                Ok(status.contains("running").then_some(()))
            })?;
            streams
                .iter()
                .try_for_each(|stream| stream.goes_on(&other))?;
            guest.monitor("migrate_set_parameter max-postcopy-bandwidth 0")?;
        }
        guest.is_moved_until("completed")?;
        if self.memory == Memory::Later {
            self.asked_for_pages(&self.hosts[to])?;
        }
        // Others learn where it is: a frame to it goes to that host, and no more to all.
        let address = Family::V4.address(to as u8 + 1);
        let line = format!("learnt:    {} at {address}, ", mac(GUEST));
        for host in [&self.hosts[from], &self.hosts[2]] {
            wait_for("another host to learn the new place", PATIENCE, || {
                let learnt = host.daemon.cli(&format!("network show {VNI}"))?;
                Ok(learnt.contains(&line).then_some(()))
            })?;
        }
        Ok(other)
    }

    /// What docs/live-migration.md says, in its words.
    fn hand_over(&self, from: &Host, to: &Host, neighbour: &str) -> Result<()> {
        let [guest, left_behind] = ["guest", neighbour].map(|nic| state(from, nic));
        let (guest, left_behind) = (guest.display(), left_behind.display());
        let counted = counts(from)?;
        from.daemon
            .cli(&format!("flows export guest --file {guest}"))?;
        from.daemon
            .cli(&format!("flows export {neighbour} --file {left_behind}"))?;
        self.put(to, VNI)?;
        let taken = to.daemon.cli(&format!("flows import guest {guest}"))?;
        check(
            taken
                .trim()
                .parse()
                .is_ok_and(|taken: usize| taken >= NEIGHBOURS.len()),
            &format!("the streams' connections are taken up: {taken}"),
        )?;
        self.counters_went(from, to, counted)?;
        self.put(from, WAITING)?;
        from.daemon
            .cli(&format!("flows import {neighbour} {left_behind}"))
            .map(drop)
    }

    /// The guest stands still: it has sent as much on the other host as on this one, also when it
    /// was there before, and when its state comes there once more. Frames to it still come.
    fn counters_went(&self, from: &Host, to: &Host, counted: Counts) -> Result<()> {
        let state = state(from, "guest");
        for _ in 0..2 {
            let here = counts(to)?;
            check(
                here.sent == counted.sent
                    && here.received == counted.received
                    && here.dropped >= counted.dropped,
                &format!("counters go along: {counted:?}, then {here:?}"),
            )?;
            let again = format!("flows import guest {}", state.display());
            to.daemon.cli(&again)?;
        }
        Ok(())
    }

    /// The switch did not wait for all of the guest's memory, nor made any of it.
    fn asked_for_pages(&self, host: &Host) -> Result<()> {
        wait_for("all memory to be there", PATIENCE, || {
            let log = host.daemon.log();
            let mut asked_for = log.lines().filter_map(|line| {
                let (_, said) = line.split_once("all of the guest's memory is here, ")?;
                said.split_once(" pages of it asked for")?.0.parse().ok()
            });
            Ok(asked_for.any(|pages: u64| pages > 0).then_some(()))
        })
    }

    /// Declares the guest's NIC in a network.
    fn put(&self, host: &Host, vni: u32) -> Result<()> {
        let mac = mac(GUEST);
        host.daemon
            .cli(&format!(
                "nic add --replace --id guest --mac {mac} --vni {vni} --ip 10.1.0.{GUEST} \
                 fd01::{GUEST} --sg closed"
            ))
            .map(drop)
    }

    fn machine(&self, host: &Host) -> Machine {
        let wire = Wire::VhostUser(host.daemon.socket("guest"));
        Machine::named("moved").with((self.kind)(Nic::new(wire, &mac(GUEST))))
    }

    /// Whether the switch notes what it writes into the guest.
    fn logs(&self, host: &Host, wanted: bool) -> Result<()> {
        wait_for("the log to be on or off", PATIENCE, || {
            let said = host.daemon.cli("nic show guest")?;
            Ok((said.contains("LOG_ALL") == wanted).then_some(()))
        })
    }
}

/// What the guest's NIC has counted on a host.
#[derive(Debug)]
struct Counts {
    /// Frames and bytes.
    sent: [u64; 2],
    received: [u64; 2],
    /// Frames from it and to it.
    dropped: u64,
}

fn counts(host: &Host) -> Result<Counts> {
    let stat = |name| host.daemon.stat("guest", name);
    Ok(Counts {
        sent: [stat("egress_frames")?, stat("egress_bytes")?],
        received: [stat("ingress_frames")?, stat("ingress_bytes")?],
        dropped: stat("egress_drops")? + stat("ingress_drops")?,
    })
}

fn state(host: &Host, nic: &str) -> PathBuf {
    host.daemon.dir().join(format!("{nic}.state"))
}

/// Datagrams of the guest's, one each two milliseconds, and when they came.
struct Beats(Arc<Mutex<Vec<SystemTime>>>);

impl Beats {
    const PORT: u16 = 9;

    fn start(guest: &Guest, neighbour: &Namespace, last: u8) -> Result<Self> {
        let bound = neighbour.inside(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, Self::PORT)))?;
        let socket = bound.map_err(|e| format!("port {}: {e}", Self::PORT))?;
        let came = Arc::new(Mutex::new(Vec::new()));
        let beats = Self(came.clone());
        // Until the trial ends, or no more come.
        std::thread::spawn(move || {
            let _ = socket.set_read_timeout(Some(PATIENCE));
            while socket.recv(&mut [0; 1]).is_ok() && Arc::strong_count(&came) > 1 {
                let mut came = came.lock().unwrap_or_else(PoisonError::into_inner);
                came.push(SystemTime::now());
            }
        });
        guest.ok(&format!(
            "guest udp-beat 10.1.0.{last} {} 2 900 >/dev/null 2>&1 </dev/null &",
            Self::PORT
        ))?;
        beats.since(SystemTime::now())?;
        Ok(beats)
    }

    /// How long after this moment the first one came.
    fn since(&self, moment: SystemTime) -> Result<Duration> {
        wait_for("a datagram of the guest's", PATIENCE, || {
            let came = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            Ok(came.iter().find_map(|at| at.duration_since(moment).ok()))
        })
    }
}

/// When a NIC's rings ran last, as its daemon's log has it.
fn rings_run_since(log: &str) -> Result<SystemTime> {
    let up = log.lines().rfind(|line| line.contains("INFO up nic="));
    let time = up.and_then(|line| humantime::parse_rfc3339(line.split(' ').next()?).ok());
    time.ok_or_else(|| format!("no rings have run:\n{log}"))
}

/// What the guest reads of a neighbour, in a connection that lasts as long as the trial.
struct Stream {
    progress: String,
}

impl Stream {
    fn start(guest: &Guest, last: u8) -> Result<Self> {
        let progress = format!("/tmp/stream-{last}");
        guest.ok(&format!(
            "guest tcp-get 10.1.0.{last} 80 0 900 {progress} >{progress}.log 2>&1 </dev/null &"
        ))?;
        let stream = Self { progress };
        stream.goes_on(guest)?;
        Ok(stream)
    }

    fn bytes(&self, guest: &Guest) -> Result<u64> {
        let text = guest.ok(&format!("cat {} 2>/dev/null || echo 0", self.progress))?;
        text.trim()
            .parse()
            .map_err(|_| format!("the progress is {text:?}"))
    }

    /// More comes than there was: a retransmission and some.
    fn goes_on(&self, guest: &Guest) -> Result<()> {
        let before = self.bytes(guest)?;
        let what = format!("{} to go on", self.progress);
        wait_for(&what, PATIENCE, || {
            Ok((self.bytes(guest)? > before + RATE / 10).then_some(()))
        })
        .map_err(|e| {
            let log = guest.ok(&format!("cat {}.log; ip neigh; ip -s link", self.progress));
            format!("{e}\n{}", log.unwrap_or_else(|e| e))
        })
    }
}
