//! What a vhost-user NIC is to be, as its owner says it.

use std::path::Path;

use wire::Mac;

use crate::shared_file::MissingPages;
use crate::vhost::limits::MAX_PAIRS;

/// A NIC as its session has to know it.
#[derive(Clone, Debug)]
pub struct NicOptions {
    /// What log lines call it.
    pub name: String,
    /// The number of the network that it is in: what a process before has left of a session is
    /// gone on with in the same one alone. `None`: in any.
    pub network: Option<u32>,
    /// The guest's MAC address.
    pub mac: Mac,
    /// The MTU that is offered to the guest; the VMM may ask for a smaller one. `None`: none is.
    pub mtu: Option<u16>,
    /// The guest may leave checksums and segmentation undone, and may be given such frames.
    pub offloads: bool,
    /// The link is up, as the operator wants it: what the guest is told. Frames are for the workers
    /// to stop.
    pub link_up: bool,
    /// The most queue pairs that the guest may have, 1 to [`MAX_PAIRS`]. How many it has is its
    /// VMM's choice.
    pub pairs: u16,
    /// What becomes of pages of the guest's memory, and of its VMM's log, that nobody has used yet.
    pub missing_pages: MissingPages,
    /// The program that waits for pages of a guest whose memory is still elsewhere
    /// ([`helper`](crate::post_copy::helper)). `None`: no guest is moved here like that.
    pub page_helper: Option<&'static Path>,
}

impl NicOptions {
    pub(in crate::vhost) fn pairs(&self) -> u16 {
        self.pairs.clamp(1, MAX_PAIRS)
    }
}
