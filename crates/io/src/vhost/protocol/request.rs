//! vhost-user requests: numbers and names, and a message taken apart into a typed request.
//!
//! All payload lengths and descriptor counts are checked here and nowhere else: what
//! [`Request::parse`] returns is well-formed, though perhaps not sensible; that is for
//! [`super::session`] to judge.

use std::os::fd::OwnedFd;

use wire::Mac;

use crate::guest_memory::RegionSpec;
pub use crate::vhost::protocol::request_number::*;

use crate::vhost::protocol::message::{
    ConfigSpan, FDS_MAX, Message, MessageError, Problem, RingValue,
};

/// Where a ring's three parts are, as addresses of the VMM's process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingAddresses {
    /// Which ring.
    pub index: u32,
    /// Bit 0, VHOST_VRING_F_LOG: writes to the used ring are to be noted in the log.
    pub flags: u32,
    /// Descriptor table.
    pub descriptors: u64,
    /// Used ring.
    pub used: u64,
    /// Available ring.
    pub available: u64,
    /// The used ring, or the device's event structure, for the log: a guest address.
    pub log: u64,
}

impl RingAddresses {
    /// Writes to the used ring are to be noted in the log.
    pub fn is_logged(&self) -> bool {
        const LOG: u32 = 1;
        self.flags & LOG != 0
    }
}

/// A log of pages that are written ("log description"), in a file.
#[derive(Debug)]
pub struct LogSpec {
    /// Its length in bytes.
    pub size: u64,
    /// Where it starts in the file, in bytes.
    pub offset: u64,
    /// A memfd, or a file on tmpfs or hugetlbfs.
    pub fd: OwnedFd,
}

/// Which memory region: all three have to be those that it was added with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RegionId {
    /// Where the guest sees it.
    pub guest_addr: u64,
    /// Its length in bytes.
    pub size: u64,
    /// Where the VMM sees it.
    pub user_addr: u64,
}

/// A ring's index and the descriptor for one of its notifications.
#[derive(Debug)]
pub struct RingFd {
    /// Which ring.
    pub index: u32,
    /// `None`: the frontend gives none, the ring is to be polled (kick) or nobody listens (call,
    /// err).
    pub fd: Option<OwnedFd>,
}

/// A well-formed request.
#[derive(Debug)]
#[allow(missing_docs, reason = "named and described by the specification")]
pub enum Request {
    GetFeatures,
    SetFeatures(u64),
    SetOwner,
    ResetOwner,
    SetMemTable(Vec<RegionSpec>),
    /// The VMM watches the memory that it was told the addresses of, and may be touched: what
    /// follows the answer to SET_MEM_TABLE or ADD_MEM_REG, as a request of the same number, after
    /// POSTCOPY_LISTEN. 0 is success.
    MemoryWatched {
        request: u32,
        value: u64,
    },
    SetLogBase(LogSpec),
    SetLogFd(OwnedFd),
    SetVringNum(RingValue),
    SetVringAddr(RingAddresses),
    SetVringBase(RingValue),
    GetVringBase(RingValue),
    SetVringKick(RingFd),
    SetVringCall(RingFd),
    SetVringErr(RingFd),
    GetProtocolFeatures,
    SetProtocolFeatures(u64),
    GetQueueNum,
    SetVringEnable(RingValue),
    SendRarp(Mac),
    NetSetMtu(u64),
    SetBackendReqFd(OwnedFd),
    GetConfig(ConfigSpan),
    SetConfig(ConfigSpan),
    ResetDevice,
    GetMaxMemSlots,
    AddMemReg(RegionSpec),
    RemMemReg(RegionId),
    SetStatus(u64),
    GetStatus,
    PostcopyAdvise,
    PostcopyListen,
    PostcopyEnd,
    /// A request that belongs to features that this side does not offer, or that nobody has heard
    /// of.
    Other(u32),
}

