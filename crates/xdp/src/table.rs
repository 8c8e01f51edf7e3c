//! A program's map as typed Rust: keys and values are plain data whose sizes are compared with the
//! map's when it is opened, so that a struct that has changed on one side only is found at once.

use std::marker::PhantomData;

use bytemuck::Pod;
use libbpf_rs::{MapCore, MapFlags, MapHandle};

use crate::error::Error;

/// A map of one value a key, of any kind: hash, array, LRU, LPM trie. Cheap to make; a handle, not
/// the contents.
#[derive(Debug)]
pub struct Table<K, V> {
    map: MapHandle,
    entry: PhantomData<fn() -> (K, V)>,
}

/// A map that has a value for each CPU under each key.
#[derive(Debug)]
pub struct PerCpuTable<K, V> {
    map: MapHandle,
    entry: PhantomData<fn() -> (K, V)>,
}

impl<K: Pod, V: Pod> Table<K, V> {
    /// Opens a map, whose keys and values have to be as long as `K` and `V`.
    ///
    /// # Errors
    /// [`Error::Shape`] if they are not.
    pub fn new(map: MapHandle) -> Result<Self, Error> {
        check_shape::<K, V>(&map)?;
        Ok(Table {
            map,
            entry: PhantomData,
        })
    }

    /// The value of a key.
    ///
    /// # Errors
    /// The kernel refuses to read.
    pub fn get(&self, key: &K) -> Result<Option<V>, Error> {
        let mut value = V::zeroed();
        let key = bytemuck::bytes_of(key);
        let found = self
            .map
            .lookup_into(key, bytemuck::bytes_of_mut(&mut value), MapFlags::ANY);
        Ok(found
            .map_err(|source| failed(&self.map, source))?
            .then_some(value))
    }

    /// Sets the value of a key, new or not. The entry changes as a whole.
    ///
    /// # Errors
    /// The map is full, the key is outside an array.
    pub fn set(&self, key: &K, value: &V) -> Result<(), Error> {
        let (key, value) = (bytemuck::bytes_of(key), bytemuck::bytes_of(value));
        let done = self.map.update(key, value, MapFlags::ANY);
        done.map_err(|source| failed(&self.map, source))
    }

    /// Sets many with one system call: `keys` and `values` have the same length.
    ///
    /// # Errors
    /// Those of [`set`](Self::set); the entries before the one that failed are set.
    pub fn set_all(&self, keys: &[K], values: &[V]) -> Result<(), Error> {
        assert_eq!(keys.len(), values.len(), "a value for each key");
        if keys.is_empty() {
            return Ok(());
        }
        let count = u32::try_from(keys.len()).expect("no map has 2^32 entries");
        let (keys, values) = (bytemuck::cast_slice(keys), bytemuck::cast_slice(values));
        let done = self
            .map
            .update_batch(keys, values, count, MapFlags::ANY, MapFlags::ANY);
        done.map_err(|source| failed(&self.map, source))
    }

    /// Removes a key; gives whether it was there.
    ///
    /// # Errors
    /// The map is an array, whose entries cannot go.
    pub fn remove(&self, key: &K) -> Result<bool, Error> {
        remove(&self.map, bytemuck::bytes_of(key))
    }

    /// All keys. Those that come and go meanwhile may be among them or not.
    pub fn keys(&self) -> impl Iterator<Item = K> + '_ {
        self.map
            .keys()
            .map(|key| bytemuck::pod_read_unaligned(&key))
    }

    /// The map itself.
    pub fn map(&self) -> &MapHandle {
        &self.map
    }
}

impl<K: Pod, V: Pod> PerCpuTable<K, V> {
    /// As [`Table::new`].
    ///
    /// # Errors
    /// [`Error::Shape`].
    pub fn new(map: MapHandle) -> Result<Self, Error> {
        check_shape::<K, V>(&map)?;
        Ok(PerCpuTable {
            map,
            entry: PhantomData,
        })
    }

    /// The values of a key, one for each possible CPU; `None` where the key is not there.
    ///
    /// # Errors
    /// The kernel refuses to read.
    pub fn get(&self, key: &K) -> Result<Option<Vec<V>>, Error> {
        let found = self
            .map
            .lookup_percpu(bytemuck::bytes_of(key), MapFlags::ANY);
        let found = found.map_err(|source| failed(&self.map, source))?;
        let read = |bytes: Vec<u8>| bytemuck::pod_read_unaligned(&bytes[..size_of::<V>()]);
        Ok(found.map(|values| values.into_iter().map(read).collect()))
    }

    /// Sets the value of a key to the same on every CPU.
    ///
    /// # Errors
    /// As [`Table::set`].
    pub fn set(&self, key: &K, value: &V) -> Result<(), Error> {
        let cpus = libbpf_rs::num_possible_cpus().map_err(|source| failed(&self.map, source))?;
        let values = vec![bytemuck::bytes_of(value).to_vec(); cpus];
        let done = self
            .map
            .update_percpu(bytemuck::bytes_of(key), &values, MapFlags::ANY);
        done.map_err(|source| failed(&self.map, source))
    }

    /// Removes a key of a hash; gives whether it was there.
    ///
    /// # Errors
    /// As [`Table::remove`].
    pub fn remove(&self, key: &K) -> Result<bool, Error> {
        remove(&self.map, bytemuck::bytes_of(key))
    }

    /// The map itself.
    pub fn map(&self) -> &MapHandle {
        &self.map
    }
}

fn check_shape<K, V>(map: &MapHandle) -> Result<(), Error> {
    if map.key_size() as usize == size_of::<K>() && map.value_size() as usize == size_of::<V>() {
        return Ok(());
    }
    Err(Error::Shape {
        map: name_of(map),
        key: map.key_size(),
        value: map.value_size(),
        want_key: size_of::<K>(),
        want_value: size_of::<V>(),
    })
}

fn remove(map: &MapHandle, key: &[u8]) -> Result<bool, Error> {
    match map.delete(key) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == libbpf_rs::ErrorKind::NotFound => Ok(false),
        Err(source) => Err(failed(map, source)),
    }
}

pub(crate) fn failed(map: &MapHandle, source: libbpf_rs::Error) -> Error {
    Error::Map {
        map: name_of(map),
        source,
    }
}

fn name_of(map: &MapHandle) -> String {
    map.name().to_string_lossy().into_owned()
}
