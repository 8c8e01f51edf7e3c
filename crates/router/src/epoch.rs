//! What holds for all packets, and how long what the program remembers of flows holds
//! (`bpf/router/flow_cache.h`): as long as the epoch is the same. Owned by the router, which ends
//! it before it changes any map and begins the next one behind the last change, so that nothing is
//! remembered that was decided in between.

use std::sync::atomic::Ordering;

use sys::bpf_array::BpfArray;

use crate::layout::{CACHE_EPOCHS, Config};

/// Words of the map: the configuration, the beat, and whether that has stopped.
pub const CONFIG_WORDS: usize = size_of::<Config>() / 4 + 2;
/// Where the beat is in it.
const BEAT: usize = CONFIG_WORDS - 2;
/// Where it is that the beat has stopped.
const STOPPED: usize = CONFIG_WORDS - 1;
/// Where the epoch is in it.
const EPOCH: usize = std::mem::offset_of!(Config, epoch) / 4;

/// The configuration's map and those of the flows.
#[derive(Debug)]
pub struct Epochs {
    config: BpfArray,
    caches: [BpfArray; 2],
    last: u32,
}

impl Epochs {
    /// Over the maps `config_map`, and `flow_caches4` and `flow_caches6`; none has begun.
    pub fn new(config: BpfArray, caches: [BpfArray; 2]) -> Epochs {
        Epochs {
            config,
            caches,
            last: 0,
        }
    }

    /// Nothing that is remembered holds from now on.
    pub fn end(&self) {
        self.config.words()[EPOCH].store(0, Ordering::Release);
    }

    /// Writes what holds for all packets. Its epoch is to be 0.
    pub fn write(&self, config: &Config) {
        let words: [u32; BEAT] = bytemuck::cast(*config);
        sys::bpf_array::put(self.config.words(), &words, EPOCH);
    }

    /// Says to `bpf/router_watch.bpf.c` that somebody is here who writes.
    pub fn beat(&self) {
        self.config.words()[BEAT].fetch_add(1, Ordering::Relaxed);
    }

    /// What is decided from now on may be remembered, and is forwarded whatever the beat was: the
    /// tables are in step, and there may be packets before the next look at the beat. When the
    /// numbers are used up all flows are forgotten, and with `forget` those that others remember:
    /// one that was not looked up since a number was last in use would hold again.
    pub fn begin(&mut self, forget: impl FnOnce()) {
        self.last += 1;
        if self.last == CACHE_EPOCHS {
            self.last = 1;
            for word in self.caches.iter().flat_map(BpfArray::words) {
                word.store(0, Ordering::Relaxed);
            }
            forget();
        }
        self.config.words()[STOPPED].store(0, Ordering::Relaxed);
        self.config.words()[EPOCH].store(self.last, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use libbpf_rs::{MapHandle, MapType, libbpf_sys};
    use std::os::fd::AsFd;

    fn array(words: usize) -> BpfArray {
        let options = libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_sys::bpf_map_create_opts>() as libbpf_sys::size_t,
            map_flags: libbpf_sys::BPF_F_MMAPABLE,
            ..Default::default()
        };
        let map = MapHandle::create(
            MapType::Array,
            Some("words"),
            4,
            words as u32 * 4,
            1,
            &options,
        );
        BpfArray::new(map.expect("a map").as_fd(), words).expect("it is mapped")
    }

    #[test]
    fn flows_are_forgotten_when_the_numbers_are_used_up() {
        let mut epochs = Epochs::new(array(CONFIG_WORDS), [array(64), array(64)]);
        let now = |epochs: &Epochs| epochs.config.words()[EPOCH].load(Ordering::Relaxed);
        let remembered = |epochs: &Epochs| {
            let last = |caches: &BpfArray| caches.words()[63].load(Ordering::Relaxed);
            epochs.caches.each_ref().map(last)
        };
        epochs.last = CACHE_EPOCHS - 2;
        for caches in &epochs.caches {
            caches.words()[63].store(7, Ordering::Relaxed);
        }
        epochs.begin(|| panic!("numbers are left"));
        assert_eq!(
            (now(&epochs), remembered(&epochs)),
            (CACHE_EPOCHS - 1, [7; 2])
        );
        epochs.end();
        assert_eq!(now(&epochs), 0);
        epochs.config.words()[STOPPED].store(1, Ordering::Relaxed);
        let mut forgotten = false;
        epochs.begin(|| forgotten = true);
        assert!(forgotten);
        assert_eq!(epochs.config.words()[STOPPED].load(Ordering::Relaxed), 0);
        assert_eq!((now(&epochs), remembered(&epochs)), (1, [0; 2]));
    }
}
