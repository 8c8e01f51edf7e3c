//! From a daemon that ends to the one that is started next: connections, and TAP devices by the
//! keeper. So neither a restart nor a crash breaks a connection.
//!
//! Connections are in memory that the keeper holds ([`FlowMemory`](dataplane::flow::FlowMemory)):
//! the daemon has its table of flows in it, whether it is killed or stopped. Without a keeper, and
//! where another program is there to be started next, which may be of another version, a daemon
//! that is *stopped* writes them to a file beside the sockets, which is gone when it was read. Its
//! format is that of the API, which every version reads. What a daemon that is stopped leaves is
//! exact: no frame is on its way any more. Of both the same is made, and is judged by the rules
//! that are in force when its next packet comes.
//!
//! What was counted and which MACs were learnt is in memory that the keeper holds, too
//! ([`StateMemory`](dataplane::StateMemory)), whichever way the daemon ends.

use std::collections::{BTreeSet, HashMap};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use control::model::NicKind;
use control::{Controller, Error};
use dataplane::{HandedOverMac, Left, LeftFlows, LeftLocation, LeftState, Location, Switch};
use io::vhost::{PortKey, Server};
use nix::unistd::Uid;

use crate::forgotten::{self, What};
use crate::held::Held;
use crate::{connections, upgrade, worker_thread};

/// The file's name, in the folder of sockets.
const FILE: &str = "connections";
/// Memories in which connections are looked for while frames move, at the most. Of more, which as
/// many daemons have left that ended one after the other, all are taken up before.
const MEMORIES_MAX: usize = 4;
/// Bytes that are read of it at the most: of as many connections as there can be.
const BYTES_MAX: u64 = 4 << 30;

/// What a daemon has left.
pub struct Connections {
    /// How many.
    pub count: usize,
    /// They are in the memory that the keeper holds, and not in the file.
    pub in_memory: bool,
}

/// Takes all ports from the workers and leaves the connections that are there. The next thing is
/// the end.
pub fn leave(
    controller: &Controller,
    switch: &Arc<Switch>,
    vhost: &Server,
    folder: &Path,
) -> Result<Connections, String> {
    if let Some(kernel) = switch.kernel_flows() {
        kernel.close();
    }
    // That all is taken down now is this daemon's affair.
    if let Some(memory) = switch.state_memory() {
        memory.leave();
    }
    let mut queues = Vec::new();
    for status in controller.nics() {
        if status.nic.kind == NicKind::VhostUser {
            vhost.close(PortKey(status.slot.0));
        } else {
            // Another one has one queue.
            queues.push(status.slot.into());
        }
    }
    drop(switch.detach_all(&queues));
    if !upgrade::was_replaced()
        && let Some(left) = leave_in_memory(switch)
    {
        return Ok(left);
    }
    let failed = |e: Error| format!("connections cannot be read: {e}");
    let (bytes, count) = connections::export_all(controller).map_err(failed)?;
    let path = folder.join(FILE);
    if count > 0
        && let Err(e) = write(&path, &bytes)
    {
        let why = format!("{}: {e}", path.display());
        // Who comes next may read the memory all the same: most versions do.
        let Some(left) = leave_in_memory(switch) else {
            return Err(why);
        };
        tracing::warn!("{why}: connections are left in memory alone");
        return Ok(left);
    }
    Ok(Connections {
        count,
        in_memory: false,
    })
}

/// `None`: they are in no memory, or cannot be left there.
fn leave_in_memory(switch: &Switch) -> Option<Connections> {
    match switch.leave_flows()? {
        Ok(count) => Some(Connections {
            count,
            in_memory: true,
        }),
        Err(why) => {
            tracing::warn!("connections are not left in memory: {why}");
            None
        }
    }
}

/// Whether a daemon has left connections in this folder.
pub fn are_left(folder: &Path) -> bool {
    folder.join(FILE).exists()
}

