//! `io` alone with real guests: two vhost-user NICs on a hub that hands every frame to the other
//! one. What passes here and not through the daemon is the data plane's; what fails here is the
//! rings' or the sessions'.

use butterfly_tests::lab::{address_command, check, mac, soon};
use butterfly_tests::trials::run_each;
use io::frame::Batch;
use io::port::Port;
use io::vhost::{NicOptions, PortKey, PortSink, PortState, Server};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use sys::poll::Poller;
use testkit::Result;
use testkit::image::Image;
use testkit::qemu::{Guest, Machine, Nic, Wire};

fn main() {
    run_each([
        ("all_features", || run(Nic::new, Nic::new)),
        ("none_of_the_features_at_one_end", || {
            run(Nic::new, Nic::plain)
        }),
        ("none_of_the_features_at_both_ends", || {
            run(Nic::plain, Nic::plain)
        }),
        ("reboots_and_crashes", reboots_and_crashes),
    ])
}

type Kind = fn(Wire, &str) -> Nic;

fn run(first: Kind, second: Kind) -> Result<()> {
    let hub = Hub::start()?;
    let guests = hub.boot([first, second])?;
    let exchange = exchange(&guests[0], &guests[1]).and_then(|()| exchange(&guests[1], &guests[0]));
    exchange.map_err(|e| format!("{e}\n{:#?}", hub.server.nics()))
}

fn reboots_and_crashes() -> Result<()> {
    let hub = Hub::start()?;
    let mut guests = hub.boot([Nic::new, Nic::new])?;
    for round in 0..4 {
        if round % 2 == 0 {
            guests[1].reboot()?
        } else {
            guests[1].kill_and_restart()?
        }
        guests[1].ok(&address_command(1))?;
        soon(&guests[0], "ping -c 1 -W 1 10.0.0.2")
            .map_err(|e| format!("{e}\n{:#?}", hub.server.nics()))?;
        exchange(&guests[0], &guests[1])?;
    }
    Ok(())
}

/// `b` serves, `a` asks.
fn exchange(a: &Guest, b: &Guest) -> Result<()> {
    let servers = [
        "tcp-serve 80",
        "tcp-sink 81",
        "udp-serve 53",
        "sctp-serve 9",
    ];
    for server in servers {
        b.serve(&format!("guest {server}"))?;
    }
    let last = if b.name() == "b" { 2 } else { 1 };
    for to in [format!("10.0.0.{last}"), format!("fd00::{last}")] {
        a.ok(&format!(
            "ping -c 2 -i 0.2 -W 2 {to} && ping -c 2 -i 0.2 -W 2 -s 8000 {to}"
        ))?;
        a.ok(&format!(
            "guest tcp-get {to} 80 5000000 20 && guest tcp-put {to} 81 5000000 20"
        ))?;
        a.ok(&format!(
            "guest udp-ping {to} 53 3 6000 && guest sctp-ping {to} 9 3 5"
        ))?;
    }
    check(
        b.counter("eth0", "rx_errors")? == 0 && a.counter("eth0", "rx_errors")? == 0,
        "no kernel saw an error",
    )?;
    b.quiet()
}

/// The two ports; each is taken out while its session changes it.
#[derive(Default)]
struct Slots {
    ports: Mutex<[Option<Port>; 2]>,
    end: AtomicBool,
}

impl Slots {
    fn lock(&self) -> MutexGuard<'_, [Option<Port>; 2]> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PortSink for Slots {
    fn attach(&self, key: PortKey, _pair: u16, port: Port) {
        self.lock()[key.0 as usize] = Some(port);
    }

    fn detach(&self, key: PortKey, _pair: u16) -> Option<Port> {
        self.lock()[key.0 as usize].take()
    }

    fn state(&self, _key: PortKey, _state: PortState) {}
}

struct Hub {
    server: Server,
    slots: Arc<Slots>,
    thread: Option<JoinHandle<()>>,
    dir: tempfile::TempDir,
}

impl Hub {
    fn start() -> Result<Self> {
        let dir = tempfile::tempdir().map_err(|e| format!("cannot make a folder: {e}"))?;
        let slots = Arc::new(Slots::default());
        let server = Server::start(slots.clone()).map_err(|e| format!("no server: {e}"))?;
        let hub = Self {
            server,
            slots: slots.clone(),
            thread: Some(std::thread::spawn(move || forward(&slots))),
            dir,
        };
        for index in 0..2u32 {
            let mac = mac(index as usize)
                .parse()
                .map_err(|_| "a MAC of ours does not parse".to_owned())?;
            let nic = NicOptions {
                name: format!("nic{index}"),
                mac,
                mtu: Some(1500),
                offloads: true,
                link_up: true,
                pairs: 1,
                missing_pages: Default::default(),
                page_helper: None,
                network: None,
            };
            hub.server
                .listen(PortKey(index), &hub.path(index), nic)
                .map_err(|e| e.to_string())?;
        }
        Ok(hub)
    }

    fn path(&self, index: u32) -> PathBuf {
        self.dir.path().join(format!("nic{index}"))
    }

    fn boot(&self, kinds: [Kind; 2]) -> Result<Vec<Guest>> {
        let machine = |index: usize, name: &str| {
            let wire = Wire::VhostUser(self.path(index as u32));
            Machine::named(name).with(kinds[index](wire, &mac(index)))
        };
        let guests = Guest::start_all(&Image::ready()?, &[machine(0, "a"), machine(1, "b")])?;
        for (index, guest) in guests.iter().enumerate() {
            guest.ok(&address_command(index))?;
        }
        Ok(guests)
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.slots.end.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Moves frames until the end; sleeps on the kicks when there are none.
fn forward(slots: &Slots) {
    let mut batch = Batch::new();
    while !slots.end.load(Ordering::Relaxed) {
        let mut ports = slots.lock();
        let moved = (0..2)
            .map(|from| turn(&mut ports, from, &mut batch))
            .sum::<usize>();
        if moved > 0 {
            continue;
        }
        let Ok(mut poller) = Poller::new() else {
            return;
        };
        let mut work = false;
        for port in ports.iter_mut().flatten() {
            work |= port.arm();
            if let Some(kick) = port.kick_fd() {
                let _ = poller.add(kick, 0);
            }
        }
        // Not held while asleep: a session may want a port. The poller's set keeps nothing of it
        // alive.
        drop(ports);
        if !work {
            let _ = poller
                .wait(Some(Duration::from_millis(5)))
                .map(Iterator::count);
        }
        for port in slots.lock().iter_mut().flatten() {
            // The poller is a new one each time, and would report it for ever.
            if let Some(kick) = port.kick_fd() {
                let _ = rustix::io::read(kick, &mut [0; 8]);
            }
            port.disarm();
        }
    }
}

fn turn(ports: &mut [Option<Port>; 2], from: usize, batch: &mut Batch) -> usize {
    let [first, second] = ports;
    let (source, target) = if from == 0 {
        (first, second)
    } else {
        (second, first)
    };
    let Some(source) = source else { return 0 };
    let moved = source.receive(batch).unwrap_or(0);
    if moved > 0
        && let Some(target) = target
    {
        for index in 0..moved {
            let _ = target.transmit(batch, index); // a full ring loses the frame, as a wire would
        }
        let _ = target.flush();
    }
    if moved > 0 {
        source.complete(batch);
    }
    moved
}
