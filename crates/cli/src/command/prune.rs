//! What `apply` and `config rollback` may delete without --prune: no more than a slip should.

use api::v1;

use crate::error::Error;

/// Things of one kind that may be deleted without being asked for, however few there are.
const FEW: usize = 10;

/// Refuses what deletes more than a slip should, by the daemon's word; `what` would do so. It says
/// nothing if it is `empty`; one that leaves nothing of the switch is as one.
pub fn refuse_too_much(what: &str, planned: &v1::ApplyResponse, empty: bool) -> Result<(), Error> {
    let (Some(deleted), Some(before)) = (&planned.deleted, &planned.before) else {
        return Err(Error::Usage(format!(
            "how much {what} would delete the daemon does not say, it is older than this command: \
             --dry-run shows what, --prune does it"
        )));
    };
    let empty = empty || leaves_nothing(planned, deleted, before);
    refuse(what, losses(&said(deleted, before), empty))
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

/// Whether there was something of the switch, and all of it goes: what an empty host's `config`
/// prints is not empty, and does that too.
fn leaves_nothing(
    planned: &v1::ApplyResponse,
    deleted: &v1::Amounts,
    before: &v1::Amounts,
) -> bool {
    use v1::change::{Action, Subject};

    let of_switch = |all: &v1::Amounts| {
        let overlay = (all.endpoints, all.bindings, all.networks, all.uplinks);
        (all.nics, all.groups, overlay)
    };
    let networks = planned.changes.iter();
    let networks = networks.filter(|one| matches!(one.subject, Some(Subject::Network(_))));
    // Of what is not listed, or has no beginning, more changes than goes.
    let keeps = planned.bindings > deleted.bindings || networks.count() as u64 > deleted.networks;
    let makes = planned.changes.iter().any(|change| {
        let is_of_switch = matches!(
            change.subject,
            Some(Subject::Nic(_) | Subject::Group(_) | Subject::Endpoint(_) | Subject::Uplink(_))
        );
        is_of_switch && change.action() == Action::Create
    });
    let (had, none) = (of_switch(before), of_switch(&v1::Amounts::default()));
    !keeps && !makes && had != none && of_switch(deleted) == had
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

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(deleted: v1::Amounts, before: v1::Amounts) -> v1::ApplyResponse {
        v1::ApplyResponse {
            deleted: Some(deleted),
            before: Some(before),
            ..Default::default()
        }
    }

    fn says(planned: &v1::ApplyResponse, empty: bool) -> Option<String> {
        let refused = refuse_too_much("a file", planned, empty).err()?;
        Some(refused.to_string())
    }

    #[test]
    fn a_slip_does_not_delete_much() {
        let nics = |nics: u64| v1::Amounts {
            nics,
            groups: 500,
            ..Default::default()
        };
        let says = |of: u64, deleted: u64| {
            let deleted = v1::Amounts {
                groups: 0,
                ..nics(deleted)
            };
            says(&planned(deleted, nics(of)), false)
        };
        assert_eq!(says(10, 10), None, "ten");
        let said = "a file would delete 11 of 12 NICs: --dry-run shows what, --prune does it";
        assert_eq!(says(12, 11).as_deref(), Some(said));
        assert_eq!(says(200, 10), None);
        assert!(says(110, 11).is_some(), "a tenth");
        assert_eq!(says(111, 11), None);
    }

    #[test]
    fn where_nothing_is_left_one_is_too_much() {
        let one = v1::Amounts {
            nics: 1,
            ..Default::default()
        };
        let two = v1::Amounts { groups: 1, ..one };
        assert!(says(&planned(one, two), true).is_some());
        assert_eq!(says(&planned(one, two), false), None);
        assert_eq!(says(&planned(v1::Amounts::default(), one), true), None);
    }

    /// What `config` prints of an empty host says something of uplinks, and deletes all.
    #[test]
    fn what_leaves_nothing_of_the_switch_is_as_one_that_says_nothing() {
        let few = v1::Amounts {
            nics: 3,
            groups: 1,
            rules: 7,
            ..Default::default()
        };
        let all = planned(v1::Amounts { rules: 0, ..few }, few);
        let said = says(&all, false).unwrap();
        assert!(
            said.contains("would delete 3 of 3 NICs, 1 of 1 groups:"),
            "{said}"
        );
        // What is kept, or made in its place, is meant.
        let one_stays = planned(v1::Amounts { nics: 2, ..few }, few);
        assert_eq!(says(&one_stays, false), None);
        let made = v1::Change {
            action: v1::change::Action::Create.into(),
            subject: Some(v1::change::Subject::Nic("new".into())),
            ..Default::default()
        };
        let another = v1::ApplyResponse {
            changes: vec![made],
            ..all
        };
        assert_eq!(says(&another, false), None);
        // Of services alone it says what it says of them.
        let service = v1::Amounts {
            services: 1,
            ..Default::default()
        };
        assert_eq!(says(&planned(service, service), false), None);
    }

    /// Of each kind, also parts of what stays.
    #[test]
    fn each_kind_is_told_of() {
        let all = |count: u64| v1::Amounts {
            nics: count,
            groups: count,
            rules: count,
            members: count,
            endpoints: count,
            networks: count,
            bindings: count,
            services: count,
            servers: count,
            balancer_interfaces: count,
            router_interfaces: count,
            uplinks: count,
            router_acls: count,
            router_acl_rules: count,
        };
        let said = says(&planned(all(11), all(20)), false).unwrap();
        assert_eq!(said.matches("11 of 20 ").count(), 14, "{said}");
    }

    #[test]
    fn a_daemon_that_does_not_say_is_not_believed() {
        let said = says(&v1::ApplyResponse::default(), false).unwrap();
        assert!(said.contains("older than this command"), "{said}");
    }
}
