//! The access list in the kernel: two images, of which one is in use, what their rules have
//! counted, and what they said of flows (`bpf/router/acl_flows.h`). Owned by the router.

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::Ordering;

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapInfo, MapType, libbpf_sys};
use sys::bpf_array::BpfArray;

use super::image::Image;
use super::{List, Rule};
use crate::error::Error;
use crate::layout::{ACL_FLOWS_WORDS, ELEMENT_LINES, LINE_WORDS};

/// Of as many elements as it has, where the program knows of one.
const INNER: u32 = libbpf_sys::BPF_F_INNER_MAP;
/// Words of a count: packets and bytes, 64 bits each.
const COUNT_WORDS: usize = 4;

/// Packets and bytes, those of IP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Packets that a rule took.
    pub packets: u64,
    /// Their bytes, without Ethernet headers.
    pub bytes: u64,
}

impl Count {
    /// What another process has handed over may be any number.
    fn add(&mut self, other: Count) {
        self.packets = self.packets.saturating_add(other.packets);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }
}

/// Both banks.
#[derive(Debug)]
pub struct Loaded {
    images: MapHandle,
    counters: MapHandle,
    flows: MapHandle,
    /// Those of each CPU, while there is a list.
    flows_of: Vec<BpfArray>,
    cpus: usize,
    bank: u32,
    now: Option<Counting>,
    /// The one before, whose last packets may still be on their way.
    before: Option<Counting>,
    /// What another process has left, whose programs may be in force as yet.
    left: Option<Left>,
}

/// A list of another process, and what its rules count.
#[derive(Debug)]
struct Left {
    list: List,
    counting: Counting,
    /// Its programs are in force no longer.
    is_over: bool,
}

/// What an image's rules count, with what equal rules had counted before.
#[derive(Debug)]
struct Counting {
    map: OwnedFd,
    memory: BpfArray,
    slots: usize,
    /// By slot.
    had: Vec<Count>,
    /// By slot: the slot that goes on as this one, of the list before.
    from: Vec<Option<usize>>,
    /// By slot: the slot that goes on as this one, of the list that another process has left.
    from_left: Vec<Option<usize>>,
}

impl Loaded {
    /// Over the maps `acls`, `acl_counters` and `acl_flows`, empty.
    pub fn new(images: MapHandle, counters: MapHandle, flows: MapHandle, cpus: usize) -> Loaded {
        Loaded {
            images,
            counters,
            flows,
            flows_of: Vec::new(),
            cpus,
            bank: 0,
            now: None,
            before: None,
            left: None,
        }
    }

    /// Has equal rules of lists go on with what those of another process's have counted in `map`,
    /// besides `had`, by slot. Its programs may count until [`taken_over`](Self::taken_over).
    ///
    /// # Errors
    /// What it is counted in is not that, or memory.
    pub fn go_on(&mut self, list: List, map: OwnedFd, had: Vec<Count>) -> Result<(), Error> {
        let refused = |why| Error::Handed { why };
        let info =
            MapInfo::new(map.as_fd()).map_err(|_| refused("no map has its rules' counts"))?;
        let is = (info.map_type(), info.info.key_size, info.info.value_size);
        let elements = had.len() * self.cpus;
        if is != (MapType::Array, 4, COUNT_WORDS as u32 * 4)
            || usize::try_from(info.info.max_entries) != Ok(elements)
            || had.len() != list.rules.len() + 1
        {
            return Err(refused("its rules' counts are of another list"));
        }
        let words = elements * COUNT_WORDS;
        let memory = BpfArray::new(map.as_fd(), words).map_err(|source| Error::Memory {
            table: "acl_counts",
            words,
            source,
        })?;
        let none = vec![None; had.len()];
        let counting = Counting {
            map,
            memory,
            slots: had.len(),
            had,
            from: none.clone(),
            from_left: none,
        };
        self.left = Some(Left {
            list,
            counting,
            is_over: false,
        });
        Ok(())
    }

    /// Nobody else's programs count any more, but for packets that are on their way.
    pub fn taken_over(&mut self) {
        if let Some(left) = &mut self.left {
            left.is_over = true;
        }
    }

