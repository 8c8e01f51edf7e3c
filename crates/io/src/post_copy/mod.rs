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
//! The helper is not waited for either: who has its memory watched says when it goes on. What it is
//! asked it answers at the bell, and the session that asked stands still until then, alone.
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

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender, TryRecvError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::SendFlags;
use sys::huge::Zeroed;
use sys::poll::Doorbell;
use sys::userfault;

use crate::post_copy::helper::{Helper, Said};

/// How long the helper may take to start or to map a file. It has nothing else to do: but who has
/// its memory watched can have it stand still.
const PATIENCE: Duration = Duration::from_secs(5);

/// Between two looks at pages that nobody can be asked for, and between two attempts to ask.
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
    answers: Receiver<Answer>,
    /// What it has not answered yet.
    question: Option<Question>,
    /// What it has mapped, in its order, and where the first byte is there.
    mapped: Vec<(RegionNumbers, u64)>,
    shared: Arc<Shared>,
}

type Answer = (Said, Option<OwnedFd>);

/// What the helper is to answer.
struct Question {
    /// It is given up then.
    until: Instant,
    /// It knows what it is asked: there was room in its socket.
    is_asked: bool,
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
    /// All regions that were mapped here, by what the VMM said of them.
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
    /// The VMM has such a process started again and again.
    #[error(
        "processes that wait for pages are started too often: more than {burst} at once, or than \
         one in {} s after them",
        every.as_secs()
    )]
    TooOften {
        /// How many at once.
        burst: u32,
        /// How long after the one before in the long run.
        every: Duration,
    },
}

