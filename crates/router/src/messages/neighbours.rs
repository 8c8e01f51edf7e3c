//! The kernel's neighbours, with their times and with whether the router sends to them.

use std::sync::Arc;
use std::time::Duration;

use api::v1;
use netlink::ages::Ages;
use netlink::{Neighbour, Requests, Snapshot};

use super::refusal::Refusal;
use super::render::interface_name;
use crate::Router;

/// The neighbours that a request asks for, by interface and address.
pub struct Asked {
    snapshot: Arc<Snapshot>,
    found: Vec<Neighbour>,
}

impl Asked {
    /// Those of the kernel's now.
    ///
    /// # Errors
    /// The interface is not there.
    pub fn new(
        request: &v1::ListNeighboursRequest,
        snapshot: Arc<Snapshot>,
    ) -> Result<Asked, Refusal> {
        let ifindex = match request.interface.as_str() {
            "" => None,
            name => Some(
                snapshot
                    .link_named(name)
                    .map(|link| link.index)
                    .ok_or_else(|| {
                        Refusal::NotFound(format!("interface {name}: there is no such interface"))
                    })?,
            ),
        };
        let both = request.ipv4 == request.ipv6;
        let asked = |neighbour: &&Neighbour| {
            (both || neighbour.ip.is_ipv4() == request.ipv4)
                && ifindex.is_none_or(|ifindex| neighbour.ifindex == ifindex)
        };
        let found = snapshot.neighbours.values().filter(asked);
        Ok(Asked {
            found: found.copied().collect(),
            snapshot,
        })
    }

    /// The messages but for their times, as the router stands; none: it forwards to nobody.
    pub fn judged(self, router: Option<&Router>) -> Judged {
        let fast =
            |neighbour: &Neighbour| router.is_some_and(|router| router.forwards_to(neighbour));
        let judge = |found: &Neighbour| {
            let interface = interface_name(found.ifindex, &self.snapshot);
            (*found, neighbour(found, interface, fast(found)))
        };
        Judged(self.found.iter().map(judge).collect())
    }
}

/// Neighbours, and what is said of each but for its times.
pub struct Judged(Vec<(Neighbour, v1::Neighbour)>);

impl Judged {
    /// The whole messages. Asks the kernel for the times.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub async fn with_times(self) -> Result<Vec<v1::Neighbour>, Refusal> {
        let failed = |e: netlink::Error| Refusal::Unavailable(e.to_string());
        let requests = Requests::new().map_err(failed)?;
        let ages = requests.ages().await.map_err(failed)?;
        let whole = self.0.into_iter();
        Ok(whole
            .map(|(neighbour, message)| with_times(message, &neighbour, &ages))
            .collect())
    }
}

/// A neighbour without its times.
pub fn neighbour(neighbour: &Neighbour, interface: String, fast: bool) -> v1::Neighbour {
    v1::Neighbour {
        address: neighbour.ip.to_string(),
        interface,
        mac: neighbour.mac.map(|mac| mac.to_string()).unwrap_or_default(),
        state: neighbour.state_name().into(),
        router: neighbour.router,
        fast,
        ..Default::default()
    }
}

fn with_times(message: v1::Neighbour, neighbour: &Neighbour, ages: &Ages) -> v1::Neighbour {
    let ms = |time: Duration| time.as_millis() as u64;
    let age = ages.of(neighbour.ifindex, neighbour.ip).unwrap_or_default();
    v1::Neighbour {
        confirmed_ms: ms(age.confirmed),
        used_ms: ms(age.used),
        updated_ms: ms(age.updated),
        expires_ms: ages.left(neighbour).map(ms),
        ..message
    }
}
