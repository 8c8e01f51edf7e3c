//! Flows out of and into the table, as plain data. A dump goes on bit by bit between the worker's
//! batches, so that a million flows do not stop the traffic while they are written down.

use std::sync::mpsc::Sender;

use wire::parse::protocol::TCP;

use crate::flow::{
    ACKED, Entry, FlowEnd, FlowId, FlowInfo, Flows, Key, NewFlow, Party, SEEN, Side, timeout_secs,
};
use crate::ids::PortUid;
use crate::snapshot::PortConfig;
use crate::stages::terms::{between, share};
use crate::time::Now;
use crate::view::View;

/// Entries looked at in one turn.
const STEP: u32 = 4096;

/// Flows whose places in the index are fetched at once.
const FETCHED: usize = 32;

/// Which flows are asked for at one time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlowPage {
    /// The first entry that is looked at.
    pub at: FlowId,
    /// So many flows at most.
    pub most: usize,
}

/// How far somebody has read the flows of all workers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FlowCursor {
    pub(crate) worker: usize,
    pub(crate) at: FlowId,
}

/// What a flow is found by: its key, who began it, and the key's hash.
pub(crate) type Named = (Key, Side, u64);

/// By their identities.
type Nics<'a> = hashbrown::HashMap<PortUid, &'a PortConfig, foldhash::fast::RandomState>;

/// A dump under way.
pub(crate) struct Dump {
    pub of: Option<PortUid>,
    pub page: FlowPage,
    pub found: Vec<FlowInfo>,
    pub answer: Sender<(Vec<FlowInfo>, Option<FlowId>)>,
}

impl Dump {
    /// Goes on; true when all entries were looked at or the page is full. Each worker dumps the
    /// flows that it has made.
    pub(crate) fn step(&mut self, flows: &Flows, epoch: u32, now: Now) -> bool {
        let end = flows.high().min(self.page.at.saturating_add(STEP));
        for id in self.page.at..end {
            if self.found.len() >= self.page.most {
                self.page.at = id;
                return true;
            }
            let entry = flows.entry(id);
            if entry.state.get() == 0 || !flows.is_mine(entry) {
                continue;
            }
            flows.fold(entry);
            if entry.expired(now.millis()) {
                continue;
            }
            let key = entry.key();
            if self
                .of
                .is_none_or(|uid| uid == key.uid(0) || uid == key.uid(1))
            {
                self.found.push(info(entry, &key, epoch, now));
            }
        }
        // The table may have become shorter meanwhile.
        self.page.at = end.max(self.page.at);
        self.page.at >= flows.high()
    }

    /// Says what was found, and where the next page begins. Who asked may have gone away.
    pub(crate) fn finish(&mut self, flows: &Flows) {
        let next = (self.page.at < flows.high()).then_some(self.page.at);
        let _ = self.answer.send((std::mem::take(&mut self.found), next));
    }
}

/// A flow as it stands, under the snapshot of this [mark](View::epoch_mark).
pub(crate) fn info(entry: &Entry, key: &Key, epoch: u32, now: Now) -> FlowInfo {
    let (initiator, responder) = (entry.initiator(), 1 - entry.initiator());
    let party = |side: usize| Party {
        uid: key.uid(side),
        address: key.address(side),
        port: key.port(side),
    };
    let (there, back) = (&entry.sides[initiator], &entry.sides[responder]);
    FlowInfo {
        protocol: key.protocol(),
        initiator: party(initiator),
        responder: party(responder),
        state: entry.state(),
        age_secs: now.secs().wrapping_sub(there.born_secs.get()),
        idle_secs: entry.idle_ms(now.millis()) / 1000,
        timeout_secs: entry.timeout_secs.get(),
        frames_out: there.frames.get(),
        bytes_out: there.bytes.get(),
        frames_in: back.frames.get(),
        bytes_in: back.bytes.get(),
        is_current: entry.epoch.get() == epoch,
        egress_rule: Entry::rule(there.rules[0].get()),
        ingress_rule: Entry::rule(there.rules[1].get()),
        tcp: (key.protocol() == TCP).then(|| entry.windows()),
    }
}

