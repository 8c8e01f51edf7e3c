//! What the APIs are asked, counted as it happens by the gates of both: how often, with what end,
//! and how long each took. The names are those of access/needs.rs, so that their number is bounded.

use std::time::Instant;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;

/// Upper bounds of the classes of durations, seconds: a change on an idle host takes about the
/// first, one of many NICs the last ones.
const SECONDS: [f64; 10] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0];

/// Counted since the start. Cheap to clone: all clones are one.
#[derive(Clone, Debug)]
pub struct Requests {
    pub(super) counts: Family<Ended, Counter>,
    pub(super) durations: Family<Asked, Histogram>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct Asked {
    api: &'static str,
    request: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct Ended {
    api: &'static str,
    request: &'static str,
    result: String,
}

impl Default for Requests {
    fn default() -> Requests {
        Requests {
            counts: Family::default(),
            durations: Family::new_with_constructor(|| Histogram::new(SECONDS)),
        }
    }
}

impl Requests {
    /// A request that began then was answered now. `result`: "ok", or a code.
    pub fn answered(
        &self,
        api: &'static str,
        request: &'static str,
        began: Instant,
        result: String,
    ) {
        let asked = Asked { api, request };
        let ended = Ended {
            api,
            request,
            result,
        };
        self.counts.get_or_create(&ended).inc();
        let seconds = began.elapsed().as_secs_f64();
        self.durations.get_or_create(&asked).observe(seconds);
    }
}
