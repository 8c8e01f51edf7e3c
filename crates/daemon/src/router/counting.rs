//! What the router's interfaces have counted, from one daemon to the next: by what is held.

use std::sync::Arc;

use router::{Error, Options, Router};

use crate::held::{Held, bytes};

/// What is held for the next daemon, by its kind and name there.
pub const HELD: &str = "router";
const MAPS: &str = "maps";
const SLOTS: &str = "slots";

/// Where what the next daemon is to find is held, if anywhere.
pub struct Counting(Option<Arc<Held>>);

impl Counting {
    pub fn new(held: Option<Arc<Held>>) -> Counting {
        Counting(held)
    }

    /// A router that goes on counting where that of the daemon before does, if one has left that.
    pub fn router(&self, options: &Options) -> Result<Router, Error> {
        let Some(held) = &self.0 else {
            return Router::new(options);
        };
        let mut left = held.left_items(HELD);
        let slots = left.remove(SLOTS).and_then(|item| bytes(SLOTS, item));
        let (Some(maps), Some(slots)) = (left.remove(MAPS), slots) else {
            return Router::new(options);
        };
        Router::handed(options, maps, &slots).or_else(|error| {
            tracing::warn!("what the router's interfaces have counted begins anew: {error}");
            Router::new(options)
        })
    }

    /// Has what a router counts held, and its timer: to be called before it has an interface.
    pub fn hold(&self, router: &mut Router) -> Result<(), Error> {
        let Some(held) = self.0.clone() else {
            return Ok(());
        };
        held.hold_item(HELD, MAPS, &router.hand_over()?);
        router.keep_slots(move |slots| held.hold_bytes(HELD, SLOTS, slots));
        Ok(())
    }

    /// There is no router: nothing of one is held any more.
    pub fn release(&self) {
        if let Some(held) = &self.0 {
            held.left_items(HELD);
            held.release_items(HELD);
        }
    }
}
