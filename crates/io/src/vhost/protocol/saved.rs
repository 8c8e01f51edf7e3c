//! A session as it is left to the next process: what its VMM has set up, as numbers and
//! descriptors.
//!
//! # How it works
//!
//! A VMM's connection ends when the last descriptor of it is closed. Who has sessions outlive the
//! process ([`SessionKeeper`]) has another one of it, and of all that came over it: the memory of
//! the guest and the eventfds of its rings. With them goes a record of what was negotiated, in
//! words of 64 bits. It is made anew after each message that has changed something.
//!
//! What was read of a connection cannot be read again by the next process, nor can what was half
//! answered be answered. So before anything is read from a VMM its session is released, and it is
//! held again when the message is done with and its reply is on its way: who is killed in between
//! loses the connection, as a process without a keeper does, and the VMM connects anew.
//!
//! Where rings are is not in the record: they show it themselves ([`resume`], and the used index of
//! a split ring), at whatever instant the process is killed. What a worker had taken and not given
//! back is taken again: such frames may come twice, and no descriptor is lost or given back twice.
//!
//! The next process takes the record as if its VMM said all of it anew: the same checks refuse what
//! cannot be, and the connection is closed then.
//!
//! Not held: a session whose VMM has a log of written pages, since a page could have been written
//! and not noted.
//!
//! [`resume`]: crate::vhost::virtqueue::resume

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::guest_memory::RegionSpec;
use crate::vhost::limits::{MAX_PAIRS, SLOTS_MAX};
use crate::vhost::protocol::message::RingValue;
use crate::vhost::protocol::request::{Request, RingAddresses, RingFd};
use crate::vhost::virtqueue::notifier::{self, NotifyFd};

/// The record's format: another number for whatever is changed.
const VERSION: u64 = 1;

/// Words before the regions, of a region and of a ring.
const HEAD: usize = 8;
const REGION: usize = 4;
const RING: usize = 8;

/// `flags` of a session.
const HAS_FEATURES: u64 = 1;
const HAS_MTU: u64 = 2;
const HAS_CHANNEL: u64 = 4;
const LINK_UP: u64 = 8;
const ARRIVING: u64 = 16;
/// The network's number is in the upper half of the flags, of which versions of before took no
/// notice.
const HAS_NETWORK: u64 = 32;
const NETWORK: u32 = 32;

/// Flags of a ring.
const HAS_ADDRESSES: u64 = 1;
const HAS_BASE: u64 = 2;
const HAS_KICK: u64 = 4;
const HAS_CALL: u64 = 8;
const STARTED: u64 = 16;
const ENABLED: u64 = 32;
const TURNED_OFF: u64 = 64;

