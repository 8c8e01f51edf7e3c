//! What a device's driver does with XDP: asked of the generic netlink family `netdev`
//! (linux/netdev.h, since Linux 6.3).
//!
//! Frames redirected to a device that does not take them are lost without a word: a veth whose far
//! end has neither a program nor GRO, a NIC that needs a program of its own first.

use crate::error::Error;
use crate::message::{Message, Request, messages};
use crate::socket::Socket;
use std::io;

// linux/genetlink.h and linux/netdev.h.
const GENL_ID_CTRL: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;
const NETDEV_XDP_ACT_NDO_XMIT: u64 = 4;

/// A socket to ask with, of the namespace of the thread that made it.
#[derive(Debug)]
pub struct Devices {
    asking: Socket,
    sequence: u32,
    /// The family's number; none on a kernel that does not have it.
    family: Option<u16>,
}

impl Devices {
    /// Finds out whether the kernel can be asked.
    pub async fn new() -> Result<Self, Error> {
        let mut devices = Devices {
            asking: Socket::generic()?,
            sequence: 1,
            family: None,
        };
        let find = |sequence| {
            // struct genlmsghdr: command, version, two unused.
            Request::new(GENL_ID_CTRL, 0, sequence, &[CTRL_CMD_GETFAMILY, 1, 0, 0])
                .with(CTRL_ATTR_FAMILY_NAME, b"netdev\0")
                .finish()
        };
        let answer = devices.ask(find).await?;
        let id = |message: Message| {
            message
                .attributes(4)
                .find(|a| a.kind == CTRL_ATTR_FAMILY_ID)?
                .u16()
        };
        devices.family = messages(&answer)
            .next()
            .filter(|message| message.kind == GENL_ID_CTRL)
            .and_then(id);
        Ok(devices)
    }

    /// Whether frames may be redirected to a device; `None` where the kernel cannot say. A device
    /// that is gone takes none.
    pub async fn takes_redirects(&mut self, ifindex: u32) -> Result<Option<bool>, Error> {
        let Some(family) = self.family else {
            return Ok(None);
        };
        let get = |sequence| {
            Request::new(family, 0, sequence, &[NETDEV_CMD_DEV_GET, 1, 0, 0])
                .with(NETDEV_A_DEV_IFINDEX, &ifindex.to_ne_bytes())
                .finish()
        };
        let answer = self.ask(get).await?;
        let features = |message: Message| {
            let found = message
                .attributes(4)
                .find(|a| a.kind == NETDEV_A_DEV_XDP_FEATURES)?;
            found.value.try_into().ok().map(u64::from_ne_bytes)
        };
        let told = messages(&answer)
            .next()
            .filter(|message| message.kind == family)
            .and_then(features);
        Ok(Some(told.is_some_and(|features| {
            features & NETDEV_XDP_ACT_NDO_XMIT != 0
        })))
    }

    async fn ask(&mut self, request: impl FnOnce(u32) -> Vec<u8>) -> Result<Vec<u8>, Error> {
        let failed = |source: io::Error| Error::Socket {
            action: "use",
            source,
        };
        self.sequence += 1;
        self.asking.send(&request(self.sequence)).map_err(failed)?;
        loop {
            let datagram = self.asking.receive().await.map_err(failed)?;
            if messages(datagram)
                .next()
                .is_some_and(|message| message.sequence == self.sequence)
            {
                return Ok(datagram.to_vec());
            }
        }
    }
}
