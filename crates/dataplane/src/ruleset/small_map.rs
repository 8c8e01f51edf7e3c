//! A map that is mostly tiny and sometimes large, and whose copies share what they have in common
//! where that is much: a list up to some entries, which a look-up reads in place, and above a
//! persistent hash table.

use std::hash::Hash;

use crate::overlay::SharedMap;

/// Entries of a list.
const FEW: usize = 8;

#[derive(Clone)]
pub(super) enum SmallMap<K, V> {
    Few(Vec<(K, V)>),
    Many(SharedMap<K, V>),
}

impl<K, V> Default for SmallMap<K, V> {
    fn default() -> Self {
        SmallMap::Few(Vec::new())
    }
}

impl<K: Eq + Hash + Clone, V: Clone> SmallMap<K, V> {
    #[inline]
    pub fn get(&self, key: &K) -> Option<&V> {
        match self {
            SmallMap::Few(list) => list
                .iter()
                .find_map(|(known, value)| (known == key).then_some(value)),
            SmallMap::Many(map) => map.get(key),
        }
    }

    /// Changes the value of a key; `None` is no entry.
    pub fn alter(&mut self, key: K, change: impl FnOnce(Option<V>) -> Option<V>) {
        match self {
            SmallMap::Few(list) => {
                match list.iter().position(|(known, _)| *known == key) {
                    Some(at) => match change(Some(list[at].1.clone())) {
                        Some(value) => list[at].1 = value,
                        None => drop(list.remove(at)),
                    },
                    None => list.extend(change(None).map(|value| (key, value))),
                }
                if list.len() > FEW {
                    *self = SmallMap::Many(std::mem::take(list).into_iter().collect());
                }
            }
            SmallMap::Many(map) => {
                *map = map.alter(change, key);
                if map.len() <= FEW / 2 {
                    let list = map.iter().map(|(key, value)| (key.clone(), value.clone()));
                    *self = SmallMap::Few(list.collect());
                }
            }
        }
    }

    pub fn is_empty(&self) -> bool {
        match self {
            SmallMap::Few(list) => list.is_empty(),
            SmallMap::Many(map) => map.is_empty(),
        }
    }

    /// The first that `find` says something of.
    #[inline]
    pub fn find_map<T>(&self, mut find: impl FnMut(&K, &V) -> Option<T>) -> Option<T> {
        match self {
            SmallMap::Few(list) => list.iter().find_map(|(key, value)| find(key, value)),
            SmallMap::Many(map) => map.iter().find_map(|(key, value)| find(key, value)),
        }
    }
}
