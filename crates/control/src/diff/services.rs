//! What changes about services and about the interfaces of features.

use super::FieldChange;
use super::overlay::lines;
use crate::model::{DeclaredServer, DeclaredService, DeclaredServices, Feature, Interface};
use ::model::{Mode, ServiceKey};
use std::fmt::{self, Formatter};
use std::sync::Arc;

/// What changes about one service. `None`: it is not there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServiceChange {
    /// Which one.
    pub key: ServiceKey,
    /// Before.
    pub from: Option<Arc<DeclaredService>>,
    /// After.
    pub to: Option<Arc<DeclaredService>>,
}

/// What changes about one interface of a feature. `None`: the feature is not to work on it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InterfaceChange {
    /// Whose.
    pub feature: Feature,
    /// Which one.
    pub name: String,
    /// Before.
    pub from: Option<Interface>,
    /// After.
    pub to: Option<Interface>,
}

/// What has to be done to `old` to make it `new`, by key.
pub(crate) fn services(old: &DeclaredServices, new: &DeclaredServices) -> Vec<ServiceChange> {
    let mut keys: Vec<&ServiceKey> = old.keys().chain(new.keys()).collect();
    keys.sort_unstable();
    keys.dedup();
    keys.into_iter()
        .map(|key| ServiceChange {
            key: *key,
            from: old.get(key).cloned(),
            to: new.get(key).cloned(),
        })
        .filter(|change| change.from != change.to)
        .collect()
}

/// From one list to the other: those that go, then the others in their order.
pub(crate) fn interfaces(
    feature: Feature,
    old: &[Interface],
    new: &[Interface],
) -> Vec<InterfaceChange> {
    let of = |list: &[Interface], name: &str| list.iter().find(|one| one.name == name).cloned();
    let change = |one: &Interface| InterfaceChange {
        feature,
        name: one.name.clone(),
        from: of(old, &one.name),
        to: of(new, &one.name),
    };
    let gone = old.iter().filter(|one| of(new, &one.name).is_none());
    gone.chain(new)
        .map(change)
        .filter(|change| change.from != change.to)
        .collect()
}

impl ServiceChange {
    /// The values in which they differ; none when one is not there.
    pub fn fields(&self) -> Vec<FieldChange> {
        match (&self.from, &self.to) {
            (Some(from), Some(to)) => details(from, to),
            _ => Vec::new(),
        }
    }
}

impl fmt::Display for ServiceChange {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let subject = format!("service {:#}", self.key);
        let (was, is) = (self.from.is_some(), self.to.is_some());
        lines(f, &subject, was, is, &self.fields())
    }
}

impl InterfaceChange {
    /// The values in which they differ; none when one is not there.
    pub fn fields(&self) -> Vec<FieldChange> {
        let word = |mode: Option<Mode>| mode.map_or("any".into(), |mode| mode.to_string());
        match (&self.from, &self.to) {
            (Some(from), Some(to)) if from.mode != to.mode => vec![FieldChange {
                field: "mode".into(),
                from: word(from.mode),
                to: word(to.mode),
            }],
            _ => Vec::new(),
        }
    }
}

impl fmt::Display for InterfaceChange {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let subject = format!("{} interface {}", self.feature, self.name);
        let (was, is) = (self.from.is_some(), self.to.is_some());
        lines(f, &subject, was, is, &self.fields())
    }
}

fn details(old: &DeclaredService, new: &DeclaredService) -> Vec<FieldChange> {
    let mut fields = Vec::new();
    let mut field = |name: String, from: String, to: String| {
        if from != to {
            let field = name.into();
            fields.push(FieldChange { field, from, to });
        }
    };
    field(
        "encapsulation".into(),
        old.tunnel.to_string(),
        new.tunnel.to_string(),
    );
    field(
        "sticky".into(),
        old.sticky.to_string(),
        new.sticky.to_string(),
    );
    field(
        "min_healthy".into(),
        old.min_healthy.to_string(),
        new.min_healthy.to_string(),
    );
    let words = |service: &DeclaredService| match &service.check {
        Some(check) => check.to_string(),
        None => "none".to_owned(),
    };
    if old.check != new.check {
        let (from, mut to) = (words(old), words(new));
        if let (Some(old), Some(new)) = (&old.check, &new.check)
            && old.left_out() != new.left_out()
        {
            to.push_str(" (what is left out has changed)");
        }
        field("check".into(), from, to);
    }
    for (address, server) in &new.servers {
        let name = |field: &str| format!("server {address} {field}");
        match old.servers.get(address) {
            None => field(format!("server {address}"), "none".into(), summary(server)),
            Some(old) => {
                let weight = |server: &DeclaredServer| server.weight.get().to_string();
                field(name("weight"), weight(old), weight(server));
                let state = |server: &DeclaredServer| server.state.to_string();
                field(name("state"), state(old), state(server));
                let port = |server: &DeclaredServer| {
                    let port = server.check_port;
                    port.map_or("none".into(), |port| port.to_string())
                };
                field(name("check_port"), port(old), port(server));
            }
        }
    }
    for (address, server) in &old.servers {
        if !new.servers.contains_key(address) {
            field(format!("server {address}"), summary(server), "none".into());
        }
    }
    fields
}

fn summary(server: &DeclaredServer) -> String {
    format!("{} weight {}", server.state, server.weight.get())
}
