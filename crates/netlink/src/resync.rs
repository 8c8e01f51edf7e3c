//! Dumps: what can be asked for, and one being read. Used by the mirror's task at its start and in
//! doubt.

use crate::message::{Request, messages};
use crate::mirror::Kinds;
use crate::model::Family;
use crate::socket::Socket;
use crate::tables::Tables;
use crate::uapi::*;
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::io;

/// How many changes are kept while a dump is read: 60 MB or so.
const BUFFERED_MAX: usize = 250_000;

/// A table that can be dumped by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum What {
    Links,
    Addresses(Family),
    NextHops,
    Rules(Family),
    Settings(Family),
    Neighbours(Family),
    Routes(Family),
}

impl What {
    /// Every kind.
    pub fn all() -> BTreeSet<What> {
        let families = [Family::V4, Family::V6];
        let of = [
            What::Addresses,
            What::Rules,
            What::Settings,
            What::Neighbours,
            What::Routes,
        ];
        let both = of.into_iter().flat_map(|make| families.map(make));
        [What::Links, What::NextHops]
            .into_iter()
            .chain(both)
            .collect()
    }

    pub fn kinds(self) -> Kinds {
        match self {
            Self::Links => Kinds::LINKS,
            Self::Addresses(_) => Kinds::ADDRESSES,
            Self::NextHops => Kinds::NEXTHOPS,
            Self::Rules(_) => Kinds::RULES,
            Self::Settings(_) => Kinds::SETTINGS,
            Self::Neighbours(_) => Kinds::NEIGHBOURS,
            Self::Routes(_) => Kinds::ROUTES,
        }
    }

    /// The kernel takes some of it away without a message.
    pub fn goes_silently(self) -> bool {
        matches!(self, Self::NextHops | Self::Routes(_))
    }

    /// The request's type, its family, and the length of its fixed part.
    fn request(self) -> (u16, u8, usize) {
        match self {
            Self::Links => (RTM_GETLINK, 0, 16),
            Self::Addresses(family) => (RTM_GETADDR, family.code(), 8),
            Self::NextHops => (RTM_GETNEXTHOP, 0, 8),
            Self::Rules(family) => (RTM_GETRULE, family.code(), 12),
            Self::Settings(family) => (RTM_GETNETCONF, family.code(), 4),
            Self::Neighbours(family) => (RTM_GETNEIGH, family.code(), 12),
            Self::Routes(family) => (RTM_GETROUTE, family.code(), 12),
        }
    }
}

/// A run of dumps, one after the other. What they found is complete only at the end: `fresh` is
/// then for [`Tables::replace`], once for each of `wanted`.
#[derive(Debug)]
pub struct Resync {
    pub wanted: BTreeSet<What>,
    pub fresh: Tables,
    /// What the groups said since it began.
    buffered: Vec<Vec<u8>>,
    /// More was said than is kept: what the dump found is not to be used.
    pub overflowed: bool,
    left: Vec<What>,
    sequence: u32,
    interrupted: bool,
}

impl Resync {
    /// Begins to ask for all of `wanted`, which is not empty, to be put into `fresh`. The socket
    /// must not have an answer outstanding.
    pub fn start(
        socket: &Socket,
        wanted: BTreeSet<What>,
        sequence: u32,
        fresh: Tables,
    ) -> io::Result<Self> {
        let left = wanted.iter().rev().copied().collect();
        let resync = Self {
            wanted,
            fresh,
            buffered: Vec::new(),
            overflowed: false,
            left,
            sequence,
            interrupted: false,
        };
        resync.ask(socket)?;
        Ok(resync)
    }

    /// Keeps a datagram of the groups for the end.
    pub fn buffer(&mut self, datagram: &[u8]) {
        self.overflowed |= self.buffered.len() == BUFFERED_MAX;
        if self.overflowed {
            self.buffered.clear();
        } else {
            self.buffered.push(datagram.to_vec());
        }
    }

    /// What the groups said meanwhile, in its order.
    pub fn buffered(&self) -> impl Iterator<Item = &[u8]> {
        self.buffered.iter().map(Vec::as_slice)
    }

