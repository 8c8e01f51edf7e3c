//! The router over `east` and `west` of the namespace that the caller is in. The tests' and the
//! benchmark's.

use std::time::Duration;

use butterfly_router::{Options, Report, Service};
use xdp::{Interfaces, Mode};

pub struct Ours {
    /// The first to be dropped: packets stop coming.
    pub attached: Interfaces,
    pub service: Service,
}

impl Ours {
    /// In XDP, in the drivers.
    pub async fn start(options: &Options) -> Ours {
        Ours::start_in([Mode::Native; 2], options).await
    }

    /// With `east` and `west` in these modes.
    pub async fn start_in(modes: [Mode; 2], options: &Options) -> Ours {
        Ours::start_on(["east", "west"], modes.map(Some), options).await
    }

    /// Over other interfaces; without a mode, in that which it chooses.
    pub async fn start_on(names: [&str; 2], modes: [Option<Mode>; 2], options: &Options) -> Ours {
        let mut ours = Ours {
            service: Service::start(options).await.expect("the router"),
            attached: Interfaces::new(),
        };
        for (name, mode) in names.into_iter().zip(modes) {
            ours.service
                .add(name, &mut ours.attached, mode)
                .await
                .expect("an interface");
        }
        ours
    }

    pub fn report(&self) -> Report {
        self.service.router.report().expect("a report")
    }

    /// Follows what has changed until the report says what is looked for.
    pub async fn until_within(
        &mut self,
        secs: u64,
        what: &str,
        mut seen: impl FnMut(&mut Ours) -> bool,
    ) {
        let look = async {
            while !seen(self) {
                self.service.step(&mut self.attached).await;
            }
        };
        let done = tokio::time::timeout(Duration::from_secs(secs), look).await;
        assert!(done.is_ok(), "no {what}: {:#?}", self.report());
    }

    /// Without what is said of every TAP device that the program runs on in XDP.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = self.report().notes;
        notes.retain(|note| !note.contains("checksums are only begun"));
        notes
    }
}
