//! `butterfly config` and `apply`: the configuration as one declared document.

use std::path::PathBuf;

use api::v1;
use api::v1::change::{Action, Subject};
use clap::Args;
use serde_json::json;

use super::nic_state::read_file;
use super::prune::refuse_too_much;
use super::service_words::key_words;
use crate::error::Error;
use crate::json;
use crate::session::Session;

/// Shown behind the help of `config`.
pub const CONFIG_EXAMPLE: &str = "\
The document is a butterfly.v1.Config; values at their defaults are left out.

Example:
  butterfly config > host.json";

/// `apply`.
#[derive(Args, Debug)]
#[command(after_help = "\
The file holds a butterfly.v1.Config of proto/butterfly/v1/butterfly.proto, in JSON or in protobuf
text format. What is not in it is deleted, but for the parts `balancer` and `router`: a file
without them leaves the load balancer's services and the interfaces of both as they are, one with
them, even if empty, makes them exactly these; a `balancer` without `interfaces` leaves its
interfaces. What changes is printed: + is new, ~ is changed, - is deleted. A NIC that is broken is
tried again, whether the file changes it or not: a TAP device that went with its namespace is made
anew, a container's interface is made again, a guest's rings that were stopped go on. That is
printed too: `healed nic a:` and what was wrong. A file that would delete more than ten things of
a kind and a tenth of them, an empty one that would delete anything, or one that would leave nothing
of NICs, groups, hosts, networks, bindings and uplinks where there are some, is refused without
--prune: it is most likely not the file that was meant.

Examples:
  butterfly config > host.json
  butterfly apply host.json --dry-run")]
pub struct ApplyArgs {
    /// The configuration; - is standard input
    file: PathBuf,
    /// Check and compare only
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Delete as much as the file says
    #[arg(long, visible_alias = "yes")]
    prune: bool,
}

/// `config`. JSON is what there is to print, `--json` or not.
pub async fn print(session: &mut Session) -> Result<(), Error> {
    let config = session.client().await?.config().await?;
    session.out.value(&json::sparse("Config", &config))
}

impl ApplyArgs {
    /// Makes the configuration what the file declares, and prints what changes.
    pub async fn run(self, session: &mut Session) -> Result<(), Error> {
        let file = self.file.display().to_string();
        let text = String::from_utf8(read_file(&self.file)?);
        let text = text.map_err(|_| Error::Usage(format!("{file} is no text")))?;
        let config: v1::Config = json::parse("Config", &text)
            .map_err(|error| Error::Usage(format!("{file} is no configuration: {error}")))?;
        let client = session.client().await?;
        if !self.dry_run && !self.prune {
            let planned = client.apply(config.clone(), true).await?;
            let empty = config == v1::Config::default();
            refuse_too_much(&file, &planned, empty)?;
        }
        let applied = session.client().await?.apply(config, self.dry_run).await?;
        show(session, &applied, self.dry_run)
    }
}

/// Prints what changes and what is tried again, or would.
pub fn show(
    session: &mut Session,
    applied: &v1::ApplyResponse,
    dry_run: bool,
) -> Result<(), Error> {
    if session.out.json {
        let healed = applied.healed.iter();
        let healed: Vec<_> = healed.map(|one| json::full("Healed", one)).collect();
        let changes = changes_json(&applied.changes);
        return session
            .out
            .value(&json!({ "dry_run": dry_run, "changes": changes, "healed": healed }));
    }
    show_changes(session, &applied.changes)?;
    applied
        .healed
        .iter()
        .try_for_each(|healed| session.out.text(&healed_line(healed, dry_run)))
}

/// Prints what would change, or would have.
pub fn show_changes(session: &mut Session, changes: &[v1::Change]) -> Result<(), Error> {
    if session.out.json {
        let changes = changes_json(changes);
        return session
            .out
            .value(&json!({ "dry_run": true, "changes": changes }));
    }
    changes
        .iter()
        .try_for_each(|change| session.out.text(&lines(change)))
}

fn changes_json(changes: &[v1::Change]) -> Vec<serde_json::Value> {
    let each = changes.iter();
    each.map(|change| json::full("Change", change)).collect()
}

/// What has become of a broken NIC, or is to.
fn healed_line(healed: &v1::Healed, dry_run: bool) -> String {
    let v1::Healed {
        nic, was, detail, ..
    } = healed;
    match healed.state() {
        _ if dry_run => format!("would heal nic {nic}: {was}"),
        v1::PortState::Broken => format!("nic {nic} is still broken: {detail}"),
        _ => format!("healed nic {nic}: {was}"),
    }
}

/// A change: a marked line, and its details below.
pub fn lines(change: &v1::Change) -> String {
    let mark = match change.action() {
        Action::Create => '+',
        Action::Delete => '-',
        Action::Update | Action::Unspecified => '~',
    };
    let subject = match &change.subject {
        Some(Subject::Nic(id)) => format!("nic {id}"),
        Some(Subject::Group(id)) => format!("sg {id}"),
        Some(Subject::Endpoint(address)) => format!("host {address}"),
        Some(Subject::Network(vni)) => format!("network {vni}"),
        Some(Subject::Binding(key)) => format!("binding {} {}", key.vni, key.mac),
        Some(Subject::Service(key)) => format!("service {}", key_words(key)),
        Some(Subject::RouterInterface(name)) => format!("router {name}"),
        Some(Subject::Uplink(name)) => format!("uplink {name}"),
        Some(Subject::BalancerInterface(name)) => format!("service interface {name}"),
        Some(Subject::RouterAcl(_)) => "router access list".into(),
        None => "-".into(),
    };
    let details = change
        .details
        .iter()
        .map(|detail| format!("\n    {detail}"));
    format!("{mark} {subject}{}", details.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_healed_is_said() {
        let healed = |state: v1::PortState| v1::Healed {
            nic: "a".into(),
            was: "TAP interface 'a' was removed".into(),
            state: state.into(),
            detail: "an interface of that name exists".into(),
        };
        for (state, dry_run, says) in [
            (
                v1::PortState::Up,
                false,
                "healed nic a: TAP interface 'a' was removed",
            ),
            (
                v1::PortState::Broken,
                false,
                "nic a is still broken: an interface of that name exists",
            ),
            (
                v1::PortState::Broken,
                true,
                "would heal nic a: TAP interface 'a' was removed",
            ),
        ] {
            assert_eq!(healed_line(&healed(state), dry_run), says);
        }
    }

    #[test]
    fn a_change_is_a_marked_line_and_its_details() {
        let change = v1::Change {
            action: Action::Update.into(),
            subject: Some(Subject::Nic("vnic_1".into())),
            details: vec!["vni: 42 -> 51".into(), "mtu: 0 -> 9000".into()],
        };
        assert_eq!(
            lines(&change),
            "~ nic vnic_1\n    vni: 42 -> 51\n    mtu: 0 -> 9000"
        );
    }
}