    /// Takes in a datagram of the answer. True when all is there.
    pub fn take(&mut self, socket: &Socket, datagram: &[u8]) -> io::Result<bool> {
        for message in messages(datagram) {
            if message.sequence != self.sequence {
                continue;
            }
            self.interrupted |= message.flags & NLM_F_DUMP_INTR != 0;
            match message.end_of_dump() {
                Some(end) => return self.next(socket, end),
                None => drop(self.fresh.apply(&message)),
            }
        }
        Ok(false)
    }

    /// One dump has ended: again if the kernel says that it is torn, else the next.
    fn next(&mut self, socket: &Socket, end: io::Result<()>) -> io::Result<bool> {
        // A kernel without IPv6 has none of its tables; any other error is one.
        let none = [Errno::OPNOTSUPP, Errno::AFNOSUPPORT].map(Errno::raw_os_error);
        match end {
            Err(error)
                if !error
                    .raw_os_error()
                    .is_some_and(|code| none.contains(&code)) =>
            {
                return Err(error);
            }
            _ => {}
        }
        self.sequence = self.sequence.wrapping_add(1);
        // A torn dump begins anew, without what it said: that may be twice, or in another order.
        let torn = std::mem::take(&mut self.interrupted);
        match self.left.last() {
            Some(what) if torn => {
                self.fresh.replace(*what, &Tables::default());
            }
            _ => drop(self.left.pop()),
        }
        if self.left.is_empty() {
            return Ok(true);
        }
        self.ask(socket)?;
        Ok(false)
    }

    fn ask(&self, socket: &Socket) -> io::Result<()> {
        let Some(what) = self.left.last() else {
            return Ok(());
        };
        let (kind, family, fixed) = what.request();
        let mut body = vec![0; fixed];
        body[0] = family;
        socket.send(&Request::new(kind, NLM_F_DUMP, self.sequence, &body).finish())
    }

    /// The number after the last one used.
    pub fn sequence(&self) -> u32 {
        self.sequence.wrapping_add(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uapi::{NLMSG_DONE, NLMSG_ERROR};

    /// A datagram with the answer's number: rule 100, and the end of the dump, torn or not.
    fn told_rule(sequence: u32, flags: u16) -> Vec<u8> {
        let (to_table, main) = (1, RT_TABLE_MAIN);
        let fixed = [Family::V4.code(), 0, 0, 0, main, 0, 0, to_table, 0, 0, 0, 0];
        let rule = Request::new(RTM_NEWRULE, flags, sequence, &fixed)
            .with(FRA_PRIORITY, &100u32.to_ne_bytes());
        let end = Request::new(NLMSG_DONE, flags, sequence, &[0; 4]);
        [rule.finish(), end.finish()].concat()
    }

    #[tokio::test]
    async fn what_a_torn_dump_said_is_forgotten() {
        let socket = Socket::new().unwrap();
        let rules = BTreeSet::from([What::Rules(Family::V4)]);
        let fresh = Tables::default().for_dump();
        let mut resync = Resync::start(&socket, rules, 7, fresh).unwrap();
        let torn = told_rule(7, NLM_F_DUMP_INTR);
        assert!(!resync.take(&socket, &torn).unwrap());
        assert!(resync.fresh.now.rules.is_empty(), "asked again");
        assert!(resync.take(&socket, &told_rule(8, 0)).unwrap());
        assert_eq!(resync.fresh.now.rules.len(), 1);
    }

    #[tokio::test]
    async fn a_dump_that_the_kernel_could_not_finish_is_an_error() {
        let socket = Socket::new().unwrap();
        let end = |kind, errno: Errno| {
            let wanted = BTreeSet::from([What::Links]);
            let mut resync = Resync::start(&socket, wanted, 7, Tables::default()).unwrap();
            let code = errno.raw_os_error().wrapping_neg();
            let end = Request::new(kind, 0, 7, &code.to_ne_bytes()).finish();
            resync.take(&socket, &end).map_err(|e| e.raw_os_error())
        };
        for kind in [NLMSG_DONE, NLMSG_ERROR] {
            let memory = Errno::NOMEM;
            assert_eq!(end(kind, memory), Err(Some(memory.raw_os_error())));
            assert_eq!(end(kind, Errno::AFNOSUPPORT), Ok(true), "no such family");
        }
    }
}