impl PostCopy {
    /// Starts `program` as the helper, which [has come](Self::has_come) later. The bell is rung
    /// when it has answered, and when a page has come after [`wait`](Self::wait).
    pub fn start(
        program: &Path,
        bell: Option<Doorbell>,
        now: Instant,
    ) -> Result<PostCopy, PostCopyError> {
        let helper = Helper::start(program)?;
        let socket = helper.socket();
        // One answer at a time is waited for.
        let (answer, answers) = mpsc::sync_channel(1);
        let shared = Arc::new(Shared::new(bell));
        let receiving = Arc::clone(&shared);
        thread(move || receive_from_helper(&socket, answer, receiving))?;
        let question = Question {
            until: now + PATIENCE,
            is_asked: true,
        };
        Ok(PostCopy {
            helper: Some(helper),
            userfault: None,
            answers,
            question: Some(question),
            mapped: Vec::new(),
            shared,
        })
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
            question: None,
            mapped: Vec::new(),
            shared,
        })
    }

    /// True when the helper runs. If not, the bell is rung when it does.
    pub fn has_come(&mut self, now: Instant) -> Result<bool, PostCopyError> {
        if self.userfault.is_some() {
            return Ok(true);
        }
        match self.answer(None, now)? {
            None => return Ok(false),
            Some((Said::Ready, Some(userfault))) => self.userfault = Some(userfault),
            Some(_) => return Err(PostCopyError::Helper("does not start")),
        }
        Ok(true)
    }

    /// True when the helper has a region, if there is one: it is asked to map it if not, and the
    /// bell is rung when it has. Then this is to be asked for the same region.
    pub fn has_mapped(
        &mut self,
        region: RegionNumbers,
        file: &OwnedFd,
        now: Instant,
    ) -> Result<bool, PostCopyError> {
        if self.helper.is_none() || self.mapped(region).is_some() {
            return Ok(true);
        }
        if self.mapped.len() >= REGIONS_MAX {
            return Err(PostCopyError::Regions);
        }
        let [_, size, _, offset] = region;
        let map = Said::Map { size, offset };
        match self.answer(Some((map, file.as_fd())), now)? {
            None => return Ok(false),
            Some((Said::Mapped { addr }, None)) => self.mapped.push((region, addr)),
            Some(_) => return Err(PostCopyError::Helper("cannot map the guest's memory")),
        }
        Ok(true)
    }

    /// The helper's number of a region, and where its first byte is there.
    fn mapped(&self, region: RegionNumbers) -> Option<(u64, u64)> {
        let mut numbered = (0..).zip(&self.mapped);
        let found = numbered.find(|(_, (known, _))| *known == region);
        found.map(|(number, (_, addr))| (number, *addr))
    }

    /// What the helper says to `asked`, or of itself. `None`: nothing yet.
    fn answer(
        &mut self,
        asked: Option<(Said, BorrowedFd<'_>)>,
        now: Instant,
    ) -> Result<Option<Answer>, PostCopyError> {
        let ended = || PostCopyError::Helper("has ended");
        let question = self.question.get_or_insert(Question {
            until: now + PATIENCE,
            is_asked: false,
        });
        if let Some((said, file)) = asked.filter(|_| !question.is_asked) {
            let socket = self.helper.as_ref().ok_or_else(ended)?.socket();
            match helper::send(socket.as_fd(), said, Some(file), SendFlags::DONTWAIT) {
                Ok(()) => question.is_asked = true,
                // It is full of pages that workers have asked for.
                Err(Errno::AGAIN) => {}
                Err(_) => return Err(ended()),
            }
        }
        match self.answers.try_recv() {
            Ok(answer) => {
                self.question = None;
                Ok(Some(answer))
            }
            Err(TryRecvError::Disconnected) => Err(ended()),
            Err(TryRecvError::Empty) if now >= question.until => {
                Err(PostCopyError::Helper("does not answer"))
            }
            Err(TryRecvError::Empty) => Ok(None),
        }
    }

    /// When the helper is to be asked again for what it has not answered, if the bell is not rung
    /// before.
    pub fn asks_again(&self, now: Instant) -> Option<Instant> {
        let question = self.question.as_ref()?;
        Some(match question.is_asked {
            true => question.until,
            false => now + LOOK,
        })
    }

    /// What has come of a region that is mapped here, and by the helper: the same for one that was
    /// asked about before.
    pub fn arrivals(&self, region: RegionNumbers) -> Result<Arc<Arrivals>, PostCopyError> {
        if let Some(known) = self.known(region) {
            return Ok(known);
        }
        let mut regions = self.shared.regions();
        if regions.len() >= REGIONS_MAX {
            return Err(PostCopyError::Regions);
        }
        let (number, socket) = match &self.helper {
            Some(helper) => {
                let mapped = self.mapped(region);
                let (number, _) = mapped.ok_or(PostCopyError::Helper("was not asked to map it"))?;
                (number, Some(helper.socket()))
            }
            None => (regions.len() as u64, None),
        };
        let [_, size, _, offset] = region;
        let skip = offset % PAGE;
        let pages = skip.saturating_add(size).div_ceil(PAGE);
        let arrivals = Arc::new(Arrivals {
            number,
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
        self.mapped(region).map(|(_, addr)| addr)
    }

    fn known(&self, region: RegionNumbers) -> Option<Arc<Arrivals>> {
        let regions = self.shared.regions();
        let mut same = regions.iter().filter(|(known, _)| *known == region);
        same.next().map(|(_, arrivals)| Arc::clone(arrivals))
    }

    /// What the VMM is to have for POSTCOPY_ADVISE, when the helper [has come](Self::has_come).
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

    /// The region of the helper's number.
    fn region(&self, number: u64) -> Option<Arc<Arrivals>> {
        let regions = self.regions();
        let mut same = regions.iter().filter(|(_, known)| known.number == number);
        same.next().map(|(_, arrivals)| Arc::clone(arrivals))
    }

    /// Has the session try again, if it waits for pages.
    fn wake_session(&self) {
        if self.waits.swap(false, Ordering::SeqCst) {
            self.ring();
        }
    }

    fn ring(&self) {
        self.bell.iter().for_each(Doorbell::ring);
    }
}

fn thread(run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let builder = std::thread::Builder::new().name("post-copy".to_owned());
    builder.spawn(run).map(drop)
}

/// Takes note of pages that have come, until the helper ends, and passes on all else that it says.
/// A helper that says what it was not asked is not listened to any more.
fn receive_from_helper(socket: &OwnedFd, answer: SyncSender<Answer>, shared: Arc<Shared>) {
    while let Some((said, fd)) = helper::receive(socket.as_fd()) {
        let Said::Came { region, page } = said else {
            if answer.try_send((said, fd)).is_err() {
                break;
            }
            shared.ring();
            continue;
        };
        let arrivals = shared.region(region);
        if !arrivals.is_some_and(|arrivals| arrivals.came(page)) {
            break;
        }
        shared.came.fetch_add(1, Ordering::Relaxed);
        shared.wake_session();
    }
    shared.is_alone.store(true, Ordering::SeqCst);
    // Who waits for an answer hears of the end.
    drop(answer);
    shared.ring();
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
    /// The region's number in the helper.
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