/// Adds flows that another worker, or this one before, has dumped. They are decided again with
/// their next packet. Gives how many were taken.
pub(crate) fn import(view: &View, flows: &mut Flows, infos: &[FlowInfo], now: Now) -> usize {
    let nics = nics(view);
    let mut taken = 0;
    each_named(
        flows,
        infos,
        |info| info,
        |flows, info, named| {
            let find = |uid| nics.get(&uid).copied();
            taken += usize::from(import_one(view, flows, find, info, named, now).is_some());
        },
    );
    taken
}

/// All NICs of a view, and what its networks are on other hosts.
fn nics(view: &View) -> Nics<'_> {
    let all = view.ports().chain(view.remotes());
    all.map(|config| (config.uid, config)).collect()
}

/// `None`: its ends are of two families.
pub(crate) fn named(flows: &Flows, info: &FlowInfo) -> Option<Named> {
    let v6 = info.initiator.address.is_ipv6();
    let ends = (info.initiator, info.responder);
    (info.responder.address.is_ipv6() == v6).then(|| {
        let (key, initiator) = Key::between(info.protocol, v6, ends);
        (key, initiator, flows.hash(&key))
    })
}

/// Calls `each` for those that have a name. Each misses the cache in its place of the index; so
/// these are fetched for a few at once.
pub(crate) fn each_named<T>(
    flows: &mut Flows,
    all: &[T],
    info: impl Fn(&T) -> &FlowInfo,
    mut each: impl FnMut(&mut Flows, &T, Named),
) {
    for part in all.chunks(FETCHED) {
        let mut names = [None; FETCHED];
        for (one, name) in part.iter().zip(&mut names) {
            *name = named(flows, info(one));
            if let Some((_, _, hash)) = name {
                flows.fetch_index(*hash);
            }
        }
        for (one, name) in part.iter().zip(names) {
            if let Some(name) = name {
                each(flows, one, name);
            }
        }
    }
}

/// Takes out those of these flows that are there, whichever worker has made them. Gives how many.
pub(crate) fn remove(flows: &mut Flows, which: &[FlowInfo]) -> usize {
    let mut removed = 0;
    for flow in which {
        let found = named(flows, flow).and_then(|(key, _, hash)| flows.find(&key, hash));
        if let Some(id) = found {
            flows.remove(id, FlowEnd::Killed);
            removed += 1;
        }
    }
    removed
}

/// Adds a flow between two of these NICs, if it is not there.
pub(crate) fn import_one<'a>(
    view: &View,
    flows: &mut Flows,
    nic: impl Fn(PortUid) -> Option<&'a PortConfig>,
    info: &FlowInfo,
    (key, initiator, hash): Named,
    now: Now,
) -> Option<FlowId> {
    let (from, to) = (nic(info.initiator.uid)?, nic(info.responder.uid)?);
    if from.uid == to.uid || from.network != to.network {
        return None;
    }
    if flows.find(&key, hash).is_some() {
        return None;
    }
    let new = NewFlow {
        key,
        hash,
        initiator,
        owner: from.slot,
        peer: to.slot,
        share: share(from, Some(to)),
        state: info.state,
        timeout_secs: timeout_secs(info.protocol, info.state, || between(Some(from), Some(to))),
        // A mark of no view that a worker may have, one of which may be behind by one: the next
        // packet asks the rules.
        epoch: view.epoch_mark().wrapping_sub(2),
        now_ms: now
            .millis()
            .wrapping_sub(info.idle_secs.saturating_mul(1000)),
        now_secs: now.secs().wrapping_sub(info.age_secs),
    };
    let fill = |entry: &Entry| {
        let sides = [&entry.sides[initiator], &entry.sides[1 - initiator]];
        sides[0].count(info.frames_out, info.bytes_out);
        sides[1].count(info.frames_in, info.bytes_in);
        if let Some(tcp) = &info.tcp {
            for (index, side) in sides.into_iter().enumerate() {
                side.end.set(tcp.end[index]);
                side.ack.set(tcp.ack[index]);
                side.edge.set(tcp.edge[index]);
                side.scale.set(tcp.scale[index].min(14));
                side.note_seen(tcp.seen_flags(index));
            }
        }
    };
    flows.insert_as(&new, fill).ok()?
}

impl crate::flow::TcpWindows {
    /// What was seen of a side: a side of which nothing was has all zeros.
    fn seen_flags(&self, side: usize) -> u8 {
        let seen = if self.end[side] != 0 { SEEN } else { 0 };
        let acked = if self.edge[side] != 0 || self.ack[side] != 0 {
            ACKED
        } else {
            0
        };
        seen | acked
    }
}
