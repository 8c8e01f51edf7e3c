//! What changes about hosts, bindings and what is said of VNIs.

use super::{FieldChange, joined, shown};
use crate::model::{Binding, BindingKey, Flood, Host, Membership, NetworkOptions};
use std::fmt::{self, Formatter};
use std::net::IpAddr;
use std::sync::Arc;
use wire::Vni;

/// What changes about one host. `None`: it is not there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostChange {
    /// Which one.
    pub address: IpAddr,
    /// Before.
    pub from: Option<Arc<Host>>,
    /// After.
    pub to: Option<Arc<Host>>,
}

/// What changes about what is said of one VNI. Nothing said is [`NetworkOptions::new`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NetworkChange {
    /// Before.
    pub from: NetworkOptions,
    /// After.
    pub to: NetworkOptions,
}

/// What changes about one binding. `None`: it is not there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BindingChange {
    /// Which one.
    pub key: BindingKey,
    /// Before.
    pub from: Option<Binding>,
    /// After.
    pub to: Option<Binding>,
}

impl HostChange {
    /// The values in which they differ; none when one is not there.
    pub fn fields(&self) -> Vec<FieldChange> {
        let (Some(from), Some(to)) = (&self.from, &self.to) else {
            return Vec::new();
        };
        let vnis = |host: &Host| match &host.vnis {
            Membership::Every => "every".to_owned(),
            Membership::Listed(vnis) => joined(vnis),
        };
        differing([
            ("name", from.name.clone(), to.name.clone()),
            ("vnis", vnis(from), vnis(to)),
        ])
    }
}

impl NetworkChange {
    /// Which VNI.
    pub fn vni(&self) -> Vni {
        self.to.vni
    }

    /// The values in which they differ.
    pub fn fields(&self) -> Vec<FieldChange> {
        let learning = |options: &NetworkOptions| match options.learning {
            None => "auto",
            Some(true) => "on",
            Some(false) => "off",
        };
        let flood = |options: &NetworkOptions| match options.flood {
            None => "auto".to_owned(),
            Some(Flood::HeadEnd) => "head-end".to_owned(),
            Some(Flood::Multicast(None)) => "multicast".to_owned(),
            Some(Flood::Multicast(Some(group))) => format!("multicast {group}"),
            Some(Flood::Off) => "off".to_owned(),
        };
        let source = |options: &NetworkOptions| match options.from_anybody {
            None => "auto",
            Some(true) => "anybody",
            Some(false) => "hosts",
        };
        let both = |of: fn(&NetworkOptions) -> String| (of(&self.from), of(&self.to));
        let dhcp_servers = both(|options| joined(options.dhcp_servers.iter()));
        let routers = both(|options| joined(options.routers.iter()));
        differing([
            (
                "learning",
                learning(&self.from).to_owned(),
                learning(&self.to).to_owned(),
            ),
            ("flood", flood(&self.from), flood(&self.to)),
            (
                "from",
                source(&self.from).to_owned(),
                source(&self.to).to_owned(),
            ),
            ("dhcp_servers", dhcp_servers.0, dhcp_servers.1),
            ("routers", routers.0, routers.1),
        ])
    }
}

impl BindingChange {
    /// The values in which they differ; none when one is not there.
    pub fn fields(&self) -> Vec<FieldChange> {
        let (Some(from), Some(to)) = (&self.from, &self.to) else {
            return Vec::new();
        };
        differing([
            ("host", from.host.to_string(), to.host.to_string()),
            ("ip", joined(from.ips.iter()), joined(to.ips.iter())),
        ])
    }
}

fn differing<const N: usize>(fields: [(&'static str, String, String); N]) -> Vec<FieldChange> {
    fields
        .into_iter()
        .filter(|(_, from, to)| from != to)
        .map(|(field, from, to)| FieldChange {
            field: field.into(),
            from,
            to,
        })
        .collect()
}

impl fmt::Display for HostChange {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let subject = format!("host {}", self.address);
        lines(
            f,
            &subject,
            self.from.is_some(),
            self.to.is_some(),
            &self.fields(),
        )
    }
}

impl fmt::Display for NetworkChange {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        lines(
            f,
            &format!("network {}", self.vni()),
            true,
            true,
            &self.fields(),
        )
    }
}

impl fmt::Display for BindingChange {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (vni, mac) = self.key;
        let mut subject = format!("binding {vni} {mac}");
        if let (None, Some(new)) = (&self.from, &self.to) {
            subject += &format!(": host {}", new.host);
            if !new.ips.is_empty() {
                subject += &format!(", ip {}", joined(new.ips.iter()));
            }
        }
        lines(
            f,
            &subject,
            self.from.is_some(),
            self.to.is_some(),
            &self.fields(),
        )
    }
}

pub(super) fn lines(
    f: &mut Formatter<'_>,
    subject: &str,
    was: bool,
    is: bool,
    fields: &[FieldChange],
) -> fmt::Result {
    match (was, is) {
        (false, _) => writeln!(f, "+ {subject}"),
        (_, false) => writeln!(f, "- {subject}"),
        _ => fields
            .iter()
            .try_for_each(|FieldChange { field, from, to }| {
                writeln!(f, "~ {subject}: {field} {} -> {}", shown(from), shown(to))
            }),
    }
}
