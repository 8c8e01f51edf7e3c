//! How old the kernel's entries of neighbours are, and how long they last. Asked of the kernel on
//! demand, since it sends no message when an entry is merely confirmed once more or used.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use crate::decode;
use crate::error::Error;
use crate::message::{Message, u32_at};
use crate::model::{Family, Neighbour};
use crate::request::Requests;
use crate::uapi::*;

/// USER_HZ: the unit of times in netlink messages, hundredths of a second on all that Linux runs on
/// today.
const TICK: Duration = Duration::from_millis(10);

/// Time since something happened to an entry (struct nda_cacheinfo).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Age {
    /// The neighbour was heard from.
    pub confirmed: Duration,
    /// The kernel sent by it.
    pub used: Duration,
    /// Its state or its hardware address changed.
    pub updated: Duration,
}

/// How long entries of an interface last (RTM_GETNEIGHTBL).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// From its confirmation on an entry is reachable (RFC 4861, section 6.3.4: the value drawn at
    /// random).
    pub reachable: Duration,
    /// From its last use on a stale entry may be forgotten.
    pub stale: Duration,
}

/// Ages and lifetimes at one moment.
#[derive(Clone, Debug, Default)]
pub struct Ages {
    ages: HashMap<(u32, IpAddr), Age>,
    lifetimes: HashMap<(Family, u32), Lifetime>,
}

impl Ages {
    /// The age of one entry, if it is there.
    pub fn of(&self, ifindex: u32, ip: IpAddr) -> Option<Age> {
        self.ages.get(&(ifindex, ip)).copied()
    }

    /// How long until an entry's time is up: a reachable one has to be confirmed then, a stale one
    /// may be forgotten. `None` for one that has no such time.
    pub fn left(&self, neighbour: &Neighbour) -> Option<Duration> {
        let age = self.of(neighbour.ifindex, neighbour.ip)?;
        let lifetime = self
            .lifetimes
            .get(&(Family::of(neighbour.ip), neighbour.ifindex))?;
        match neighbour.state {
            NUD_REACHABLE => Some(lifetime.reachable.saturating_sub(age.confirmed)),
            NUD_STALE => Some(lifetime.stale.saturating_sub(age.used)),
            _ => None,
        }
    }
}

impl Requests {
    /// The ages of all entries of both families.
    pub async fn ages(&self) -> Result<Ages, Error> {
        let mut all = Ages::default();
        // struct ndmsg, whose family is none: all.
        self.dump("list neighbours", RTM_GETNEIGH, &[0; 12], |message| {
            all.ages.extend(age(message));
        })
        .await?;
        // struct ndtmsg.
        self.dump(
            "list neighbour tables",
            RTM_GETNEIGHTBL,
            &[0; 4],
            |message| {
                all.lifetimes.extend(lifetime(message));
            },
        )
        .await?;
        Ok(all)
    }
}

fn age(message: &Message) -> Option<((u32, IpAddr), Age)> {
    let neighbour = decode::neighbour(message)?;
    let times = message
        .attributes(12)
        .find(|a| a.kind == NDA_CACHEINFO)?
        .value;
    let since = |at| u32_at(times, at).map(|ticks| TICK * ticks);
    let age = Age {
        confirmed: since(0)?,
        used: since(4)?,
        updated: since(8)?,
    };
    Some(((neighbour.ifindex, neighbour.ip), age))
}

/// The parameters of an interface; those without one are what new interfaces get.
fn lifetime(message: &Message) -> Option<((Family, u32), Lifetime)> {
    let family = Family::from_code(*message.body.first()?)?;
    let parameters = message.attributes(4).find(|a| a.kind == NDTA_PARMS)?;
    let value = |kind| parameters.nested().find(|a| a.kind == kind);
    let ms = |kind| {
        let bytes = value(kind)?.value.try_into().ok()?;
        Some(Duration::from_millis(u64::from_ne_bytes(bytes)))
    };
    let lifetime = Lifetime {
        reachable: ms(NDTPA_REACHABLE_TIME)?,
        stale: ms(NDTPA_GC_STALETIME)?,
    };
    Some(((family, value(NDTPA_IFINDEX)?.u32()?), lifetime))
}
