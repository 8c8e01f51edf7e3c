//! What `apply` and `config rollback` may delete without --prune: no more than a slip should.

use api::v1;
use api::v1::change::{Action, Subject};

use crate::error::Error;

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
fn takes_away(change: &v1::Change) -> bool {
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
/// that is known. `now` asks for what is.
pub async fn refuse_too_much(
    what: &str,
    planned: &v1::ApplyResponse,
    new: Option<&v1::Config>,
    now: impl AsyncFnOnce() -> Result<v1::Config, Error>,
) -> Result<(), Error> {
    let empty = new.is_some_and(|new| *new == v1::Config::default());
    let too_much = match (&planned.deleted, &planned.before) {
        (Some(deleted), Some(before)) => losses(&said(deleted, before), empty),
        // Of an older daemon the list is all that there is.
        _ if planned.changes.iter().any(takes_away) => {
            let now = now().await?;
            too_much(&planned.changes, &now, new.unwrap_or(&now))
        }
        _ => None,
    };
    refuse(what, too_much)
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

/// A kind of things, how many of it go, and of how many.
type Kind = (&'static str, usize, usize);

/// What is more than a slip should delete, in words. `None`: it is not too much.
fn losses(kinds: &[Kind], empty: bool) -> Option<String> {
    let losses: Vec<String> = kinds
        .iter()
        .filter_map(|(kind, deleted, of)| loss(kind, *deleted, *of, empty))
        .collect();
    (!losses.is_empty()).then(|| losses.join(", "))
}

/// What goes by the word of the daemon.
fn said(deleted: &v1::Amounts, before: &v1::Amounts) -> Vec<Kind> {
    let kind = |name: &'static str, of: fn(&v1::Amounts) -> u64| {
        (name, of(deleted) as usize, of(before) as usize)
    };
    vec![
        kind("NICs", |all| all.nics),
        kind("groups", |all| all.groups),
        kind("rules of groups that stay", |all| all.rules),
        kind("members of groups that stay", |all| all.members),
        kind("hosts", |all| all.endpoints),
        kind("bindings", |all| all.bindings),
        kind("network settings", |all| all.networks),
        kind("services", |all| all.services),
        kind("servers of services that stay", |all| all.servers),
        kind("router interfaces", |all| all.router_interfaces),
        kind("uplinks", |all| all.uplinks),
        kind("interfaces of services", |all| all.balancer_interfaces),
        kind("access lists", |all| all.router_acls),
        kind("rules of the router's access list", |all| {
            all.router_acl_rules
        }),
    ]
}

/// As [`losses`], by what is listed of the changes, and what there is and is to be.
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
    losses(&kinds, *new == v1::Config::default())
}

#[cfg(test)]
mod tests {
    use super::*;

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
    }

    async fn not_asked() -> Result<v1::Config, Error> {
        panic!("all is known already")
    }

    /// Deletions that sort behind all changes that are listed, and as many things that come: a
    /// rollback does not know what is to be, and a wrong file may have as many bindings.
    #[tokio::test]
    async fn what_is_not_listed_is_counted() {
        let created = v1::Change {
            action: Action::Create.into(),
            subject: Some(Subject::Binding(Default::default())),
            ..Default::default()
        };
        let amounts = |bindings: u64| v1::Amounts {
            nics: 1,
            bindings,
            ..Default::default()
        };
        let planned = |deleted: u64| v1::ApplyResponse {
            changes: vec![created.clone(); 10_000],
            bindings: 110_000,
            deleted: Some(v1::Amounts {
                nics: 0,
                ..amounts(deleted)
            }),
            before: Some(amounts(150_000)),
            ..Default::default()
        };
        let file = v1::Config {
            bindings: vec![Default::default(); 150_000],
            ..Default::default()
        };
        for new in [None, Some(&file)] {
            let too_much = planned(100_000);
            let refused = refuse_too_much("revision 3", &too_much, new, not_asked).await;
            assert_eq!(
                refused.unwrap_err().to_string(),
                "revision 3 would delete 100000 of 150000 bindings: --dry-run shows what, --prune \
                 does it"
            );
            let few = planned(14_999);
            refuse_too_much("revision 3", &few, new, not_asked)
                .await
                .unwrap();
        }
        // Nothing is to be left.
        let empty = v1::Config::default();
        let one = planned(1);
        let refused = refuse_too_much("a file", &one, Some(&empty), not_asked).await;
        assert!(refused.is_err());
    }

    /// One that does not say how much goes lists it.
    #[tokio::test]
    async fn what_an_older_daemon_lists_is_counted() {
        let change = update(
            Subject::Group("web".into()),
            vec!["- rule ingress tcp 80 from anybody".into(); 40],
        );
        let planned = v1::ApplyResponse {
            changes: vec![change],
            ..Default::default()
        };
        let now = async || {
            Ok(v1::Config {
                groups: vec![v1::Group {
                    rules: vec![Default::default(); 40],
                    ..Default::default()
                }],
                ..Default::default()
            })
        };
        let refused = refuse_too_much("revision 3", &planned, None, now).await;
        let refused = refused.unwrap_err().to_string();
        assert!(
            refused.contains("revision 3 would delete 40 of 40 rules"),
            "{refused}"
        );
        let nothing = v1::ApplyResponse::default();
        refuse_too_much("revision 3", &nothing, None, not_asked)
            .await
            .unwrap();
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
}
