//! The memory of a guest that runs here while its pages are still on the host that it comes from
//! (post-copy migration; vhost-user, "Migration").
//!
//! The VMM puts one page after the other into the files of the guest's memory, and those first that
//! somebody waits for. A page that is made by a touch of ours would be lost to the guest. And a
//! worker must not wait: it has other guests. So
//!
//! - what a worker has mapped refuses missing pages ([`MissingPages`]), and before it touches
//!   anything there it asks whether that is there ([`Arrivals::has`]). What is not, it leaves for
//!   later, as if the guest had not offered it;
//! - what is missing is touched by a [`helper`], which waits, in mappings that the VMM watches
//!   through the descriptor that it got as the answer to POSTCOPY_ADVISE. With such a descriptor
//!   one can write the memory of the process that it was made in. Therefore it is a process of its
//!   own, one for each VMM, which has nothing but that VMM's memory and may do nothing but wait
//!   (`calls`).
//!
//! A page that was there once stays. After POSTCOPY_END all memory is mapped anew, like any other:
//! nothing of this is left then.
//!
//! A process that goes on with the session of one that was killed cannot give the VMM another
//! descriptor. It looks again and again instead: the VMM moves all pages in the end, whether or not
//! they are asked for.
//!
//! [`MissingPages`]: crate::shared_file::MissingPages

mod calls;
pub mod helper;

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use rustix::net::SendFlags;
use sys::huge::Zeroed;
use sys::poll::Doorbell;
use sys::userfault;

use crate::post_copy::helper::{Helper, Said};

/// How long the helper may take to start or to map a file. It has nothing else to do: but who has
/// its memory watched can have it stand still.
const PATIENCE: Duration = Duration::from_secs(5);

/// Between two looks at pages that nobody can be asked for.
const LOOK: Duration = Duration::from_millis(5);

/// Regions of one guest's memory, counting those that are no more.
const REGIONS_MAX: usize = 256;

const PAGE: u64 = userfault::PAGE as u64;

/// The pages of one guest that are on their way. When it is dropped, nobody waits any more.
pub(crate) struct PostCopy {
    /// `None`: nobody can be asked for a page.
    helper: Option<Helper>,
    /// What the VMM was given.
    userfault: Option<OwnedFd>,
    /// What the helper answers.
    answers: Receiver<(Said, Option<OwnedFd>)>,
    /// How long the helper may be waited for yet.
    patience: Cell<Duration>,
    shared: Arc<Shared>,
}

/// What the VMM says of a region, as [`numbers`](crate::guest_memory::RegionSpec::numbers) has it.
pub(crate) type RegionNumbers = [u64; 4];

/// What the session shares with the thread that hears of pages.
struct Shared {
    /// The session cannot go on before some page has come.
    waits: AtomicBool,
    /// Where it is told.
    bell: Option<Doorbell>,
    /// Pages that the helper has waited for.
    came: AtomicU64,
    /// The helper has ended: what was asked for may never be told of.
    is_alone: Arc<AtomicBool>,
    /// All regions that were mapped, in the helper's order, by what the VMM said of them.
    regions: Mutex<Vec<(RegionNumbers, Arc<Arrivals>)>>,
}

