//! The first minute (`make demo`): two guests, a security group, a download that stops; then two
//! hosts. It prints every command with its effect and leaves nothing behind; with HOLD=1 it stays
//! up until Enter or Ctrl-C.
//!
//! What is printed is what happens: each line of the host is run as it stands there, but that
//! QEMU's is shortened and that `butterfly` and `butterflyd` are the ones just built.

mod two_hosts;

use butterfly_tests::Daemon;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::{IsTerminal, Read};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use testkit::image::Image;
use testkit::netns::Namespace;
use testkit::qemu::{Guest, Machine, Nic, Wire};
use testkit::{Result, wait_for};
use two_hosts::TwoHosts;

/// A download counts as stopped when nothing has come for this long, and has to stop within
/// [`STOP_WITHIN`].
const STILL: Duration = Duration::from_millis(800);
const STOP_WITHIN: Duration = Duration::from_secs(5);

const ALICE: &str = "52:54:00:12:34:01";
const BOB: &str = "52:54:00:12:34:02";

fn main() -> ExitCode {
    // A signal lets the guards end everything, at the end of the step that runs. All steps are
    // bounded.
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        if let Err(e) = signal_hook::flag::register(signal, Arc::clone(&interrupted)) {
            eprintln!("cannot watch for signals: {e}");
            return ExitCode::FAILURE;
        }
    }
    let begin = Instant::now();
    let outcome = Demo::start(&interrupted).and_then(|mut demo| {
        let outcome = demo
            .show()
            .and_then(|()| demo.second_act())
            .and_then(|()| demo.hold());
        outcome.map_err(|e| {
            if demo.is_interrupted() {
                e
            } else {
                format!("{e}\n{}", demo.daemon.dump())
            }
        })
        // The guards of `demo` go here: guests, namespace, daemon, folder.
    });
    match outcome {
        Err(_) if interrupted.load(Ordering::Relaxed) => {
            println!("\nInterrupted; everything is gone again.");
            ExitCode::from(130)
        }
        Ok(()) => {
            println!(
                "\nDone in {:.0} s; nothing is left behind.",
                begin.elapsed().as_secs_f64()
            );
            ExitCode::SUCCESS
        }
        Err(sentence) => {
            eprintln!("\nThe demo failed: {sentence}");
            ExitCode::FAILURE
        }
    }
}

struct Demo {
    // Dropped in this order.
    alice: Guest,
    bob: Guest,
    stranger: Namespace,
    daemon: Daemon,
    interrupted: Arc<AtomicBool>,
}

impl Demo {
    fn start(interrupted: &Arc<AtomicBool>) -> Result<Self> {
        title(
            "A switch, and three NICs: two in network 42; a third in network 43 with an address of \
             the first two",
        );
        let image = Image::ready()?;
        let begin = Instant::now();
        let daemon = Daemon::start(&[])?;
        println!(
            "$ {}",
            daemon.command(&[]).join(" ").replace(
                &butterfly_tests::daemon::program("butterflyd"),
                "butterflyd"
            )
        );
        effect(&format!(
            "ready after {} ms, process {}",
            begin.elapsed().as_millis(),
            daemon.pid()
        ));
        println!("$ export BUTTERFLY_ENDPOINT={}", daemon.endpoint());
        on_host(&daemon, "sg add web")?;
        on_host(
            &daemon,
            &format!("nic add --id alice --mac {ALICE} --vni 42 --ip 10.0.0.1 --sg web"),
        )?;
        on_host(
            &daemon,
            &format!("nic add --id bob   --mac {BOB} --vni 42 --ip 10.0.0.2 --sg web"),
        )?;
        on_host(
            &daemon,
            &format!(
                "nic add --id stranger --mac {BOB} --vni 43 --ip 10.0.0.2 --type tap --path \
                 bf-stranger"
            ),
        )?;
        let stranger = Namespace::new()?;
        stranger.adopt("bf-stranger", BOB, &["10.0.0.2/24"])?;
        effect("its device is moved into a network namespace, as a container's would be");

        let begin = Instant::now();
        let machine = |name: &str, mac: &str| {
            Machine::named(name).with(Nic::new(Wire::VhostUser(daemon.socket(name)), mac))
        };
        for name in ["alice", "bob"] {
            println!(
                "$ qemu-system-x86_64 -object memory-backend-memfd,share=on,… \
                 -chardev socket,id=c,path={} -netdev vhost-user,id=n,chardev=c \
                 -device virtio-net-pci,netdev=n,…",
                daemon.socket(name).display()
            );
        }
        let guests = Guest::start_all(&image, &[machine("alice", ALICE), machine("bob", BOB)]);
        let guests = guests.map_err(|e| format!("{e}\n{}", daemon.dump()))?;
        let [alice, bob]: [Guest; 2] = guests
            .try_into()
            .map_err(|_| "two guests were started".to_owned())?;
        let how = if image.accelerator == "kvm" {
            "with KVM"
        } else {
            "in software emulation: KVM boots no guest here"
        };
        effect(&format!(
            "both guests are up after {:.1} s ({how})",
            begin.elapsed().as_secs_f64()
        ));
        Ok(Self {
            alice,
            bob,
            stranger,
            daemon,
            interrupted: Arc::clone(interrupted),
        })
    }

