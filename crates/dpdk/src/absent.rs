//! What `linked` offers, in a build without DPDK: there is never a device.

use std::sync::Arc;

use crate::{Counters, Error, LeftSum, QueueOptions, WriteError};

/// Starts DPDK.
///
/// # Errors
/// This build has none.
pub fn start(_args: &[String], _log: fn(&str)) -> Result<(), Error> {
    Err(Error::Absent)
}

/// The ports that DPDK has: their numbers and names.
pub fn ports() -> Vec<(u16, String)> {
    Vec::new()
}

/// A device of DPDK's.
#[derive(Debug)]
pub enum Device {}

/// A receive queue of a device and the send queue beside it.
#[derive(Debug)]
pub enum Queue {}

impl Device {
    /// Takes the port of this number.
    ///
    /// # Errors
    /// This build has no DPDK.
    pub fn take(_number: u16) -> Result<Device, Error> {
        Err(Error::Absent)
    }

    /// DPDK's number of it.
    pub fn number(&self) -> u16 {
        match *self {}
    }

    /// DPDK's name of it.
    pub fn name(&self) -> &str {
        match *self {}
    }

    /// Which driver it has.
    pub fn driver(&self) -> &str {
        match *self {}
    }

    /// Its hardware address.
    pub fn mac(&self) -> [u8; 6] {
        match *self {}
    }

    /// The MTU that it came with.
    pub fn mtu(&self) -> u16 {
        match *self {}
    }

    /// Whether a frame's checksum may be left to it.
    pub fn sums(&self) -> bool {
        match *self {}
    }

    /// Sets it up and starts it.
    ///
    /// # Errors
    /// None: there is no device.
    pub fn open(self: &Arc<Self>, _options: QueueOptions) -> Result<Vec<Queue>, Error> {
        match **self {}
    }

    /// Stops it.
    pub fn stop(&self) {
        match *self {}
    }

    /// Whether it has a link.
    pub fn is_up(&self) -> bool {
        match *self {}
    }

    /// Whether it was taken away.
    pub fn is_removed(&self) -> bool {
        match *self {}
    }

    /// What it has counted.
    pub fn counters(&self) -> Counters {
        match *self {}
    }
}

impl Queue {
    /// Which queue of the device it is, from 0.
    pub fn index(&self) -> u16 {
        match *self {}
    }

    /// Receives frames.
    pub fn receive(&mut self, _most: usize) -> usize {
        match *self {}
    }

    /// The bytes of one of them, if they lie in one piece.
    pub fn bytes(&self, _index: usize) -> Option<&[u8]> {
        match *self {}
    }

    /// Copies one of them.
    pub fn copy(&self, _index: usize, _out: &mut [u8]) -> usize {
        match *self {}
    }

    /// Keeps one of them until it is given back.
    pub fn keep(&mut self, _index: usize) {
        match *self {}
    }

    /// Gives back the first of those that are kept.
    pub fn give_back(&mut self, _count: usize) {
        match *self {}
    }

    /// Writes a frame.
    ///
    /// # Errors
    /// None: there is no queue.
    pub fn write(
        &mut self,
        _length: usize,
        _left: Option<LeftSum>,
        _fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), WriteError> {
        match *self {}
    }

    /// How many frames were written and are not handed over yet.
    pub fn waiting(&self) -> usize {
        match *self {}
    }

    /// Gives those up.
    pub fn discard(&mut self) {
        match *self {}
    }

    /// Hands over what was written.
    pub fn flush(&mut self) -> bool {
        match *self {}
    }
}
