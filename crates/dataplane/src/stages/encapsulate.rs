//! Step 12: what passed and is for other hosts gets its next hops, one for each host that it is
//! for. What is too large for the way there, or for the NIC of this host that it is for, goes back
//! to its sender as an error that says how large it may be (path MTU discovery: RFC 1191, RFC
//! 8201). What is for a host whose next hop is not known yet is left to
//! [`wait`](crate::stages::wait).

use std::net::IpAddr;

use wire::build;
use wire::offload::Gso;
use wire::parse::{ETHERNET_LEN, IpPacket, L4, Packet, ethertype};
use wire::vxlan;

use crate::drop_reason::DropReason;
use crate::ids::PortSlot;
use crate::overlay::{Flood, Towards};
use crate::round::Wait;
use crate::round::{Case, Job, Round, Verdict};

/// Two VLAN tags.
const TAGS_LEN: usize = 8;

pub(crate) fn run(round: &mut Round) {
    for index in 0..round.jobs.len() {
        let job = round.jobs[index];
        if job.verdict != Verdict::Pass {
            continue;
        }
        if job.target.remote_of().is_none() {
            fit(round, index, job);
            continue;
        }
        let Some(case) = round.cases.get(job.case as usize) else {
            continue;
        };
        match case.towards {
            // No job for a remote is without a direction.
            Towards::Here => {
                round.jobs[index].verdict = Verdict::DropFrom(DropReason::NoDestination)
            }
            Towards::Host(host) => round.jobs[index] = send(round, job, host),
            Towards::All => flood(round, index, job),
        }
    }
}

/// What is for a NIC of this host is not larger than that takes.
fn fit(round: &mut Round, index: usize, job: Job) {
    let Some(case) = round.cases.get(job.case as usize) else {
        return;
    };
    let (item, target) = (case.item, round.view.port(job.target));
    let (Some(target), Some(packet)) = (target, round.items[item].packet) else {
        return;
    };
    let mtu = usize::from(target.mtu);
    // Tags are no part of an IP packet; of others it is not known how many they have.
    let front = packet
        .ip()
        .map_or(ETHERNET_LEN + TAGS_LEN, |ip| usize::from(ip.l3));
    if round.frame(item).len() > front + mtu && largest(round, item, &packet) > front + mtu {
        report(round, item, &packet, mtu);
        round.jobs[index].verdict = Verdict::DropTo(DropReason::MtuExceeded);
    }
}

/// To all hosts of the network: one job becomes as many as there are.
fn flood(round: &mut Round, index: usize, job: Job) {
    flood_to(round, index, job, |_| true);
}

/// To those of them that `wanted` says.
fn flood_to(round: &mut Round, index: usize, job: Job, wanted: impl Fn(IpAddr) -> bool) {
    let (view, network) = (round.view, round.view.network(round.nic.network));
    let overlay = network.and_then(|network| network.overlay.as_deref());
    let mut first = true;
    let mut add = |round: &mut Round, host: IpAddr| {
        let job = send(round, job, host);
        match std::mem::take(&mut first) {
            true => round.jobs[index] = job,
            false => round.jobs.push(job),
        }
    };
    match overlay.map(|overlay| &overlay.flood) {
        Some(Flood::Hosts(list)) => {
            let hosts = list.iter().filter_map(|host| view.host(*host));
            for host in hosts.filter(|host| wanted(*host)) {
                add(round, host);
            }
        }
        Some(Flood::Group(group)) if wanted(*group) => add(round, *group),
        Some(Flood::Group(_) | Flood::No) | None => {}
    }
    if first {
        round.jobs[index].verdict = Verdict::DropFrom(DropReason::NoDestination);
    }
}

