//! The router's part of the one declared configuration: its interfaces. For `v1::declare`, which
//! may wait.

use api::v1;
use api::v1::change::{Action, Subject};
use tokio::runtime::Handle;
use tonic::Status;
use xdp::Mode;

use super::control::Control;
use super::refusal::Refusal;
use crate::tracked_interfaces::Member;
use crate::v1::interface;

/// The interfaces that are declared, in their order, and how each is to be attached; `None`:
/// however it can be.
pub struct Declared(Vec<(String, Option<Mode>)>);

/// The interfaces that there were.
#[must_use = "they are lost otherwise"]
pub struct Before(Declared);

/// The router's part of the configuration as it is.
///
/// # Errors
/// The router has stopped with the daemon.
pub fn config(control: &Control) -> Result<v1::RouterConfig, Refusal> {
    let interface = |(name, mode): (String, Option<Mode>)| v1::RouterInterface {
        name,
        mode: interface::mode_of(mode).into(),
        why: String::new(),
    };
    let Declared(now) = current(control)?;
    Ok(v1::RouterConfig {
        interfaces: now.into_iter().map(interface).collect(),
    })
}

impl Declared {
    /// Reads the declared interfaces.
    ///
    /// # Errors
    /// A name or a mode is none, or a name is there twice.
    pub fn read(message: v1::RouterConfig) -> Result<Declared, Status> {
        let mut declared: Vec<(String, Option<Mode>)> = Vec::new();
        for one in message.interfaces {
            let name = interface::name(&one.name).map_err(Refusal::Invalid)?;
            let mode = interface::mode(&name, one.mode).map_err(Refusal::Invalid)?;
            if declared.iter().any(|(other, _)| *other == name) {
                let why = format!("interface {name} of the router is there twice");
                return Err(Refusal::Invalid(why).into());
            }
            declared.push((name, mode));
        }
        Ok(Declared(declared))
    }

    /// What differs from what there is.
    ///
    /// # Errors
    /// Those of [`config`].
    pub fn compare(&self, control: &Control) -> Result<Vec<v1::Change>, Status> {
        Ok(changes(&current(control)?, self))
    }

    /// Puts them in force; gives what there was.
    ///
    /// # Errors
    /// An interface is refused; nothing has changed then.
    pub fn apply(self, control: &Control) -> Result<Before, Status> {
        let before = Before(current(control)?);
        if let Err(refusal) = make(control, &self) {
            before.give_back(control);
            return Err(refusal.into());
        }
        Ok(before)
    }
}

impl Before {
    /// Makes the interfaces again what they were. Nothing is to be said to whoever asked: its own
    /// refusal is what counts.
    pub fn give_back(&self, control: &Control) {
        if let Err(e) = make(control, &self.0) {
            tracing::error!(
                "the router's interfaces are not again what they were before a refused apply: {e}"
            );
        }
    }
}

fn current(control: &Control) -> Result<Declared, Refusal> {
    let members = Handle::current().block_on(control.look(|keeper| keeper.members()))?;
    let declared = |member: Member| (member.name, member.asked);
    Ok(Declared(members.into_iter().map(declared).collect()))
}

/// Step by step; the first that is refused ends it.
fn make(control: &Control, wanted: &Declared) -> Result<(), Refusal> {
    for change in changes(&current(control)?, wanted) {
        let Some(Subject::RouterInterface(name)) = change.subject else {
            continue;
        };
        let mode = wanted.mode(&name);
        match mode {
            None => drop(Handle::current().block_on(control.delete(name))?),
            Some(mode) => drop(Handle::current().block_on(control.add(name, mode))?),
        }
    }
    Ok(())
}

impl Declared {
    /// How one is to be attached; `None`: it is not there.
    fn mode(&self, name: &str) -> Option<Option<Mode>> {
        let found = self.0.iter().find(|(other, _)| other == name);
        found.map(|(_, mode)| *mode)
    }
}

/// From one to the other: those that go, then the others in their order.
fn changes(now: &Declared, wanted: &Declared) -> Vec<v1::Change> {
    let change = |name: &str, action: Action, details: Vec<String>| v1::Change {
        action: action.into(),
        subject: Some(Subject::RouterInterface(name.to_owned())),
        details,
    };
    let gone = now.0.iter().filter(|(name, _)| wanted.mode(name).is_none());
    let gone = gone.map(|(name, _)| change(name, Action::Delete, vec![]));
    let come = wanted
        .0
        .iter()
        .filter_map(|(name, mode)| match now.mode(name) {
            None => Some(change(name, Action::Create, vec![])),
            Some(old) if mode.is_some() && *mode != old => {
                let word = |mode: Option<Mode>| mode.map_or("any".into(), |mode| mode.to_string());
                let detail = format!("mode: {} -> {}", word(old), word(*mode));
                Some(change(name, Action::Update, vec![detail]))
            }
            Some(_) => None,
        });
    gone.chain(come).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn declared(interfaces: &[(&str, v1::XdpMode)]) -> Declared {
        let interface = |(name, mode): &(&str, v1::XdpMode)| v1::RouterInterface {
            name: (*name).into(),
            mode: (*mode).into(),
            why: String::new(),
        };
        let interfaces = interfaces.iter().map(interface).collect();
        Declared::read(v1::RouterConfig { interfaces }).unwrap()
    }

    #[test]
    fn what_goes_goes_first_and_any_mode_will_do_where_none_is_said() {
        use v1::XdpMode::{Generic, Native, Unspecified};
        let now = declared(&[("eth1", Native), ("eth2", Unspecified), ("eth3", Generic)]);
        let wanted = declared(&[("eth4", Native), ("eth2", Native), ("eth3", Unspecified)]);
        let told: Vec<String> = changes(&now, &wanted)
            .iter()
            .map(|change| {
                format!(
                    "{:?} {:?} {:?}",
                    change.action(),
                    change.subject,
                    change.details
                )
            })
            .collect();
        assert_eq!(
            told,
            [
                "Delete Some(RouterInterface(\"eth1\")) []",
                "Create Some(RouterInterface(\"eth4\")) []",
                "Update Some(RouterInterface(\"eth2\")) [\"mode: any -> native\"]",
            ]
        );
        assert!(changes(&now, &now).is_empty());
    }

    #[test]
    fn names_are_names_and_there_once() {
        let read = |name: &str, times: usize| {
            let one = v1::RouterInterface {
                name: name.into(),
                ..Default::default()
            };
            let read = Declared::read(v1::RouterConfig {
                interfaces: vec![one; times],
            });
            read.err().map(|status| status.message().to_owned())
        };
        assert_eq!(read("eth1", 1), None);
        assert_eq!(
            read("eth1", 2).as_deref(),
            Some("interface eth1 of the router is there twice")
        );
        assert_eq!(
            read("a/b", 1).as_deref(),
            Some("interface: name 'a/b' is no name of an interface")
        );
    }
}
