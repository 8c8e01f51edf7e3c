//! The file of `--access`: TOML, a table `[[grant]]` for each grant.
//!
//! Who can write to it owns the host: one that others than root and the daemon's user can write to
//! is refused.

use std::fs::File;
use std::io::Read;
use std::ops::RangeInclusive;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use control::model::{IdPattern, PartLimits};
use nix::unistd::{Group, Uid, User};
use serde::Deserialize;

use super::policy::{Grant, Part, Policy, Reach, Role};

/// The largest file that is read, in bytes.
const SIZE_MAX: u64 = 1 << 20;
/// VNIs have 24 bits (RFC 7348, section 5).
const VNI_MAX: u32 = (1 << 24) - 1;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(default)]
    grant: Vec<Given>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Given {
    role: Role,
    #[serde(default)]
    users: Vec<NameOrNumber>,
    #[serde(default)]
    groups: Vec<NameOrNumber>,
    #[serde(default)]
    certificates: Vec<String>,
    #[serde(default)]
    v0_tcp: bool,
    #[serde(default)]
    page_token: bool,
    /// Absent together with `security_groups`: the whole host.
    networks: Option<Vec<NumberOrRange>>,
    security_groups: Option<Vec<String>>,
    /// Absent: NICs may have any id.
    nics: Option<Vec<String>>,
    limits: Option<GivenLimits>,
}

/// How much there may be in the part; what is left out is as [`PartLimits`] has it.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct GivenLimits {
    nics: Option<u32>,
    networks: Option<u32>,
    bindings: Option<u32>,
    binding_addresses: Option<u32>,
    security_groups: Option<u32>,
    rules: Option<u32>,
    members: Option<u32>,
}

