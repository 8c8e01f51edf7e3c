//! A UDP socket on the port of each address of ours, so that the kernel does not answer for what
//! comes to it past the program, and so that nobody else takes the port. Nobody reads them.

use std::collections::BTreeMap;
use std::net::{IpAddr, UdpSocket};

/// The sockets; `None` where the port could not be had, yet.
pub(super) struct Reserved {
    port: u16,
    sockets: BTreeMap<IpAddr, Option<UdpSocket>>,
    /// Those of another process, for the addresses that are still to come.
    handed: BTreeMap<IpAddr, UdpSocket>,
}

impl Reserved {
    /// None yet.
    pub fn new(port: u16) -> Reserved {
        Reserved {
            port,
            sockets: BTreeMap::new(),
            handed: BTreeMap::new(),
        }
    }

    /// Goes on with those that another process hands over.
    pub fn hand(&mut self, handed: BTreeMap<IpAddr, UdpSocket>) {
        self.handed = handed;
    }

    /// Those that there are, for another process.
    pub fn hand_over(&self) -> std::io::Result<BTreeMap<IpAddr, UdpSocket>> {
        let there = self.sockets.iter();
        let there = there.filter_map(|(ip, socket)| Some((*ip, socket.as_ref()?)));
        there
            .map(|(ip, socket)| Ok((ip, socket.try_clone()?)))
            .collect()
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
            let had = before.remove(&ip).flatten();
            let had = had.or_else(|| self.handed.remove(&ip));
            let socket = had.or_else(|| self.bind(ip));
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
