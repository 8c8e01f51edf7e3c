//! A router that runs: follows the kernel's tables and firewall, and keeps house. Used by
//! `butterfly forward` and by the daemon, both on tokio.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use netlink::devices::Devices;
use netlink::firewall::{Firewall as Hooks, Hook};
use netlink::{Kinds, Mirror, Requests, Snapshot, Watch};
use sys::bpf::TcSide;
use tokio::time::{Interval, MissedTickBehavior, interval};
use wire::Mac;
use xdp::{Interfaces, occupants};

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
    mirror: Arc<Mirror>,
    watch: Watch,
    hooks: Hooks,
    /// They could not be read when they were last asked for.
    hooks_unread: bool,
    requests: Requests,
    devices: Devices,
    second: Interval,
    /// The kernel's tables and the rules of the firewall are not told of in this second any more.
    deaf: [bool; 2],
    /// Programs may have to run elsewhere.
    links: bool,
    /// What has failed in this turn.
    failed: Option<Error>,
}

/// What asks for something to be done: from [`Service::next`] to [`Service::take`].
#[derive(Debug)]
pub enum Change {
    /// The kernel's tables, and in what.
    Kernel(Arc<Snapshot>, Kinds),
    /// The rules of the firewall.
    Firewall,
    /// A second has passed.
    Second,
    /// What changes cannot be heard, which is tried again in a second.
    Unheard(Error),
}

impl Service {
    /// Loads the program and reads all there is. Forwards for no interface yet.
    pub async fn start(options: &Options) -> Result<Service, Error> {
        Self::over(Arc::new(Mirror::start().await?), options).await
    }

    /// Starts with a mirror that others share; it has to be of the calling thread's namespace too.
    pub async fn over(mirror: Arc<Mirror>, options: &Options) -> Result<Service, Error> {
        Self::with(mirror, Router::new(options)?).await
    }

    /// Starts a router that has no interface yet, with a mirror as [`over`](Self::over) takes it.
    pub async fn with(mirror: Arc<Mirror>, router: Router) -> Result<Service, Error> {
        let mut second = interval(HOUSEKEEPING);
        second.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut service = Service {
            router,
            watch: mirror.watch(),
            hooks: Hooks::new()?,
            hooks_unread: false,
            requests: Requests::new()?,
            devices: Devices::new().await?,
            second,
            mirror,
            deaf: [false; 2],
            links: false,
            failed: None,
        };
        service
            .router
            .update(service.mirror.snapshot(), Kinds::ALL)?;
        service.read_settings()?;
        service.read_firewall().await?;
        Ok(service)
    }

    /// From now on packets are the kernel's while this service is not followed: when nobody has
    /// called [`take`](Self::take) with what [`next`](Self::next) gave for
    /// [`PATIENCE`](crate::layout::PATIENCE) seconds. For who does nothing else on its thread.
    ///
    /// # Errors
    /// As [`Router::watch`].
    pub fn watch(&mut self) -> Result<(), Error> {
        self.router.watch()
    }

