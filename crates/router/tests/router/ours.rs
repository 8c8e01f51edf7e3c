//! The router over `east` and `west` of the namespace that the caller is in. The tests' and the benchmark's.

use std::time::Duration;

use butterfly_router::{Options, Report, Service};
use xdp::{Interfaces, Mode};

pub struct Ours {
    /// The first to be dropped: packets stop coming.
    pub attached: Interfaces,
    pub service: Service,
}

impl Ours {
    pub async fn start(options: &Options) -> Ours {
        Ours::start_in(None, options).await
    }

    /// With `east` in this mode.
    pub async fn start_in(east: Option<Mode>, options: &Options) -> Ours {
        let mut ours = Ours {
            service: Service::start(options).await.expect("the router"),
            attached: Interfaces::new(),
        };
        for (name, mode) in [("east", east), ("west", None)] {
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
    pub async fn until_within(&mut self, secs: u64, what: &str, mut seen: impl FnMut(&mut Ours) -> bool) {
        let look = async {
            while !seen(self) {
                self.service
                    .step(&mut self.attached)
                    .await
                    .expect("the router goes on");
            }
        };
        let done = tokio::time::timeout(Duration::from_secs(secs), look).await;
        assert!(done.is_ok(), "no {what}: {:#?}", self.report());
    }

    pub fn notes(&self) -> Vec<String> {
        self.report().notes
    }
}
