//! Services as the balancer balances them: their servers, what each gets, and how packets get
//! there. Values that exist are valid. Nothing here is asked for its health: what is declared to
//! the daemon, with checks, is `control::model::DeclaredService`.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU16;

use crate::error::Error;
use crate::key::{ServiceKey, check_host};

/// How a packet is put on its way to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Tunnel {
    /// Not at all: the frame is addressed to the server's MAC, which is on one of our links
    /// (layer-2 DSR).
    #[default]
    None,
    /// IP in IP: RFC 2003 (4in4), RFC 4213 (6in4), RFC 2473 (4in6, 6in6).
    Ipip,
    /// GRE without key (RFC 2784).
    Gre,
    /// UDP to this port with the packet as it is in it (Linux's "foo over UDP"): the server's port
    /// tells the family.
    Fou {
        /// Where the server listens.
        port: NonZeroU16,
    },
    /// UDP to this port, then GUE variant 0 without options (draft-ietf-intarea-gue).
    Gue {
        /// Where the server listens.
        port: NonZeroU16,
    },
}

impl fmt::Display for Tunnel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Tunnel::None => f.write_str("l2"),
            Tunnel::Ipip => f.write_str("ipip"),
            Tunnel::Gre => f.write_str("gre"),
            Tunnel::Fou { port } => write!(f, "fou port {port}"),
            Tunnel::Gue { port } => write!(f, "gue port {port}"),
        }
    }
}

/// A server's share, in proportion to the others': 1 to 65,535.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Weight(NonZeroU16);

impl Weight {
    /// Everybody's.
    pub const ONE: Weight = Weight(NonZeroU16::MIN);

    /// # Errors
    /// Zero: a server that shall get no new flows is [`State::Draining`].
    pub fn new(weight: u16) -> Result<Self, Error> {
        NonZeroU16::new(weight).map(Weight).ok_or(Error::ZeroWeight)
    }

    /// The number.
    pub fn get(self) -> u16 {
        self.0.get()
    }
}

impl Default for Weight {
    fn default() -> Self {
        Weight::ONE
    }
}

/// What a server gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum State {
    /// New flows and old ones.
    #[default]
    Up,
    /// Old flows only.
    Draining,
    /// Nothing: its flows go to others, whose reset tells the clients.
    Down,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            State::Up => "up",
            State::Draining => "draining",
            State::Down => "down",
        })
    }
}

/// A server of one service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Server {
    address: IpAddr,
    /// Its share.
    pub weight: Weight,
    /// What it gets.
    pub state: State,
    /// How packets get there.
    pub tunnel: Tunnel,
}

impl Server {
    /// A server that is up, of weight one, reached on layer 2. Its address may be of the other
    /// family than the VIP.
    ///
    /// # Errors
    /// The address is no host's.
    pub fn new(address: IpAddr) -> Result<Self, Error> {
        check_host("a server", address)?;
        Ok(Server {
            address,
            weight: Weight::ONE,
            state: State::Up,
            tunnel: Tunnel::None,
        })
    }

    /// The address that it is known by and reached at.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// This server with another weight.
    pub fn weight(mut self, weight: Weight) -> Self {
        self.weight = weight;
        self
    }

    /// This server in another state.
    pub fn state(mut self, state: State) -> Self {
        self.state = state;
        self
    }

    /// This server reached by another tunnel, or by none.
    pub fn tunnel(mut self, tunnel: Tunnel) -> Self {
        self.tunnel = tunnel;
        self
    }
}

/// A service: its key, its servers by address, and whether clients stick to a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    key: ServiceKey,
    /// All flows of a client go to one server, chosen by the client's address alone.
    pub sticky: bool,
    servers: BTreeMap<IpAddr, Server>,
}

impl Service {
    /// A service without servers: its packets are dropped until it has one.
    pub fn new(key: ServiceKey) -> Self {
        Service {
            key,
            sticky: false,
            servers: BTreeMap::new(),
        }
    }

    /// What it is known by.
    pub fn key(&self) -> ServiceKey {
        self.key
    }

    /// The servers, in order of their addresses.
    pub fn servers(&self) -> impl Iterator<Item = &Server> {
        self.servers.values()
    }

    /// The server of that address.
    pub fn server(&self, address: IpAddr) -> Option<&Server> {
        self.servers.get(&address)
    }

    /// Adds a server, or changes the one of that address; gives the one that was.
    pub fn set(&mut self, server: Server) -> Option<Server> {
        self.servers.insert(server.address, server)
    }

    /// Takes a server out.
    pub fn remove(&mut self, address: IpAddr) -> Option<Server> {
        self.servers.remove(&address)
    }

    /// This service with one more server.
    pub fn with(mut self, server: Server) -> Self {
        self.set(server);
        self
    }

    /// This service with clients that stick to their servers, or not.
    pub fn sticky(mut self, sticky: bool) -> Self {
        self.sticky = sticky;
        self
    }
}

/// The whole configuration: services by their keys.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Services(BTreeMap<ServiceKey, Service>);

impl Services {
    /// None.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a service, or changes the one of that key; gives the one that was.
    pub fn set(&mut self, service: Service) -> Option<Service> {
        self.0.insert(service.key, service)
    }

    /// Takes a service out.
    pub fn remove(&mut self, key: &ServiceKey) -> Option<Service> {
        self.0.remove(key)
    }

    /// The service of that key.
    pub fn get(&self, key: &ServiceKey) -> Option<&Service> {
        self.0.get(key)
    }

    /// The service of that key, to change.
    pub fn get_mut(&mut self, key: &ServiceKey) -> Option<&mut Service> {
        self.0.get_mut(key)
    }

    /// All, in order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = &Service> {
        self.0.values()
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The addresses that a way has to be known to, each once: those of all servers.
    pub fn targets(&self) -> std::collections::BTreeSet<IpAddr> {
        self.iter()
            .flat_map(|service| service.servers.keys().copied())
            .collect()
    }
}

impl FromIterator<Service> for Services {
    fn from_iter<I: IntoIterator<Item = Service>>(services: I) -> Self {
        Services(
            services
                .into_iter()
                .map(|service| (service.key, service))
                .collect(),
        )
    }
}
