//! Operations over a real worker with guests in memory: what an operation changes is what passes.

use super::world::{group_id, ip, nic, nic_id};
use crate::attach::{AttachError, Attachments, HostSettings, OpenRequest};
use crate::model::{Direction, Nic, Peer, Ports, Rule, RuleMatch};
use crate::{Controller, Error};
use dataplane::drop_reason::DropReason;
use dataplane::snapshot::PortSlot;
use dataplane::{Now, WorkerConfig};
use io::memory_port::{MemoryPeer, MemoryPort};
use io::port::Port;
use io::trace::Trace;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

type Peers = Arc<Mutex<HashMap<String, MemoryPeer>>>;

struct Host {
    switch: Arc<dataplane::Switch>,
    peers: Peers,
}

impl Attachments for Host {
    fn open(&mut self, request: &OpenRequest<'_>) -> Result<(), AttachError> {
        let (port, peer) = MemoryPort::pair();
        self.peers
            .lock()
            .unwrap()
            .insert(request.nic.id.to_string(), peer);
        self.switch
            .attach(request.slot.into(), Port::Memory(port))
            .unwrap();
        Ok(())
    }

    fn close(&mut self, gone: &[(Arc<Nic>, PortSlot)]) {
        for (nic, slot) in gone {
            self.peers.lock().unwrap().remove(nic.id.as_str());
            assert!(self.switch.detach((*slot).into()).unwrap().is_some());
        }
    }

    fn trace(&mut self, _nic: &Nic, _path: &str) -> Result<Option<Trace>, AttachError> {
        Ok(None)
    }
}

