//! A UDP socket on the port of each address of ours, so that the kernel does not answer for what
//! comes to it past the program, and so that nobody else takes the port. Nobody reads them.

use std::collections::BTreeMap;
use std::net::{IpAddr, UdpSocket};

/// The sockets; `None` where the port could not be had, yet.
pub(super) struct Reserved {
    port: u16,
    sockets: BTreeMap<IpAddr, Option<UdpSocket>>,
}

impl Reserved {
    /// None yet.
    pub fn new(port: u16) -> Reserved {
        Reserved {
            port,
            sockets: BTreeMap::new(),
        }
    }

    /// Takes the port on each address that is there, as far as it is to be had, and lets go of the
    /// others.
    pub fn follow(&mut self, addresses: impl Iterator<Item = IpAddr>) {
        let mut before = std::mem::take(&mut self.sockets);
        for ip in addresses {
            // One address may come in several VLANs.
            if self.sockets.contains_key(&ip) {
                continue;
            }
            let socket = before.remove(&ip).flatten().or_else(|| self.bind(ip));
            self.sockets.insert(ip, socket);
        }
    }

    /// False: another try may succeed.
    pub fn has_all(&self) -> bool {
        self.sockets.values().all(Option::is_some)
    }

    fn bind(&self, ip: IpAddr) -> Option<UdpSocket> {
        let socket = UdpSocket::bind((ip, self.port));
        // An address that is being looked for in its network yet, or another VXLAN endpoint's.
        socket
            .inspect_err(|error| {
                tracing::debug!("UDP port {} of {ip} is not ours: {error}", self.port)
            })
            .ok()
    }
}
