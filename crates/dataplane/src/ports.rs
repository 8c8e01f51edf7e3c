//! The attachments that a worker owns, by slot, and which of them it has written to since the last flush.

use io::frame::Batch;
use io::port::{Port, PortError, TransmitError};

use crate::drop_reason::DropReason;
use crate::snapshot::PortSlot;

#[derive(Default)]
pub(crate) struct Ports {
    slots: Vec<Option<Attached>>,
    touched: Vec<PortSlot>,
}

/// A port and what the worker knows of it.
pub(crate) struct Attached {
    pub port: Box<Port>,
    /// Written to since the last flush.
    touched: bool,
    /// It broke its protocol: it is left alone until it is detached.
    pub broken: bool,
    /// Its descriptor is in the worker's poller.
    pub wakes: bool,
    /// Armed, and not polled until the poller reports it.
    pub parked: bool,
    /// When a frame came from it last, or when it came itself: monotonic nanoseconds.
    pub heard_ns: u64,
    /// Copies of its frames that it has not waited for yet: see `Worker::serve`.
    pub debt: usize,
}

impl Attached {
    /// Asks the peer to wake us. True when there are frames already, and then it is not asked.
    pub(crate) fn has_work(&mut self) -> bool {
        let work = !self.broken && self.port.arm();
        if work {
            self.port.disarm();
        }
        work
    }
}

impl Ports {
    /// Puts a port into a slot that is free.
    pub(crate) fn attach(&mut self, slot: PortSlot, port: Box<Port>, wakes: bool, now_ns: u64) {
        let index = slot.0 as usize;
        if index >= self.slots.len() {
            self.slots.resize_with(index + 1, || None);
        }
        self.slots[index] = Some(Attached {
            port,
            touched: false,
            broken: false,
            wakes,
            parked: false,
            heard_ns: now_ns,
            debt: 0,
        });
    }

    /// Takes a port out of its slot.
    pub(crate) fn detach(&mut self, slot: PortSlot) -> Option<Attached> {
        let attached = self.slots.get_mut(slot.0 as usize)?.take()?;
        self.touched.retain(|other| *other != slot);
        Some(attached)
    }

    #[inline]
    pub(crate) fn find(&mut self, slot: PortSlot) -> Option<&mut Attached> {
        self.slots.get_mut(slot.0 as usize)?.as_mut()
    }

    pub(crate) fn peek(&self, slot: PortSlot) -> Option<&Attached> {
        self.slots.get(slot.0 as usize)?.as_ref()
    }

    /// All of them, by slot.
    pub(crate) fn all(&self) -> impl Iterator<Item = (PortSlot, &Attached)> {
        let slots = self.slots.iter().zip(0..);
        slots.filter_map(|(attached, slot)| Some((PortSlot(slot), attached.as_ref()?)))
    }

    /// Writes a frame to a port. It is seen after [`Ports::flush`].
    #[inline]
    pub(crate) fn transmit(&mut self, slot: PortSlot, batch: &Batch, index: usize) -> Result<(), DropReason> {
        let port = self.writable(slot).ok_or(DropReason::TargetDown)?;
        port.transmit(batch, index).map_err(refusal)
    }

    /// Writes several frames to a port and says of each in `results` what became of it.
    #[inline]
    pub(crate) fn transmit_all(
        &mut self,
        slot: PortSlot,
        batch: &Batch,
        frames: &[u8],
        results: &mut [Result<(), TransmitError>],
    ) {
        match self.writable(slot) {
            Some(port) => port.transmit_all(batch, frames, results),
            None => results.fill(Err(TransmitError::Down)),
        }
    }

    /// The port in a slot, which is going to be written to.
    #[inline]
    fn writable(&mut self, slot: PortSlot) -> Option<&mut Port> {
        let attached = self.slots.get_mut(slot.0 as usize)?.as_mut()?;
        if attached.broken {
            return None;
        }
        if !attached.touched {
            attached.touched = true;
            self.touched.push(slot);
        }
        Some(&mut attached.port)
    }

    /// Makes what was written visible, once per port that was written to.
    #[inline]
    pub(crate) fn flush(&mut self, mut broke: impl FnMut(PortSlot, PortError)) {
        for slot in self.touched.drain(..) {
            let Some(attached) = self.slots.get_mut(slot.0 as usize).and_then(Option::as_mut) else {
                continue;
            };
            attached.touched = false;
            if let Err(error) = attached.port.flush()
                && !attached.broken
            {
                attached.broken = true;
                broke(slot, error);
            }
        }
    }
}

/// Why a frame is dropped that a port did not take.
pub(crate) fn refusal(error: TransmitError) -> DropReason {
    match error {
        TransmitError::Full => DropReason::RingFull,
        TransmitError::TooSmall => DropReason::BufferTooSmall,
        TransmitError::Down => DropReason::TargetDown,
        TransmitError::BadOffload => DropReason::BadOffload,
        TransmitError::Broken => DropReason::TargetBroken,
    }
}
