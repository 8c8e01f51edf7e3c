//! The guest's memory, as its VMM hands it over: regions all at once or one by one, and pages that
//! are still elsewhere ([`post_copy`](crate::post_copy)).

use std::slice;
use std::sync::Arc;
use std::time::Instant;

use tracing::info;

use crate::guest_memory::{GuestMemory, RegionSpec};
use crate::post_copy::{PostCopy, PostCopyError, RegionNumbers};
use crate::shared_file::MissingPages;
use crate::vhost::features::protocol;
use crate::vhost::limits::SLOTS_MAX;
use crate::vhost::protocol::breach::Breach;
use crate::vhost::protocol::message::Reply;
use crate::vhost::protocol::pair::Pair;
use crate::vhost::protocol::request::{self, RegionId, Request};
use crate::vhost::protocol::ring_state::RingState;
use crate::vhost::protocol::session::{HELPER_EVERY, HELPERS, Session};

/// How far a VMM is with a guest that runs here before its memory (post-copy).
#[derive(Default)]
pub(super) enum PostCopyStage {
    /// It has not spoken of any, or all memory is here.
    #[default]
    Off,
    /// After POSTCOPY_ADVISE: there may be one.
    Advised(PostCopy),
    /// From POSTCOPY_LISTEN to POSTCOPY_END: memory that is mapped has pages that are missing.
    Listening {
        pages: PostCopy,
        /// The VMM watches what was mapped last: before that nothing of it may be waited for.
        is_watched: bool,
    },
}

impl PostCopyStage {
    /// Nothing is mapped yet.
    pub fn listening(pages: PostCopy) -> PostCopyStage {
        let is_watched = true;
        PostCopyStage::Listening { pages, is_watched }
    }

    /// What has come of memory whose pages are still elsewhere.
    pub fn arriving(&self) -> Option<&PostCopy> {
        match self {
            PostCopyStage::Listening { pages, .. } => Some(pages),
            _ => None,
        }
    }

    /// Who waits for pages, or will.
    pub fn pages(&self) -> Option<&PostCopy> {
        match self {
            PostCopyStage::Off => None,
            PostCopyStage::Advised(pages) | PostCopyStage::Listening { pages, .. } => Some(pages),
        }
    }

    /// A page that is missing may be waited for.
    pub fn may_wait(&self) -> bool {
        !matches!(self, PostCopyStage::Listening { is_watched, .. } if !is_watched)
    }
}

impl Session {
    /// Pages of the guest's memory are still elsewhere.
    pub(in crate::vhost) fn is_arriving(&self) -> bool {
        self.post_copy.arriving().is_some()
    }

    /// Rings do not run for want of pages.
    pub(in crate::vhost) fn awaits_pages(&self) -> bool {
        self.is_arriving() && self.pairs.iter().any(Pair::awaits_pages)
    }

    /// Runs rings that can run now.
    pub(in crate::vhost) fn pages_came(&mut self) {
        for pair in 0..self.pairs.len() {
            // The other ring may run already.
            if self.pairs[pair].awaits_pages() {
                self.unplug(pair);
            }
        }
        if let Err(breach) = self.plug() {
            self.log(&breach);
        }
    }

