//! What the router's interfaces and its access list's rules have counted, from one daemon to the
//! next: by what is held.

use std::cell::Cell;
use std::sync::Arc;

use router::{Error, Options, Router};
use sys::handed::{Handed, Items, file_of};

use crate::held::{Held, bytes};

/// What is held for the next daemon, by its kind and name there.
pub const HELD: &str = "router";
const MAPS: &str = "maps";
const SLOTS: &str = "slots";
const RULES: &str = "rules";

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
        let rules = rules_left(&mut left);
        // One that was killed amid its first start has none by that name.
        let maps = left.remove(MAPS).or_else(|| Some(left.pop_first()?.1));
        let (Some(maps), Some(slots)) = (maps, slots) else {
            return Router::new(options);
        };
        let mut router = Router::handed(options, maps, &slots).or_else(|error| {
            tracing::warn!("what the router's interfaces have counted begins anew: {error}");
            Router::new(options)
        })?;
        if let Some(Err(error)) = rules.map(|rules| router.take_rules(rules)) {
            tracing::warn!("what the access list's rules have counted begins anew: {error}");
        }
        Ok(router)
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
        if !self.is_starting.get() {
            self.hold_rules(router);
        }
        Ok(())
    }

    /// Has what the access list's rules count held: no programs but this router's are in force.
    fn hold_rules(&self, router: &mut Router) {
        let Some(held) = self.held.clone() else {
            return;
        };
        router.keep_rules(move |rules| match rules {
            Some(rules) => hold_rules(&held, rules),
            None => held.release_item(HELD, RULES),
        });
    }

    /// This daemon's programs are in force. Lets go of what is of those before, and of all where
    /// there is no router any more.
    pub fn settle(&self, router: Option<&mut Router>) {
        self.is_starting.set(false);
        let Some(held) = &self.held else { return };
        let Some(router) = router else {
            held.left_items(HELD);
            held.release_items(HELD);
            return;
        };
        match router.hand_over() {
            Ok(maps) => {
                held.hold_item(HELD, MAPS, &maps);
                held.release_items_but(HELD, &[MAPS, SLOTS, RULES]);
            }
            Err(error) => {
                tracing::error!("what the router counts goes with this daemon: {error}");
            }
        }
        self.hold_rules(router);
    }
}

/// Their text may be longer than a note is: it is a file, behind the map.
fn hold_rules(held: &Held, rules: Handed) {
    let Handed { note, mut fds } = rules;
    match file_of(&note) {
        Ok(text) => {
            fds.push(text);
            let note = Vec::new();
            held.hold_item(HELD, RULES, &Handed { note, fds });
        }
        Err(error) => {
            tracing::error!("what the access list's rules count goes with this daemon: {error}");
        }
    }
}

fn rules_left(left: &mut Items) -> Option<Handed> {
    let [map, text] = left.remove(RULES)?.take()?;
    let text = Handed {
        note: Vec::new(),
        fds: vec![text],
    };
    Some(Handed {
        note: bytes(RULES, text)?,
        fds: vec![map],
    })
}