    /// Adds what another process has left to what equal rules had; of no list it goes.
    fn add_up_left(&mut self) {
        if let (Some(left), Some(now)) = (self.left.take(), &mut self.now) {
            for (had, from) in now.had.iter_mut().zip(&now.from_left) {
                if let Some(slot) = from {
                    had.add(left.counting.total(*slot, self.cpus));
                }
            }
        }
    }

    /// What the rules in use had counted elsewhere, by slot, and the map that they count in now.
    ///
    /// # Errors
    /// The process is out of descriptors.
    pub fn hand_over(&self) -> std::io::Result<Option<(Vec<Count>, OwnedFd)>> {
        let Some(now) = &self.now else {
            return Ok(None);
        };
        let had = (0..now.slots).map(|slot| self.had(now, slot));
        Ok(Some((had.collect(), now.map.try_clone()?)))
    }

    /// Puts an image into the other bank; it is used when the configuration says so. `old` and
    /// `new` are the lists: equal rules go on counting.
    ///
    /// # Errors
    /// Memory. Nothing has changed then.
    pub fn load(&mut self, image: &Image, old: Option<&List>, new: &List) -> Result<(), Error> {
        self.add_up();
        self.make_flows()?;
        let bank = 1 - self.bank;
        let element = ELEMENT_LINES * LINE_WORDS;
        let (map, words) = make("acl", image.words.len() / element, element, INNER)?;
        for (word, value) in words.words().iter().zip(&image.words) {
            word.store(*value, Ordering::Relaxed);
        }
        let slots = image.slots;
        let (counts, memory) = make("acl_counts", slots * self.cpus, COUNT_WORDS, INNER)?;
        let held = counts.as_fd().try_clone_to_owned();
        let held = held.map_err(|source| xdp::Error::Map {
            map: "acl_counts".to_owned(),
            source: source.into(),
        })?;
        put(&self.counters, bank, &counts)?;
        put(&self.images, bank, &map)?;
        self.bank = bank;
        let goes_on = |old: Option<&List>| match old {
            Some(old) => goes_on(old, new),
            None => vec![None; slots],
        };
        let from = goes_on(old);
        let before = self.now.take();
        let total = |slot: &usize| before.as_ref().map(|before| before.had[*slot]);
        let had = from.iter().map(|slot| slot.as_ref().and_then(total));
        self.now = Some(Counting {
            map: held,
            memory,
            slots,
            had: had.map(Option::unwrap_or_default).collect(),
            from,
            from_left: goes_on(self.left.as_ref().map(|left| &left.list)),
        });
        self.before = before;
        Ok(())
    }

    /// There is none from now on, as the configuration says already.
    pub fn unload(&mut self) {
        for (cpu, _) in self.flows_of.drain(..).enumerate() {
            // One that stays is looked into by nobody.
            let _ = self.flows.delete(&(cpu as u32).to_ne_bytes());
        }
        self.before = self.now.take();
        self.bank = 1 - self.bank;
        self.add_up();
    }

    /// Room for what lists say of flows: 3 MiB for each CPU.
    fn make_flows(&mut self) -> Result<(), Error> {
        for cpu in self.flows_of.len()..self.cpus {
            let (map, memory) = make("acl_flows", 1, ACL_FLOWS_WORDS, 0)?;
            put(&self.flows, cpu as u32, &map)?;
            self.flows_of.push(memory);
        }
        Ok(())
    }