    /// Asks who waits for pages for what a request needs of it. False: that has not answered yet.
    pub(super) fn is_answered(&mut self, request: &Request, now: Instant) -> Result<bool, Breach> {
        let (number, regions) = match request {
            Request::PostcopyAdvise => return self.has_helper(now),
            Request::SetMemTable(regions) => (request::SET_MEM_TABLE, &regions[..]),
            Request::AddMemReg(region) => (request::ADD_MEM_REG, slice::from_ref(region)),
            _ => return Ok(true),
        };
        let PostCopyStage::Listening { pages, .. } = &mut self.post_copy else {
            return Ok(true);
        };
        for region in regions {
            let mapped = pages.has_mapped(region.numbers(), &region.fd, now);
            if !mapped.map_err(failed(number))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Has who waits for pages started, for POSTCOPY_ADVISE. False: it has not come yet.
    fn has_helper(&mut self, now: Instant) -> Result<bool, Breach> {
        let request = request::POSTCOPY_ADVISE;
        self.negotiated(protocol::PAGEFAULT, request)?;
        let Some(program) = self.nic.page_helper else {
            return Err(Breach::Unanswerable { request });
        };
        if matches!(self.post_copy, PostCopyStage::Off) {
            let started = if self.helpers.take(now) {
                PostCopy::start(program, self.bell.clone(), now)
            } else {
                let (burst, every) = (HELPERS, HELPER_EVERY);
                Err(PostCopyError::TooOften { burst, every })
            };
            self.post_copy = PostCopyStage::Advised(started.map_err(failed(request))?);
        }
        match &mut self.post_copy {
            // QEMU (7.2) asks once for every pair of queues.
            PostCopyStage::Advised(pages) => pages.has_come(now).map_err(failed(request)),
            _ => Err(Breach::Late),
        }
    }

    pub(super) fn set_memory(&mut self, regions: Vec<RegionSpec>) -> Result<Option<Reply>, Breach> {
        let told = regions.iter().map(RegionSpec::numbers).collect::<Vec<_>>();
        self.regions = regions;
        self.map(request::SET_MEM_TABLE)?;
        let here = |mut region: RegionNumbers| {
            region[2] = self.here(region)?;
            Some(region)
        };
        let here: Option<Vec<_>> = told.into_iter().map(here).collect();
        Ok(here.map(Reply::Table))
    }

    pub(super) fn add_region(&mut self, region: RegionSpec) -> Result<Option<Reply>, Breach> {
        self.negotiated(protocol::CONFIGURE_MEM_SLOTS, request::ADD_MEM_REG)?;
        let mut told = region.numbers();
        // QEMU (7.2) tells each region once for every pair of queues.
        if self.regions.iter().all(|known| known.numbers() != told) {
            if self.regions.len() >= SLOTS_MAX {
                return Err(Breach::Slots);
            }
            self.regions.push(region);
            self.map(request::ADD_MEM_REG)?;
        }
        let Some(here) = self.here(told) else {
            return Ok(None);
        };
        told[2] = here;
        Ok(Some(Reply::Region(told)))
    }

    /// Where a region is in what the VMM is told of missing pages, which it has to know before
    /// anything waits there. `None`: it is not told.
    fn here(&self, region: RegionNumbers) -> Option<u64> {
        let arriving = self.post_copy.arriving()?;
        // A VMM that cannot be told waits for the answer all the same.
        let [_, _, told, _] = region;
        Some(arriving.addr(region).unwrap_or(told))
    }

    pub(super) fn remove_region(&mut self, id: RegionId) -> Result<(), Breach> {
        self.negotiated(protocol::CONFIGURE_MEM_SLOTS, request::REM_MEM_REG)?;
        let is = |region: &RegionSpec| (region.guest_addr, region.size, region.user_addr);
        let wanted = (id.guest_addr, id.size, id.user_addr);
        let at = self.regions.iter().position(|region| is(region) == wanted);
        // It was the same request of another pair that has removed it.
        let Some(at) = at else { return Ok(()) };
        self.regions.remove(at);
        self.map(request::REM_MEM_REG)
    }

    /// Maps all regions anew. A ring that the memory between two changes does not hold waits for
    /// the next change.
    fn map(&mut self, request: u32) -> Result<(), Breach> {
        self.unplug_all();
        self.rings().for_each(RingState::memory_changed);
        // The old mapping goes first: both at once could be more than there is.
        self.memory = None;
        if self.regions.is_empty() {
            return Ok(());
        }
        // The files are needed again by a VMM that adds and removes single regions, and by the next
        // process.
        let slots = self.protocol_features & protocol::CONFIGURE_MEM_SLOTS != 0;
        let again = slots || self.is_arriving();
        let specs = if again || self.copies.is_some() {
            let again = self.regions.iter().map(RegionSpec::try_clone);
            again.collect::<Result<_, _>>()?
        } else {
            std::mem::take(&mut self.regions)
        };
        let memory = match &mut self.post_copy {
            PostCopyStage::Off | PostCopyStage::Advised(_) => {
                // All of it came before the guest.
                self.post_copy = PostCopyStage::Off;
                GuestMemory::with(specs, self.nic.missing_pages)?
            }
            PostCopyStage::Listening { pages, is_watched } => {
                *is_watched = !pages.is_asked();
                // That says whether the regions are possible: first.
                let memory = GuestMemory::with(specs, MissingPages::Refused)?;
                let arrivals = self.regions.iter().map(|region| {
                    let arrivals = pages.arrivals(region.numbers())?;
                    Ok((region.guest_addr, arrivals))
                });
                let arrivals = arrivals.collect::<Result<_, _>>();
                memory.arriving(arrivals.map_err(failed(request))?)
            }
        };
        self.memory = Some(Arc::new(memory));
        Ok(())
    }

    /// POSTCOPY_ADVISE: the VMM may move a guest here whose memory is still elsewhere.
    pub(super) fn advise(&mut self) -> Result<Reply, Breach> {
        let PostCopyStage::Advised(pages) = &self.post_copy else {
            return Err(Breach::Late);
        };
        self.descriptor = pages.userfault().map_err(Breach::Copy)?;
        Ok(Reply::Descriptor)
    }

    /// POSTCOPY_LISTEN: so it is.
    pub(super) fn listen(&mut self) -> Result<(), Breach> {
        self.negotiated(protocol::PAGEFAULT, request::POSTCOPY_LISTEN)?;
        if self.memory.is_some() {
            return Err(Breach::Late);
        }
        let pages = match std::mem::take(&mut self.post_copy) {
            PostCopyStage::Advised(pages) | PostCopyStage::Listening { pages, .. } => pages,
            PostCopyStage::Off => {
                // Another process was asked to wait, whose place this one has taken.
                let unasked = PostCopy::unasked(self.bell.clone());
                unasked.map_err(failed(request::POSTCOPY_LISTEN))?
            }
        };
        self.post_copy = PostCopyStage::listening(pages);
        let nic = &self.nic.name;
        info!(nic, "the guest is here before its memory");
        Ok(())
    }

    /// All pages are here, or it came to nothing.
    pub(super) fn end_post_copy(&mut self) -> Result<Reply, Breach> {
        self.negotiated(protocol::PAGEFAULT, request::POSTCOPY_END)?;
        if let PostCopyStage::Listening { pages, .. } = std::mem::take(&mut self.post_copy) {
            self.map(request::POSTCOPY_END)?;
            let (nic, asked) = (&self.nic.name, pages.asked_for());
            info!(
                nic,
                "all of the guest's memory is here, {asked} pages of it asked for"
            );
        }
        Ok(Reply::ack(true))
    }

    /// The VMM knows where the memory is that it was told of, and says whether it watches it.
    pub(super) fn watched(&mut self, request: u32, value: u64) -> Result<(), Breach> {
        match &mut self.post_copy {
            PostCopyStage::Listening { is_watched, .. } if value == 0 => *is_watched = true,
            _ => return Err(Breach::Watched { request, value }),
        }
        Ok(())
    }
}

/// Why a request of post-copy is not followed.
fn failed(request: u32) -> impl Fn(PostCopyError) -> Breach {
    move |error| Breach::PostCopy { request, error }
}