impl GivenLimits {
    fn limits(self) -> PartLimits {
        let or = |given: Option<u32>, limit| given.map_or(limit, |given| given as usize);
        let PartLimits {
            nics,
            networks,
            bindings,
            binding_addresses,
            groups,
            rules,
            members,
        } = PartLimits::default();
        PartLimits {
            nics: or(self.nics, nics),
            networks: or(self.networks, networks),
            bindings: or(self.bindings, bindings),
            binding_addresses: or(self.binding_addresses, binding_addresses),
            groups: or(self.security_groups, groups),
            rules: or(self.rules, rules),
            members: or(self.members, members),
        }
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum NameOrNumber {
    Number(u32),
    Name(String),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum NumberOrRange {
    Number(u32),
    Range(String),
}

/// Reads a file. The error is a sentence that names it, and the grant.
pub fn read(path: &Path) -> Result<Policy, String> {
    let shown = path.display();
    let mut file = File::open(path).map_err(|e| format!("{shown} cannot be read: {e}"))?;
    let meta = file
        .metadata()
        .map_err(|e| format!("{shown} cannot be read: {e}"))?;
    if !meta.is_file() {
        return Err(format!("{shown} is no file"));
    }
    let ours = [0, Uid::effective().as_raw()];
    if !ours.contains(&meta.uid()) || meta.mode() & 0o022 != 0 {
        return Err(format!(
            "{shown} can be written to by others than root (owner {}, mode {:o}): who can write \
             there may do everything",
            meta.uid(),
            meta.mode() & 0o7777
        ));
    }
    if meta.len() > SIZE_MAX {
        return Err(format!("{shown} has more than {SIZE_MAX} bytes"));
    }
    let mut text = String::new();
    file.by_ref()
        .take(SIZE_MAX)
        .read_to_string(&mut text)
        .map_err(|e| format!("{shown} cannot be read: {e}"))?;
    parse(&text, &OF_HOST).map_err(|why| format!("{shown}: {why}"))
}

/// Who users and groups are.
pub struct Names {
    /// A user's id.
    pub user: fn(&str) -> nix::Result<Option<u32>>,
    /// A group's.
    pub group: fn(&str) -> nix::Result<Option<u32>>,
}

/// As this host knows them.
const OF_HOST: Names = Names {
    user: |name| Ok(User::from_name(name)?.map(|user| user.uid.as_raw())),
    group: |name| Ok(Group::from_name(name)?.map(|group| group.gid.as_raw())),
};

/// What a file's text says. The error is a sentence that names the grant.
pub fn parse(text: &str, names: &Names) -> Result<Policy, String> {
    let document: Document = toml::from_str(text).map_err(|e| e.to_string())?;
    let grants = document.grant.into_iter().zip(1..);
    let grants = grants
        .map(|(given, number)| grant(given, names).map_err(|why| format!("grant {number}: {why}")));
    Ok(Policy::new(grants.collect::<Result<_, _>>()?))
}

fn grant(given: Given, names: &Names) -> Result<Grant, String> {
    let ids = |given: &[NameOrNumber], kind, of: fn(&str) -> nix::Result<Option<u32>>| {
        given
            .iter()
            .map(|given| id(given, kind, of))
            .collect::<Result<Vec<u32>, String>>()
    };
    // What is said of a part, and of whoever makes something in it.
    let of_part = match (&given.limits, &given.nics) {
        (Some(_), _) => Some("limits"),
        (None, Some(_)) => Some("nics"),
        (None, None) => None,
    };
    if let Some(key) = of_part {
        if given.role == Role::View {
            return Err(format!(
                "{key} are for the role operate: who has the role view makes nothing"
            ));
        }
        if given.networks.is_none() && given.security_groups.is_none() {
            return Err(format!(
                "{key} are for a part of the networks: the grant has neither networks nor \
                 security_groups"
            ));
        }
    }
    let patterns = |key, ids: Vec<String>| {
        let patterns = ids.iter().map(|id| pattern(key, id));
        patterns.collect::<Result<Vec<_>, String>>()
    };
    let reach = match (given.networks, given.security_groups) {
        (None, None) => Reach::Whole,
        (networks, groups) => {
            if given.role == Role::Admin {
                return Err(
                    "the role admin is for the whole host: it takes neither networks nor \
                            security_groups"
                        .into(),
                );
            }
            let networks = networks.unwrap_or_default();
            let groups = groups.unwrap_or_default();
            Reach::Parts(vec![Part {
                networks: networks.iter().map(range).collect::<Result<_, _>>()?,
                groups: patterns("security_groups", groups)?,
                nics: given.nics.map(|ids| patterns("nics", ids)).transpose()?,
                limits: given.limits.unwrap_or_default().limits(),
            }])
        }
    };
    let grant = Grant {
        role: given.role,
        reach,
        users: ids(&given.users, "user", names.user)?,
        groups: ids(&given.groups, "group", names.group)?,
        certificates: given.certificates,
        v0_tcp: given.v0_tcp,
        page_token: given.page_token,
    };
    if grant.certificates.iter().any(String::is_empty) {
        return Err("a certificate's name is empty".into());
    }
    if grant.users.is_empty()
        && grant.groups.is_empty()
        && grant.certificates.is_empty()
        && !grant.v0_tcp
        && !grant.page_token
    {
        return Err(
            "is for nobody: it has neither users, groups, certificates, v0_tcp nor page_token"
                .into(),
        );
    }
    Ok(grant)
}

fn id(
    given: &NameOrNumber,
    kind: &str,
    of: fn(&str) -> nix::Result<Option<u32>>,
) -> Result<u32, String> {
    match given {
        NameOrNumber::Number(id) => Ok(*id),
        NameOrNumber::Name(name) => match of(name) {
            Ok(Some(id)) => Ok(id),
            Ok(None) => Err(format!("there is no {kind} '{}'", name.escape_debug())),
            Err(e) => Err(format!("{kind} '{}': {e}", name.escape_debug())),
        },
    }
}

fn range(given: &NumberOrRange) -> Result<RangeInclusive<u32>, String> {
    let refused = |shown: &str| {
        format!(
            "networks: '{}' is neither a VNI (0..{VNI_MAX}) nor a range of them, as \"100-199\"",
            shown.escape_debug()
        )
    };
    let (first, last) = match given {
        NumberOrRange::Number(vni) => (*vni, *vni),
        NumberOrRange::Range(text) => {
            let (first, last) = text.split_once('-').unwrap_or((text, text));
            let number = |text: &str| text.trim().parse().map_err(|_| refused(text));
            (number(first)?, number(last)?)
        }
    };
    match first <= last && last <= VNI_MAX {
        true => Ok(first..=last),
        false => Err(refused(&format!("{first}-{last}"))),
    }
}

fn pattern(key: &str, given: &str) -> Result<IdPattern, String> {
    let pattern = match given.strip_suffix('*') {
        Some(prefix) => IdPattern::Prefix(prefix.to_owned()),
        None => IdPattern::Id(given.to_owned()),
    };
    match &pattern {
        IdPattern::Id(text) | IdPattern::Prefix(text) if text.contains('*') || given.is_empty() => {
            Err(format!(
                "{key}: '{}' is neither an id nor how ids begin, as \"blue-*\"",
                given.escape_debug()
            ))
        }
        _ => Ok(pattern),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::peer::{User, Who};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_example_of_the_manual_is_read() {
        let manual = include_str!("../../../../docs/access.md");
        let (_, example) = manual.split_once("```toml\n").unwrap();
        let (example, _) = example.split_once("```").unwrap();
        // Whoever these are elsewhere, here they are somebody.
        let example = example
            .replace("\"prometheus\"", "\"root\"")
            .replace("\"netops\"", "\"root\"");
        let policy = parse(&example, &OF_HOST).unwrap();
        assert_eq!(policy.grants(), 4);
        let blue = Who::Certificate {
            names: vec!["blue.example.com".into()],
        };
        let rights = policy.rights(&blue);
        let vni = |id| wire::Vni::new(id).unwrap();
        assert!(rights.reach(Role::Operate).has_network(vni(150)));
        assert!(!rights.reach(Role::View).has_network(vni(200)));
        let Reach::Parts(parts) = rights.reach(Role::Operate) else {
            panic!("{rights:?}");
        };
        assert_eq!((parts[0].limits.nics, parts[0].limits.groups), (100, 20));
        let id = |id| control::model::NicId::new(id).unwrap();
        assert!(parts[0].has_nic_id(&id("blue-1")) && !parts[0].has_nic_id(&id("red-1")));
    }

    #[test]
    fn names_and_numbers() {
        let text = "[[grant]]\nrole = \"view\"\nusers = [\"root\", 1234]\ngroups = [\"root\", 7]\n";
        let policy = parse(text, &OF_HOST).unwrap();
        let by = |uid, gid| {
            policy.rights(&Who::Local(User {
                uid,
                gid,
                pid: None,
                groups: vec![gid],
            }))
        };
        for (uid, gid) in [(0, 99), (1234, 99), (99, 0), (99, 7)] {
            assert_eq!(by(uid, gid).role(), Some(Role::View), "{uid} {gid}");
        }
        assert_eq!(by(99, 99).role(), None);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, said) in [
            ("role = 1", "role"),
            ("[[grant]]\nrole = \"root\"\nusers = [1]", "root"),
            ("[[grant]]\nrole = \"view\"", "grant 1: is for nobody"),
            ("[[grant]]\nrole = \"view\"\nuser = [1]", "user"),
            (
                "[[grant]]\nrole = \"view\"\nusers = [\"no-such-user\"]",
                "'no-such-user'",
            ),
            (
                "[[grant]]\nrole = \"admin\"\nusers = [1]\nnetworks = [1]",
                "whole host",
            ),
            (
                "[[grant]]\nrole = \"view\"\nusers = [1]\nnetworks = [16777216]",
                "16777216",
            ),
            (
                "[[grant]]\nrole = \"view\"\nusers = [1]\nnetworks = [\"9-3\"]",
                "9-3",
            ),
            (
                "[[grant]]\nrole = \"view\"\nusers = [1]\nsecurity_groups = [\"a*b\"]",
                "a*b",
            ),
            (
                "[[grant]]\nrole = \"view\"\nusers = [1]\nsecurity_groups = [\"\"]",
                "''",
            ),
            (
                "[[grant]]\nrole = \"operate\"\nusers = [1]\nlimits = { nics = 1 }",
                "grant 1: limits are for a part of the networks",
            ),
            (
                "[[grant]]\nrole = \"view\"\nusers = [1]\nnetworks = [1]\nlimits = { nics = 1 }",
                "the role operate",
            ),
            (
                "[[grant]]\nrole = \"operate\"\nusers = [1]\nnics = [\"blue-*\"]",
                "grant 1: nics are for a part of the networks",
            ),
            (
                "[[grant]]\nrole = \"view\"\nusers = [1]\nnetworks = [1]\nnics = [\"blue-*\"]",
                "nics are for the role operate",
            ),
            (
                "[[grant]]\nrole = \"operate\"\nusers = [1]\nnetworks = [1]\nnics = [\"*-1\"]",
                "nics: '*-1'",
            ),
            (
                "[[grant]]\nrole = \"operate\"\nusers = [1]\nnetworks = [1]\nlimits = { nic = 1 }",
                "unknown field `nic`",
            ),
            (
                "[[grant]]\nrole = \"operate\"\nusers = [1]\nnetworks = [1]\nlimits = {rules=-1}",
                "-1",
            ),
        ] {
            let error = parse(text, &OF_HOST).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
    }

    /// The table of the manual says what a part may have of which nothing is said.
    #[test]
    fn limits_that_are_left_out_are_those_of_the_manual() {
        let manual = include_str!("../../../../docs/access.md");
        let of = |limits: &str| {
            let text =
                format!("[[grant]]\nrole = \"operate\"\nusers = [1]\nnetworks = [1]\n{limits}\n");
            match parse(&text, &OF_HOST)
                .unwrap()
                .rights(&Who::local(1, 1))
                .reach(Role::Operate)
            {
                Reach::Parts(parts) => parts[0].limits,
                other => panic!("{other:?}"),
            }
        };
        let default = of("");
        assert_eq!(default, of("limits = {}"));
        type Field = fn(&mut PartLimits) -> &mut usize;
        let fields: [(&str, Field); 7] = [
            ("nics", |limits| &mut limits.nics),
            ("networks", |limits| &mut limits.networks),
            ("bindings", |limits| &mut limits.bindings),
            ("binding_addresses", |limits| &mut limits.binding_addresses),
            ("security_groups", |limits| &mut limits.groups),
            ("rules", |limits| &mut limits.rules),
            ("members", |limits| &mut limits.members),
        ];
        for (name, field) in fields {
            let row = format!("| `{name}` | {} |", field(&mut default.clone()));
            assert!(manual.contains(&row), "docs/access.md does not say '{row}'");
            let mut expected = default;
            *field(&mut expected) = 5;
            assert_eq!(of(&format!("limits = {{ {name} = 5 }}")), expected);
        }
    }

    /// An empty list is a part that has nothing, not the whole.
    #[test]
    fn an_empty_list_is_nothing() {
        let text = "[[grant]]\nrole = \"operate\"\nusers = [1]\nnetworks = []\n";
        let policy = parse(text, &OF_HOST).unwrap();
        let rights = policy.rights(&Who::Local(User {
            uid: 1,
            gid: 1,
            pid: None,
            groups: vec![],
        }));
        let reach = rights.reach(Role::Operate);
        assert!(!reach.has_network(wire::Vni::new(0).unwrap()));
        assert_ne!(reach, Reach::Whole);
    }

    #[test]
    fn a_file_that_others_can_write_to_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("access.toml");
        std::fs::write(&path, "").unwrap();
        for (mode, read_it) in [(0o644, true), (0o664, false), (0o646, false), (0o600, true)] {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            assert_eq!(read(&path).is_ok(), read_it, "{mode:o}");
        }
        assert!(read(dir.path()).unwrap_err().contains("no file"));
        let missing = dir.path().join("missing");
        assert!(read(&missing).unwrap_err().contains("missing"));
    }
}
