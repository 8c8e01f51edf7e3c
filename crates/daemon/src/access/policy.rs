//! Roles, what they reach, and grants that add up.

use std::fmt;
#[cfg(test)]
use std::ops::RangeInclusive;

pub use control::model::Part;
use control::model::{GroupId, Nic, NicId, PartLimits};
use wire::Vni;

use super::peer::{User, Who};

/// What somebody may do; each may do what those before it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// See.
    View,
    /// Change what is configured.
    Operate,
    /// Stop the daemon, change its log and have it read its files again.
    Admin,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::View => "view",
            Role::Operate => "operate",
            Role::Admin => "admin",
        })
    }
}

/// What of the host a role is for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Reach {
    #[default]
    Nothing,
    /// Those of one grant each.
    Parts(Vec<Part>),
    Whole,
}

/// How far a role reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reaches {
    /// It is not granted.
    Nothing,
    /// Some networks and some security groups.
    Part,
    /// The whole host.
    Whole,
}

/// Networks without a group.
#[cfg(test)]
pub fn part(networks: RangeInclusive<u32>) -> Reach {
    Reach::Parts(vec![Part {
        networks: vec![networks],
        ..Part::default()
    }])
}

impl Reach {
    pub fn has_network(&self, vni: Vni) -> bool {
        match self {
            Reach::Nothing => false,
            Reach::Parts(parts) => parts.iter().any(|part| part.has_network(vni)),
            Reach::Whole => true,
        }
    }

    pub fn has_group(&self, id: &GroupId) -> bool {
        match self {
            Reach::Nothing => false,
            Reach::Parts(parts) => parts.iter().any(|part| part.has_group(id)),
            Reach::Whole => true,
        }
    }

    pub fn has_nic(&self, nic: &Nic) -> bool {
        self.has_network(nic.vni)
    }

    /// Whether a NIC of this id may be made in a network, or come into it: of one grant for both.
    pub fn may_make_nic(&self, id: &NicId, vni: Vni) -> bool {
        match self {
            Reach::Nothing => false,
            Reach::Parts(parts) => parts
                .iter()
                .any(|part| part.has_network(vni) && part.has_nic_id(id)),
            Reach::Whole => true,
        }
    }

    fn add(&mut self, more: &Reach) {
        match (&mut *self, more) {
            (Reach::Whole, _) | (_, Reach::Nothing) => (),
            (Reach::Nothing, _) | (_, Reach::Whole) => *self = more.clone(),
            (Reach::Parts(own), Reach::Parts(more)) => own.extend(more.iter().cloned()),
        }
    }

    /// The same to be seen alone, which has no limits and makes no NIC.
    pub(super) fn seen(&self) -> Reach {
        let mut seen = self.clone();
        if let Reach::Parts(parts) = &mut seen {
            for part in parts {
                (part.limits, part.nics) = (PartLimits::default(), None);
            }
        }
        seen
    }
}

/// What somebody may do, all grants added up.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rights {
    view: Reach,
    operate: Reach,
    admin: bool,
}

impl Rights {
    pub fn all() -> Rights {
        Rights {
            view: Reach::Whole,
            operate: Reach::Whole,
            admin: true,
        }
    }

    /// To see the whole host.
    pub fn view() -> Rights {
        let mut rights = Rights::default();
        rights.add(Role::View, &Reach::Whole);
        rights
    }

    /// What a role is for.
    pub fn reach(&self, role: Role) -> Reach {
        match role {
            Role::View => self.view.clone(),
            Role::Operate => self.operate.clone(),
            Role::Admin if self.admin => Reach::Whole,
            Role::Admin => Reach::Nothing,
        }
    }

    /// How far `view`, `operate` and `admin` reach.
    pub fn reaches(&self) -> [Reaches; 3] {
        [Role::View, Role::Operate, Role::Admin].map(|role| match self.reach(role) {
            Reach::Nothing => Reaches::Nothing,
            Reach::Parts(_) => Reaches::Part,
            Reach::Whole => Reaches::Whole,
        })
    }

    /// The highest role, of whatever reach.
    pub fn role(&self) -> Option<Role> {
        let of = |role| (self.reach(role) != Reach::Nothing).then_some(role);
        of(Role::Admin)
            .or_else(|| of(Role::Operate))
            .or_else(|| of(Role::View))
    }