/// The next hops of a frame that has waited: to `towards` of those that it is for.
pub(crate) fn again(round: &mut Round, index: usize, towards: &[IpAddr]) {
    let job = round.jobs[index];
    let Some(case) = round.cases.get(job.case as usize) else {
        return;
    };
    round.jobs[index] = match case.towards {
        Towards::Here => return,
        Towards::Host(host) if round.underlay.knows(host) => send(round, job, host),
        // It is somewhere else by now.
        Towards::Host(_) => Job {
            verdict: Verdict::DropFrom(DropReason::NextHopTimeout),
            ..job
        },
        Towards::All => return flood_to(round, index, job, |host| towards.contains(&host)),
    };
}

/// The job for one host.
fn send(round: &mut Round, job: Job, host: IpAddr) -> Job {
    let refused = |reason| Job {
        verdict: Verdict::DropFrom(reason),
        ..job
    };
    let Case { item, towards, .. } = round.cases[job.case as usize];
    let Some(path) = round.underlay.find(host) else {
        if round.underlay.knows(host) {
            round.wanted.note(host);
            return refused(DropReason::NoNextHop);
        }
        round.waits.push(Wait {
            item,
            host,
            flooded: towards == Towards::All,
        });
        return Job {
            verdict: Verdict::Wait,
            ..job
        };
    };
    let Some(packet) = round.items[item].packet else {
        return refused(DropReason::NoDestination);
    };
    let max_frame = round.underlay.max_frame(path);
    if largest(round, item, &packet) > max_frame as usize {
        report(round, item, &packet, max_frame as usize - ETHERNET_LEN);
        return refused(DropReason::MtuExceeded);
    }
    let hash = vxlan::flow_hash(&packet);
    Job {
        target: PortSlot::hop(round.underlay.choose(path, hash)),
        steer: hash,
        ..job
    }
}

/// Bytes of the largest frame that a frame becomes.
fn largest(round: &Round, item: usize, packet: &Packet) -> usize {
    let frame = round.frame(item);
    if frame.offload.gso == Gso::None {
        return frame.len();
    }
    let header_end = packet.ip().map_or(0, |ip| match ip.l4_info {
        L4::Tcp { header_len, .. } => usize::from(ip.l4) + usize::from(header_len),
        _ => usize::from(ip.l4) + 8,
    });
    (header_end + usize::from(frame.offload.gso_size)).min(frame.len())
}

/// Tells the sender that packets to there may not be larger than `mtu` bytes.
#[cold]
fn report(round: &mut Round, item: usize, packet: &Packet, mtu: usize) {
    let Some(ip) = packet.ip().filter(|ip| may_be_reported(packet, ip)) else {
        return;
    };
    if round.is_from_wire()
        || !round
            .replies
            .may_send_error(round.nic.slot, round.now.secs())
    {
        return;
    }
    let head = round.frame(item).head();
    // What IPv4 routers quote keeps the error within 576 bytes (RFC 1812, section 4.3.2.3), and a
    // head is shorter.
    let quote = &head[usize::from(ip.l3)..head.len().min(ip.end as usize)];
    let mtu = mtu.min(u16::MAX.into()) as u32;
    let error = build::frame(packet.dst, packet.src).ip(ip.dst(), ip.src());
    let error = match packet.ethertype == ethertype::IPV6 {
        true => error.icmp(2, 0, mtu),
        false => error.icmp(3, 4, mtu),
    };
    let error = error.payload(quote).build();
    round.replies.push(round.items[item].frame, None, &error);
}

/// No error is sent about an error, about what many would get, or about what is not the first
/// fragment (RFC 1122, section 3.2.2). RFC 4443 would have IPv6 senders told of multicasts too, but
/// from an address, which we have not.
fn may_be_reported(packet: &Packet, ip: &IpPacket) -> bool {
    let to_many = packet.dst.is_multicast() || ip.dst().is_multicast();
    let later = ip.is_later_fragment();
    let from_one = !ip.src().is_unspecified() && !ip.src().is_multicast();
    !ip.is_icmp_error() && !to_many && !later && from_one
}