/// Takes up the connections that a daemon has left; how many. The file is gone then.
pub fn take(controller: &mut Controller, folder: &Path) -> Result<usize, String> {
    let path = folder.join(FILE);
    let failed = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
    let Some((bytes, left)) = read(&path).map_err(|e| failed(&e))? else {
        return Ok(0);
    };
    let since = SystemTime::now().duration_since(left).unwrap_or_default();
    let taken = connections::import_all(controller, &bytes, since.as_secs());
    taken.map_err(|e| failed(&e))
}

/// Connections of the daemon before that are taken up while frames move.
#[derive(Clone)]
pub struct LeftConnections(Arc<LeftFlows>);

impl LeftConnections {
    /// Has those looked for in what was left, by the switch, which packets are of, between those
    /// who are here now. `None`: it is of a version that they cannot be looked for in.
    fn begin(
        controller: &Controller,
        switch: &Switch,
        left: Vec<Left>,
    ) -> Result<Option<LeftConnections>, String> {
        let each = left.into_iter().map(|left| {
            let successors = connections::successors(controller, &left);
            (left, successors)
        });
        let flows = LeftFlows::new(each.collect()).map_err(|e| e.to_string())?;
        let Some(flows) = flows.map(Arc::new) else {
            return Ok(None);
        };
        switch.begin_left(&flows).map_err(|e| e.to_string())?;
        Ok(Some(LeftConnections(flows)))
    }

    /// Takes up all others on a thread of its own; then the keeper lets that memory go.
    pub fn take_up(self, switch: Arc<Switch>, held: Arc<Held>) -> Result<(), String> {
        let take_up = move || {
            let start = Instant::now();
            // What moves frames is to have the cores first.
            let _ = rustix::process::setpriority_process(None, worker_thread::BEHIND_FRAMES);
            match switch.take_up_left(&self.0, worker_thread::now()) {
                Ok((taken, untrue)) => {
                    say_taken(taken, untrue);
                    let ms = start.elapsed().as_millis();
                    tracing::debug!("all of them are taken up, in {ms} ms");
                }
                Err(why) => tracing::error!("not all connections are taken up: {why}"),
            }
            // What could not be read today is out of date tomorrow.
            held.release_flows_before();
        };
        let thread = std::thread::Builder::new().name("left-flows".into());
        let thread = thread.spawn(take_up);
        let failed = |e| format!("the thread that takes up connections cannot be started: {e}");
        thread.map(drop).map_err(failed)
    }
}

/// Takes up the connections that daemons have left in memory, and has this one's memory held
/// besides. Who is killed in between leaves what was left to it. What is returned is still to be
/// taken up. Of daemons that have ended amid that there are several memories: what is newer goes
/// before what is older.
pub fn take_memory(
    controller: &Controller,
    switch: &Switch,
    held: &Held,
) -> Option<LeftConnections> {
    let failed = |why: String| tracing::error!("connections are not taken up from memory: {why}");
    let all = held.flows().and_then(|left| {
        let mut all: Vec<OwnedFd> = left.into_iter().chain(held.flows_before()?).collect();
        // Who was killed between two words to the keeper has one held twice.
        let is = |memory: &OwnedFd| rustix::fs::fstat(memory).map(|stat| stat.st_ino).ok();
        all.dedup_by_key(|memory| is(memory));
        Ok(all)
    });
    let all = all.map_err(|e| failed(e.to_string())).unwrap_or_default();
    if all.len() > 1 {
        tracing::info!("the daemon before has ended while it took connections up");
    }
    let opened = all.iter().map(|left| Left::open(left.as_fd()));
    let opened: Result<Vec<Left>, _> = opened.collect();
    let begun = match opened {
        Ok(opened) if (1..=MEMORIES_MAX).contains(&opened.len()) => {
            LeftConnections::begin(controller, switch, opened)
        }
        // What cannot be read is named where it is tried.
        _ => Ok(None),
    };
    let begun = begun.map_err(failed).unwrap_or_default();
    if begun.is_none() {
        for left in &all {
            match take_left(controller, left) {
                Ok((taken, untrue)) => say_taken(taken, untrue),
                Err(why) => {
                    forgotten::count(What::Memory, 1);
                    failed(why);
                }
            }
        }
    }
    hold(switch, held, begun.as_ref());
    if begun.is_none() {
        held.release_flows_before();
    }
    begun
}

