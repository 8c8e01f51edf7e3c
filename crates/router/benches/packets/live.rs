//! Live frames, as if `east`'s driver had received them: what leaves by `west` goes over a veth to
//! `sink` and is dropped there by a program. All on one CPU, the same for all: the kernel (its
//! frames are passed), the router, the least that forwards by the kernel's lookup, and a program
//! that sends on all frames without a look.
//!
//! The programs that make the frames are attached to interfaces without traffic meanwhile: the
//! first use of a program that is attached nowhere costs a grace period of the kernel's, some 15 ms
//! of each run.

use butterfly_router::Options;
use xdp::{Attachment, Program, Scatter, attach, objects};

use crate::lab::{destinations, frame, inside, load, namespace, prefixes};
use crate::ours::Ours;
use testkit::netns::Namespace;
use testkit::results::Results;

/// Bytes with FCS, as a wire has them.
const SIZES: [usize; 5] = [64, 128, 512, 1024, 1518];
const FCS: usize = 4;
const ROUTES: usize = 10_000;
const DESTINATIONS: usize = 8192;
/// Few, so that what happens to the machine happens to all four: they are compared round by round.
const FRAMES: u32 = 1 << 17;

/// All four by frame size, of each family.
pub fn measure(results: &mut Results, rounds: usize) {
    println!("live frames, {ROUTES} routes, {DESTINATIONS} destinations: ns a frame");
    for v6 in [false, true] {
        family(results, v6, rounds);
    }
}

fn family(results: &mut Results, v6: bool, rounds: usize) {
    let namespace = namespace();
    let prefixes = prefixes(v6, ROUTES);
    load(&namespace, &prefixes);
    inside(&namespace, async || {
        let west = namespace.ifindex("west").expect("an interface");
        let program =
            |name, object| Program::load(name, object, |_| Ok(())).expect("the program loads");
        let (pass, fib) = (program("pass", objects::PASS), program("fib", objects::FIB));
        let maker = || Scatter::new(DESTINATIONS as u32).expect("the program loads");
        let (scatter, redirect) = (maker(), maker());
        let cable = Cable::new(&namespace, &[&scatter, &redirect]);
        let to = destinations(&prefixes, DESTINATIONS);
        for size in SIZES {
            let frame = frame(v6, size - FCS);
            scatter.set_frame(&frame, &to, 0).expect("there is room");
            redirect
                .set_frame(&frame, &to, west)
                .expect("there is room");
            let router = Ours::start(&Options::default()).await;
            let once = |program: &Program| {
                scatter.hand_on_to(program).expect("one of XDP");
                cable.once(&scatter, &frame, FRAMES)
            };
            // Attached or not, our program is nothing to the frames that are handed to the kernel
            // here.
            let mut taken = [const { Vec::new() }; 4];
            for round in 0..=rounds {
                let ours = router.service.router.program();
                let all = [&pass, ours, &fib, redirect.program()].map(once);
                // The first one fills the caches.
                for (samples, one) in taken.iter_mut().zip(all).filter(|_| round > 0) {
                    samples.push(one);
                }
            }
            let family = if v6 { "v6" } else { "v4" };
            let what = format!("live {family} {size} bytes");
            results.ratio_by_round(&format!("live_{family}_{size}"), &taken[0], &taken[1]);
            let names = ["kernel", "router", "fib_lookup", "redirect"];
            for (who, samples) in names.into_iter().zip(taken) {
                results.add(&what, who, "ns", samples);
            }
        }
    });
}

/// The interfaces as live frames need them, in the namespace that this thread is in.
pub struct Cable {
    pub east: u32,
    /// What drops at the sink, and what makes the kernel know those that make frames.
    _attached: Vec<Attachment>,
}

impl Cable {
    /// For frames that these make, two at most.
    pub fn new(namespace: &Namespace, makers: &[&Scatter]) -> Self {
        let index = |name: &str| namespace.ifindex(name).expect("an interface");
        let drops = Program::load("drop", objects::DROP, |_| Ok(())).expect("the program loads");
        let spare = ["spare0", "spare1"].into_iter();
        let makers = spare.zip(makers.iter().map(|maker| maker.program()));
        let attached = [("sink", &drops)].into_iter().chain(makers);
        Cable {
            east: index("east"),
            _attached: attached
                .map(|(name, program)| attach(program, index(name), None))
                .collect::<Result<_, _>>()
                .expect("a veth takes a program"),
        }
    }

    /// Nanoseconds for each frame that arrived at the sink, of `frames`.
    pub fn once(&self, scatter: &Scatter, frame: &[u8], frames: u32) -> f64 {
        let before = arrived();
        let took = xdp::send(scatter.program(), frame, self.east, frames).expect("live frames");
        let came = arrived() - before;
        assert!(
            came > u64::from(frames) / 20,
            "only {came} of {frames} arrived"
        );
        took.as_nanos() as f64 / came as f64
    }
}

/// Frames that the sink has had, of the namespace that this thread is in.
pub fn arrived() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/net/dev").expect("the kernel's counters");
    let line = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("sink:"));
    let packets = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
    packets.expect("the sink's line")
}
