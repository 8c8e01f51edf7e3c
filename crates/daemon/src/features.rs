//! The load balancer, the router and the uplinks as the controller is handed them: its calls become
//! calls of their engines and of the router's thread, each of which may wait for the kernel.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use control::model::{AccessList, Feature, Mode};
use control::{Features, InterfaceStatus};
use health::{Check, CheckError, Programs};
use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketType};
use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::app::monotonic_ns;
use crate::{balancer, router, uplinks};

/// Why an interface is not attached that is waited for from the start.
pub const NOT_THERE: &str = "it is not there yet";

/// What the controller's features are.
pub struct HostFeatures {
    pub engine: Arc<balancer::Engine>,
    pub router: Arc<router::Control>,
    /// The file that the router's access list is of, if it is.
    pub router_acl: Option<PathBuf>,
    pub uplinks: Arc<uplinks::Control>,
    /// What checks may run.
    pub programs: Programs,
    /// Told when a check may be due earlier than was thought.
    pub due: Arc<Notify>,
    /// While the daemon starts, an interface that is declared and not there is waited for: the
    /// service may start before it. Later it is refused: its name is most likely a mistake.
    pub starting: Arc<AtomicBool>,
    /// While the daemon takes what its options name in another's place: an interface that cannot be
    /// had is wanted as one that has gone is, and taken when it can be. Nobody could be told of a
    /// refusal.
    pub refuses_none: Arc<AtomicBool>,
}

impl HostFeatures {
    /// Has a feature take an interface when it comes, if the daemon starts and it is not there.
    fn wait_for(
        &mut self,
        feature: Feature,
        name: &str,
        mode: Option<Mode>,
    ) -> Result<Option<InterfaceStatus>, String> {
        // Uplinks are joined whenever they come.
        let waits = feature != Feature::Uplink && self.starting.load(Ordering::Relaxed);
        if !waits || is_there(name) {
            return Ok(None);
        }
        let waiting = InterfaceStatus {
            name: name.to_owned(),
            mode: None,
            why: NOT_THERE.to_owned(),
            asked: mode,
        };
        tracing::info!("waiting for the interface {name}, which is not there");
        self.restore(feature, name, Some(waiting.clone()))?;
        // It may have come before anybody watched for it.
        Ok((!is_there(name)).then_some(waiting))
    }
}

fn is_there(interface: &str) -> bool {
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::DGRAM, None);
    socket.is_ok_and(|socket| name_to_index(&socket, interface).is_ok())
}

impl Features for HostFeatures {
    fn now(&self) -> Duration {
        // A clock that the daemon that takes this one's place reads, too.
        Duration::from_nanos(monotonic_ns())
    }

    fn admit(&self, check: &Check) -> Result<(), CheckError> {
        check.admit(&self.programs)
    }

    fn checks_changed(&self) {
        self.due.notify_one();
    }

    fn balance(&mut self, services: &::balancer::Services) -> Result<(), String> {
        self.engine.apply(services.clone())
    }

    fn judge(&mut self, acl: Option<&AccessList>) -> Result<(), String> {
        match &self.router_acl {
            None => self.router.set_acl(acl.cloned()),
            Some(file) => Err(format!(
                "the access list is that of --router-acl {}: one that is declared does not go \
                 beside it",
                file.display()
            )),
        }
    }

    fn take(
        &mut self,
        feature: Feature,
        name: &str,
        mode: Option<Mode>,
    ) -> Result<InterfaceStatus, String> {
        if let Some(waiting) = self.wait_for(feature, name, mode)? {
            return Ok(waiting);
        }
        let taken = match feature {
            Feature::Balancer => self.engine.add_interface(name, mode),
            Feature::Router => {
                let added = self.router.add(name.to_owned(), mode);
                let added = Handle::current().block_on(added);
                added
                    .map(|member| member.status())
                    .map_err(|e| e.to_string())
            }
            Feature::Uplink => return self.uplinks.add(name),
        };
        match taken {
            Err(why) if self.refuses_none.load(Ordering::Relaxed) => {
                let wanted = InterfaceStatus {
                    name: name.to_owned(),
                    mode: None,
                    why,
                    asked: mode,
                };
                self.restore(feature, name, Some(wanted.clone()))?;
                Ok(wanted)
            }
            taken => taken,
        }
    }

    fn reattach(&mut self, name: &str) -> Result<InterfaceStatus, String> {
        self.engine.reattach_interface(name)
    }

    fn interface(&self, feature: Feature, name: &str) -> Result<Option<InterfaceStatus>, String> {
        match feature {
            Feature::Balancer => Ok(self.engine.interface(name)),
            Feature::Router => {
                let name = name.to_owned();
                let status = self.router.look(move |router| router.status(&name));
                Handle::current()
                    .block_on(status)
                    .map_err(|e| e.to_string())
            }
            Feature::Uplink => Ok(self.uplinks.interface(name)),
        }
    }

    fn give_back(&mut self, feature: Feature, name: &str) -> Result<(), String> {
        match feature {
            Feature::Balancer => {
                self.engine.delete_interface(name);
                Ok(())
            }
            Feature::Router => {
                let deleted = self.router.delete(name.to_owned());
                let deleted = Handle::current().block_on(deleted);
                deleted.map(drop).map_err(|e| e.to_string())
            }
            Feature::Uplink => {
                self.uplinks.delete(name);
                Ok(())
            }
        }
    }

    fn restore(
        &mut self,
        feature: Feature,
        name: &str,
        before: Option<InterfaceStatus>,
    ) -> Result<(), String> {
        match feature {
            Feature::Balancer => self.engine.restore_interface(name, before),
            Feature::Router => {
                let restored = self.router.restore(name.to_owned(), before);
                Handle::current()
                    .block_on(restored)
                    .map_err(|e| e.to_string())
            }
            Feature::Uplink => match before {
                Some(_) => self.uplinks.add(name).map(drop),
                None => {
                    self.uplinks.delete(name);
                    Ok(())
                }
            },
        }
    }
}
