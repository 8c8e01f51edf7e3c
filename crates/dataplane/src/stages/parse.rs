//! Step 1: says what each frame is. All lengths are checked here; later steps trust the result.

use io::frame::Frame;
use wire::nd::{self, Nd};
use wire::parse::{self, Packet, ParseError};

use crate::drop_reason::DropReason;
use crate::round::{Fate, Item, Round};

pub(crate) fn run(round: &mut Round) {
    round.items.clear();
    for index in 0..round.batch.len() {
        let frame = &round.batch.frames()[index];
        round.items.push(Item {
            packet: None,
            nd: None,
            always: false,
            fate: Fate::Going,
            first_of: None,
        });
        if round.nic.is_sniffer {
            round.drop_item(index, DropReason::SnifferSends);
            continue;
        }
        if frame.fault().is_some() {
            round.drop_item(index, DropReason::BadOffload);
            continue;
        }
        match read(frame) {
            Ok((packet, nd)) => {
                round.items[index].packet = Some(packet);
                round.items[index].nd = nd;
            }
            Err(error) => round.drop_item(index, reason(error)),
        }
    }
}

#[inline]
fn read(frame: &Frame) -> Result<(Packet, Option<Nd>), ParseError> {
    let packet = parse::parse(frame.head(), frame.len())?;
    parse::check_offload(&packet, frame.len(), &frame.offload)?;
    let nd = match packet.ip() {
        Some(ip) if ip.v6 => nd::parse(frame.head(), ip)?,
        _ => None,
    };
    Ok((packet, nd))
}

fn reason(error: ParseError) -> DropReason {
    match error {
        ParseError::TruncatedEthernet | ParseError::TruncatedIp | ParseError::TruncatedL4 => {
            DropReason::Truncated
        }
        ParseError::HeadersTooLong | ParseError::Ipv6TooManyExtensions => DropReason::HeadersTooLong,
        ParseError::TinyFragment => DropReason::FragmentTiny,
        ParseError::Offload => DropReason::BadOffload,
        _ => DropReason::Malformed,
    }
}