    fn show(&mut self) -> Result<()> {
        in_guest(&self.alice, "ip addr add 10.0.0.1/24 dev eth0")?;
        in_guest(&self.bob, "ip addr add 10.0.0.2/24 dev eth0")?;
        println!("bob# guest tcp-serve 80 &");
        self.bob.serve("guest tcp-serve 80")?;
        self.go_on()?;

        title("Nothing is allowed yet: ping is dropped");
        self.ping(false)?;
        on_host(&self.daemon, "drops bob")?;
        self.go_on()?;

        title("Two rules: ping and a TCP download pass");
        on_host(
            &self.daemon,
            "sg rule add web --ip-proto icmp --cidr 10.0.0.0/24",
        )?;
        on_host(
            &self.daemon,
            "sg rule add web --ip-proto tcp --port 80 --cidr 10.0.0.0/24",
        )?;
        self.ping(true)?;
        in_guest(&self.alice, "guest tcp-get 10.0.0.2 80 20000000 20")?;
        self.go_on()?;

        title("The third NIC, in another network under the same address, heard nothing of it");
        println!("stranger# ip -s link show eth0");
        let heard = self.stranger.counter("rx_packets")?;
        effect(&format!("{heard} frames received"));
        if heard != 0 {
            return Err(format!(
                "the NIC in network 43 received {heard} frames of network 42"
            ));
        }
        on_host(&self.daemon, "nic stats")?;
        self.go_on()?;

        title("A rule is taken away: the download that it allowed stops");
        self.download_stops()
    }

    /// The first act's guests rest meanwhile: a machine has as many processors as it has.
    fn second_act(&self) -> Result<()> {
        for guest in [&self.alice, &self.bob] {
            guest.quiet()?;
        }
        TwoHosts::show(|| self.go_on())
    }

    fn ping(&self, answered: bool) -> Result<()> {
        let command = "ping -c 3 -i 0.5 -W 1 10.0.0.2";
        println!("alice# {command}");
        let output = self.alice.run(command, Duration::from_secs(20))?;
        effect(&output.text);
        if (output.code == 0) == answered {
            Ok(())
        } else {
            Err(format!("ping ended with code {}", output.code))
        }
    }

    fn download_stops(&self) -> Result<()> {
        let command = "guest tcp-get 10.0.0.2 80 0 60 /tmp/bytes";
        println!("alice# {command} &");
        self.alice.ok(&format!("{command} >/dev/null 2>&1 &"))?;
        let mut rate = Rate::new(&self.alice);
        wait_for("the download to begin", STOP_WITHIN, || {
            Ok((rate.bytes()? > 0).then_some(()))
        })?;
        for _ in 0..4 {
            rate.print()?;
        }
        on_host(
            &self.daemon,
            "sg rule del web --ip-proto tcp --port 80 --cidr 10.0.0.0/24",
        )?;
        let (deleted, mut last_byte) = (Instant::now(), Instant::now());
        while last_byte.elapsed() < STILL {
            if rate.print()? > 0 {
                last_byte = Instant::now();
            }
            if deleted.elapsed() > STOP_WITHIN {
                return Err(format!(
                    "the download still runs {STOP_WITHIN:?} after its rule was taken away"
                ));
            }
        }
        effect("the download stands still; the connection was cut, and ping still passes:");
        self.ping(true)
    }

