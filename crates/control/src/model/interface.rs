//! What is declared of this host's interfaces: which of them a feature works on, and how it is
//! attached there.

use crate::error::Error;
use crate::limits;
use ::model::Mode;
use std::collections::BTreeMap;
use std::fmt;

/// What works on interfaces that are named to it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Feature {
    /// The load balancer.
    Balancer,
    /// The router.
    Router,
    /// What joins this host to others. It has no modes to choose from, and interfaces that are not
    /// there yet may be named.
    Uplink,
}

impl Feature {
    /// All of them.
    pub const ALL: [Feature; 3] = [Feature::Balancer, Feature::Router, Feature::Uplink];
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Feature::Balancer => "balancer",
            Feature::Router => "router",
            Feature::Uplink => "uplink",
        })
    }
}

/// An interface that a feature is to work on, now and whenever it comes back under its name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Interface {
    /// 1 to 15 bytes, as the kernel takes them.
    pub name: String,
    /// How the feature is to be attached; `None`: however it can be.
    pub mode: Option<Mode>,
}

/// The interfaces of each feature, in the order they are taken. A feature that is not named here
/// keeps what it has.
pub type Interfaces = BTreeMap<Feature, Vec<Interface>>;

impl Interface {
    /// An interface of this name.
    ///
    /// # Errors
    /// The kernel has no interface of such a name.
    pub fn new(name: &str, mode: Option<Mode>) -> Result<Interface, Error> {
        let fits = (1..=limits::INTERFACE_NAME).contains(&name.len())
            && !name.contains(['/', ':'])
            && !name.contains(char::is_whitespace);
        let name = name.to_owned();
        match fits {
            true => Ok(Interface { name, mode }),
            false => Err(Error::value(
                &"interface",
                "name",
                &name,
                "is no name of an interface",
            )),
        }
    }
}

/// Refuses a name that is there twice.
pub(crate) fn once(feature: Feature, interfaces: &[Interface]) -> Result<(), Error> {
    let mut names: Vec<&str> = interfaces.iter().map(|one| one.name.as_str()).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        None => Ok(()),
        Some(pair) => Err(Error::Invalid(format!(
            "interface {} of the {feature} is there twice",
            pair[0]
        ))),
    }
}

/// The interfaces after they were declared: those that stay keep their place, and the mode that
/// they have where none is asked for.
pub(crate) fn declared(now: &[Interface], wanted: &[Interface]) -> Vec<Interface> {
    let of = |list: &[Interface], name: &str| list.iter().find(|one| one.name == name).cloned();
    let stay = now.iter().filter_map(|old| {
        let mode = of(wanted, &old.name)?.mode.or(old.mode);
        Some(Interface {
            name: old.name.clone(),
            mode,
        })
    });
    let come = wanted.iter().filter(|one| of(now, &one.name).is_none());
    stay.chain(come.cloned()).collect()
}
