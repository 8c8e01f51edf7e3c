//! What the router's interfaces have counted, from one daemon to the next: by what is held.

use std::cell::Cell;
use std::sync::Arc;

use router::{Error, Options, Router};

use crate::held::{Held, bytes};

/// What is held for the next daemon, by its kind and name there.
pub const HELD: &str = "router";
const MAPS: &str = "maps";
const SLOTS: &str = "slots";

/// Where what the next daemon is to find is held, if anywhere.
pub struct Counting {
    held: Option<Arc<Held>>,
    /// Programs of a daemon before may be where this one's are to be: theirs is the timer that is
    /// held as [`MAPS`], and this one's is held beside it.
    is_starting: Cell<bool>,
}

impl Counting {
    /// Of a daemon that begins.
    pub fn new(held: Option<Arc<Held>>) -> Counting {
        let is_starting = Cell::new(true);
        Counting { held, is_starting }
    }

    /// A router that goes on counting where that of the daemon before does, if one has left that.
    pub fn router(&self, options: &Options) -> Result<Router, Error> {
        let Some(held) = &self.held else {
            return Router::new(options);
        };
        let mut left = held.left_items(HELD);
        let slots = left.remove(SLOTS).and_then(|item| bytes(SLOTS, item));
        // One that was killed amid its first start has none by that name.
        let maps = left.remove(MAPS).or_else(|| Some(left.pop_first()?.1));
        let (Some(maps), Some(slots)) = (maps, slots) else {
            return Router::new(options);
        };
        Router::handed(options, maps, &slots).or_else(|error| {
            tracing::warn!("what the router's interfaces have counted begins anew: {error}");
            Router::new(options)
        })
    }

    /// Has what a router counts held, and its timer: to be called before it has an interface.
    pub fn hold(&self, router: &mut Router) -> Result<(), Error> {
        let Some(held) = self.held.clone() else {
            return Ok(());
        };
        let name = match self.is_starting.get() {
            true => format!("{MAPS} of {}", std::process::id()),
            false => MAPS.to_owned(),
        };
        held.hold_item(HELD, &name, &router.hand_over()?);
        router.keep_slots(move |slots| held.hold_bytes(HELD, SLOTS, slots));
        Ok(())
    }

    /// This daemon's programs are in force. Lets go of what is of those before, and of all where
    /// there is no router any more.
    pub fn settle(&self, router: Option<&Router>) {
        self.is_starting.set(false);
        let Some(held) = &self.held else { return };
        match router.map(Router::hand_over) {
            Some(Ok(maps)) => {
                held.hold_item(HELD, MAPS, &maps);
                held.release_items_but(HELD, &[MAPS, SLOTS]);
            }
            Some(Err(error)) => {
                tracing::error!("what the router counts goes with this daemon: {error}");
            }
            None => {
                held.left_items(HELD);
                held.release_items(HELD);
            }
        }
    }
}