/// Has this daemon's memory of connections held, and besides it those that not all are taken up
/// from.
fn hold(switch: &Switch, held: &Held, left: Option<&LeftConnections>) {
    if let Some(memory) = switch.flow_memory() {
        let left = left.into_iter().flat_map(|left| left.0.memories());
        held.hold_flows(memory.descriptor(), &left.collect::<Vec<_>>());
    }
}

fn say_taken(taken: usize, untrue: u64) {
    if taken > 0 {
        tracing::info!("{taken} connections go on");
    }
    say_untrue(untrue, What::Connection, "connections");
}

/// Takes up the connections in the memory of a daemon that gives way to this one and stands still,
/// of as many places as it has used. What is returned is still to be taken up.
pub fn take_flows(
    controller: &Controller,
    switch: &Switch,
    memory: &OwnedFd,
    used: u64,
) -> Result<Option<LeftConnections>, Error> {
    let open = || {
        let left = Left::open(memory.as_fd()).map_err(|e| Error::Invalid(e.to_string()));
        left.map(|left| left.first(used))
    };
    let begun = LeftConnections::begin(controller, switch, vec![open()?]);
    let begun = begun.map_err(Error::Invalid)?;
    if begun.is_none() {
        let now = worker_thread::now();
        let (taken, untrue) = connections::import_left(controller, &open()?, now)?;
        say_taken(taken, untrue);
    }
    Ok(begun)
}

/// Whether this version can read the memory of connections of another daemon; else why not.
pub fn is_readable(memory: &OwnedFd) -> std::io::Result<()> {
    Left::open(memory.as_fd()).map(drop)
}

/// Goes on counting where the daemon before has ended, learns what it had learnt, and has this
/// one's memory of both held instead.
pub fn take_state(controller: &mut Controller, switch: &Switch, held: &Held) {
    match held.state() {
        Ok(None) => (),
        Ok(Some(left)) => {
            take_macs(controller, switch, &left);
            take_counts(controller, &left);
        }
        Err(why) => tracing::error!("counters begin anew, and no MAC is learnt yet: {why}"),
    }
    if let Some(memory) = switch.state_memory() {
        held.hold_state(memory.descriptor());
    }
}

/// Hosts behind which the daemon before has heard MACs, each once, those heard of last behind the
/// others: frames will be for them. It may still run. None where its memory cannot be read; that is
/// said when it is taken up.
pub fn learnt_hosts(held: &Held) -> Vec<IpAddr> {
    let Some(left) = held.look_at_state() else {
        return Vec::new();
    };
    let macs = LeftState::open(left.as_fd()).and_then(|left| left.macs(worker_thread::now()));
    let macs = macs.map_or_else(|_| Vec::new(), |(macs, _)| macs);
    let mut hosts = BTreeSet::new();
    let newest_first = macs.iter().rev().filter_map(|mac| match mac.location {
        LeftLocation::Host(host) => hosts.insert(host).then_some(host),
        LeftLocation::Nic(_) => None,
    });
    let mut learnt: Vec<IpAddr> = newest_first.collect();
    learnt.reverse();
    learnt
}

