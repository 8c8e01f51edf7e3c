//! One uplink of the engine: joined, followed, improved, left.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use io::packet_socket::Packets;
use io::port::Port;
use io::xsk::{Link, XskHandle};
use xdp::Tags;

use super::{Engine, lock};
use crate::facts::Fact;
use crate::interface::{self, JoinError, JoinRequest, Joined, Mode, Sockets};
use crate::plan::Wanted;

/// An interface that is joined.
pub(super) struct Active {
    pub ifindex: u32,
    pub link: Arc<Link>,
    pub mode: Mode,
    pub queues: u16,
    mtu_max: u32,
    pub sockets: Vec<XskHandle>,
    pub packet: Weak<OwnedFd>,
    /// What that is for.
    packets: Packets,
    /// Of the NICs below it, held while an address of ours is in a VLAN, or the kernel has VLANs on
    /// it: their tags are left where XDP sees them.
    tags: BTreeMap<u32, Arc<Tags>>,
    /// When a better mode is tried.
    pub retry: Retry,
    /// A port of it has broken.
    pub broken: Option<String>,
}

impl Engine {
    /// One uplink: joined, changed, left or joined anew.
    pub(super) fn follow(&mut self, number: u32, wanted: &Wanted) -> Fact {
        let mut fact = Fact {
            number,
            interface: wanted.name.clone(),
            ifindex: 0,
            joined: false,
            mode: String::new(),
            why: String::new(),
            queues: 0,
            mtu: 0,
            up: false,
            tap: false,
            of_kernel: false,
            mac: None,
            addresses: wanted.addresses.clone(),
        };
        let link = match &wanted.link {
            Ok(link) => link,
            Err(why) => {
                self.leave(number, why);
                fact.why.clone_from(why);
                return fact;
            }
        };
        let up = link.up && link.carrier;
        (fact.ifindex, fact.mtu, fact.up, fact.mac) = (link.index, link.mtu, up, link.mac);
        let packets = self.packets(wanted, link);
        if let Some(why) = self
            .active
            .get(&number)
            .and_then(|active| active.is_stale(link, packets))
        {
            self.leave(number, &why);
        }
        let done = match self.active.get_mut(&number) {
            None => self.join(number, wanted, link),
            Some(active) => {
                active.link.change(link.mtu, up);
                match active.retry.take(link.mtu) && !self.handed.is_apart() {
                    true => self.improve(number, wanted, link),
                    false => Ok(()),
                }
            }
        };
        if let Err(why) = done {
            if self
                .facts
                .iter()
                .all(|known| known.number != number || known.why != why)
            {
                tracing::warn!("uplink '{}' cannot be joined: {why}", wanted.name);
            }
            fact.why = why;
            return fact;
        }
        let remarks = [self.keep_tags(number, wanted).err(), self.untold_on(number)];
        if let Some(active) = self.active.get(&number) {
            fact.joined = true;
            fact.of_kernel = matches!(active.mode, Mode::Xdp { .. } | Mode::Packet { .. });
            fact.mode = active.mode.to_string();
            fact.why = active.mode.why().to_owned();
            for remark in remarks.into_iter().flatten() {
                let known = |known: &Fact| known.number == number && known.why.contains(&remark);
                if !self.facts.iter().any(known) {
                    tracing::warn!("uplink '{}': {remark}", wanted.name);
                }
                fact.why = match fact.why.as_str() {
                    "" => remark,
                    why => format!("{why}; {remark}"),
                };
            }
            fact.queues = u32::from(active.queues);
        }
        fact
    }

    /// Has NICs that take VLAN tags out before XDP sees them leave them in, while an address of
    /// ours is in a VLAN, or others are in one that they let in: what they send is in none then. Of
    /// a bond those are its ports. A packet socket gets them back, and DPDK has them taken out by
    /// nobody.
    ///
    /// # Errors
    /// One does not let go of it; the others do.
    fn keep_tags(&mut self, number: u32, wanted: &Wanted) -> Result<(), String> {
        let Some(active) = self.active.get_mut(&number) else {
            return Ok(());
        };
        if !matches!(active.mode, Mode::Xdp { .. }) {
            active.tags.clear();
            return Ok(());
        }
        active.tags.retain(|nic, _| wanted.trunks.contains(nic));
        let mut done = Ok(());
        for nic in &wanted.trunks {
            if active.tags.contains_key(nic) {
                continue;
            }
            match lock(&self.interfaces).keep_tags(*nic) {
                Ok(kept) => drop(active.tags.insert(*nic, kept)),
                Err(refused) => done = done.and(Err(refused.to_string())),
            }
        }
        done
    }

    /// Why packets to our addresses do not come by an uplink's program.
    fn untold_on(&self, number: u32) -> Option<String> {
        let active = self.active.get(&number)?;
        let by_program = matches!(active.mode, Mode::Xdp { .. });
        self.untold.clone().filter(|_| by_program)
    }