/// Why pages cannot be waited for.
#[derive(Debug, thiserror::Error)]
pub enum PostCopyError {
    /// The process or the thread that is to wait cannot be had.
    #[error("who waits for pages cannot be started: {0}")]
    Start(#[from] io::Error),
    /// The VMM has named more regions than a guest's memory is ever made of.
    #[error("{REGIONS_MAX} regions of memory were named already")]
    Regions,
    /// The process does not do what it is to do; it has said why on its standard error.
    #[error("the process that waits for pages {0}")]
    Helper(&'static str),
}

impl PostCopy {
    /// Starts `program` as the helper, and gives what the VMM is to have for POSTCOPY_ADVISE. The
    /// bell is rung when a page has come after [`wait`](Self::wait).
    pub fn start(
        program: &Path,
        bell: Option<Doorbell>,
    ) -> Result<(PostCopy, OwnedFd), PostCopyError> {
        let helper = Helper::start(program)?;
        let socket = helper.socket();
        // One answer at a time is waited for.
        let (answer, answers) = mpsc::sync_channel(1);
        let shared = Arc::new(Shared::new(bell));
        let receiving = Arc::clone(&shared);
        thread(move || receive_from_helper(&socket, &answer, receiving))?;
        let mut post_copy = PostCopy {
            helper: Some(helper),
            userfault: None,
            answers,
            patience: Cell::new(PATIENCE),
            shared,
        };
        let Some((Said::Ready, Some(userfault))) = post_copy.answer() else {
            return Err(PostCopyError::Helper("does not start"));
        };
        post_copy.userfault = Some(userfault.try_clone()?);
        Ok((post_copy, userfault))
    }

    /// Of a guest whose pages nobody can be asked for: they come when they come.
    pub fn unasked(bell: Option<Doorbell>) -> Result<PostCopy, PostCopyError> {
        let (_, answers) = mpsc::sync_channel(1);
        let shared = Arc::new(Shared::new(bell));
        let looking = Arc::downgrade(&shared);
        thread(move || look_again(&looking))?;
        Ok(PostCopy {
            helper: None,
            userfault: None,
            answers,
            patience: Cell::new(Duration::ZERO),
            shared,
        })
    }

    /// What has come of a region that is mapped here: the same for one that was asked about before.
    pub fn arrivals(
        &self,
        region: RegionNumbers,
        file: &OwnedFd,
    ) -> Result<Arc<Arrivals>, PostCopyError> {
        if let Some(known) = self.known(region) {
            return Ok(known);
        }
        if self.shared.regions().len() >= REGIONS_MAX {
            return Err(PostCopyError::Regions);
        }
        let [_, size, _, offset] = region;
        let (mut addr, mut socket) = (0, None);
        if let Some(helper) = &self.helper {
            addr = self.map(helper, size, offset, file)?;
            socket = Some(helper.socket());
        }
        let skip = offset % PAGE;
        let pages = skip.saturating_add(size).div_ceil(PAGE);
        let mut regions = self.shared.regions();
        let arrivals = Arc::new(Arrivals {
            addr,
            number: regions.len() as u64,
            skip,
            there: Bits::new(pages),
            asked: Bits::new(pages),
            socket,
            is_alone: Arc::clone(&self.shared.is_alone),
        });
        regions.push((region, Arc::clone(&arrivals)));
        Ok(arrivals)
    }

    /// Where the VMM finds a region in what it is told of missing pages. `None`: it is not told.
    pub fn addr(&self, region: RegionNumbers) -> Option<u64> {
        self.helper.as_ref()?;
        self.known(region).map(|arrivals| arrivals.addr)
    }

    fn known(&self, region: RegionNumbers) -> Option<Arc<Arrivals>> {
        let regions = self.shared.regions();
        let mut same = regions.iter().filter(|(known, _)| *known == region);
        same.next().map(|(_, arrivals)| Arc::clone(arrivals))
    }

    /// Has the helper map a region; gives where its first byte is there.
    fn map(
        &self,
        helper: &Helper,
        size: u64,
        offset: u64,
        file: &OwnedFd,
    ) -> Result<u64, PostCopyError> {
        let map = Said::Map { size, offset };
        let file = Some(file.as_fd());
        let sent = helper::send(helper.socket().as_fd(), map, file, SendFlags::empty());
        sent.map_err(|_| PostCopyError::Helper("has ended"))?;
        match self.answer() {
            Some((Said::Mapped { addr }, None)) => Ok(addr),
            _ => Err(PostCopyError::Helper("cannot map the guest's memory")),
        }
    }

    /// What the helper says, within what it may be waited for in all.
    fn answer(&self) -> Option<(Said, Option<OwnedFd>)> {
        let begun = Instant::now();
        let answer = self.answers.recv_timeout(self.patience.get());
        let left = self.patience.get().saturating_sub(begun.elapsed());
        self.patience.set(left);
        answer.ok()
    }

    /// What the VMM was given, once more.
    pub fn userfault(&self) -> io::Result<Option<OwnedFd>> {
        self.userfault.as_ref().map(OwnedFd::try_clone).transpose()
    }

    /// From now on the bell is rung, once, when a page has come.
    pub fn wait(&self) {
        self.shared.waits.store(true, Ordering::SeqCst);
    }

    /// The bell need not be rung.
    pub fn wait_no_more(&self) {
        self.shared.waits.store(false, Ordering::SeqCst);
    }

    /// How many pages were asked for, and have come.
    pub fn asked_for(&self) -> u64 {
        self.shared.came.load(Ordering::Relaxed)
    }

    /// Somebody can be asked for pages, who tells the VMM where they are waited for.
    pub fn is_asked(&self) -> bool {
        self.helper.is_some()
    }
}

impl Shared {
    fn new(bell: Option<Doorbell>) -> Shared {
        Shared {
            waits: AtomicBool::new(false),
            bell,
            came: AtomicU64::new(0),
            is_alone: Arc::default(),
            regions: Mutex::default(),
        }
    }

    fn regions(&self) -> MutexGuard<'_, Vec<(RegionNumbers, Arc<Arrivals>)>> {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the session try again, if it waits.
    fn wake_session(&self) {
        if self.waits.swap(false, Ordering::SeqCst)
            && let Some(bell) = &self.bell
        {
            bell.ring();
        }
    }
}

fn thread(run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let builder = std::thread::Builder::new().name("post-copy".to_owned());
    builder.spawn(run).map(drop)
}

/// Takes note of pages that have come, until the helper ends, and passes on all else that it says.
/// A helper that says what it was not asked is not listened to any more.
fn receive_from_helper(
    socket: &OwnedFd,
    answer: &SyncSender<(Said, Option<OwnedFd>)>,
    shared: Arc<Shared>,
) {
    while let Some((said, fd)) = helper::receive(socket.as_fd()) {
        let Said::Came { region, page } = said else {
            if answer.try_send((said, fd)).is_err() {
                break;
            }
            continue;
        };
        let arrivals = shared.regions().get(region as usize).cloned();
        if !arrivals.is_some_and(|(_, arrivals)| arrivals.came(page)) {
            break;
        }
        shared.came.fetch_add(1, Ordering::Relaxed);
        shared.wake_session();
    }
    shared.is_alone.store(true, Ordering::SeqCst);
    let waiting = Arc::downgrade(&shared);
    drop(shared);
    look_again(&waiting);
}

/// Has the session look again and again, until it ends.
fn look_again(shared: &Weak<Shared>) {
    while let Some(shared) = shared.upgrade() {
        shared.wake_session();
        drop(shared);
        std::thread::sleep(LOOK);
    }
}

/// What has come of one region.
pub(crate) struct Arrivals {
    /// Where the region begins in the helper.
    addr: u64,
    /// The region's number there.
    number: u64,
    /// Bytes before it in its first page.
    skip: u64,
    /// By number of page, counted from that one.
    there: Bits,
    asked: Bits,
    /// Where pages are asked for.
    socket: Option<Arc<OwnedFd>>,
    /// Nobody hears that any more.
    is_alone: Arc<AtomicBool>,
}

impl Arrivals {
    /// All pages of these bytes of the region are there. Those that are not are asked for.
    ///
    /// # Safety
    /// `host` is where the first of the bytes is in a mapping of the caller's.
    pub unsafe fn has(&self, offset: u64, len: u64, host: *mut u8) -> bool {
        let from = self.skip + offset;
        let (first, last) = (from / PAGE, (from + len.saturating_sub(1)) / PAGE);
        let base = host.wrapping_sub((from % PAGE) as usize);
        let mut all = true;
        for page in first..=last {
            let here = base.wrapping_add(((page - first) * PAGE) as usize);
            // SAFETY: the pages of the caller's bytes.
            all &= self.there.has(page) || unsafe { self.look(page, here) };
        }
        all
    }

    /// Looks whether a page is there, unless it is asked for already.
    ///
    /// # Safety
    /// `host` is that page in a mapping of the caller's.
    #[cold]
    unsafe fn look(&self, page: u64, host: *mut u8) -> bool {
        let is_alone = self.is_alone.load(Ordering::Relaxed);
        if self.asked.has(page) && !is_alone {
            return false;
        }
        // SAFETY: the caller's promise.
        if unsafe { userfault::is_there(host) } {
            self.there.set(page);
            return true;
        }
        if let Some(socket) = self.socket.as_ref().filter(|_| !is_alone) {
            // Before the answer, which takes it away.
            self.asked.set(page);
            let region = self.number;
            let fetch = Said::Fetch { region, page };
            // There may be no room for it now: it is tried again.
            if helper::send(socket.as_fd(), fetch, None, SendFlags::DONTWAIT).is_err() {
                self.asked.clear(page);
            }
        }
        false
    }

    /// The helper says that a page is there. Were it not, the guest's port would end by it. False:
    /// it was not asked.
    fn came(&self, page: u64) -> bool {
        let asked = self.asked.has(page);
        if asked {
            self.there.set(page);
            self.asked.clear(page);
        }
        asked
    }
}

/// A bit for each page. Of a file with more holes than pages it takes no memory for the holes.
struct Bits(Zeroed<AtomicU64>);

impl Bits {
    fn new(pages: u64) -> Bits {
        Bits(Zeroed::sparse(pages.div_ceil(64) as usize))
    }

    fn has(&self, page: u64) -> bool {
        let word = self.0.get((page / 64) as usize);
        word.is_some_and(|word| word.load(Ordering::Acquire) >> (page % 64) & 1 == 1)
    }

    fn set(&self, page: u64) {
        if let Some(word) = self.0.get((page / 64) as usize) {
            word.fetch_or(1 << (page % 64), Ordering::Release);
        }
    }

    fn clear(&self, page: u64) {
        if let Some(word) = self.0.get((page / 64) as usize) {
            word.fetch_and(!(1 << (page % 64)), Ordering::Release);
        }
    }
}
