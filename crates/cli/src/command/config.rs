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
The file holds a butterfly.v1.Config of proto/butterfly/v1/butterfly.proto, in JSON or in protobuf
text format. What is not in it is deleted, but for the parts `balancer` and `router`: a file
without them leaves the load balancer's services and the interfaces of both as they are, one with
them, even if empty, makes them exactly these; a `balancer` without `interfaces` leaves its
interfaces. What changes is printed: + is new, ~ is changed, - is deleted. A NIC that is broken is
tried again, whether the file changes it or not: a TAP device that went with its namespace is made
anew, a container's interface is made again, a guest's rings that were stopped go on. That is
printed too: `healed nic a:` and what was wrong. A file that would delete more than ten things of
a kind and a tenth of them, or an empty one that would delete anything, is refused without
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
            let planned = client.apply(config.clone(), true).await?.changes;
            if planned.iter().any(takes_away) {
                let now = client.config().await?;
                refuse_too_much(&file, &planned, &now, Some(&config))?;
            }
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

/// Things of one kind that may be deleted without being asked for, however few there are.
const FEW: usize = 10;

/// What an object consists of, and is told of line by line.
#[derive(Clone, Copy)]
enum Part {
    Rule,
    Member,
    Server,
    /// Of the router's access list.
    ListRule,
}

/// It deletes something, or parts of what stays.
pub fn takes_away(change: &v1::Change) -> bool {
    let parts = [Part::Rule, Part::Member, Part::Server, Part::ListRule];
    change.action() == Action::Delete || parts.iter().any(|part| parts_gone(change, *part) > 0)
}

/// How many of these parts an object which stays would have less. The access list is counted by its
/// rules also where it goes: there is one.
fn parts_gone(change: &v1::Change, part: Part) -> usize {
    let fewer = |goes: fn(&str) -> bool, comes: fn(&str) -> bool| {
        let count = |is: fn(&str) -> bool| {
            let lines = change.details.iter();
            lines.filter(|line| is(line)).count()
        };
        count(goes).saturating_sub(count(comes))
    };
    match (part, change.action(), &change.subject) {
        (Part::Rule, Action::Update, Some(Subject::Group(_))) => fewer(
            |line| line.starts_with("- rule "),
            |line| line.starts_with("+ rule "),
        ),
        (Part::Member, Action::Update, Some(Subject::Group(_))) => fewer(
            |line| line.starts_with("- member "),
            |line| line.starts_with("+ member "),
        ),
        (Part::Server, Action::Update, Some(Subject::Service(_))) => fewer(
            |line| server(line).is_some_and(|change| change.ends_with(" -> none")),
            |line| server(line).is_some_and(|change| change.starts_with("none -> ")),
        ),
        (Part::ListRule, Action::Update | Action::Delete, Some(Subject::RouterAcl(_))) => {
            fewer(|line| line.starts_with("- "), |line| line.starts_with("+ "))
        }
        _ => 0,
    }
}

/// What becomes of a server as a whole, where the line says that: `server 192.0.2.7: none -> up
/// weight 1`, and not `server 192.0.2.7 check_port: 80 -> none`.
fn server(line: &str) -> Option<&str> {
    let (address, change) = line.strip_prefix("server ")?.split_once(": ")?;
    (!address.contains(' ')).then_some(change)
}

/// Refuses what deletes more than a slip should; `what` would do so. `new`: what is to be, where
/// that is known.
pub fn refuse_too_much(
    what: &str,
    planned: &[v1::Change],
    now: &v1::Config,
    new: Option<&v1::Config>,
) -> Result<(), Error> {
    refuse(what, too_much(planned, now, new.unwrap_or(now)))
}

/// Refuses what deletes more things of one kind than a slip should; nothing is to be left if it is
/// `empty`.
pub fn refuse_too_many(
    what: &str,
    kind: &str,
    deleted: usize,
    of: usize,
    empty: bool,
) -> Result<(), Error> {
    refuse(what, loss(kind, deleted, of, empty))
}

fn refuse(what: &str, loss: Option<String>) -> Result<(), Error> {
    match loss {
        None => Ok(()),
        Some(loss) => Err(Error::Usage(format!(
            "{what} would delete {loss}: --dry-run shows what, --prune does it"
        ))),
    }
}

/// What is lost of a kind, in words, if it is more than a slip should delete.
fn loss(kind: &str, deleted: usize, of: usize, empty: bool) -> Option<String> {
    let is_much = deleted > FEW && deleted * 10 >= of;
    (deleted > 0 && (empty || is_much)).then(|| format!("{deleted} of {of} {kind}"))
}