/// Learns the MACs that the daemon before had learnt.
pub fn take_macs(controller: &Controller, switch: &Switch, left: &OwnedFd) {
    let take = || -> Result<(usize, u64), String> {
        let left = LeftState::open(left.as_fd()).map_err(|e| e.to_string())?;
        let (macs, untrue) = left.macs(worker_thread::now()).map_err(|e| e.to_string())?;
        if macs.is_empty() {
            return Ok((0, untrue));
        }
        let nics = controller.nics();
        let nics: HashMap<_, _> = nics
            .map(|nic| {
                let place = Location::Nic(nic.slot, nic.uid);
                (control::nic_key(&nic.nic.id), (nic.nic.vni, place))
            })
            .collect();
        let heard = macs.iter().filter_map(|mac| {
            let location = match mac.location {
                LeftLocation::Host(host) => Location::Host(host),
                LeftLocation::Nic(key) => {
                    let (vni, place) = nics.get(&key)?;
                    (*vni == mac.vni).then_some(*place)?
                }
            };
            Some(HandedOverMac {
                vni: mac.vni,
                mac: mac.mac,
                location,
                heard_secs: mac.heard_secs,
            })
        });
        let taken = switch.learn(heard.collect()).map_err(|e| e.to_string())?;
        Ok((taken, untrue))
    };
    match take() {
        Ok((taken, untrue)) => {
            if taken > 0 {
                tracing::info!("{taken} MACs are known that the daemon before had learnt");
            }
            say_untrue(untrue, What::Mac, "learnt MACs");
        }
        Err(why) => tracing::warn!("MACs are to be learnt anew: {why}"),
    }
}

/// Goes on counting where the daemon before has ended.
pub fn take_counts(controller: &mut Controller, left: &OwnedFd) {
    let counts = LeftState::open(left.as_fd()).and_then(|left| left.counts());
    match counts {
        Ok(counts) => {
            controller.carry_counts(&counts);
            say_untrue(counts.untrue, What::Counter, "counters");
        }
        Err(why) => {
            forgotten::count(What::Memory, 1);
            tracing::warn!("counters of NICs and rules begin anew: {why}");
        }
    }
}

fn say_untrue(untrue: u64, what: What, named: &str) {
    forgotten::count(what, untrue);
    if untrue > 0 {
        tracing::warn!("{untrue} {named} that were left in memory cannot be: they are forgotten");
    }
}

/// Becomes the keeper's client, which the daemon before was, and has this one's memory of
/// connections and of counters held in the place of that one's. `is_whole`: all is there that is
/// stored; of what is not something may be left, for the next start.
pub fn enter(held: &Held, switch: &Switch, left: Option<&LeftConnections>, is_whole: bool) {
    held.enter();
    hold(switch, held, left);
    if let Some(memory) = switch.state_memory() {
        held.hold_state(memory.descriptor());
    }
    if is_whole {
        held.release_left();
    }
}

fn take_left(controller: &Controller, left: &OwnedFd) -> Result<(usize, u64), String> {
    let left = Left::open(left.as_fd()).map_err(|e| e.to_string())?;
    connections::import_left(controller, &left, worker_thread::now()).map_err(|e| e.to_string())
}

fn write(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let new = path.with_extension("new");
    let _ = std::fs::remove_file(&new);
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&new)?;
    let written = file.write_all(bytes);
    let named = written.and_then(|()| std::fs::rename(&new, path));
    if named.is_err() {
        // It takes the room of what is written next.
        let _ = std::fs::remove_file(&new);
    }
    named
}

/// What is in it, and since when.
fn read(path: &Path) -> std::io::Result<Option<(Vec<u8>, SystemTime)>> {
    use rustix::fs::OFlags;

    // A pipe that somebody has put there would keep the daemon from starting.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file: File = match OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits() as i32)
        .open(path)
    {
        Ok(file) => file,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    std::fs::remove_file(path)?;
    let meta = file.metadata()?;
    let ours = [0, Uid::effective().as_raw()].contains(&meta.uid());
    if !meta.is_file() || !ours || meta.mode() & 0o022 != 0 {
        return Err(std::io::Error::other(
            "it is not the daemon's, or others can write to it: it is not read",
        ));
    }
    let mut bytes = Vec::new();
    file.take(BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(Some((bytes, meta.modified()?)))
}