    /// What lists have said of flows is over.
    pub fn forget_flows(&self) {
        for word in self.flows_of.iter().flat_map(BpfArray::words) {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// The bank in use.
    pub fn bank(&self) -> u32 {
        self.bank
    }

    /// Once a second: the image before is given back, and what another process has left. True when
    /// there was one.
    pub fn rest(&mut self) -> bool {
        let is_over = self.left.as_ref().is_some_and(|left| left.is_over);
        let rests = self.before.is_some() || is_over;
        self.add_up();
        if is_over {
            self.add_up_left();
        }
        rests
    }

    /// Adds what the image before has counted to what its rules had, and gives it back.
    fn add_up(&mut self) {
        let Some(before) = self.before.take() else {
            return;
        };
        if let Some(now) = &mut self.now {
            for (had, from) in now.had.iter_mut().zip(&now.from) {
                if let Some(slot) = from {
                    had.add(before.read(*slot, self.cpus));
                }
            }
        }
        let key = (1 - self.bank).to_ne_bytes();
        // One that is not there needs no more than that.
        let _ = self.images.delete(&key);
        let _ = self.counters.delete(&key);
    }

    /// What each rule has counted, and behind them what none took.
    pub fn counts(&self) -> Vec<Count> {
        let Some(now) = &self.now else {
            return Vec::new();
        };
        let one = |slot: usize| {
            let mut count = self.had(now, slot);
            count.add(now.read(slot, self.cpus));
            count
        };
        (0..now.slots).map(one).collect()
    }

    /// What is counted elsewhere than in this image.
    fn had(&self, now: &Counting, slot: usize) -> Count {
        let mut count = now.had[slot];
        if let (Some(before), Some(from)) = (&self.before, now.from[slot]) {
            count.add(before.read(from, self.cpus));
        }
        if let (Some(left), Some(from)) = (&self.left, now.from_left[slot]) {
            count.add(left.counting.total(from, self.cpus));
        }
        count
    }
}

impl Counting {
    /// What a rule has counted here, and had before.
    fn total(&self, slot: usize, cpus: usize) -> Count {
        let mut count = self.had[slot];
        count.add(self.read(slot, cpus));
        count
    }

    /// What the program has counted itself.
    fn read(&self, slot: usize, cpus: usize) -> Count {
        let mut sum = Count::default();
        for cpu in 0..cpus {
            let at = (cpu * self.slots + slot) * COUNT_WORDS;
            sum.add(Count {
                packets: self.read_long(at),
                bytes: self.read_long(at + 2),
            });
        }
        sum
    }

    /// The program writes both halves at once; here they are read one after the other.
    fn read_long(&self, at: usize) -> u64 {
        let word = |at: usize| u64::from(self.memory.words()[at].load(Ordering::Acquire));
        loop {
            let upper = word(at + 1);
            let lower = word(at);
            if word(at + 1) == upper {
                return upper << 32 | lower;
            }
        }
    }
}

/// For each slot of the new list the one of the old list with an equal rule; of several the first
/// that is left.
fn goes_on(old: &List, new: &List) -> Vec<Option<usize>> {
    let mut slots: HashMap<&Rule, Vec<usize>> = HashMap::new();
    for (slot, rule) in old.rules.iter().enumerate().rev() {
        slots.entry(rule).or_default().push(slot);
    }
    let take = |rule| slots.get_mut(rule).and_then(Vec::pop);
    let mut from: Vec<Option<usize>> = new.rules.iter().map(take).collect();
    let same_default = old.default_allows == new.default_allows;
    from.push(same_default.then_some(old.rules.len()));
    from
}

/// An array that a program reads through a map of maps, mapped.
fn make(
    name: &'static str,
    elements: usize,
    words: usize,
    flags: u32,
) -> Result<(MapHandle, BpfArray), Error> {
    let options = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as libbpf_sys::size_t,
        map_flags: libbpf_sys::BPF_F_MMAPABLE | flags,
        ..Default::default()
    };
    let (elements, bytes) = (elements as u32, words as u32 * 4);
    let map = MapHandle::create(MapType::Array, Some(name), 4, bytes, elements, &options);
    let map = map.map_err(|source| xdp::Error::Map {
        map: name.to_owned(),
        source,
    })?;
    let words = words * elements as usize;
    let mapped = BpfArray::new(map.as_fd(), words).map_err(|source| Error::Memory {
        table: name,
        words,
        source,
    })?;
    Ok((map, mapped))
}

fn put(outer: &MapHandle, bank: u32, inner: &MapHandle) -> Result<(), Error> {
    let fd = inner.as_fd().as_raw_fd().to_ne_bytes();
    let done = outer.update(&bank.to_ne_bytes(), &fd, MapFlags::ANY);
    done.map_err(|source| {
        Error::Xdp(xdp::Error::Map {
            map: outer.name().to_string_lossy().into_owned(),
            source,
        })
    })
}