impl Request {
    /// Takes a message apart. Fails when payload or descriptors are not those of the request; the
    /// descriptors are closed then.
    pub fn parse(message: Message) -> Result<Request, MessageError> {
        let number = message.request;
        let mut parts = Parts {
            request: number,
            payload: &message.payload,
            fds: message.fds,
        };
        let request = match number {
            GET_FEATURES => parts.empty(Request::GetFeatures)?,
            SET_FEATURES => Request::SetFeatures(parts.number()?),
            SET_OWNER => parts.empty(Request::SetOwner)?,
            RESET_OWNER => parts.empty(Request::ResetOwner)?,
            SET_MEM_TABLE | ADD_MEM_REG | REM_MEM_REG if parts.is_bare_number() => {
                Request::MemoryWatched {
                    request: number,
                    value: parts.number()?,
                }
            }
            SET_MEM_TABLE => Request::SetMemTable(parts.regions()?),
            SET_LOG_BASE => Request::SetLogBase(parts.log()?),
            SET_LOG_FD => Request::SetLogFd(parts.lone_fd()?),
            SET_VRING_NUM => Request::SetVringNum(parts.ring_value()?),
            SET_VRING_ADDR => Request::SetVringAddr(parts.ring_addresses()?),
            SET_VRING_BASE => Request::SetVringBase(parts.ring_value()?),
            GET_VRING_BASE => Request::GetVringBase(parts.ring_value()?),
            SET_VRING_KICK => Request::SetVringKick(parts.ring_fd()?),
            SET_VRING_CALL => Request::SetVringCall(parts.ring_fd()?),
            SET_VRING_ERR => Request::SetVringErr(parts.ring_fd()?),
            GET_PROTOCOL_FEATURES => parts.empty(Request::GetProtocolFeatures)?,
            SET_PROTOCOL_FEATURES => Request::SetProtocolFeatures(parts.number()?),
            GET_QUEUE_NUM => parts.empty(Request::GetQueueNum)?,
            SET_VRING_ENABLE => Request::SetVringEnable(parts.ring_value()?),
            SEND_RARP => Request::SendRarp(parts.mac()?),
            NET_SET_MTU => Request::NetSetMtu(parts.number()?),
            SET_BACKEND_REQ_FD => Request::SetBackendReqFd(parts.lone_fd()?),
            GET_CONFIG => Request::GetConfig(parts.config()?),
            SET_CONFIG => Request::SetConfig(parts.config()?),
            RESET_DEVICE => parts.empty(Request::ResetDevice)?,
            GET_MAX_MEM_SLOTS => parts.empty(Request::GetMaxMemSlots)?,
            ADD_MEM_REG => Request::AddMemReg(parts.region()?),
            REM_MEM_REG => Request::RemMemReg(parts.region_id()?),
            SET_STATUS => Request::SetStatus(parts.number()?),
            GET_STATUS => parts.empty(Request::GetStatus)?,
            POSTCOPY_ADVISE => parts.empty(Request::PostcopyAdvise)?,
            POSTCOPY_LISTEN => parts.empty(Request::PostcopyListen)?,
            POSTCOPY_END => parts.empty(Request::PostcopyEnd)?,
            other => return Ok(Request::Other(other)),
        };
        parts.no_fds()?;
        Ok(request)
    }
}

/// A message's payload and descriptors while they are taken apart.
struct Parts<'a> {
    request: u32,
    payload: &'a [u8],
    fds: Vec<OwnedFd>,
}