    fn add(&mut self, role: Role, reach: &Reach) {
        self.view.add(&reach.seen());
        if role >= Role::Operate {
            self.operate.add(reach);
        }
        self.admin |= role == Role::Admin;
    }
}

/// One grant of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    pub role: Role,
    pub reach: Reach,
    pub users: Vec<u32>,
    pub groups: Vec<u32>,
    pub certificates: Vec<String>,
    /// Whoever reaches v0 over TCP: with the key, or in clear text where that is allowed.
    pub v0_tcp: bool,
    /// Who has the token of `--page-token`.
    pub page_token: bool,
}

impl Grant {
    fn is_for(&self, who: &Who) -> bool {
        match who {
            Who::Local(User { uid, groups, .. }) => {
                self.users.contains(uid) || self.groups.iter().any(|gid| groups.contains(gid))
            }
            Who::Certificate { names } => self
                .certificates
                .iter()
                .any(|granted| names.contains(granted)),
            Who::V0Tcp => self.v0_tcp,
            Who::PageToken => self.page_token,
            Who::Unknown => false,
        }
    }
}

/// All grants of a file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Policy(Vec<Grant>);

impl Policy {
    pub fn new(grants: Vec<Grant>) -> Policy {
        Policy(grants)
    }

    pub fn grants(&self) -> usize {
        self.0.len()
    }

    pub fn rights(&self, who: &Who) -> Rights {
        let mut rights = Rights::default();
        for grant in self.0.iter().filter(|grant| grant.is_for(who)) {
            rights.add(grant.role, &grant.reach);
        }
        rights
    }

    pub fn names_local_users(&self) -> bool {
        let local = |grant: &Grant| !grant.users.is_empty() || !grant.groups.is_empty();
        self.0.iter().any(local)
    }

    pub fn names_groups(&self) -> bool {
        self.0.iter().any(|grant| !grant.groups.is_empty())
    }

    pub fn names_group(&self, gid: u32) -> bool {
        self.0.iter().any(|grant| grant.groups.contains(&gid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(role: Role, reach: Reach, uid: u32) -> Grant {
        Grant {
            role,
            reach,
            users: vec![uid],
            groups: vec![],
            certificates: vec![],
            v0_tcp: false,
            page_token: false,
        }
    }

    fn user(uid: u32) -> Who {
        Who::Local(User {
            uid,
            gid: 9,
            pid: None,
            groups: vec![9, 77],
        })
    }

    #[test]
    fn grants_add_up_and_stay_apart_by_role() {
        let vni = |id| Vni::new(id).unwrap();
        let policy = Policy::new(vec![
            grant(Role::View, Reach::Whole, 1),
            grant(Role::Operate, part(42..=42), 1),
            grant(Role::Operate, part(100..=199), 1),
            grant(Role::Admin, Reach::Whole, 2),
        ]);
        let rights = policy.rights(&user(1));
        assert_eq!(rights.reach(Role::View), Reach::Whole);
        for (id, reached) in [
            (41, false),
            (42, true),
            (100, true),
            (199, true),
            (200, false),
        ] {
            assert_eq!(
                rights.reach(Role::Operate).has_network(vni(id)),
                reached,
                "{id}"
            );
        }
        assert_eq!(rights.reach(Role::Admin), Reach::Nothing);
        assert_eq!(rights.role(), Some(Role::Operate));
        assert_eq!(policy.rights(&user(2)), Rights::all());
        assert_eq!(policy.rights(&user(3)), Rights::default());
        assert_eq!(policy.rights(&user(3)).role(), None);
        assert_eq!(policy.rights(&Who::V0Tcp), Rights::default());
    }

    #[test]
    fn groups_of_unix_and_certificates_are_granted_by_name() {
        let by_group = Grant {
            users: vec![],
            groups: vec![77],
            ..grant(Role::View, Reach::Whole, 0)
        };
        let by_name = Grant {
            users: vec![],
            certificates: vec!["blue.example.com".into()],
            ..grant(Role::Operate, part(7..=7), 0)
        };
        let policy = Policy::new(vec![by_group, by_name]);
        assert_eq!(policy.rights(&user(5)).role(), Some(Role::View));
        let named = |name: &str| Who::Certificate {
            names: vec!["another".into(), name.into()],
        };
        let rights = policy.rights(&named("blue.example.com"));
        assert_eq!(rights.role(), Some(Role::Operate));
        assert_eq!(policy.rights(&named("blue.example.com.evil")).role(), None);
    }
}