    fn hold(&mut self) -> Result<()> {
        if std::env::var("HOLD").is_ok_and(|hold| !matches!(hold.as_str(), "" | "0")) {
            title("HOLD=1: all of this stays up");
            println!("export BUTTERFLY_ENDPOINT={}", self.daemon.endpoint());
            println!("export PATH={}:$PATH", folder_of_programs());
            for guest in [&self.alice, &self.bob] {
                let console = guest.console_socket();
                println!(
                    "{}'s console:   socat -,raw,echo=0,escape=0x1d unix-connect:{}",
                    guest.name(),
                    console.display()
                );
            }
            println!("  (Enter for a prompt, Ctrl-] to leave)");
            println!("stranger:   nsenter -t {} -n", self.stranger.pid());
            println!("Enter or Ctrl-C ends it.");
            self.wait_for_enter();
            println!("Ending it.");
        }
        self.daemon.stop()
    }

    /// Standard input that is no terminal and at its end (`make demo HOLD=1 </dev/null`) leaves
    /// only signals.
    fn wait_for_enter(&self) {
        let enter = Arc::new(AtomicBool::new(false));
        if std::io::stdin().is_terminal() {
            let enter = Arc::clone(&enter);
            std::thread::spawn(move || {
                let _ = std::io::stdin().read(&mut [0u8; 1]);
                enter.store(true, Ordering::Relaxed);
            });
        }
        while !enter.load(Ordering::Relaxed) && !self.is_interrupted() {
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    fn go_on(&self) -> Result<()> {
        if self.is_interrupted() {
            Err("interrupted".to_owned())
        } else {
            Ok(())
        }
    }
}

/// How fast the download is, from the count that it keeps.
struct Rate<'a> {
    guest: &'a Guest,
    last: (Instant, u64),
}

impl<'a> Rate<'a> {
    fn new(guest: &'a Guest) -> Self {
        Self {
            guest,
            last: (Instant::now(), 0),
        }
    }

    fn bytes(&mut self) -> Result<u64> {
        let text = self.guest.ok("cat /tmp/bytes 2>/dev/null || echo 0")?;
        let bytes = text
            .trim()
            .parse()
            .map_err(|_| format!("the progress is {text:?}"))?;
        self.last = (Instant::now(), bytes);
        Ok(bytes)
    }

    /// Prints the rate of the last 200 ms, and gives the bytes that came.
    fn print(&mut self) -> Result<u64> {
        std::thread::sleep(Duration::from_millis(200));
        let (then, before) = self.last;
        let came = self.bytes()?.saturating_sub(before);
        let mbit = came as f64 * 8e-6 / then.elapsed().as_secs_f64();
        let bar = "#".repeat((mbit.sqrt() as usize).min(60));
        effect(&format!("{mbit:8.1} Mbit/s {bar}"));
        Ok(came)
    }
}

fn on_host(daemon: &Daemon, line: &str) -> Result<()> {
    println!("$ butterfly {line}");
    effect(&daemon.cli(line)?);
    Ok(())
}

fn in_guest(guest: &Guest, command: &str) -> Result<()> {
    println!("{}# {command}", guest.name());
    effect(&guest.ok(command)?);
    Ok(())
}

fn title(text: &str) {
    println!("\n== {text}");
}

/// What a command said, indented under it.
fn effect(text: &str) {
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        println!("    {line}");
    }
}

fn folder_of_programs() -> String {
    let program = butterfly_tests::daemon::program("butterfly");
    program
        .rsplit_once('/')
        .map_or(".", |(folder, _)| folder)
        .to_owned()
}
