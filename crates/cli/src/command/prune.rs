//! What `apply` and `config rollback` may delete without --prune: no more than a slip should.

use api::v1;

use crate::error::Error;

/// Things of one kind that may be deleted without being asked for, however few there are.
const FEW: usize = 10;

/// Refuses what deletes more than a slip should, by the daemon's word; `what` would do so, and
/// nothing is to be left if it is `empty`.
pub fn refuse_too_much(what: &str, planned: &v1::ApplyResponse, empty: bool) -> Result<(), Error> {
    let (Some(deleted), Some(before)) = (&planned.deleted, &planned.before) else {
        return Err(Error::Usage(format!(
            "how much {what} would delete the daemon does not say, it is older than this command: \
             --dry-run shows what, --prune does it"
        )));
    };
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
        assert!(says(&planned(one, one), true).is_some());
        assert_eq!(says(&planned(one, one), false), None);
        assert_eq!(says(&planned(v1::Amounts::default(), one), true), None);
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
