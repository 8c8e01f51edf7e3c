//! Step 2: says what each frame is. All lengths are checked here; later steps trust the result.

use io::frame::{Bits, Fault, Frame};
use wire::nd;
use wire::offload::Offload;
use wire::parse::{self, ParseError};

use crate::drop_reason::DropReason;
use crate::round::{Fate, Item, Round};

/// Parses the frames whose bits are set in `frames`.
pub(crate) fn run(round: &mut Round, mut frames: Bits) {
    while frames != 0 {
        let index = frames.trailing_zeros() as usize;
        frames &= frames - 1;
        let frame = &round.batch.frames()[index];
        if round.nic.is_sniffer {
            refuse(round, index, DropReason::SnifferSends);
        } else if let Some(fault) = frame.fault() {
            refuse(round, index, reason_of(fault));
        } else {
            read(round, index, frame);
        }
    }
}

/// Adds the frame's item. The packet, which is large, goes straight to where it stays: a copy on
/// the way costs as much as the parser.
#[inline(always)]
fn read(round: &mut Round, frame_index: usize, frame: &Frame) {
    let packet = match parse::parse(frame.head(), frame.len()) {
        Ok(packet) => packet,
        Err(error) => return refuse(round, frame_index, reason(error)),
    };
    round.items.push(Item {
        frame: frame_index,
        packet: Some(packet),
        nd: None,
        always: false,
        near: false,
        fate: Fate::Going,
        first_of: None,
        quoted: None,
        traced: false,
    });
    let index = round.items.len() - 1;
    let item = &mut round.items[index];
    let checked = look_closer(item, frame);
    if let Err(error) = checked {
        item.packet = None;
        round.drop_item(index, reason(error));
    }
}

#[inline(always)]
fn look_closer(item: &mut Item, frame: &Frame) -> Result<(), ParseError> {
    let Some(packet) = &item.packet else {
        return Ok(());
    };
    if frame.offload != Offload::default() {
        parse::check_offload(packet, frame.len(), &frame.offload)?;
    }
    if let Some(ip) = packet.ip().filter(|ip| ip.v6) {
        item.nd = nd::parse(frame.head(), ip)?;
    }
    Ok(())
}

/// Adds the item of a frame that goes nowhere.
#[cold]
fn refuse(round: &mut Round, frame: usize, reason: DropReason) {
    round.items.push(Item {
        frame,
        packet: None,
        nd: None,
        always: false,
        near: false,
        fate: Fate::Going,
        first_of: None,
        quoted: None,
        traced: false,
    });
    round.drop_item(round.items.len() - 1, reason);
}

fn reason_of(fault: Fault) -> DropReason {
    match fault {
        Fault::BadOffload => DropReason::BadOffload,
        Fault::RingOff => DropReason::RingOff,
    }
}

fn reason(error: ParseError) -> DropReason {
    match error {
        ParseError::TruncatedEthernet | ParseError::TruncatedIp | ParseError::TruncatedL4 => {
            DropReason::Truncated
        }
        ParseError::HeadersTooLong | ParseError::Ipv6TooManyExtensions => {
            DropReason::HeadersTooLong
        }
        ParseError::TinyFragment => DropReason::FragmentTiny,
        ParseError::Offload => DropReason::BadOffload,
        _ => DropReason::Malformed,
    }
}