    /// What the kernel says now; the router may still be behind.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.mirror.snapshot()
    }

    /// Takes over an interface's forwarding, by what the kernel says now.
    pub async fn add(
        &mut self,
        name: &str,
        attached: &mut Interfaces,
        mode: Option<xdp::Mode>,
    ) -> Result<(), Error> {
        self.take_over(name, attached, mode)?;
        let read = self.read_devices().await;
        self.or_remove(read, name, attached)
    }

    /// The first half of [`add`](Self::add), which waits for nothing; packets that would leave by
    /// the interface are the kernel's until the second, [`read_devices`](Self::read_devices).
    pub fn take_over(
        &mut self,
        name: &str,
        attached: &mut Interfaces,
        mode: Option<xdp::Mode>,
    ) -> Result<(), Error> {
        self.router.update(self.mirror.snapshot(), Kinds::ALL)?;
        self.router.add(name, attached, mode)?;
        let read = self.read_settings();
        self.or_remove(read, name, attached)
    }

    /// What is refused leaves nothing.
    fn or_remove(
        &mut self,
        done: Result<(), Error>,
        name: &str,
        attached: &mut Interfaces,
    ) -> Result<(), Error> {
        if done.is_err() {
            // What hinders the one hinders the other, too.
            let _ = self.router.remove(name, attached);
        }
        done
    }

    /// Waits for the next thing that changes, and does what it asks for: [`next`](Self::next),
    /// [`take`](Self::take) and [`follow`](Self::follow), for who has nothing else to wait for.
    pub async fn step(&mut self, attached: &mut Interfaces) -> bool {
        let change = self.next().await;
        let changed = self.take(change).await;
        self.follow(attached);
        changed
    }

    /// Waits for the next thing that changes. May be given up at any time: nothing is lost.
    pub async fn next(&mut self) -> Change {
        let [no_tables, no_rules] = &mut self.deaf;
        tokio::select! {
            changed = self.watch.changed(), if !*no_tables => match changed {
                Ok((snapshot, kinds)) => Change::Kernel(snapshot, kinds),
                Err(error) => {
                    *no_tables = true;
                    Change::Unheard(error.into())
                }
            },
            changed = self.hooks.changed(), if !*no_rules => match changed {
                Ok(()) => Change::Firewall,
                Err(error) => {
                    (*no_rules, self.hooks_unread) = (true, true);
                    Change::Unheard(error.into())
                }
            },
            _ = self.second.tick() => Change::Second,
        }
    }

    /// Does what a change asks for; to be waited for to the end, and followed by
    /// [`follow`](Self::follow). True if the kernel's tables, the firewall or a setting changed;
    /// false for housekeeping alone.
    ///
    /// What fails leaves in force what was, and is tried again with growing pauses; the report's
    /// notes say so as long as that lasts, and so does [`Router::behind`].
    pub async fn take(&mut self, change: Change) -> bool {
        let heard = matches!(change, Change::Second) && !self.deaf[0];
        let again = heard && self.router.behind.is_due();
        let mut done = self.try_take(change).await;
        if again {
            self.links = true;
            done = done.and(self.take_all().await.map(|()| true));
        }
        let changed = *done.as_ref().unwrap_or(&true);
        self.failed = done.err();
        changed
    }

    /// The end of a turn: has the programs run where they should, if the change that was
    /// [taken](Self::take) was one of interfaces. Whether it was.
    pub fn follow(&mut self, attached: &mut Interfaces) -> bool {
        let links = std::mem::take(&mut self.links);
        let followed = match links {
            true => self.router.follow(attached),
            false => Ok(()),
        };
        self.end_turn(followed);
        links
    }

    /// The end of a turn in which the programs are to run where they do: with a later one they are
    /// to [`follow`](Self::follow).
    pub fn follow_later(&mut self) {
        self.end_turn(Ok(()));
    }

    /// Has the next [`follow`](Self::follow) look at all interfaces.
    pub fn look_again(&mut self) {
        self.links = true;
    }

    fn end_turn(&mut self, followed: Result<(), Error>) {
        let failed = self.failed.take().or(followed.err());
        let failed = failed.map(|error| error.to_string());
        let failed = failed.or_else(|| self.router.acl_trouble().map(str::to_owned));
        self.router.behind.end_turn(failed);
    }

    /// Whatever there is, as if nothing had been read before.
    async fn take_all(&mut self) -> Result<(), Error> {
        let updated = self.router.update(self.mirror.snapshot(), Kinds::ALL);
        let firewall = self.read_firewall().await;
        updated.and(firewall)
    }

    async fn try_take(&mut self, change: Change) -> Result<bool, Error> {
        match change {
            Change::Kernel(snapshot, kinds) => {
                let updated = self.router.update(snapshot, kinds);
                if !kinds.any(Kinds::LINKS) {
                    return updated.map(|()| true);
                }
                self.links = true;
                self.read_devices().await.and(updated).map(|()| true)
            }
            Change::Unheard(error) => Err(error),
            Change::Firewall => {
                self.read_firewall().await?;
                Ok(true)
            }
            Change::Second => {
                // Whose changes are not heard is not followed: packets are the kernel's soon.
                let [no_tables, _] = std::mem::take(&mut self.deaf);
                if !no_tables {
                    self.router.beat();
                }
                let changed = self.hooks.silent_changed().await;
                let mut done = self.read_settings();
                if changed || self.hooks_unread {
                    done = done.and(self.read_firewall().await);
                }
                done = done.and(self.read_devices().await);
                for (ifindex, ip) in self.router.housekeep() {
                    // A neighbour that has gone meanwhile needs no confirmation.
                    let _ = self.requests.probe(ifindex, ip).await;
                }
                done.map(|()| changed)
            }
        }
    }

    /// What cannot be read, as rules that change all the time, is taken to see every packet, which
    /// is the kernel's then, and is read again in a second.
    async fn read_firewall(&mut self) -> Result<(), Error> {
        let read = self.hooks.hooks().await;
        self.hooks_unread = read.is_err();
        let hooks = read.unwrap_or_else(|error| vec![Hook::unread(&error)]);
        self.router.set_firewall(Firewall { hooks })
    }

    /// Which devices take redirected frames, and to whose other end packets can be handed at once:
    /// both can change with what happens at the far end of a veth, of which the kernel tells us
    /// nothing.
    pub async fn read_devices(&mut self) -> Result<(), Error> {
        let devices: std::collections::BTreeSet<u32> =
            self.router.interfaces().map(|own| own.device).collect();
        let mut all = Ok(());
        for device in devices {
            all = self.read_device(device).await.and(all);
        }
        all
    }

    async fn read_device(&mut self, device: u32) -> Result<(), Error> {
        let sends = self.devices.takes_redirects(device).await;
        let peer = match &sends {
            Ok(sends) => self.peer_of(device, *sends).await,
            Err(_) => Ok(None),
        };
        let sends = sends.map_err(Error::from);
        let written = sends.and_then(|sends| self.router.set_sends(device, sends));
        // Nothing is handed past what may be there.
        let known = peer.as_ref().copied().unwrap_or_default();
        self.router.set_peer(device, known).and(written)?;
        peer.map(drop)
    }

    /// The MAC address of a device's other end in another namespace, if nothing is between the two
    /// that packets handed over at once would miss: no queue and nobody at tc on our end; on the
    /// other no XDP program, and no GRO, which would join what we did not.
    async fn peer_of(&self, device: u32, sends: Option<bool>) -> Result<Option<Mac>, Error> {
        // A veth takes frames from XDP if its other end has a program or GRO.
        if sends != Some(false) {
            return Ok(None);
        }
        let Some(pair) = self.requests.pair(device).await? else {
            return Ok(None);
        };
        let nobody = pair.queue == "noqueue"
            && pair.far.xdp_program.is_none()
            && occupants::of(device, TcSide::Egress).is_ok_and(|there| there.is_empty());
        Ok(pair.far.mac.filter(|_| nobody && pair.far.up))
    }

    /// Settings that the kernel tells nobody of.
    fn read_settings(&mut self) -> Result<(), Error> {
        let read = |family: &str| {
            let path = format!("/proc/sys/net/{family}/fib_multipath_hash_policy");
            // Not there: a kernel without multipath.
            let text: io::Result<String> = std::fs::read_to_string(path);
            text.ok()
                .and_then(|text| text.trim().parse().ok())
                .unwrap_or(0)
        };
        let written = self.router.set_hash_policies([read("ipv4"), read("ipv6")]);
        let snapshot = self.router.snapshot();
        let links = self
            .router
            .interfaces()
            .filter_map(|own| own.link(snapshot));
        let enabled = links.filter(|link| is_ipv6_enabled(&link.name));
        let enabled = enabled.map(|link| link.index).collect();
        self.router.set_ipv6(&enabled).and(written)
    }
}

/// What the kernel has no IPv6 on has no such file.
fn is_ipv6_enabled(name: &str) -> bool {
    let path = format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6");
    std::fs::read_to_string(path).is_ok_and(|text| text.trim() == "0")
}