impl Parts<'_> {
    fn wrong<T>(&self, problem: Problem) -> Result<T, MessageError> {
        Err(MessageError {
            request: self.request,
            problem,
        })
    }

    fn length(&self, expected: usize) -> Result<(), MessageError> {
        if self.payload.len() == expected {
            return Ok(());
        }
        self.wrong(Problem::Payload {
            got: self.payload.len(),
            expected,
        })
    }

    fn empty(&self, request: Request) -> Result<Request, MessageError> {
        self.length(0)?;
        Ok(request)
    }

    fn no_fds(&self) -> Result<(), MessageError> {
        if self.fds.is_empty() {
            return Ok(());
        }
        self.wrong(Problem::Descriptors {
            got: self.fds.len(),
            expected: 0,
        })
    }

    fn u32_at(&self, at: usize) -> u32 {
        u32::from_ne_bytes(self.payload[at..at + 4].try_into().expect("four bytes"))
    }

    fn u64_at(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.payload[at..at + 8].try_into().expect("eight bytes"))
    }

    fn is_bare_number(&self) -> bool {
        self.payload.len() == 8 && self.fds.is_empty()
    }

    fn number(&self) -> Result<u64, MessageError> {
        self.length(8)?;
        Ok(self.u64_at(0))
    }

    fn mac(&self) -> Result<Mac, MessageError> {
        self.length(8)?;
        Ok(Mac(self.payload[..6].try_into().expect("six bytes")))
    }

    fn ring_value(&self) -> Result<RingValue, MessageError> {
        self.length(8)?;
        Ok(RingValue {
            index: self.u32_at(0),
            value: self.u32_at(4),
        })
    }

    fn ring_addresses(&self) -> Result<RingAddresses, MessageError> {
        self.length(40)?;
        Ok(RingAddresses {
            index: self.u32_at(0),
            flags: self.u32_at(4),
            descriptors: self.u64_at(8),
            used: self.u64_at(16),
            available: self.u64_at(24),
            log: self.u64_at(32),
        })
    }

    /// Bits 0 to 7: the ring; bit 8: no descriptor comes along.
    fn ring_fd(&mut self) -> Result<RingFd, MessageError> {
        const NO_FD: u64 = 1 << 8;
        let value = self.number()?;
        let expected = usize::from(value & NO_FD == 0);
        if self.fds.len() != expected {
            return self.wrong(Problem::Descriptors {
                got: self.fds.len(),
                expected,
            });
        }
        Ok(RingFd {
            index: (value & 0xff) as u32,
            fd: self.fds.pop(),
        })
    }

    /// Offset, length and flags, and as many bytes, though a question's mean nothing.
    fn config(&self) -> Result<ConfigSpan, MessageError> {
        if self.payload.len() < ConfigSpan::HEADER_LEN {
            return self.wrong(Problem::Payload {
                got: self.payload.len(),
                expected: ConfigSpan::HEADER_LEN,
            });
        }
        self.length(ConfigSpan::HEADER_LEN.saturating_add(self.u32_at(4) as usize))?;
        Ok(ConfigSpan {
            offset: self.u32_at(0),
            flags: self.u32_at(8),
            bytes: self.payload[ConfigSpan::HEADER_LEN..].to_vec(),
        })
    }

    fn log(&mut self) -> Result<LogSpec, MessageError> {
        self.length(16)?;
        Ok(LogSpec {
            size: self.u64_at(0),
            offset: self.u64_at(8),
            fd: self.one_fd()?,
        })
    }

    /// A descriptor, and nothing else.
    fn lone_fd(&mut self) -> Result<OwnedFd, MessageError> {
        self.length(0)?;
        self.one_fd()
    }

    fn one_fd(&mut self) -> Result<OwnedFd, MessageError> {
        let got = self.fds.len();
        match self.fds.pop().filter(|_| got == 1) {
            Some(fd) => Ok(fd),
            None => self.wrong(Problem::Descriptors { got, expected: 1 }),
        }
    }

    /// One region behind eight bytes of padding, and its file.
    fn region(&mut self) -> Result<RegionSpec, MessageError> {
        self.length(40)?;
        let fd = self.one_fd()?;
        Ok(RegionSpec {
            guest_addr: self.u64_at(8),
            size: self.u64_at(16),
            user_addr: self.u64_at(24),
            mmap_offset: self.u64_at(32),
            fd,
        })
    }

    /// A region without a file. One may come along, as some VMMs send it, and is closed unused.
    fn region_id(&mut self) -> Result<RegionId, MessageError> {
        self.length(40)?;
        if self.fds.len() == 1 {
            self.fds.clear();
        }
        Ok(RegionId {
            guest_addr: self.u64_at(8),
            size: self.u64_at(16),
            user_addr: self.u64_at(24),
        })
    }

    /// The table has room for eight regions; a frontend sends those that it uses, or all of it.
    fn regions(&mut self) -> Result<Vec<RegionSpec>, MessageError> {
        const TABLE: usize = 8;
        const REGION: usize = 32;
        if self.payload.len() < TABLE {
            return self.wrong(Problem::Payload {
                got: self.payload.len(),
                expected: TABLE + REGION,
            });
        }
        let count = self.u32_at(0) as usize;
        if count == 0 || count > FDS_MAX {
            return self.wrong(Problem::Regions(count));
        }
        if self.payload.len() != TABLE + FDS_MAX * REGION {
            self.length(TABLE + count * REGION)?;
        }
        if self.fds.len() != count {
            return self.wrong(Problem::Descriptors {
                got: self.fds.len(),
                expected: count,
            });
        }
        let fds = std::mem::take(&mut self.fds);
        let region = |(number, fd): (usize, OwnedFd)| {
            let at = TABLE + number * REGION;
            RegionSpec {
                guest_addr: self.u64_at(at),
                size: self.u64_at(at + 8),
                user_addr: self.u64_at(at + 16),
                mmap_offset: self.u64_at(at + 24),
                fd,
            }
        };
        Ok(fds.into_iter().enumerate().map(region).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vhost::message::Reader;

    fn message(request: u32, payload: &[u8], fds: usize) -> Message {
        let fds = (0..fds).map(|_| rustix::pipe::pipe().unwrap().0).collect();
        let mut bytes: Vec<u8> = [request, 1, payload.len() as u32]
            .iter()
            .flat_map(|w| w.to_ne_bytes())
            .collect();
        bytes.extend(payload);
        let mut reader = Reader::new();
        reader.space().copy_from_slice(&bytes[..12]);
        if let Some(message) = reader.filled(12, fds).unwrap() {
            return message;
        }
        reader.space().copy_from_slice(payload);
        reader.filled(payload.len(), Vec::new()).unwrap().unwrap()
    }

    fn words(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    #[test]
    fn every_known_request_has_one_length_and_one_count_of_descriptors() {
        // Request, payload that is right, descriptors that are right.
        let mut table = words(&[2]);
        table.extend(words(&[
            0, 0x1000, 0x10000, 0, 0x10000, 0x1000, 0x20000, 0x1000,
        ]));
        let config = [vec![0; 4], 3u32.to_ne_bytes().to_vec(), vec![0; 7]].concat();
        let cases: &[(u32, Vec<u8>, usize)] = &[
            (GET_FEATURES, vec![], 0),
            (SET_FEATURES, vec![0; 8], 0),
            (SET_OWNER, vec![], 0),
            (RESET_OWNER, vec![], 0),
            (SET_MEM_TABLE, table, 2),
            (SET_LOG_BASE, vec![0; 16], 1),
            (SET_LOG_FD, vec![], 1),
            (SET_VRING_NUM, vec![0; 8], 0),
            (SET_VRING_ADDR, vec![0; 40], 0),
            (SET_VRING_BASE, vec![0; 8], 0),
            (GET_VRING_BASE, vec![0; 8], 0),
            (SET_VRING_KICK, words(&[1]), 1),
            (SET_VRING_KICK, words(&[0x101]), 0),
            (SET_VRING_CALL, words(&[1]), 1),
            (SET_VRING_ERR, words(&[0x100]), 0),
            (GET_PROTOCOL_FEATURES, vec![], 0),
            (SET_PROTOCOL_FEATURES, vec![0; 8], 0),
            (GET_QUEUE_NUM, vec![], 0),
            (SET_VRING_ENABLE, vec![0; 8], 0),
            (SEND_RARP, vec![0; 8], 0),
            (NET_SET_MTU, vec![0; 8], 0),
            (SET_BACKEND_REQ_FD, vec![], 1),
            (RESET_DEVICE, vec![], 0),
            (GET_MAX_MEM_SLOTS, vec![], 0),
            (ADD_MEM_REG, vec![0; 40], 1),
            (SET_STATUS, vec![0; 8], 0),
            (GET_STATUS, vec![], 0),
            (POSTCOPY_ADVISE, vec![], 0),
            (POSTCOPY_LISTEN, vec![], 0),
            (POSTCOPY_END, vec![], 0),
            (GET_CONFIG, vec![0; 12], 0),
            (SET_CONFIG, config, 0),
        ];
        for (request, payload, fds) in cases {
            let case = format!(
                "{} with {} bytes and {fds} fds",
                name(*request),
                payload.len()
            );
            Request::parse(message(*request, payload, *fds)).expect(&case);
            let error = Request::parse(message(*request, payload, fds + 1)).expect_err(&case);
            assert_eq!(
                error.problem,
                Problem::Descriptors {
                    got: fds + 1,
                    expected: *fds
                },
                "{case}"
            );
            if *fds > 0 {
                let error = Request::parse(message(*request, payload, fds - 1)).expect_err(&case);
                assert_eq!(
                    error.problem,
                    Problem::Descriptors {
                        got: fds - 1,
                        expected: *fds
                    },
                    "{case}"
                );
            }
            for wrong in [
                0,
                1,
                payload.len().saturating_sub(1),
                payload.len() + 1,
                263,
                4096,
            ] {
                if wrong != payload.len() {
                    let mut other = payload.clone();
                    other.resize(wrong, 0);
                    let error = Request::parse(message(*request, &other, *fds)).expect_err(&case);
                    assert!(
                        matches!(error.problem, Problem::Payload { got, .. } if got == wrong),
                        "{case}"
                    );
                }
            }
        }
    }

    #[test]
    fn fields_are_where_the_specification_has_them() {
        let mut addresses = [3u32.to_ne_bytes(), 1u32.to_ne_bytes()].concat();
        addresses.extend(words(&[0x1000, 0x2000, 0x3000, 0x4000]));
        let Ok(Request::SetVringAddr(parsed)) =
            Request::parse(message(SET_VRING_ADDR, &addresses, 0))
        else {
            panic!("not taken as ring addresses");
        };
        let expected = RingAddresses {
            index: 3,
            flags: 1,
            descriptors: 0x1000,
            used: 0x2000,
            available: 0x3000,
            log: 0x4000,
        };
        assert_eq!(parsed, expected);

        let mut table = words(&[1, 0x100, 0x200, 0x300, 0x400]);
        table.resize(264, 0xa5); // the whole table, one region of it in use
        let Ok(Request::SetMemTable(regions)) = Request::parse(message(SET_MEM_TABLE, &table, 1))
        else {
            panic!("not taken as a memory table");
        };
        let region = &regions[0];
        assert_eq!(
            (
                region.guest_addr,
                region.size,
                region.user_addr,
                region.mmap_offset
            ),
            (0x100, 0x200, 0x300, 0x400)
        );

        let Ok(Request::SendRarp(mac)) =
            Request::parse(message(SEND_RARP, &[2, 0, 0, 0, 0, 7, 0, 0], 0))
        else {
            panic!("not taken as RARP");
        };
        assert_eq!(mac, Mac([2, 0, 0, 0, 0, 7]));
    }

    #[test]
    fn a_memory_table_has_one_to_eight_regions() {
        for count in [0u64, 9, u64::from(u32::MAX)] {
            let mut table = words(&[count]);
            table.resize(264, 0);
            let error = Request::parse(message(SET_MEM_TABLE, &table, 1)).unwrap_err();
            assert_eq!(error.problem, Problem::Regions(count as usize));
        }
    }

    #[test]
    fn requests_of_other_devices_are_passed_on_whatever_they_hold() {
        for number in [IOTLB_MSG, 0, 23, 41, 1000, u32::MAX] {
            let request = Request::parse(message(number, &[1, 2, 3], 3)).unwrap();
            assert!(matches!(request, Request::Other(other) if other == number));
        }
        assert_eq!(name(1000), "unknown request");
    }
}