/// What is more than a slip should delete, in words. `None`: it is not too much.
fn too_much(planned: &[v1::Change], now: &v1::Config, new: &v1::Config) -> Option<String> {
    let deleted = |of: fn(&Subject) -> bool| {
        let deleted = planned
            .iter()
            .filter(|change| change.action() == Action::Delete);
        deleted
            .filter(|change| change.subject.as_ref().is_some_and(of))
            .count()
    };
    // Not all of them are listed.
    let bindings = deleted(|subject| matches!(subject, Subject::Binding(_)))
        .max(now.bindings.len().saturating_sub(new.bindings.len()));
    let parts = |part| -> usize {
        let each = planned.iter();
        each.map(|change| parts_gone(change, part)).sum()
    };
    let services: &[v1::Service] = now
        .balancer
        .as_ref()
        .map_or(&[], |balancer| &balancer.services);
    let router = now.router.as_ref();
    let interfaces = router.map_or(0, |router| router.interfaces.len());
    let listed = router.and_then(|router| router.acl.as_ref());
    let listed = listed.map_or(0, |list| list.rules.len());
    let uplinks = now.uplinks.as_ref();
    let uplinks = uplinks.map_or(0, |uplinks| uplinks.interfaces.len());
    let balancer = now.balancer.as_ref();
    let balanced = balancer.and_then(|balancer| balancer.interfaces.as_ref());
    let balanced = balanced.map_or(0, |balanced| balanced.interfaces.len());
    let kinds = [
        (
            "NICs",
            deleted(|s| matches!(s, Subject::Nic(_))),
            now.nics.len(),
        ),
        (
            "groups",
            deleted(|s| matches!(s, Subject::Group(_))),
            now.groups.len(),
        ),
        (
            "rules of groups that stay",
            parts(Part::Rule),
            now.groups.iter().map(|group| group.rules.len()).sum(),
        ),
        (
            "members of groups that stay",
            parts(Part::Member),
            now.groups.iter().map(|group| group.members.len()).sum(),
        ),
        (
            "hosts",
            deleted(|s| matches!(s, Subject::Endpoint(_))),
            now.endpoints.len(),
        ),
        ("bindings", bindings, now.bindings.len()),
        (
            "network settings",
            deleted(|s| matches!(s, Subject::Network(_))),
            now.networks.len(),
        ),
        (
            "services",
            deleted(|s| matches!(s, Subject::Service(_))),
            services.len(),
        ),
        (
            "servers of services that stay",
            parts(Part::Server),
            services.iter().map(|service| service.servers.len()).sum(),
        ),
        (
            "router interfaces",
            deleted(|s| matches!(s, Subject::RouterInterface(_))),
            interfaces,
        ),
        (
            "uplinks",
            deleted(|s| matches!(s, Subject::Uplink(_))),
            uplinks,
        ),
        (
            "interfaces of services",
            deleted(|s| matches!(s, Subject::BalancerInterface(_))),
            balanced,
        ),
        (
            "access lists",
            deleted(|s| matches!(s, Subject::RouterAcl(_))),
            1,
        ),
        (
            "rules of the router's access list",
            parts(Part::ListRule),
            listed,
        ),
    ];
    let empty = *new == v1::Config::default();
    let losses: Vec<String> = kinds
        .into_iter()
        .filter_map(|(kind, deleted, of)| loss(kind, deleted, of, empty))
        .collect();
    (!losses.is_empty()).then(|| losses.join(", "))
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
    fn a_slip_does_not_delete_much() {
        let nics = |count: usize| -> v1::Config {
            let nic = |n: usize| v1::Nic {
                id: n.to_string(),
                ..Default::default()
            };
            v1::Config {
                nics: (0..count).map(nic).collect(),
                groups: vec![Default::default(); 500],
                ..Default::default()
            }
        };
        let says = |of: usize, left: usize| {
            let delete = |n: usize| v1::Change {
                action: Action::Delete.into(),
                subject: Some(Subject::Nic(n.to_string())),
                ..Default::default()
            };
            let planned: Vec<_> = (left..of).map(delete).collect();
            too_much(&planned, &nics(of), &nics(left))
        };
        assert_eq!(says(10, 0), None, "ten");
        assert_eq!(says(12, 1).as_deref(), Some("11 of 12 NICs"));
        assert_eq!(says(200, 190), None);
        assert_eq!(says(110, 99).as_deref(), Some("11 of 110 NICs"), "a tenth");
        assert_eq!(says(111, 100), None);
        // Not all bindings are listed.
        let bindings = |count: usize| v1::Config {
            bindings: vec![Default::default(); count],
            ..nics(0)
        };
        assert_eq!(
            too_much(&[], &bindings(30_000), &bindings(10)).as_deref(),
            Some("29990 of 30000 bindings")
        );
        // An empty document deletes nothing at all by itself.
        let delete = v1::Change {
            action: Action::Delete.into(),
            subject: Some(Subject::Nic("a".into())),
            ..Default::default()
        };
        let empty = v1::Config::default();
        assert_eq!(
            too_much(&[delete], &nics(1), &empty).as_deref(),
            Some("1 of 1 NICs")
        );
        assert_eq!(too_much(&[], &empty, &empty), None);
    }

    /// A document whose groups have lost their rules, and nothing else.
    #[test]
    fn groups_that_are_emptied_are_a_loss() {
        let group = |rules: usize| v1::Config {
            groups: vec![v1::Group {
                id: "web".into(),
                rules: vec![Default::default(); rules],
                ..Default::default()
            }],
            ..Default::default()
        };
        let emptied = |rules: usize| v1::Change {
            action: Action::Update.into(),
            subject: Some(Subject::Group("web".into())),
            details: vec!["- rule ingress tcp 80 from anybody".into(); rules],
        };
        let mut replaced = emptied(40);
        let new = vec!["+ rule ingress tcp 443 from anybody".into(); 40];
        replaced.details.extend::<Vec<String>>(new);
        assert!(!takes_away(&replaced));
        let says = |of: usize, gone: usize| {
            let change = emptied(gone);
            assert_eq!(takes_away(&change), gone > 0);
            too_much(&[change], &group(of), &group(of - gone))
        };
        let said = says(40, 40);
        assert_eq!(said.as_deref(), Some("40 of 40 rules of groups that stay"));
        assert_eq!(says(40, 10), None);
        assert_eq!(says(400, 20), None);
        let refused = refuse_too_much("revision 3", &[emptied(40)], &group(40), None);
        let refused = refused.unwrap_err().to_string();
        assert!(
            refused.contains("revision 3 would delete 40 of 40 rules"),
            "{refused}"
        );
    }

    fn update(subject: Subject, details: Vec<String>) -> v1::Change {
        v1::Change {
            action: Action::Update.into(),
            subject: Some(subject),
            details,
        }
    }

    /// A document whose groups have lost their members, and nothing else.
    #[test]
    fn lost_members_are_a_loss() {
        let group = |members: usize| v1::Config {
            groups: vec![v1::Group {
                id: "web".into(),
                members: vec!["192.0.2.1".into(); members],
                ..Default::default()
            }],
            ..Default::default()
        };
        let lines = |sign: &str, count: usize| vec![format!("{sign} member 192.0.2.1"); count];
        let says = |of: usize, gone: usize, come: usize| {
            let all = [lines("-", gone), lines("+", come)].concat();
            let change = update(Subject::Group("web".into()), all);
            assert_eq!(takes_away(&change), gone > come);
            too_much(&[change], &group(of), &group(of + come - gone))
        };
        let said = says(40, 11, 0);
        let expected = "11 of 40 members of groups that stay";
        assert_eq!(said.as_deref(), Some(expected));
        assert_eq!(says(40, 10, 0), None);
        assert_eq!(says(400, 20, 0), None);
        assert_eq!(says(40, 40, 40), None, "they have other addresses");
    }

    /// A service that has lost its servers; what else is said of servers is no loss.
    #[test]
    fn lost_servers_are_a_loss() {
        let config = |servers: usize| {
            let service = v1::Service {
                servers: vec![Default::default(); servers],
                ..Default::default()
            };
            let balancer = v1::BalancerConfig {
                services: vec![service],
                ..Default::default()
            };
            v1::Config {
                balancer: Some(balancer),
                ..Default::default()
            }
        };
        let says = |details: Vec<String>| {
            let change = update(Subject::Service(Default::default()), details);
            let said = too_much(std::slice::from_ref(&change), &config(20), &config(1));
            (takes_away(&change), said)
        };
        let gone = |n: usize| format!("server 2001:db8::{n}: up weight 1 -> none");
        let gone: Vec<String> = (0..12).map(gone).collect();
        let expected = "12 of 20 servers of services that stay".to_owned();
        assert_eq!(says(gone.clone()), (true, Some(expected)));
        let come = (0..12).map(|n| format!("server 192.0.2.{n}: none -> up weight 1"));
        assert_eq!(says(gone.into_iter().chain(come).collect()), (false, None));
        let ports = (0..12).map(|n| format!("server 192.0.2.{n} check_port: 80 -> none"));
        assert_eq!(says(ports.collect()), (false, None));
    }

    /// An access list that has lost its rules, or goes as a whole.
    #[test]
    fn an_access_list_s_lost_rules_are_a_loss() {
        let config = |rules: usize| {
            let acl = v1::RouterAccessList {
                rules: vec!["allow proto tcp".into(); rules],
                default: "deny".into(),
            };
            let router = v1::RouterConfig {
                acl: Some(acl),
                ..Default::default()
            };
            v1::Config {
                router: Some(router),
                ..Default::default()
            }
        };
        let mut change = update(
            Subject::RouterAcl(true),
            vec!["- allow proto tcp".into(); 30],
        );
        let says = |change: &v1::Change| {
            assert!(takes_away(change));
            too_much(std::slice::from_ref(change), &config(30), &config(0))
        };
        let expected = "30 of 30 rules of the router's access list";
        assert_eq!(says(&change).as_deref(), Some(expected));
        change.action = Action::Delete.into();
        assert_eq!(says(&change).as_deref(), Some(expected));
        change.details.truncate(10);
        assert_eq!(says(&change), None);
        change.action = Action::Update.into();
        let replaced = vec!["+ allow proto udp".to_owned(); 10];
        change.details.extend(replaced);
        assert!(!takes_away(&change));
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
