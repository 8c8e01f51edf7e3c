//! Containers' flows from other hosts that the kernel takes in itself: the program for them
//! (`bpf/arrival.bpf.c`) at tc ingress of each uplink that is joined by a packet socket behind it.
//! What it is about is at the head of [`dataplane::flow::kernel`].
//!
//! The program is there with the first container, uplinks come and go: each is told of the other
//! here. It goes with this process, or with the uplink.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dataplane::{PortSlot, Switch};
use xdp::{Feature, Interfaces, Mode, Program};

/// The program and the uplinks.
pub struct Arrivals {
    switch: Arc<Switch>,
    interfaces: Arc<Mutex<Interfaces>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    program: Option<Program>,
    /// The interfaces of the uplinks, by number.
    uplinks: BTreeMap<u32, u32>,
}

impl Arrivals {
    /// No program and no uplink yet.
    pub fn new(switch: Arc<Switch>, interfaces: Arc<Mutex<Interfaces>>) -> Arrivals {
        Arrivals {
            switch,
            interfaces,
            state: Mutex::default(),
        }
    }

    /// The program is there.
    pub fn begin(&self, program: Program) {
        let mut state = self.lock();
        for (&number, &ifindex) in &state.uplinks {
            self.attach(&program, number, ifindex);
        }
        state.program = Some(program);
    }

    fn attach(&self, program: &Program, number: u32, ifindex: u32) {
        let mut interfaces = self.interfaces();
        let added = interfaces.add(ifindex, Feature::Arrival, program, Some(Mode::Tc));
        let added = added.map(drop);
        drop(interfaces);
        match added {
            Ok(()) => self.tell(number, ifindex),
            Err(why) => tracing::warn!(
                "what comes from other hosts by interface {ifindex} is the workers' alone: {why}"
            ),
        }
    }

    fn tell(&self, number: u32, device: u32) {
        // A worker that is gone: the daemon is stopping.
        let _ = self
            .switch
            .set_kernel_device(PortSlot::uplink(number), device);
    }

    fn interfaces(&self) -> MutexGuard<'_, Interfaces> {
        // Each call leaves the list whole.
        self.interfaces
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl uplink::Arrivals for Arrivals {
    fn join(&self, number: u32, ifindex: u32) {
        let mut state = self.lock();
        state.uplinks.insert(number, ifindex);
        if let Some(program) = &state.program {
            self.attach(program, number, ifindex);
        }
    }

    fn leave(&self, number: u32) {
        let mut state = self.lock();
        if let Some(ifindex) = state.uplinks.remove(&number) {
            self.interfaces().remove_from_tc(ifindex, Feature::Arrival);
            self.tell(number, 0);
        }
    }
}
