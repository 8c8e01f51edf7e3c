//! How somebody who has a part of the networks may have a NIC be, and which one be gone.

use std::collections::BTreeSet;

use control::model::{GroupId, Limits, Nic, NicId, NicKind, Veth, VethRoute};
use ipnet::IpNet;

use super::{Done, Permitted};

/// What a NIC is limited to; none where nothing is said.
fn limits(limits: Limits) -> Option<String> {
    (limits != Limits::default()).then(|| format!("{limits:?}"))
}

fn of_host_s(field: &str, id: &NicId) -> String {
    format!("the {field} of NIC '{id}', which is the whole host's")
}

/// What a NIC is in a container.
fn veth(nic: &Nic) -> Option<&Veth> {
    match &nic.kind {
        NicKind::Veth(veth) => Some(veth),
        _ => None,
    }
}

/// Several values as one; none where there are none.
fn listed(values: impl Iterator<Item: ToString>) -> Option<String> {
    let values: Vec<String> = values.map(|value| value.to_string()).collect();
    (!values.is_empty()).then(|| values.join(" "))
}

/// What a NIC has of a field, `None` where that is what NICs have when nothing is said.
type Field = fn(&Nic) -> Option<String>;

/// These reach files, interfaces and NICs beyond the network, or are what the host's operators hold
/// a NIC to.
const BEYOND: [(&str, Field); 18] = [
    ("path", |nic| nic.path.clone()),
    ("netns", |nic| {
        veth(nic).map(|veth| format!("{} {}", veth.netns, veth.ifname))
    }),
    // What is in that namespace is not the network's either, and the kernel there is told this.
    ("subnets", |nic| {
        let nets = veth(nic)?.subnets.iter();
        listed(nets.map(IpNet::trunc))
    }),
    ("gateways", |nic| listed(veth(nic)?.gateways.iter())),
    ("routes", |nic| {
        let routes = veth(nic)?.routes.iter();
        listed(routes.map(|route| VethRoute {
            to: route.to.trunc(),
            ..*route
        }))
    }),
    ("addresses", |nic| {
        veth(nic)?;
        listed(nic.host_addresses())
    }),
    ("socket_owner", |nic| nic.socket.owner.clone()),
    ("socket_group", |nic| nic.socket.group.clone()),
    ("socket_mode", |nic| nic.socket.mode_text()),
    ("vm_tap", |nic| match &nic.kind {
        NicKind::VmTap(tap) => Some(tap.to_string()),
        _ => None,
    }),
    ("packet_trace_path", |nic| nic.packet_trace_path.clone()),
    ("mirror", |nic| nic.mirror.as_ref().map(ToString::to_string)),
    ("sflow_rate", |nic| {
        nic.sflow_rate.map(|rate| rate.to_string())
    }),
    ("sniff_target", |nic| {
        nic.sniff_target.as_ref().map(NicId::to_string)
    }),
    // A TAP device is the host's own, and a bench sends as much as a core can.
    ("type", |nic| match &nic.kind {
        NicKind::Tap => Some("tap".to_owned()),
        NicKind::Bench(bench) => Some(format!("{bench:?}")),
        NicKind::VhostUser | NicKind::Veth(_) | NicKind::VmTap(_) => None,
    }),
    ("limit_in", |nic| limits(nic.limit_in)),
    ("limit_out", |nic| limits(nic.limit_out)),
    // With it no group says anything any more.
    ("bypass_filtering", |nic| {
        nic.bypass_filtering.then(|| "true".to_owned())
    }),
];

/// The first of these that a NIC would have other than before, or than NICs have.
fn beyond(old: Option<&Nic>, new: &Nic) -> Option<&'static str> {
    let same = |of: Field| match old {
        Some(old) => of(old) == of(new),
        None => of(new).is_none(),
    };
    let other = BEYOND.iter().find(|(_, of)| !same(*of));
    other.map(|(field, _)| *field)
}

