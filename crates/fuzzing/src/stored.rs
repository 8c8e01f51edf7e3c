//! Target `stored`: what is declared, as it lies in the store and as one daemon hands it to the
//! next.
//!
//! Promises: what is damaged, or says what this version does not know, is a sentence, and makes
//! nothing; what is taken is stored again as something that leads to the same.
//!
//! Input: objects, as they are handed over: kind, key and value, each behind its length (64 bits,
//! little-endian).

use daemon::decoders::{load_packed, pack};

use crate::world;

/// Reads what is stored.
pub fn stored(data: &[u8]) {
    let mut control = world::controller();
    let before = control.config();
    if let Err(why) = load_packed(&mut control, data) {
        assert!(!why.is_empty());
        assert_eq!(control.config(), before, "an error changed something");
        return;
    }
    world::check(&mut control);
    let config = control.config();
    let mut again = world::controller();
    if let Err(why) = load_packed(&mut again, &pack(&config)) {
        panic!("what was taken is not, once it is stored: {why}");
    }
    assert_eq!(again.config(), config, "it is another once it is stored");
}
