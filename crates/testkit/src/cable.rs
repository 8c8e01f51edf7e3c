//! A cable of packets that are not frames yet: the far end of a TAP device that takes and gives
//! checksums that are only begun and segments that are not cut (GSO), as the kernel's own sockets
//! and guests send them.
//!
//! What is written has gone all its way when the write returns, so that what comes of it can be
//! read at once. [`packets`] makes of what came the packets that it stands for, so that two
//! switches are compared by what a wire would have had to carry.

use io::frame::Batch;
use io::port::Port;
use io::tap::{TapOptions, TapPort};
use wire::Mac;
use wire::checksum::{self, finish};
use wire::offload::{Gso, Offload};
use wire::segment::{Checksum, HEADER_MAX, Segments};

use crate::Result;

/// A frame with what its sender has left undone.
pub type Undone = (Vec<u8>, Offload);

/// The far end of an interface.
pub struct Cable {
    port: Port,
    batch: Batch,
}

impl Cable {
    /// Makes a TAP interface with this name and MAC in the caller's network namespace, and brings
    /// it up.
    pub fn new(name: &str, mac: Mac) -> Result<Cable> {
        let options = TapOptions {
            name: name.to_owned(),
            mac,
            mtu: None,
            offloads: true,
        };
        let port = TapPort::open(&options).map_err(|e| e.to_string())?;
        Ok(Cable {
            port: Port::Tap(port),
            batch: Batch::new(),
        })
    }

    /// Sends a frame into the interface.
    pub fn send(&mut self, frame: &[u8], offload: Offload) -> Result<()> {
        self.batch
            .push_bytes(frame, offload)
            .ok_or("a batch takes a frame of this length")?;
        let sent = self.port.transmit(&self.batch, 0);
        self.batch.clear();
        sent.map_err(|e| format!("the interface takes no frame: {e:?}"))
    }

    /// All that the interface has sent, but for what the kernel asks of neighbours on its own
    /// account.
    pub fn receive(&mut self) -> Result<Vec<Undone>> {
        let mut came = Vec::new();
        while self
            .port
            .receive(&mut self.batch)
            .map_err(|e| e.to_string())?
            > 0
        {
            for (index, frame) in self.batch.frames().iter().enumerate() {
                came.push((self.batch.to_bytes(index), frame.offload));
            }
            self.port.complete(&mut self.batch);
            self.batch.clear();
        }
        came.retain(|(frame, _)| !is_chatter(frame));
        Ok(came)
    }
}

/// The packets that frames stand for: segments cut, checksums finished.
pub fn packets(undone: &[Undone]) -> Result<Vec<Vec<u8>>> {
    let mut packets = Vec::new();
    for (frame, offload) in undone {
        match offload.gso {
            Gso::None => packets.push(finished(frame, offload)?),
            _ => packets.append(&mut cut(frame, offload)?),
        }
    }
    Ok(packets)
}

/// A packet with its checksum.
fn finished(frame: &[u8], offload: &Offload) -> Result<Vec<u8>> {
    let mut frame = frame.to_vec();
    if let Some(partial) = offload.checksum {
        let start = usize::from(partial.start);
        let field = start + usize::from(partial.offset);
        if field + 2 > frame.len() {
            return Err(format!(
                "a checksum at {field} of a frame of {} bytes",
                frame.len()
            ));
        }
        let sum = finish(checksum::sum(&frame[start..]));
        frame[field..field + 2].copy_from_slice(&sum.to_be_bytes());
    }
    Ok(frame)
}

/// Segments, each with the VLAN tags of the whole: those who cut do not look behind tags.
fn cut(tagged: &[u8], offload: &Offload) -> Result<Vec<Vec<u8>>> {
    let tags = tagged[12..]
        .chunks(4)
        .take_while(|tag| matches!(tag, [0x81, 0, ..] | [0x88, 0xa8, ..]));
    let tags = 4 * tags.count();
    let frame = &[&tagged[..12], &tagged[12 + tags..]].concat()[..];
    let mut offload = *offload;
    if let Some(partial) = &mut offload.checksum {
        partial.start -= tags as u16;
    }
    let offload = &offload;
    let head = &frame[..frame.len().min(HEADER_MAX)];
    let segments = Segments::new(head, frame.len(), offload)
        .map_err(|e| format!("segments of {offload:?}: {e:?}"))?;
    let one = |index| {
        let payload = &frame[segments.payload(index)];
        let mut packet = vec![0; segments.header_len()];
        let payload_sum = checksum::sum(payload);
        segments.write(index, Checksum::Full { payload_sum }, &mut packet);
        packet.extend(payload);
        packet.splice(12..12, tagged[12..12 + tags].iter().copied());
        packet
    };
    Ok((0..segments.count()).map(one).collect())
}

/// ARP, and of ICMPv6 what neighbours, routers and multicast listeners say, with any number of VLAN
/// tags in front.
pub fn is_chatter(frame: &[u8]) -> bool {
    let ethertype = |at: usize| {
        frame
            .get(at..at + 2)
            .map(|two| u16::from_be_bytes([two[0], two[1]]))
    };
    let mut l3 = 14;
    while matches!(ethertype(l3 - 2), Some(0x8100 | 0x88a8)) {
        l3 += 4;
    }
    let kind = match (ethertype(l3 - 2), frame.get(l3 + 6)) {
        (Some(0x0806), _) => return true,
        (Some(0x86dd), Some(58)) => frame.get(l3 + 40),
        // A hop-by-hop header in front: MLD.
        (Some(0x86dd), Some(0)) => frame.get(l3 + 48),
        _ => None,
    };
    kind.is_some_and(|kind| (130..=137).contains(kind) || *kind == 143)
}
