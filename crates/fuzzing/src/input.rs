//! Takes numbers and bytes off the input, and gives zeros when it is used up.

use wire::offload::Offload;
use wire::virtio_net;

/// What is left of the input.
#[derive(Clone, Copy)]
pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub fn new(data: &'a [u8]) -> Self {
        Input(data)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Up to `len` bytes.
    pub fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        let taken = self.take(N);
        out[..taken.len()].copy_from_slice(taken);
        out
    }

    pub fn u8(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// Bytes with their length before them.
    pub fn piece(&mut self) -> &'a [u8] {
        let len = self.u16();
        self.take(len.into())
    }

    /// The offload fields of a virtio-net header; none when it is not one.
    pub fn offload(&mut self) -> Offload {
        virtio_net::decode(&self.array()).unwrap_or_default()
    }

    /// Changes up to three bytes of a frame, and of `spared` in `spared + 4` frames none.
    pub fn corrupt(&mut self, frame: &mut [u8], spared: u8) {
        for _ in 0..(self.u8() % (spared + 4)).saturating_sub(spared) {
            let (at, with) = (usize::from(self.u8()), self.u8());
            if let Some(byte) = frame.get_mut(at) {
                *byte ^= with;
            }
        }
    }
}