/// A controller over a worker that runs in a thread, and its guests.
struct Switch {
    controller: Controller,
    switch: Arc<dataplane::Switch>,
    peers: Peers,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Switch {
    fn new() -> Switch {
        let config = WorkerConfig {
            max_flows: 1024,
            max_fragments: 16,
            max_learned_macs: 16,
            seed: 1,
            on_broken: Box::new(|slot, what| panic!("{slot:?}: {what}")),
        };
        let mut config = Some(config);
        let (switch, workers) = dataplane::Switch::new(1, |_| config.take().unwrap()).unwrap();
        let switch = Arc::new(switch);
        let mut worker = workers.into_iter().next().unwrap();
        // Time stands still: nothing in these sessions depends on it.
        let now = Now {
            mono_ns: 1_000_000_000,
            unix_ns: 0,
        };
        let thread = std::thread::spawn(move || {
            while !worker.turn(now).stopped {
                worker.sleep(now, Duration::from_millis(20));
            }
        });
        let peers = Peers::default();
        let host = Host {
            switch: switch.clone(),
            peers: peers.clone(),
        };
        let controller = Controller::new(HostSettings::default(), Box::new(host), switch.clone());
        Switch {
            controller,
            switch,
            peers,
            thread: Some(thread),
        }
    }

    /// Sends a frame as the guest of `from`, and says who received what.
    fn send(&self, from: &str, frame: &[u8]) -> Vec<(String, Vec<u8>)> {
        let peers = self.peers.lock().unwrap();
        assert!(peers[from].send(frame.to_vec(), wire::offload::Offload::default()));
        // A turn carries out commands, then serves all ports: the turn after the one that answers
        // has seen the frame.
        let turns = || self.switch.loads().unwrap()[0].turns;
        let sent = turns();
        assert!(
            (0..1_000_000).any(|_| turns() > sent),
            "the worker answers and does not turn"
        );
        let mut heard: Vec<_> = peers
            .iter()
            .flat_map(|(name, peer)| {
                std::iter::from_fn(|| peer.receive()).map(|(bytes, _)| (name.clone(), bytes))
            })
            .collect();
        heard.sort();
        heard
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        self.switch.stop();
        let ended = self.thread.take().map(std::thread::JoinHandle::join);
        if !std::thread::panicking() {
            assert!(matches!(ended, Some(Ok(()))), "the worker panicked");
        }
    }
}

fn udp(from: &Nic, to: &Nic, port: u16) -> Vec<u8> {
    wire::build::frame(from.mac, to.mac)
        .ip(from.ips[0], to.ips[0])
        .udp(1000, port)
        .payload(b"hello")
        .build()
}

fn allow_udp(port: u16, peer: Peer) -> Rule {
    let ports = RuleMatch::Ports(Ports {
        start: port,
        end: port,
    });
    Rule::new(Direction::Ingress, Some(17), ports, peer).unwrap()
}

#[test]
fn an_operation_changes_what_passes() -> Result<(), Error> {
    let mut switch = Switch::new();
    let (a, b) = (nic("a", 1, &["web"]), nic("b", 2, &["web"]));
    let elsewhere = Nic {
        vni: wire::Vni::new(51).unwrap(),
        ..nic("elsewhere", 2, &["web"])
    };
    for nic in [&a, &b, &elsewhere] {
        switch.controller.put_nic(nic.clone())?;
    }
    let web = group_id("web");
    let question = udp(&a, &b, 53);
    let to_b = vec![("b".to_owned(), question.clone())];
    assert_eq!(switch.send("a", &question), [], "the group does not exist");
    let rule = allow_udp(53, Peer::Group(web.clone()));
    switch.controller.add_rule(&web, rule.clone())?;
    assert_eq!(switch.send("a", &question), to_b);
    let other = udp(&a, &b, 54);
    assert_eq!(switch.send("a", &other), [], "another port");

    let stats = switch.controller.nic_stats(&nic_id("b"))?;
    assert_eq!(
        (stats.bytes_in, stats.frames_in),
        (question.len() as u64, 1)
    );
    assert_eq!(stats.drops_in, [(DropReason::NoIngressRule, 1)]);
    let stats = switch.controller.nic_stats(&nic_id("a"))?;
    assert_eq!(
        stats.drops_out,
        [(DropReason::NoEgressRule, 1)],
        "without its group"
    );
    assert_eq!(
        (stats.frames_out, stats.bytes_out),
        (3, (2 * question.len() + other.len()) as u64)
    );
    let stats = switch.controller.group_stats(&web)?;
    assert_eq!((stats.rules[0].frames, stats.rules[0].flows), (1, 1));
    let flows = switch.controller.export_flows(Some(&nic_id("a")))?;
    assert_eq!(
        (flows.len(), flows[0].responder.address),
        (1, ip("42.0.0.2"))
    );
    assert_eq!(
        switch.controller.nics_by_uid()[&flows[0].responder.uid],
        nic_id("b")
    );

    switch.controller.delete_rule(&web, &rule)?;
    assert_eq!(switch.send("a", &question), [], "cut at once");
    switch
        .controller
        .add_rule(&web, allow_udp(53, Peer::Group(group_id("friends"))))?;
    assert_eq!(switch.send("a", &question), [], "a is not a friend");
    switch
        .controller
        .add_member(&group_id("friends"), a.ips[0])?;
    assert_eq!(switch.send("a", &question), to_b);
    switch.controller.delete_group(&group_id("friends"))?;
    assert_eq!(switch.send("a", &question), []);
    let befriended = Nic {
        security_groups: vec![group_id("friends")],
        ..a.clone()
    };
    switch.controller.put_nic(befriended)?;
    switch
        .controller
        .put_group(crate::model::Group::new(group_id("friends")))?;
    assert_eq!(
        switch.send("a", &question),
        to_b,
        "a is in the group that came back"
    );

    let sniffer = Nic {
        sniff_target: Some(nic_id("b")),
        ..nic("sniffer", 9, &[])
    };
    switch.controller.put_nic(sniffer)?;
    let both = [
        ("b".to_owned(), question.clone()),
        ("sniffer".to_owned(), question.clone()),
    ];
    assert_eq!(switch.send("a", &question), both);
    switch.controller.delete_nic(&nic_id("b"))?;
    assert_eq!(switch.send("a", &question), []);
    Ok(())
}

#[test]
fn a_refused_operation_changes_nothing_that_passes() -> Result<(), Error> {
    let mut switch = Switch::new();
    let (a, b) = (
        nic("a", 1, &[]),
        Nic {
            bypass_filtering: true,
            ..nic("b", 2, &[])
        },
    );
    switch.controller.put_nic(a.clone())?;
    switch.controller.put_nic(b.clone())?;
    let question = udp(&a, &b, 53);
    let to_b = [("b".to_owned(), question.clone())];
    assert_eq!(switch.send("a", &question), to_b);
    assert!(
        switch
            .controller
            .put_nic(Nic {
                mac: a.mac,
                ..b.clone()
            })
            .is_err()
    );
    assert!(switch.controller.put_nic(nic("c", 2, &[])).is_err());
    assert_eq!(switch.send("a", &question), to_b);
    Ok(())
}
