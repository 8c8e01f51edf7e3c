//! What happens when a file of guest memory is cut short under our mapping.
//!
//! A VMM hands over a file and keeps it. It can truncate it at any time (QEMU's memory is not
//! sealed, so that seals cannot be asked for), and the next touch of a page that is gone is a
//! SIGBUS: one hostile VMM would end the switch for all. So the handler here looks whether the
//! address lies in a mapping of guest memory; if it does, it puts zeroed private memory in the
//! whole mapping's place and marks it lost. The worker goes on with zeros until the end of its
//! batch, then finds the mark ([`Guard::is_lost`]) and stops the port. Every other SIGBUS goes
//! where it went before.
//!
//! The handler runs wherever the fault was, so that it takes no lock and allocates nothing: it
//! reads atomics in a list that only grows, and calls `mmap`, `sigaction` and `raise`.

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering, fence};

/// Mappings a block of the list has room for.
const BLOCK: usize = 64;

/// One guarded mapping, or a free place. Free places have length 0.
struct Slot {
    taken: AtomicBool,
    range: Range,
    lost: AtomicBool,
}

impl Slot {
    const fn new() -> Self {
        Slot {
            taken: AtomicBool::new(false),
            range: Range::new(),
            lost: AtomicBool::new(false),
        }
    }
}

/// Where a mapping is. One writer at a time, who holds the slot; readers in a signal handler, who
/// cannot wait. A slot that is used again while the handler reads it must not show one mapping's
/// start with another's length: what is mapped over would be memory of somebody else. So the writer
/// counts, and who sees two counts has seen nothing.
struct Range {
    /// Odd while the range is being changed.
    version: AtomicUsize,
    start: AtomicUsize,
    len: AtomicUsize,
}

impl Range {
    const fn new() -> Range {
        Range {
            version: AtomicUsize::new(0),
            start: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
        }
    }

    fn set(&self, start: usize, len: usize) {
        let version = self.version.load(Ordering::Relaxed);
        self.version
            .store(version.wrapping_add(1), Ordering::Relaxed);
        // Who reads a value of below reads this odd count, or a later one, behind it.
        fence(Ordering::Release);
        self.start.store(start, Ordering::Relaxed);
        self.len.store(len, Ordering::Relaxed);
        self.version
            .store(version.wrapping_add(2), Ordering::Release);
    }

    /// Start and length; `None` when they are being changed: the range is then not one that is in
    /// use.
    fn read(&self) -> Option<(usize, usize)> {
        let before = self.version.load(Ordering::Acquire);
        let (start, len) = (
            self.start.load(Ordering::Relaxed),
            self.len.load(Ordering::Relaxed),
        );
        fence(Ordering::Acquire);
        let after = self.version.load(Ordering::Relaxed);
        (before == after && before.is_multiple_of(2)).then_some((start, len))
    }
}

/// A part of the list. Blocks are never freed.
struct Block {
    slots: [Slot; BLOCK],
    next: AtomicPtr<Block>,
}

impl Block {
    const fn new() -> Self {
        Block {
            slots: [const { Slot::new() }; BLOCK],
            next: AtomicPtr::new(ptr::null_mut()),
        }
    }

    fn next(&self) -> Option<&'static Block> {
        // SAFETY: null, or a block that `claim` leaked, complete before its pointer was published.
        unsafe { self.next.load(Ordering::Acquire).as_ref() }
    }
}

static LIST: Block = Block::new();

/// Mappings lost since the start: one load tells that nothing happened.
static LOST: AtomicU64 = AtomicU64::new(0);

/// What SIGBUS did before we came.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// How many mappings were lost since the start. As long as it stays the same, none was.
#[inline]
pub(crate) fn lost_count() -> u64 {
    LOST.load(Ordering::Acquire)
}

/// Keeps a mapping guarded until it is dropped, which has to be before the mapping goes.
#[derive(Debug)]
pub(crate) struct Guard(&'static Slot);

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slot")
            .field("range", &self.range.read())
            .field("lost", &self.lost)
            .finish()
    }
}

impl Guard {
    /// Guards `len` bytes of memory at `start`, a mapping of guest memory.
    ///
    /// # Safety
    /// The range is one whole mapping of the caller's, and nothing but guest memory is in it: after
    /// a fault its contents are replaced by zeros.
    pub unsafe fn new(start: *mut u8, len: usize) -> Guard {
        install();
        let slot = claim();
        slot.lost.store(false, Ordering::Relaxed);
        slot.range.set(start.expose_provenance(), len);
        Guard(slot)
    }

    /// True when the mapping was replaced: what it held is gone.
    pub fn is_lost(&self) -> bool {
        self.0.lost.load(Ordering::Acquire)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.range.set(0, 0);
        self.0.taken.store(false, Ordering::Release);
    }
}

