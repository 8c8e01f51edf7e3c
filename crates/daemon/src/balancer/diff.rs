//! What differs between two sets of services: for dry runs, answers and events.

use api::v1;
use api::v1::service_change::Action;

use super::model::{Key, Server, Service, Services};
use super::render;

/// A service that differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub key: Key,
    pub kind: ChangeKind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChangeKind {
    Created,
    /// One line for each value: what it was, what it is.
    Updated(Vec<String>),
    Deleted,
}

/// What has to be done to `old` to make it `new`, by key.
pub fn diff(old: &Services, new: &Services) -> Vec<Change> {
    let mut keys: Vec<&Key> = old.keys().chain(new.keys()).collect();
    keys.sort_unstable();
    keys.dedup();
    let change = |key: &Key| {
        let kind = match (old.get(key), new.get(key)) {
            (Some(old), Some(new)) if old == new => return None,
            (Some(old), Some(new)) => ChangeKind::Updated(details(old, new)),
            (None, _) => ChangeKind::Created,
            (_, None) => ChangeKind::Deleted,
        };
        Some(Change { key: *key, kind })
    };
    keys.into_iter().filter_map(change).collect()
}

impl Change {
    pub fn render(&self) -> v1::ServiceChange {
        let (action, details) = match &self.kind {
            ChangeKind::Created => (Action::Create, vec![]),
            ChangeKind::Updated(details) => (Action::Update, details.clone()),
            ChangeKind::Deleted => (Action::Delete, vec![]),
        };
        v1::ServiceChange {
            action: action.into(),
            key: Some(render::key(&self.key)),
            details,
        }
    }
}

fn details(old: &Service, new: &Service) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = |name: &str, old: String, new: String| {
        if old != new {
            lines.push(format!("{name}: {old} -> {new}"));
        }
    };
    line(
        "encapsulation",
        old.encapsulation.to_string(),
        new.encapsulation.to_string(),
    );
    line("sticky", old.sticky.to_string(), new.sticky.to_string());
    line(
        "min_healthy",
        old.min_healthy.to_string(),
        new.min_healthy.to_string(),
    );
    if old.check != new.check {
        let words = |service: &Service| match &service.check {
            Some(check) => check.to_string(),
            None => "none".to_owned(),
        };
        line("check", words(old), words(new));
    }
    for (address, server) in &new.servers {
        let name = |field: &str| format!("server {address} {field}");
        match old.servers.get(address) {
            None => line(&format!("server {address}"), "none".into(), words(server)),
            Some(old) => {
                line(
                    &name("weight"),
                    old.weight.to_string(),
                    server.weight.to_string(),
                );
                line(
                    &name("state"),
                    old.state.to_string(),
                    server.state.to_string(),
                );
                let port = |server: &Server| {
                    server
                        .check_port
                        .map_or("none".into(), |port| port.to_string())
                };
                line(&name("check_port"), port(old), port(server));
            }
        }
    }
    for (address, server) in &old.servers {
        if !new.servers.contains_key(address) {
            line(&format!("server {address}"), words(server), "none".into());
        }
    }
    lines
}

fn words(server: &Server) -> String {
    format!("{} weight {}", server.state, server.weight)
}