/// Who has sessions outlive the process. Called from the server's one thread, which serves nobody
/// meanwhile.
pub trait SessionKeeper: Send + Sync {
    /// Holds the session of a NIC, by the name that its options have, instead of what was held of
    /// it. False: it cannot be held, and ends with this process.
    fn hold(&self, nic: &str, record: &[u8], fds: &[BorrowedFd<'_>]) -> bool;

    /// What is held of a NIC's session is not valid any more.
    fn release(&self, nic: &str);

    /// The session of a NIC has ended here. True: this process ends, and has left it to the next
    /// one.
    fn ended(&self, nic: &str) -> bool;

    /// The session of a NIC that a process before has left is not gone on with, but closed: what
    /// was left of it cannot be.
    fn closed(&self, nic: &str);
}

/// What was held of a session: of this process's [`SessionKeeper`], or of another's.
#[derive(Debug)]
pub struct LeftSession {
    /// See [`SessionKeeper::hold`].
    pub record: Vec<u8>,
    /// In the order in which they were held.
    pub fds: Vec<OwnedFd>,
    /// It is held for the next process, too, as long as nothing of it changes.
    pub is_held: bool,
}

/// Why a session that was left is not gone on with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("what was left of it {0}")]
pub struct LeftError(pub &'static str);

/// All that a session has, apart from the connection itself.
#[derive(Debug)]
pub(in crate::vhost) struct Saved<F> {
    pub features: Option<u64>,
    pub protocol_features: u64,
    pub mtu: Option<u64>,
    pub status: u64,
    pub link_up: bool,
    /// Pages of the guest's memory are still elsewhere (POSTCOPY_LISTEN).
    pub arriving: bool,
    /// Guest address, size, user address and offset of each, and its file.
    pub regions: Vec<([u64; REGION], F)>,
    pub rings: Vec<SavedRing<F>>,
}

/// A ring of it.
#[derive(Debug)]
pub(in crate::vhost) struct SavedRing<F> {
    pub size: u32,
    pub addresses: Option<RingAddresses>,
    pub base: Option<u32>,
    pub kick: Option<F>,
    pub call: Option<F>,
    pub started: bool,
    pub enabled: bool,
    pub turned_off: bool,
}

/// A connection and its session.
#[derive(Debug)]
pub(in crate::vhost) struct Resumed {
    pub socket: OwnedFd,
    pub channel: Option<OwnedFd>,
    /// The network that its NIC was in; `None`: it is not said, as by versions of before.
    pub network: Option<u32>,
    pub saved: Saved<OwnedFd>,
}

impl<'a> Saved<BorrowedFd<'a>> {
    /// The record, and the descriptors that go with it. `path` is where the connection was made,
    /// `network` which one the NIC is in.
    pub fn encode(
        &self,
        path: &[u8],
        network: Option<u32>,
        socket: BorrowedFd<'a>,
        channel: Option<BorrowedFd<'a>>,
    ) -> (Vec<u8>, Vec<BorrowedFd<'a>>) {
        let when = |is: bool, flag: u64| if is { flag } else { 0 };
        let flags = when(self.features.is_some(), HAS_FEATURES)
            | when(self.mtu.is_some(), HAS_MTU)
            | when(channel.is_some(), HAS_CHANNEL)
            | when(self.link_up, LINK_UP)
            | when(self.arriving, ARRIVING)
            | network.map_or(0, |network| HAS_NETWORK | (u64::from(network) << NETWORK));
        let mut words = vec![
            VERSION,
            flags,
            self.features.unwrap_or(0),
            self.protocol_features,
            self.mtu.unwrap_or(0),
            self.status,
            self.regions.len() as u64,
            self.rings.len() as u64,
        ];
        let mut fds = vec![socket];
        fds.extend(channel);
        for (numbers, file) in &self.regions {
            words.extend(numbers);
            fds.push(*file);
        }
        for ring in &self.rings {
            let flags = when(ring.addresses.is_some(), HAS_ADDRESSES)
                | when(ring.base.is_some(), HAS_BASE)
                | when(ring.kick.is_some(), HAS_KICK)
                | when(ring.call.is_some(), HAS_CALL)
                | when(ring.started, STARTED)
                | when(ring.enabled, ENABLED)
                | when(ring.turned_off, TURNED_OFF);
            let at = ring.addresses.unwrap_or(RingAddresses {
                index: 0,
                flags: 0,
                descriptors: 0,
                used: 0,
                available: 0,
                log: 0,
            });
            words.extend([
                flags,
                ring.size.into(),
                ring.base.unwrap_or(0).into(),
                at.flags.into(),
                at.descriptors,
                at.used,
                at.available,
                at.log,
            ]);
            fds.extend(ring.kick);
            fds.extend(ring.call);
        }
        let mut record: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        record.extend(path);
        (record, fds)
    }
}

impl Resumed {
    /// What a record says, whose connection was made at `path`. What it means is for the session to
    /// judge.
    pub fn decode(left: LeftSession, path: &[u8]) -> Result<Resumed, LeftError> {
        let words = left.record.as_chunks::<8>().0.iter();
        let words: Vec<u64> = words.map(|word| u64::from_le_bytes(*word)).collect();
        let [
            version,
            flags,
            features,
            protocol_features,
            mtu,
            status,
            regions,
            rings,
            ..,
        ] = words[..]
        else {
            return Err(LeftError("is too short"));
        };
        if version != VERSION {
            return Err(LeftError("is of another version"));
        }
        let most = u64::from(2 * MAX_PAIRS);
        if regions > SLOTS_MAX as u64 || rings > most {
            return Err(LeftError("has more regions or rings than there can be"));
        }
        let numbers = HEAD + REGION * regions as usize + RING * rings as usize;
        let (Some(words), Some(said)) = (words.get(..numbers), left.record.get(8 * numbers..))
        else {
            return Err(LeftError("is too short"));
        };
        if said != path {
            return Err(LeftError("is of another path"));
        }
        let mut fds = left.fds.into_iter();
        let mut next = || fds.next().ok_or(LeftError("lacks a descriptor"));
        let mut when = |is: bool| match is {
            true => next().map(Some),
            false => Ok(None),
        };
        let socket = when(true)?.ok_or(LeftError("lacks a descriptor"))?;
        let channel = when(flags & HAS_CHANNEL != 0)?;
        let (regions, rings) = words[HEAD..].split_at(REGION * regions as usize);
        let mut saved = Saved {
            features: (flags & HAS_FEATURES != 0).then_some(features),
            protocol_features,
            mtu: (flags & HAS_MTU != 0).then_some(mtu),
            status,
            link_up: flags & LINK_UP != 0,
            arriving: flags & ARRIVING != 0,
            regions: Vec::new(),
            rings: Vec::new(),
        };
        for region in regions.as_chunks::<REGION>().0 {
            let file = when(true)?.ok_or(LeftError("lacks a descriptor"))?;
            saved.regions.push((*region, file));
        }
        for (index, ring) in (0..).zip(rings.as_chunks::<RING>().0) {
            let [
                flags,
                size,
                base,
                log_flag,
                descriptors,
                used,
                available,
                log,
            ] = *ring;
            let small = |word: u64| {
                u32::try_from(word).map_err(|_| LeftError("has a number that cannot be"))
            };
            let addresses = RingAddresses {
                index,
                flags: small(log_flag)?,
                descriptors,
                used,
                available,
                log,
            };
            saved.rings.push(SavedRing {
                size: small(size)?,
                addresses: (flags & HAS_ADDRESSES != 0).then_some(addresses),
                base: (flags & HAS_BASE != 0).then_some(small(base)?),
                kick: when(flags & HAS_KICK != 0)?,
                call: when(flags & HAS_CALL != 0)?,
                started: flags & STARTED != 0,
                enabled: flags & ENABLED != 0,
                turned_off: flags & TURNED_OFF != 0,
            });
        }
        if fds.next().is_some() {
            return Err(LeftError("has descriptors of nothing"));
        }
        Ok(Resumed {
            socket,
            channel,
            network: (flags & HAS_NETWORK != 0).then_some((flags >> NETWORK) as u32),
            saved,
        })
    }
}

impl Saved<OwnedFd> {
    /// As if the VMM said all of it, in an order in which it can.
    pub fn into_requests(self) -> Vec<Request> {
        let mut requests = vec![Request::SetProtocolFeatures(self.protocol_features)];
        requests.extend(self.features.map(Request::SetFeatures));
        requests.extend(self.mtu.map(Request::NetSetMtu));
        if !self.regions.is_empty() {
            let region = |(numbers, fd): ([u64; REGION], OwnedFd)| {
                let [guest_addr, size, user_addr, mmap_offset] = numbers;
                RegionSpec {
                    guest_addr,
                    size,
                    user_addr,
                    mmap_offset,
                    fd,
                }
            };
            let regions = self.regions.into_iter().map(region);
            requests.push(Request::SetMemTable(regions.collect()));
        }
        for (index, ring) in (0..).zip(self.rings) {
            let value = |value| RingValue { index, value };
            if ring.size > 0 {
                requests.push(Request::SetVringNum(value(ring.size)));
            }
            requests.extend(ring.addresses.map(Request::SetVringAddr));
            requests.extend(ring.base.map(|base| Request::SetVringBase(value(base))));
            if ring.started {
                let fd = ring.kick;
                requests.push(Request::SetVringKick(RingFd { index, fd }));
            }
            if ring.call.is_some() {
                let fd = ring.call;
                requests.push(Request::SetVringCall(RingFd { index, fd }));
            }
            if ring.enabled || ring.turned_off {
                requests.push(Request::SetVringEnable(value(1)));
            }
            if ring.turned_off {
                requests.push(Request::SetVringEnable(value(0)));
            }
        }
        requests
    }
}

/// Descriptors of a ring that a worker has, for the record.
#[derive(Debug, Default)]
pub(in crate::vhost) struct Copies {
    kick: Option<NotifyFd>,
    call: Option<NotifyFd>,
}

impl Copies {
    /// For another kick that the VMM has given, or none.
    pub fn kick_mut(&mut self) -> &mut Option<NotifyFd> {
        &mut self.kick
    }

    /// For another call that the VMM has given, or none.
    pub fn call_mut(&mut self) -> &mut Option<NotifyFd> {
        &mut self.call
    }

    /// Notifies the guest, if there is a descriptor to do it with.
    pub fn raise_call(&self) {
        if let Some(call) = self.call.as_ref().filter(|call| call.is_eventfd()) {
            notifier::raise(call.as_fd());
        }
    }

    pub fn kick(&self) -> Option<BorrowedFd<'_>> {
        self.kick.as_ref().map(AsFd::as_fd)
    }

    pub fn call(&self) -> Option<BorrowedFd<'_>> {
        self.call.as_ref().map(AsFd::as_fd)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fds(count: usize) -> Vec<OwnedFd> {
        (0..count)
            .map(|_| rustix::pipe::pipe().unwrap().0)
            .collect()
    }

    fn record(fds: &[OwnedFd]) -> (Vec<u8>, usize) {
        let fd = |at: usize| fds[at].as_fd();
        let addresses = RingAddresses {
            index: 1,
            flags: 0,
            descriptors: 0x1000,
            used: 0x2000,
            available: 0x3000,
            log: 0x4000,
        };
        let saved = Saved {
            features: Some(7),
            protocol_features: 9,
            mtu: Some(1500),
            status: 15,
            link_up: true,
            arriving: true,
            regions: vec![([1, 2, 3, 4], fd(2)), ([5, 6, 7, 8], fd(3))],
            rings: vec![
                SavedRing {
                    size: 0,
                    addresses: None,
                    base: None,
                    kick: None,
                    call: None,
                    started: false,
                    enabled: false,
                    turned_off: false,
                },
                SavedRing {
                    size: 256,
                    addresses: Some(addresses),
                    base: Some(77),
                    kick: Some(fd(4)),
                    call: Some(fd(5)),
                    started: true,
                    enabled: false,
                    turned_off: true,
                },
            ],
        };
        let (record, sent) = saved.encode(b"/a/path", Some(0x00ff_ee01), fd(0), Some(fd(1)));
        (record, sent.len())
    }

    #[test]
    fn a_session_is_said_anew_as_it_was() {
        let own = fds(6);
        let (record, count) = record(&own);
        assert_eq!(count, 6);
        let left = LeftSession {
            record,
            fds: own,
            is_held: true,
        };
        let resumed = Resumed::decode(left, b"/a/path").unwrap();
        assert!(resumed.channel.is_some() && resumed.saved.link_up);
        assert_eq!(resumed.network, Some(0x00ff_ee01));
        assert_eq!(resumed.saved.status, 15);
        let said: Vec<String> = resumed
            .saved
            .into_requests()
            .iter()
            .map(|request| {
                let text = format!("{request:?}");
                text.split(['(', ' ']).next().unwrap().to_owned()
            })
            .collect();
        assert_eq!(
            said,
            [
                "SetProtocolFeatures",
                "SetFeatures",
                "NetSetMtu",
                "SetMemTable",
                "SetVringNum",
                "SetVringAddr",
                "SetVringBase",
                "SetVringKick",
                "SetVringCall",
                "SetVringEnable",
                "SetVringEnable"
            ]
        );
    }

    /// The words that versions of before had, which the next one takes up, and read themselves.
    #[test]
    fn a_record_of_before_says_no_network() {
        let own = fds(6);
        let (mut record, _) = record(&own);
        let upper = 8 + NETWORK as usize / 8;
        record[upper..upper + 4].fill(0);
        record[8] &= !(HAS_NETWORK as u8);
        let left = LeftSession {
            record,
            fds: own,
            is_held: true,
        };
        let resumed = Resumed::decode(left, b"/a/path").unwrap();
        assert!(resumed.network.is_none() && resumed.saved.link_up);
    }

    #[test]
    fn what_is_no_record_is_refused() {
        let (record, count) = record(&fds(6));
        let refused = |record: Vec<u8>, count, path: &[u8]| {
            let fds = fds(count);
            let is_held = true;
            Resumed::decode(
                LeftSession {
                    record,
                    fds,
                    is_held,
                },
                path,
            )
            .unwrap_err()
            .0
        };
        let path = b"/a/path";
        assert_eq!(
            refused(record.clone(), count, b"/a/pat"),
            "is of another path"
        );
        assert_eq!(
            refused(record.clone(), count - 1, path),
            "lacks a descriptor"
        );
        assert_eq!(
            refused(record.clone(), count + 1, path),
            "has descriptors of nothing"
        );
        assert_eq!(refused(record[..70].to_vec(), count, path), "is too short");
        let with = |at: usize, byte: u8| {
            let mut record = record.clone();
            record[at] = byte;
            record
        };
        assert_eq!(refused(with(0, 2), count, path), "is of another version");
        assert_eq!(
            refused(with(8 * 6 + 1, 1), count, path),
            "has more regions or rings than there can be"
        );
        assert_eq!(refused(with(8 * 7, 3), count, path), "is too short");
    }

    proptest! {
        /// Whatever is in it, nothing is read that is not there.
        #[test]
        fn any_bytes_are_a_record_or_none(
            changes in proptest::collection::vec((0usize..260, any::<u8>()), 0..20),
            len in 0usize..260,
            count in 0usize..8,
        ) {
            let (mut record, _) = record(&fds(6));
            for (at, byte) in changes {
                if let Some(there) = record.get_mut(at) {
                    *there = byte;
                }
            }
            record.truncate(len);
            let left = LeftSession { record, fds: fds(count), is_held: true };
            if let Ok(resumed) = Resumed::decode(left, b"/a/path") {
                prop_assert!(resumed.saved.regions.len() < count);
                resumed.saved.into_requests();
            }
        }
    }
}