/// A free place of the list, which grows when there is none.
fn claim() -> &'static Slot {
    let mut block = &LIST;
    loop {
        for slot in &block.slots {
            if slot
                .taken
                .compare_exchange(false, true, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
            {
                return slot;
            }
        }
        block = block.next().unwrap_or_else(|| {
            let new = Box::into_raw(Box::new(Block::new()));
            let put = block.next.compare_exchange(
                ptr::null_mut(),
                new,
                Ordering::AcqRel,
                Ordering::Acquire,
            );
            let next = match put {
                Ok(_) => new,
                Err(others) => {
                    // SAFETY: ours, made above and shown to nobody.
                    drop(unsafe { Box::from_raw(new) });
                    others
                }
            };
            // SAFETY: a block that was published complete and is never freed.
            unsafe { &*next }
        });
    }
}

/// Installs the handler, once. [`Guard::new`] does so too.
pub(crate) fn install() {
    BEFORE.get_or_init(|| {
        let mut before = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: `action` is complete (all zeros are a valid `sigaction`, and the fields that
        // count are set), the handler has the signature that SA_SIGINFO asks for, and `before` is
        // filled by a call that succeeded.
        unsafe {
            let mut action = MaybeUninit::<libc::sigaction>::zeroed().assume_init();
            action.sa_sigaction = on_sigbus as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            let done = libc::sigaction(libc::SIGBUS, &action, before.as_mut_ptr());
            // Fails for a bad signal number or address only.
            assert_eq!(done, 0, "sigaction(SIGBUS)");
            before.assume_init()
        }
    });
}

extern "C" fn on_sigbus(
    _signal: libc::c_int,
    info: *mut libc::siginfo_t,
    _context: *mut libc::c_void,
) {
    // SAFETY: the kernel passes a valid siginfo with SA_SIGINFO, and `si_addr` is set for faults
    // (codes above 0); errno belongs to this thread.
    unsafe {
        let errno = libc::__errno_location();
        let saved = *errno;
        let is_fault = (*info).si_code > 0;
        if !(is_fault && replace((*info).si_addr().addr())) {
            pass_on(is_fault);
        }
        *errno = saved;
    }
}

/// Puts zeroed memory in the place of the guarded mapping that holds `addr`. False when there is
/// none.
fn replace(addr: usize) -> bool {
    let mut block = Some(&LIST);
    while let Some(here) = block {
        for slot in &here.slots {
            // Whoever holds the mapping that was touched is not changing its place.
            let Some((start, len)) = slot.range.read() else {
                continue;
            };
            if addr.wrapping_sub(start) >= len {
                continue;
            }
            slot.lost.store(true, Ordering::Release);
            LOST.fetch_add(1, Ordering::Release);
            // SAFETY: the range is a mapping of guest memory (the promise of `Guard::new`) that is
            // still there: it was touched just now through a pointer whose holder keeps it, and the
            // guard goes before it. All access to it is by raw pointers that expect any bytes.
            let new = unsafe {
                let flags =
                    libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
                libc::mmap(
                    ptr::with_exposed_provenance_mut(start),
                    len,
                    libc::PROT_READ | libc::PROT_WRITE,
                    flags,
                    -1,
                    0,
                )
            };
            return new != libc::MAP_FAILED;
        }
        block = here.next();
    }
    false
}

/// Not ours: what was installed before us takes it, from now on.
fn pass_on(is_fault: bool) {
    // SAFETY: plain system calls with a valid action. After a fault the instruction runs again when
    // we return and faults again; a signal that was sent is sent again.
    unsafe {
        match BEFORE.get() {
            Some(before) => libc::sigaction(libc::SIGBUS, before, ptr::null_mut()),
            None => libc::sigaction(
                libc::SIGBUS,
                &MaybeUninit::zeroed().assume_init(),
                ptr::null_mut(),
            ),
        };
        if !is_fault {
            libc::raise(libc::SIGBUS);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A place that is used again and again, as by VMMs that come and go, is never read as half of
    /// one mapping and half of another.
    #[test]
    fn a_range_is_read_whole_or_not_at_all() {
        // Under Miri, which tries the orders that it likes, fewer do.
        let looks = if cfg!(miri) { 200 } else { 5_000_000 };
        let range = Range::new();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mixed = (0..looks).filter_map(|_| range.read());
                let mixed = mixed.filter(|(start, len)| *start != len * 3).count();
                done.store(true, Ordering::Relaxed);
                mixed
            });
            let mut n = 0;
            while !done.load(Ordering::Relaxed) {
                n += 1;
                range.set(n * 3, n);
                range.set(0, 0);
            }
            assert_eq!(reader.join().unwrap(), 0, "two mappings in one");
        });
        assert_eq!(range.read(), Some((0, 0)));
    }
}
