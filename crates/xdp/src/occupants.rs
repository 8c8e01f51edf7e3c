//! Who else looks at an interface's packets at tc: programs by bpf_link (tcx) and filters of
//! qdiscs.
//!
//! What is forwarded at tc ingress no later program or filter sees, nor do we what an earlier one
//! keeps. An interface with somebody else at tc ingress is therefore not taken, as one with
//! somebody else's XDP program is not.

use std::io::{self, Error};

use libbpf_rs::query::{ProgInfoIter, ProgInfoQueryOptions};
use libbpf_rs::{MapCore, MapHandle, ProgramHandle};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use sys::bpf::{TcSide, tc_programs};

use crate::filter::{self, HANDLE, PRIORITY};
use crate::program::CHAIN;

/// A program or filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Occupant {
    /// The program's name, or the filter's kind.
    pub name: String,
    /// The program's id, as `bpftool prog show` lists it; filters without a program have none.
    pub id: Option<u32>,
}

/// All that are there, of the interface of that index in the caller's network namespace; but not a
/// filter of ours that a dead process has left behind, which does nothing.
///
/// # Errors
/// There is no such interface, or the caller lacks CAP_NET_ADMIN.
pub fn of(ifindex: u32, side: TcSide) -> io::Result<Vec<Occupant>> {
    let programs = tc_programs(ifindex, side)?.into_iter();
    let mut there: Vec<Occupant> = programs.map(Occupant::program).collect();
    for filter in filters(ifindex, side)? {
        if !filter.is_ours() || filter::has_its_process(ifindex) {
            there.push(filter.occupant());
        }
    }
    Ok(there)
}

/// The program of that id.
pub fn program(id: u32) -> Occupant {
    Occupant::program(id)
}

/// Whether a program is one of ours, by the map that the next in its chain is in. False where we
/// may not look.
pub fn is_ours(program: u32) -> bool {
    let options = ProgInfoQueryOptions::default().include_map_ids(true);
    let info = ProgInfoIter::with_query_opts(options).find(|info| info.id == program);
    let maps = info.into_iter().flat_map(|info| info.map_ids);
    let mut maps = maps.filter_map(|id| MapHandle::from_map_id(id).ok());
    maps.any(|map| map.name() == CHAIN)
}

impl Occupant {
    fn program(id: u32) -> Occupant {
        let name = ProgramHandle::from_prog_id(id)
            .map(|program| program.name().to_string_lossy().into_owned())
            .unwrap_or_else(|_| "a program".to_owned());
        Occupant { name, id: Some(id) }
    }
}

/// A filter of a qdisc.
#[derive(Debug, PartialEq, Eq)]
struct Filter {
    kind: String,
    handle: u32,
    priority: u32,
    program: Option<u32>,
    /// What the program is called, as whoever attached it said.
    name: String,
}

impl Filter {
    fn occupant(self) -> Occupant {
        match self.program {
            Some(id) => Occupant::program(id),
            None => Occupant {
                name: format!("a filter ({})", self.kind),
                id: None,
            },
        }
    }

    /// It has the place that ours take, and their program's name; libbpf puts the program's number
    /// behind it.
    fn is_ours(&self) -> bool {
        let name = self.name.split(':').next();
        (self.handle, self.priority, name) == (HANDLE, PRIORITY, Some(filter::ENTRY))
    }
}

// linux/rtnetlink.h, linux/pkt_sched.h, linux/pkt_cls.h.
const RTM_GETTFILTER: u16 = 46;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const REQUEST_DUMP: u16 = 0x301;
const CLSACT_INGRESS: u32 = 0xffff_fff2;
const CLSACT_EGRESS: u32 = 0xffff_fff3;
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_BPF_NAME: u16 = 7;
const TCA_BPF_ID: u16 = 11;
const NESTED: u16 = 0x8000;
const HEADER: usize = 16;
const TCMSG: usize = 20;

/// The filters of one side; none where there is no qdisc for them, or the kernel has no filters.
fn filters(ifindex: u32, side: TcSide) -> io::Result<Vec<Filter>> {
    let mut request = Vec::with_capacity(HEADER + TCMSG);
    request.extend_from_slice(&((HEADER + TCMSG) as u32).to_ne_bytes());
    request.extend_from_slice(&RTM_GETTFILTER.to_ne_bytes());
    request.extend_from_slice(&REQUEST_DUMP.to_ne_bytes());
    request.extend_from_slice(&[0; 8]);
    // struct tcmsg: family and three unused, interface, handle, parent, priority and protocol.
    request.extend_from_slice(&[0; 4]);
    request.extend_from_slice(&ifindex.to_ne_bytes());
    request.extend_from_slice(&[0; 4]);
    request.extend_from_slice(&match side {
        TcSide::Ingress => CLSACT_INGRESS.to_ne_bytes(),
        TcSide::Egress => CLSACT_EGRESS.to_ne_bytes(),
    });
    request.extend_from_slice(&[0; 4]);
    let socket = Socket::new(NETLINK_ROUTE)?;
    socket.connect(&SocketAddr::new(0, 0))?;
    socket.send(&request, 0)?;
    let mut filters = Vec::new();
    loop {
        // The kernel answers within the call.
        let (datagram, _) = socket.recv_from_full()?;
        let mut rest = &datagram[..];
        while let Some((kind, body, behind)) = message(rest) {
            match kind {
                NLMSG_DONE => return Ok(filters),
                NLMSG_ERROR => return refusal(body).map(|()| filters),
                _ => filters.extend(filter(body)),
            }
            rest = behind;
        }
    }
}

/// The first message's type and body, and what follows it.
fn message(datagram: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let len = u32_at(datagram, 0)? as usize;
    let body = datagram.get(HEADER..len)?;
    let behind = datagram.get(len.next_multiple_of(4)..).unwrap_or_default();
    Some((u16_at(datagram, 4)?, body, behind))
}

/// What an error message says. A kernel without filters has none.
fn refusal(body: &[u8]) -> io::Result<()> {
    let code = u32_at(body, 0).unwrap_or_default() as i32;
    let error = Error::from_raw_os_error(code.wrapping_neg());
    match error.kind() {
        _ if code == 0 => Ok(()),
        io::ErrorKind::Unsupported | io::ErrorKind::InvalidInput => Ok(()),
        _ => Err(error),
    }
}

/// A filter; the kernel tells of the list that it is in, too, which has no handle.
fn filter(body: &[u8]) -> Option<Filter> {
    let mut filter = Filter {
        kind: String::new(),
        handle: u32_at(body, 8)?,
        priority: u32_at(body, 16)? >> 16,
        program: None,
        name: String::new(),
    };
    for (kind, value) in attributes(body.get(TCMSG..)?) {
        match kind {
            TCA_KIND => filter.kind = text(value),
            TCA_OPTIONS => {
                for (kind, value) in attributes(value) {
                    match kind {
                        TCA_BPF_ID => filter.program = u32_at(value, 0),
                        TCA_BPF_NAME => filter.name = text(value),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    (filter.handle != 0).then_some(filter)
}

/// A string that ends with a zero byte.
fn text(value: &[u8]) -> String {
    let text = value.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let len = usize::from(u16_at(bytes, 0)?);
        let attribute = (u16_at(bytes, 2)? & !NESTED, bytes.get(4..len)?);
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some(attribute)
    })
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let field = bytes.get(at..at + 4)?;
    field.try_into().ok().map(u32::from_ne_bytes)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let field = bytes.get(at..at + 2)?;
    field.try_into().ok().map(u16::from_ne_bytes)
}
