//! A set of IP addresses: what a security group stands for. Cheap to clone and to change.

use std::net::IpAddr;

/// The addresses of a group's members. A clone shares what is not changed afterwards, so that
/// adding one member to a group of thousands costs the same as to a group of ten.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct AddressSet {
    addresses: imbl::GenericHashSet<
        IpAddr,
        foldhash::quality::RandomState,
        imbl::shared_ptr::DefaultSharedPtr,
    >,
}

impl AddressSet {
    /// True when `address` is in the set.
    #[inline]
    pub fn contains(&self, address: &IpAddr) -> bool {
        self.addresses.contains(address)
    }

    /// Adds an address; true if it was not there.
    pub fn insert(&mut self, address: IpAddr) -> bool {
        self.addresses.insert(address).is_none()
    }

    /// Takes an address out; true if it was there.
    pub fn remove(&mut self, address: &IpAddr) -> bool {
        self.addresses.remove(address).is_some()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.addresses.len()
    }

    /// True when there is none.
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty()
    }

    /// All of them, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = &IpAddr> {
        self.addresses.iter()
    }
}

impl FromIterator<IpAddr> for AddressSet {
    fn from_iter<I: IntoIterator<Item = IpAddr>>(addresses: I) -> Self {
        AddressSet {
            addresses: addresses.into_iter().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clone_is_not_changed_with_the_original() {
        let one: IpAddr = "10.0.0.1".parse().unwrap();
        let two: IpAddr = "2001:db8::2".parse().unwrap();
        let mut set: AddressSet = [one].into_iter().collect();
        let before = set.clone();
        assert!(set.insert(two) && !set.insert(two));
        assert!(set.remove(&one) && !set.remove(&one));
        assert_eq!((set.contains(&one), set.contains(&two)), (false, true));
        assert_eq!(
            (before.contains(&one), before.contains(&two)),
            (true, false)
        );
    }
}
