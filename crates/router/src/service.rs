//! A router that runs: follows the kernel's tables and firewall, and keeps house. Used by `butterfly forward` and by the
//! daemon, both on tokio.

use std::io;
use std::time::Duration;

use netlink::devices::Devices;
use netlink::firewall::Firewall as Hooks;
use netlink::{Kinds, Mirror, Requests, Watch};
use tokio::time::{Interval, MissedTickBehavior, interval};
use xdp::Interfaces;

use crate::error::Error;
use crate::firewall::Firewall;
use crate::router::{Options, Router};

/// How often stale neighbours in use are confirmed and settings without a notification are read.
const HOUSEKEEPING: Duration = Duration::from_secs(1);

/// A router with what it follows, of one network namespace: that of the thread that started it.
#[derive(Debug)]
pub struct Service {
    /// The router.
    pub router: Router,
    mirror: Mirror,
    watch: Watch,
    hooks: Hooks,
    requests: Requests,
    devices: Devices,
    second: Interval,
}

impl Service {
    /// Loads the program and reads all there is. Forwards for no interface yet.
    pub async fn start(options: &Options) -> Result<Service, Error> {
        let mirror = Mirror::start().await?;
        let mut second = interval(HOUSEKEEPING);
        second.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut service = Service {
            router: Router::new(options)?,
            watch: mirror.watch(),
            hooks: Hooks::new()?,
            requests: Requests::new()?,
            devices: Devices::new().await?,
            second,
            mirror,
        };
        service.router.update(service.mirror.snapshot(), Kinds::ALL)?;
        service.read_settings()?;
        service.read_firewall().await?;
        Ok(service)
    }

    /// Takes over an interface's forwarding, by what the kernel says now.
    pub async fn add(
        &mut self,
        name: &str,
        attached: &mut Interfaces,
        mode: Option<xdp::Mode>,
    ) -> Result<(), Error> {
        self.router.update(self.mirror.snapshot(), Kinds::ALL)?;
        self.router.add(name, attached, mode)?;
        self.read_devices().await
    }

    /// Waits for the next thing that changes, and does what it asks for. True if the kernel's tables, the firewall or a
    /// setting changed; false for housekeeping alone.
    pub async fn step(&mut self) -> Result<bool, Error> {
        tokio::select! {
            changed = self.watch.changed() => {
                let (snapshot, kinds) = changed?;
                self.router.update(snapshot, kinds)?;
                if kinds.any(Kinds::LINKS) {
                    self.read_devices().await?;
                }
                Ok(true)
            }
            changed = self.hooks.changed() => {
                changed?;
                self.read_firewall().await?;
                Ok(true)
            }
            _ = self.second.tick() => {
                self.read_settings()?;
                self.read_devices().await?;
                for (ifindex, ip) in self.router.housekeep() {
                    // A neighbour that has gone meanwhile needs no confirmation.
                    let _ = self.requests.probe(ifindex, ip).await;
                }
                Ok(false)
            }
        }
    }

    async fn read_firewall(&mut self) -> Result<(), Error> {
        let hooks = self.hooks.hooks().await?;
        self.router.set_firewall(Firewall { hooks })
    }

    /// Which devices take redirected frames: that can change with what happens at the far end of a veth.
    async fn read_devices(&mut self) -> Result<(), Error> {
        let devices: std::collections::BTreeSet<u32> =
            self.router.interfaces().map(|own| own.device).collect();
        for device in devices {
            let sends = self.devices.takes_redirects(device).await?;
            self.router.set_sends(device, sends)?;
        }
        Ok(())
    }

    /// Settings that the kernel tells nobody of.
    fn read_settings(&mut self) -> Result<(), Error> {
        let read = |family: &str| {
            let path = format!("/proc/sys/net/{family}/fib_multipath_hash_policy");
            // Not there: a kernel without multipath.
            let text: io::Result<String> = std::fs::read_to_string(path);
            text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
        };
        self.router.set_hash_policies([read("ipv4"), read("ipv6")])
    }
}