impl Permitted<'_> {
    /// Whether a NIC may be deleted. One that has what its tenant may not take off it may not: it
    /// could be made anew without.
    pub(super) fn may_delete(&self, nic: &Nic) -> Done<()> {
        if self.is_whole() {
            return Ok(());
        }
        let id = &nic.id;
        let mut groups = nic.security_groups.iter();
        if let Some(group) = groups.find(|group| !self.sees_group(group)) {
            let what = format!("group '{group}', which NIC '{id}' would leave");
            return Err(self.not_ours(&what));
        }
        let traced = nic.packet_trace && !self.settings().trace_default;
        let of_host = BEYOND.iter().filter(|(_, of)| of(nic).is_some());
        let mut of_host = of_host.map(|(field, _)| *field);
        match of_host.next().or(traced.then_some("packet_trace")) {
            Some(field) => Err(self.not_ours(&of_host_s(field, id))),
            None => Ok(()),
        }
    }

    /// Whether a NIC may be made so: in a network of the caller's, and nothing about it reaches
    /// beyond that.
    pub(super) fn may_put(&self, new: &Nic) -> Done<()> {
        if self.is_whole() {
            return Ok(());
        }
        let reach = self.reach();
        let (id, vni) = (&new.id, new.vni);
        if !reach.has_network(vni) {
            return Err(self.not_ours(&format!("VNI {vni}, which NIC '{id}' would be in")));
        }
        let old = self.declared_nic(id)?;
        let old = old.as_deref();
        // A socket, a session and sniffers go by the id, and so does whoever had it before.
        if old.is_none_or(|old| old.vni != vni) && !reach.may_make_nic(id, vni) {
            return Err(self.not_ours(&format!("the id '{id}' for a NIC in VNI {vni}")));
        }
        let before: BTreeSet<&GroupId> = old
            .into_iter()
            .flat_map(|nic| &nic.security_groups)
            .collect();
        let after: BTreeSet<&GroupId> = new.security_groups.iter().collect();
        // Who joins a group is let in wherever that group is; who leaves one is rid of its rules.
        let mut moved = before.symmetric_difference(&after);
        if let Some(group) = moved.find(|group| !reach.has_group(group)) {
            let what = format!("group '{group}', which NIC '{id}' would join or leave");
            return Err(self.not_ours(&what));
        }
        if let Some(old) = old {
            self.may_readdress(old, new)?;
        }
        let said = new.sniff_vni.is_some();
        if said && new.sniff_vni != old.and_then(|old| old.sniff_vni) {
            return Err(self.not_ours(&of_host_s("sniff_vni", id)));
        }
        // A trace is a file of the host's that grows without end.
        let is_other = match old {
            Some(old) => new.packet_trace != old.packet_trace,
            None => new.packet_trace && !self.settings().trace_default,
        };
        if is_other {
            return Err(self.not_ours(&of_host_s("packet_trace", id)));
        }
        match beyond(old, new) {
            Some(field) => Err(self.not_ours(&of_host_s(field, id))),
            None => Ok(()),
        }
    }

    /// A group stands for the addresses of its NICs, wherever a rule names it: whose it is not has
    /// no say whom it stands for.
    fn may_readdress(&self, old: &Nic, new: &Nic) -> Done<()> {
        let addresses = |nic: &Nic| nic.host_addresses().collect::<BTreeSet<_>>();
        if addresses(old) == addresses(new) {
            return Ok(());
        }
        // One that it would leave was refused already.
        let mut groups = new.security_groups.iter();
        match groups.find(|group| !self.sees_group(group)) {
            Some(group) => {
                let id = &new.id;
                let what =
                    format!("other addresses of NIC '{id}', for which group '{group}' stands");
                Err(self.not_ours(&what))
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod() -> (Nic, Veth) {
        let id = NicId::new("pod").unwrap();
        let mac = "52:54:00:12:34:01".parse().unwrap();
        let veth = Veth {
            subnets: vec!["10.0.0.0/24".parse().unwrap()],
            gateways: vec!["10.0.0.254".parse().unwrap()],
            routes: vec![VethRoute {
                to: "10.9.0.0/16".parse().unwrap(),
                via: None,
            }],
            ..Veth::new("c1")
        };
        let nic = Nic {
            ips: vec!["10.0.0.1".parse().unwrap()],
            kind: NicKind::Veth(Box::new(veth.clone())),
            ..Nic::new(id, mac, wire::Vni::new(42).unwrap())
        };
        (nic, veth)
    }

    /// They are for a namespace of the host's, whoever's the network is.
    #[test]
    fn what_a_container_s_kernel_is_told_reaches_beyond_the_network() {
        type Change = fn(&mut Veth);
        let (nic, veth) = pod();
        assert_eq!(beyond(Some(&nic), &nic), None);
        assert_eq!(beyond(None, &nic), Some("netns"));
        let changes: [(&str, Change); 6] = [
            ("netns", |veth| veth.netns = "c2".into()),
            ("netns", |veth| veth.ifname = "eth1".into()),
            ("subnets", |veth| {
                veth.subnets.push("10.1.0.0/16".parse().unwrap());
            }),
            ("gateways", |veth| {
                veth.gateways = vec!["10.0.0.66".parse().unwrap()];
            }),
            ("routes", |veth| veth.routes.clear()),
            ("routes", |veth| {
                veth.routes[0].via = Some("10.0.0.66".parse().unwrap());
            }),
        ];
        for (field, change) in changes {
            let mut other = veth.clone();
            change(&mut other);
            let other = Nic {
                kind: NicKind::Veth(Box::new(other)),
                ..nic.clone()
            };
            assert_eq!(beyond(Some(&nic), &other), Some(field));
        }
        let other = Nic {
            ips: vec!["169.254.169.254".parse().unwrap()],
            ..nic.clone()
        };
        assert_eq!(beyond(Some(&nic), &other), Some("addresses"));
    }

    #[test]
    fn what_is_said_again_and_what_is_the_network_s_own_do_not() {
        let (nic, mut veth) = pod();
        // As it was written, with the bits of a host.
        veth.subnets = vec!["10.0.0.7/24".parse().unwrap()];
        let again = Nic {
            kind: NicKind::Veth(Box::new(veth)),
            link_down: true,
            ..nic.clone()
        };
        assert_eq!(beyond(Some(&nic), &again), None);
        let of_guest = |ip: &str| Nic {
            ips: vec![ip.parse().unwrap()],
            kind: NicKind::VhostUser,
            ..nic.clone()
        };
        let before = of_guest("10.0.0.1");
        assert_eq!(beyond(Some(&before), &of_guest("10.0.0.2")), None);
    }
}