    /// What a packet socket is for: of one family, where all our addresses are of that and in no
    /// VLAN, so that programs at tc ingress see packets first. What comes in by a bridge's or a
    /// bond's port the kernel gives to that before any such socket. `None`: that cannot be told.
    fn packets(&self, wanted: &Wanted, link: &netlink::Link) -> Option<Packets> {
        let mut families = wanted.addresses.iter().map(IpAddr::is_ipv4);
        let v4 = families.next()?;
        let mut here = self.endpoints.iter();
        let tagged = here.any(|(ip, vlan)| *vlan != 0 && wanted.addresses.contains(ip));
        let one = families.all(|family| family == v4) && !tagged && link.master.is_none();
        Some(match (one, v4) {
            (false, _) => Packets::All,
            (true, true) => Packets::V4,
            (true, false) => Packets::V6,
        })
    }

    /// Joins in the best way there is, or as it was asked for.
    fn join(&mut self, number: u32, wanted: &Wanted, link: &netlink::Link) -> Result<(), String> {
        if let Some(dpdk) = self.dpdk.clone().filter(|dpdk| dpdk.name() == wanted.name) {
            let request = self.request(wanted, number, link);
            let joined = dpdk.join(&request, self.options.port)?;
            return self.install(number, None, &request, joined);
        }
        let request = self.request(wanted, number, link);
        let handed = self.handed.sockets(link.index);
        if self.options.packet && !matches!(handed, Some(Sockets::Packet { .. })) {
            if handed.is_some() {
                self.release(link.index);
            }
            let joined = interface::join_packet(&request, self.options.port, ASKED.to_owned());
            return self.install(number, None, &request, joined.map_err(|e| e.to_string())?);
        }
        if !self.options.packet {
            self.load();
        }
        if let Some(handed) = handed {
            let mut interfaces = lock(&self.interfaces);
            let port = self.options.port;
            let has_ended = self.handed.has_ended;
            let program = self.program();
            let joined =
                interface::go_on(program, &mut interfaces, &request, port, handed, has_ended);
            drop(interfaces);
            match joined {
                Err(why) if has_ended => {
                    tracing::info!(
                        "what is left of uplink '{}' is of no use: {why}",
                        wanted.name
                    );
                    self.release(link.index);
                }
                joined => return self.install(number, wanted.only_generic, &request, joined?),
            }
        }
        let joined = match self.program() {
            Err(why) => {
                interface::join_packet(&request, self.options.port, why).map_err(|e| e.to_string())
            }
            Ok(program) => {
                let mut interfaces = lock(&self.interfaces);
                interface::join(program, &mut interfaces, &request, self.options.port)
                    .map_err(|e| e.to_string())
            }
        };
        self.install(number, wanted.only_generic, &request, joined?)
    }

    /// Tries XDP in the place of a packet socket; what is stays when it is refused again.
    fn improve(
        &mut self,
        number: u32,
        wanted: &Wanted,
        link: &netlink::Link,
    ) -> Result<(), String> {
        let request = self.request(wanted, number, link);
        let Ok(program) = self.program() else {
            return Ok(());
        };
        let joined = interface::join_xdp(program, &mut lock(&self.interfaces), &request);
        let joined = match joined {
            Ok(joined) => joined,
            Err(error) => {
                // To attach a program and to detach it may cost a NIC packets.
                let attached = !matches!(error, JoinError::Attach(_));
                if let Some(active) = self.active.get_mut(&number) {
                    active.retry.failed(attached.then_some(link.mtu));
                }
                return Ok(());
            }
        };
        self.leave(number, "XDP is possible now");
        self.install(number, wanted.only_generic, &request, joined)
    }

    fn request(&self, wanted: &Wanted, number: u32, link: &netlink::Link) -> JoinRequest {
        JoinRequest {
            name: wanted.name.clone(),
            ifindex: link.index,
            number,
            queues: link.rx_queues.max(1),
            link: Arc::new(Link::new(link.mtu, link.up && link.carrier)),
            frames: self.options.frames,
            mode: wanted.only_generic.map(|_| xdp::Mode::Generic),
            busy_poll: self.options.busy_poll,
            is_virtual: link.kind.is_some(),
            packets: self.packets(wanted, link).unwrap_or_default(),
        }
    }

    /// Gives the ports to the workers. `only_generic`: why native mode was not asked for.
    pub(super) fn install(
        &mut self,
        number: u32,
        only_generic: Option<&str>,
        request: &JoinRequest,
        joined: Joined,
    ) -> Result<(), String> {
        let Joined {
            ports,
            sockets,
            packet,
            mut mode,
            mtu_max,
        } = joined;
        if let (Mode::Xdp { why_generic, .. }, Some(why)) = (&mut mode, only_generic) {
            *why_generic = Some(why.to_owned());
        }
        let queues = ports.len() as u16;
        let remark = match mode.why() {
            "" => String::new(),
            why => format!("; {why}"),
        };
        let mtu = request.link.mtu();
        tracing::info!(
            "uplink '{}' is joined: {mode}, {queues} queue(s), MTU {mtu}{remark}",
            request.name
        );
        let active = Active {
            ifindex: request.ifindex,
            link: request.link.clone(),
            queues,
            mtu_max,
            sockets,
            packet,
            packets: request.packets,
            tags: BTreeMap::new(),
            retry: Retry::default(),
            broken: None,
            mode,
        };
        self.active.insert(number, active);
        for (queue, port) in (0..).zip(ports) {
            if let Err(why) = self.ports.attach(number, queue, Port::from(port)) {
                self.leave(number, &why);
                return Err(why);
            }
        }
        self.hold(number);
        self.join_arrivals(number);
        Ok(())
    }

