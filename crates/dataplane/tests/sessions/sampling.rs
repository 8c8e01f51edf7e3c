//! Sampled frames say where they came in and where they went, and flows are read page by page.

use dataplane::DropReason;
use dataplane::sampling::{Output, Sample};

use crate::lab::*;

#[test]
fn a_sample_says_where_its_frame_has_gone() {
    let (mut lab, a, b) = Lab::pair(vec![allow_in(UDP, 53)]);
    let samples = lab.sim.sample(1).expect("the workers are there");
    let passes = udp(a, b, Family::V4, 1000, 53);
    let dropped = udp(a, b, Family::V4, 1000, 54);
    // By its rules first, and as a known flow then.
    lab.passes(a, b, passes.clone());
    lab.passes(a, b, passes.clone());
    lab.refuses(a, dropped.clone(), DropReason::NoIngressRule);
    let taken: Vec<_> = samples.take().map(|(_, sample)| sample).collect();
    let refused = Output::Dropped(Some(DropReason::NoIngressRule));
    for (sample, (frame, output)) in taken.iter().zip([
        (&passes, Output::Port(b.slot)),
        (&passes, Output::Port(b.slot)),
        (&dropped, refused),
    ]) {
        let len = frame.len().min(dataplane::sampling::HEAD);
        assert_eq!((sample.input, sample.output), (a.slot, output));
        assert_eq!(sample.frame_len as usize, frame.len());
        assert_eq!(sample.head[..usize::from(sample.head_len)], frame[..len]);
    }
    assert_eq!((taken.len(), samples.lost()), (3, 0));
    // Nobody reads: what does not fit is lost, and the frames pass.
    let sent = dataplane::sampling::RING + 10;
    for _ in 0..sent {
        lab.passes(a, b, passes.clone());
    }
    assert_eq!(samples.lost(), 10);
    assert_eq!(lab.sim.ask(|switch| switch.end_samples()), Ok(()));
    samples.take().for_each(drop);
    lab.passes(a, b, passes);
    assert_eq!(samples.take().count(), 0);
}

#[test]
fn a_nic_may_have_a_rate_of_its_own() {
    let (mut lab, a, b) = Lab::pair(vec![allow_in(UDP, 53)]);
    let asks = udp(a, b, Family::V4, 1000, 53);
    let answers = udp(b, a, Family::V4, 53, 1000);
    // Of the others none is taken.
    let samples = lab.sim.sample(0).expect("the workers are there");
    let taken = || -> Vec<_> {
        let of =
            |(worker, sample): (usize, Sample)| (worker, sample.input, sample.rate, sample.pool);
        samples.take().map(of).collect()
    };
    lab.passes(a, b, asks.clone());
    assert_eq!(taken(), []);
    lab.configure(a, |port| port.sample_rate = Some(1));
    lab.passes(a, b, asks.clone());
    lab.passes(b, a, answers.clone());
    lab.passes(a, b, asks.clone());
    // The frame before is none that could have been taken.
    assert_eq!(taken(), [(0, a.slot, 1, 1), (0, a.slot, 1, 2)]);
    lab.configure(a, |port| port.sample_rate = Some(0));
    lab.passes(a, b, asks.clone());
    lab.configure(a, |port| port.sample_rate = Some(1));
    lab.passes(a, b, asks.clone());
    assert_eq!(taken(), [(0, a.slot, 1, 3)]);
    // All but one.
    let samples = lab.sim.sample(1).expect("the workers are there");
    lab.configure(a, |port| port.sample_rate = Some(0));
    lab.passes(a, b, asks);
    lab.passes(b, a, answers);
    let inputs: Vec<_> = samples.take().map(|(_, sample)| sample.input).collect();
    assert_eq!(inputs, [b.slot]);
}

#[test]
fn flows_are_read_by_pages_and_each_once() {
    let (mut lab, a, b) = Lab::pair(vec![allow_in(UDP, 53)]);
    for port in 0..100 {
        lab.passes(a, b, udp(a, b, Family::V4, 1000 + port, 53));
    }
    let (lens, flows) = lab.sim.flows_by_pages(30);
    assert_eq!(lens, [30, 30, 30, 10]);
    let mut ports: Vec<_> = flows.iter().map(|flow| flow.initiator.port).collect();
    ports.sort_unstable();
    assert_eq!(ports, (1000..1100).collect::<Vec<_>>());
    assert_eq!(lab.sim.flows(None).len(), 100);
}
