//! `butterfly config` and `apply`: the configuration as one declared document.

use std::path::PathBuf;

use api::v1;
use api::v1::change::{Action, Subject};
use clap::Args;
use serde_json::json;

use super::nic_state::read_file;
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
The file holds a butterfly.v1.Config of proto/butterfly/v1/butterfly.proto, in JSON or in protobuf text format.
What is not in it is deleted, but for the part `balancer`: a file without it leaves the load balancer's services as they
are, one with it, even if empty, makes them exactly these. What changes is printed: + is new, ~ is changed, - is deleted.

Examples:
  butterfly config > host.json
  butterfly apply host.json --dry-run")]
pub struct ApplyArgs {
    /// The configuration; - is standard input
    file: PathBuf,
    /// Check and compare only
    #[arg(short = 'n', long)]
    dry_run: bool,
}

/// `config`. JSON is what there is to print, `--json` or not.
pub async fn print(session: &mut Session) -> Result<(), Error> {
    let config = session.client().await?.config().await?;
    session.out.value(&json::sparse("Config", &config))
}

impl ApplyArgs {
    /// Does it.
    pub async fn run(self, session: &mut Session) -> Result<(), Error> {
        let file = self.file.display().to_string();
        let text = String::from_utf8(read_file(&self.file)?);
        let text = text.map_err(|_| Error::Usage(format!("{file} is no text")))?;
        let config: v1::Config = json::parse("Config", &text)
            .map_err(|error| Error::Usage(format!("{file} is no configuration: {error}")))?;
        let changes = session.client().await?.apply(config, self.dry_run).await?;
        if session.out.json {
            let changes: Vec<_> = changes
                .iter()
                .map(|change| json::full("Change", change))
                .collect();
            return session
                .out
                .value(&json!({ "dry_run": self.dry_run, "changes": changes }));
        }
        changes
            .iter()
            .try_for_each(|change| session.out.text(&lines(change)))
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
        Some(Subject::Endpoint(address)) => format!("endpoint {address}"),
        Some(Subject::Network(vni)) => format!("network {vni}"),
        Some(Subject::Binding(key)) => format!("binding {} {}", key.vni, key.mac),
        Some(Subject::Service(key)) => format!("service {}", key_words(key)),
        Some(Subject::RouterInterface(name)) => format!("router {name}"),
        None => "-".into(),
    };
    let details = change.details.iter().map(|detail| format!("\n    {detail}"));
    format!("{mark} {subject}{}", details.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

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