    /// Says that an uplink is joined by a packet socket that others are before, if it is.
    pub(super) fn join_arrivals(&self, number: u32) {
        if let (Some(arrivals), Some(active)) = (&self.arrivals, self.active.get(&number))
            && matches!(active.mode, Mode::Packet { .. })
            && active.packets != Packets::All
        {
            arrivals.join(number, active.ifindex);
        }
    }

    pub(super) fn leave_arrivals(&self, number: u32) {
        if let Some(arrivals) = &self.arrivals {
            arrivals.leave(number);
        }
    }

    /// The interface first, so that the kernel gets what no port would read any more; then the
    /// ports.
    pub(super) fn leave(&mut self, number: u32, why: &str) {
        let Some(active) = self.active.remove(&number) else {
            return;
        };
        self.leave_arrivals(number);
        let name = self.names.get(number as usize).cloned().unwrap_or_default();
        tracing::info!("uplink '{name}' is left: {why}");
        if let (Mode::Xdp { .. }, Some(Ok(program))) = (&active.mode, &self.program) {
            interface::leave(program, &mut lock(&self.interfaces), active.ifindex);
        }
        for queue in 0..active.queues {
            self.ports.detach(number, queue);
        }
        match active.mode {
            Mode::Tap { .. } => {
                self.release_tap(&name);
                self.station.close();
            }
            _ => self.release(active.ifindex),
        }
    }
}

/// Between two tries of a better mode are so many looks, and where sockets are refused so many
/// at the most.
const RETRY_LOOKS: u32 = 5;
const RETRY_LOOKS_MAX: u32 = 300;

/// When a better mode is tried again. Where a program can be attached and sockets are refused the
/// pause is twice as long each time, until the MTU is another.
pub(super) struct Retry {
    due: bool,
    /// Looks until it is due.
    left: u32,
    pause: u32,
    /// Sockets are refused with this MTU.
    refused: Option<u32>,
}

impl Default for Retry {
    fn default() -> Retry {
        Retry {
            due: false,
            left: RETRY_LOOKS,
            pause: RETRY_LOOKS,
            refused: None,
        }
    }
}

impl Retry {
    /// A look: true when it is due.
    pub(super) fn look(&mut self) -> bool {
        self.left = self.left.saturating_sub(1);
        self.due |= self.left == 0;
        self.due
    }

    /// True when it is to be tried now, with this MTU.
    fn take(&mut self, mtu: u32) -> bool {
        let is_another = self.refused.is_some_and(|refused| refused != mtu);
        std::mem::take(&mut self.due) || is_another
    }

    /// It was tried in vain; with this MTU sockets were refused, if a program could be attached.
    fn failed(&mut self, refused: Option<u32>) {
        self.pause = match refused.is_some() && refused == self.refused {
            true => RETRY_LOOKS_MAX.min(2 * self.pause),
            false => RETRY_LOOKS,
        };
        self.left = self.pause;
        self.refused = refused;
    }
}

/// Why there is no XDP, where the operator has said so.
const ASKED: &str = "--uplink-mode packet";

impl Active {
    /// Why it has to be joined anew, if it has to.
    fn is_stale(&self, link: &netlink::Link, packets: Option<Packets>) -> Option<String> {
        if self.ifindex != link.index {
            return Some("another interface has its name".to_owned());
        }
        if link.mtu > self.mtu_max {
            return Some(format!(
                "MTU {} is more than its buffers were made for",
                link.mtu
            ));
        }
        if let (Mode::Packet { .. }, Some(packets)) = (&self.mode, packets)
            && packets != self.packets
        {
            return Some("its packet socket is to be for other packets".to_owned());
        }
        self.broken.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks until it is due.
    fn wait(retry: &mut Retry) -> u32 {
        (1..).find(|_| retry.look()).unwrap_or(0)
    }

    #[test]
    fn where_sockets_are_refused_a_program_is_attached_less_and_less_often() {
        let mut retry = Retry::default();
        let mut waits = Vec::new();
        for _ in 0..9 {
            waits.push(wait(&mut retry));
            assert!(retry.take(9000) && !retry.take(9000));
            retry.failed(Some(9000));
        }
        assert_eq!(waits, [5, 5, 10, 20, 40, 80, 160, 300, 300]);
        // Another MTU may do, at once and as often as at first.
        assert!(retry.take(1500));
        retry.failed(Some(1500));
        assert_eq!(wait(&mut retry), 5);
        // What is in the way of a program costs nobody anything.
        for _ in 0..3 {
            assert!(retry.take(1500));
            retry.failed(None);
            assert_eq!(wait(&mut retry), 5);
        }
    }
}
