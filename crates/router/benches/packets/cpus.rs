//! Live frames on one CPU, and on two at once: each CPU has a queue of its own on the way out, and
//! nothing else is set apart for it. Beside the kernel and the router, a program that sends on all
//! frames without a look says what two CPUs of the machine can be together.

use std::sync::Barrier;
use std::time::Instant;

use butterfly_router::Options;
use testkit::cpus;
use testkit::results::Results;
use xdp::{Program, Scatter, objects};

use crate::lab::{destinations, frame, inside, load, namespace, prefixes};
use crate::live::{Cable, arrived};
use crate::ours::Ours;

const ROUTES: usize = 10_000;
const DESTINATIONS: usize = 8192;
/// For each CPU.
const FRAMES: u32 = 1 << 18;

/// Frames of 60 bytes and IPv4.
pub fn measure(results: &mut Results, rounds: usize) {
    let cpus = cpus::allowed();
    let [Some(first), Some(second)] = [cpus.first(), cpus.get(1)] else {
        println!("cpus: this process may run on one CPU alone, so that two are not compared");
        return;
    };
    println!("live frames on two CPUs: thousand a second");
    let namespace = namespace();
    let two_queues = "for name in west sink; do ethtool -L $name rx 2 tx 2; done";
    namespace.ok(two_queues).expect("a veth has several queues");
    let prefixes = prefixes(false, ROUTES);
    load(&namespace, &prefixes);
    inside(&namespace, async || {
        let west = namespace.ifindex("west").expect("an interface");
        let pass = Program::load("pass", objects::PASS, |_| Ok(())).expect("the program loads");
        let maker = || Scatter::new(DESTINATIONS as u32).expect("the program loads");
        let (scatter, redirect) = (maker(), maker());
        let cable = Cable::new(&namespace, &[&scatter, &redirect]);
        let to = destinations(&prefixes, DESTINATIONS);
        let frame = frame(false, 60);
        scatter.set_frame(&frame, &to, 0).expect("there is room");
        redirect
            .set_frame(&frame, &to, west)
            .expect("there is room");
        let router = Ours::start(&Options::default()).await;
        let programs = [
            ("kernel", &pass),
            ("router", router.service.router.program()),
            ("redirect", redirect.program()),
        ];
        let mut taken = [const { [const { Vec::new() }; 2] }; 3];
        for round in 0..=rounds {
            for (samples, (_, program)) in taken.iter_mut().zip(programs) {
                scatter.hand_on_to(program).expect("one of XDP");
                let of = |cpus: &[usize]| rate(&cable, &scatter, &frame, cpus);
                let rates = [of(&[*first]), of(&[*first, *second])];
                // The first round fills the caches.
                for (samples, rate) in samples.iter_mut().zip(rates).filter(|_| round > 0) {
                    samples.push(rate);
                }
            }
        }
        for ((who, _), [one, two]) in programs.iter().zip(taken) {
            // What two do, over what one does.
            results.ratio_by_round(&format!("two_cpus_{who}"), &two, &one);
            results.add("live v4 64 bytes, one CPU", who, "thousand a second", one);
            results.add("live v4 64 bytes, two CPUs", who, "thousand a second", two);
        }
    });
}

/// Thousands of frames a second that arrive, sent from these CPUs at once.
fn rate(cable: &Cable, scatter: &Scatter, frame: &[u8], cpus: &[usize]) -> f64 {
    let before = arrived();
    let ready = Barrier::new(cpus.len() + 1);
    let each = |cpu: usize| {
        cpus::stay_on(&[cpu]);
        ready.wait();
        xdp::send(scatter.program(), frame, cable.east, FRAMES).expect("live frames");
    };
    let each = &each;
    let took = std::thread::scope(|scope| {
        let one = |cpu: &usize| {
            let cpu = *cpu;
            scope.spawn(move || each(cpu))
        };
        let threads: Vec<_> = cpus.iter().map(one).collect();
        ready.wait();
        let start = Instant::now();
        for thread in threads {
            thread.join().expect("frames are sent");
        }
        start.elapsed()
    });
    let (came, sent) = (arrived() - before, u64::from(FRAMES) * cpus.len() as u64);
    assert!(came > sent / 20, "only {came} of {sent} arrived");
    came as f64 / took.as_secs_f64() / 1e3
}
