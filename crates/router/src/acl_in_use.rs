//! Which access list the router goes by: the one it was given, or the kernel's where nftables says
//! no more than that. Follows the interfaces that it names.

use std::fmt::{self, Write as _};

use netlink::firewall::Hook;
use sys::handed::Handed;

use crate::acl::image::compile;
use crate::acl::loaded::{Count, Loaded};
use crate::acl::{List, Rule, chain, default_rule};
use crate::error::Error;
use crate::router::Router;

/// Of what is handed over of a list: another one for whatever is changed in it.
const VERSION: &str = "rules 1";

/// Who is told what a list's rules have counted.
struct KeepRules(Box<dyn FnMut(Option<Handed>) + Send>);

impl fmt::Debug for KeepRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeepRules")
    }
}

/// The list, and what is in the kernel of it.
#[derive(Debug)]
pub(crate) struct AclInUse {
    loaded: Loaded,
    /// The one that was given.
    given: Option<List>,
    /// What is in use.
    list: Option<List>,
    /// IPv4 and IPv6: packets are judged by it.
    judges: [bool; 2],
    /// Interfaces that it names, and their indices when it was compiled.
    names: Vec<(String, Option<u32>)>,
    /// Names of hooks of nftables that it is made from.
    hooks: Vec<String>,
    /// Why a list of nftables' is not used that could be, or one that was given is as it was before
    /// interfaces changed.
    trouble: Option<String>,
    keep: Option<KeepRules>,
    /// It has not been told of what is counted now.
    is_untold: bool,
}

impl AclInUse {
    pub fn new(loaded: Loaded) -> AclInUse {
        AclInUse {
            loaded,
            given: None,
            list: None,
            judges: [false; 2],
            names: Vec::new(),
            hooks: Vec::new(),
            trouble: None,
            keep: None,
            is_untold: false,
        }
    }

    /// Whether packets of IPv4 and of IPv6 are judged.
    pub fn judges(&self) -> [bool; 2] {
        self.judges
    }

    /// What is left to the kernel is judged, too.
    pub fn judges_all(&self) -> bool {
        self.given.is_some()
    }

    pub fn bank(&self) -> u32 {
        self.loaded.bank()
    }

    /// Once a second.
    pub fn rest(&mut self) {
        self.is_untold |= self.loaded.rest();
        self.hand_over();
    }

    /// Tells whoever is to know when something else is counted than was.
    pub fn hand_over(&mut self) {
        let Some(KeepRules(keep)) = self.keep.as_mut().filter(|_| self.is_untold) else {
            return;
        };
        // Out of descriptors: what it has been told stays, and it is told a second later.
        let Ok(counted) = self.loaded.hand_over() else {
            return;
        };
        self.is_untold = false;
        let counted = counted.zip(self.list.as_ref());
        keep(counted.map(|((had, map), list)| Handed {
            note: write(list, &had).into_bytes(),
            fds: vec![map],
        }));
    }

    /// What lists have said of flows is over.
    pub fn forget_flows(&self) {
        self.loaded.forget_flows();
    }
}

/// The access list in use, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AclReport {
    /// In order, with what each has counted.
    pub rules: Vec<(Rule, Count)>,
    /// What no rule takes may pass.
    pub default_allows: bool,
    /// Packets that no rule took.
    pub default: Count,
    /// Hooks of nftables that it is made from; empty: it was given.
    pub hooks: Vec<String>,
}

impl Router {
    /// Has packets judged by this list from now on, all of them by all of it; `None`: by none, or
    /// by the kernel's. Equal rules go on counting.
    ///
    /// # Errors
    /// It does not fit, or memory. Nothing has changed then.
    pub fn set_acl(&mut self, list: Option<List>) -> Result<(), Error> {
        let before = std::mem::replace(&mut self.acl.given, list);
        if let Err(error) = self.choose_acl() {
            self.acl.given = before;
            return Err(error);
        }
        // An interface that cannot be written could not before.
        let _ = self.settle();
        Ok(())
    }

    /// The list that was given.
    pub fn acl(&self) -> Option<&List> {
        self.acl.given.as_ref()
    }

    /// What is in use, from wherever it is, and what it has counted.
    pub fn acl_report(&self) -> Option<AclReport> {
        let list = self.acl.list.as_ref()?;
        let mut counts = self.acl.loaded.counts();
        let default = counts.pop().unwrap_or_default();
        Some(AclReport {
            rules: list.rules.iter().cloned().zip(counts).collect(),
            default_allows: list.default_allows,
            default,
            hooks: self.acl.hooks.clone(),
        })
    }

    /// Has equal rules of the lists that come now go on with what those of another process's
    /// router have counted, which has [told of that](Self::keep_rules).
    ///
    /// # Errors
    /// They were handed over by a router of another version, or cannot be. They begin anew then.
    pub fn take_rules(&mut self, handed: Handed) -> Result<(), Error> {
        let refused = |why| Error::Handed { why };
        let (list, had) = read(&handed.note)?;
        let [map] = handed.take().ok_or(refused("its rules have no counts"))?;
        self.acl.loaded.go_on(list, map, had)
    }

    /// To be called when this router's programs are in force, and no others count any more. Has
    /// `keep` told of what the rules count, now and when there are others: should this process end,
    /// another one may [go on](Self::take_rules) with it. `None`: there are no rules.
    pub fn keep_rules(&mut self, keep: impl FnMut(Option<Handed>) + Send + 'static) {
        self.acl.keep = Some(KeepRules(Box::new(keep)));
        self.acl.is_untold = true;
        self.acl.loaded.taken_over();
        self.acl.hand_over();
    }

    /// Makes the list that is to be in use the one that is. The configuration is to be written
    /// after it.
    pub(crate) fn choose_acl(&mut self) -> Result<(), Error> {
        if let Some(list) = self.acl.given.clone() {
            self.load_acl(list)?;
            (self.acl.judges, self.acl.hooks) = ([true; 2], Vec::new());
            self.acl.trouble = None;
            return Ok(());
        }
        let read = chain::read(&self.firewall.hooks);
        self.acl.trouble = None;
        if let Some(chain::Read {
            list,
            judges,
            hooks,
        }) = read
        {
            match self.load_acl(list) {
                Ok(()) => {
                    (self.acl.judges, self.acl.hooks) = (judges, hooks);
                    return Ok(());
                }
                // The kernel has it all the same.
                Err(error) => self.acl.trouble = Some(error.to_string()),
            }
        }
        (self.acl.judges, self.acl.hooks) = ([false; 2], Vec::new());
        if self.acl.list.take().is_some() {
            // What is on its way is judged by what it has begun with.
            // What cannot be written is heard of by who writes the configuration after this.
            let _ = self.settle();
            self.acl.names = Vec::new();
            self.acl.loaded.unload();
            self.acl.is_untold = true;
        }
        Ok(())
    }

    fn load_acl(&mut self, list: List) -> Result<(), Error> {
        let names = self.names_of(&list);
        if self.acl.list.as_ref() == Some(&list) && self.acl.names == names {
            return Ok(());
        }
        let index = |name: &str| {
            let known = names.iter().find(|(known, _)| known == name);
            known.and_then(|(_, index)| *index)
        };
        let image = compile(&list, index)?;
        self.acl
            .loaded
            .load(&image, self.acl.list.as_ref(), &list)?;
        (self.acl.list, self.acl.names) = (Some(list), names);
        self.acl.is_untold = true;
        Ok(())
    }

    /// Interfaces came, went or have other names.
    pub(crate) fn follow_acl_names(&mut self) {
        let list = self.acl.list.as_ref();
        let is_same = list.is_none_or(|list| self.names_of(list) == self.acl.names);
        if !is_same || self.acl_trouble().is_some() {
            self.follow_acl();
        }
    }

    /// Interfaces or nftables' rules are others. A list that was given and cannot be made anew
    /// stays as it was: without one more would pass.
    pub(crate) fn follow_acl(&mut self) {
        if let Err(error) = self.choose_acl() {
            self.acl.trouble = Some(error.to_string());
        }
    }

    /// Why the list that was given is not what it should be.
    pub(crate) fn acl_trouble(&self) -> Option<&str> {
        self.acl
            .trouble
            .as_deref()
            .filter(|_| self.acl.given.is_some())
    }

    fn names_of(&self, list: &List) -> Vec<(String, Option<u32>)> {
        let names = list.rules.iter();
        let mut names: Vec<&String> = names
            .flat_map(|rule| [&rule.input, &rule.output])
            .flatten()
            .collect();
        names.sort_unstable();
        names.dedup();
        let index = |name: &String| self.snapshot.link_named(name).map(|link| link.index);
        names
            .into_iter()
            .map(|name| (name.clone(), index(name)))
            .collect()
    }

    /// Whether packets are left to a hook.
    pub(crate) fn is_obeyed(&self, hook: &Hook) -> bool {
        !self.acl.hooks.contains(&hook.name)
    }

    pub(crate) fn acl_notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if !self.acl.hooks.is_empty() {
            let hooks = self.acl.hooks.join(" and ");
            let which = match self.acl.judges {
                [true, true] => "packets",
                [true, false] => "packets of IPv4",
                _ => "packets of IPv6",
            };
            notes.push(format!("{which} are judged by the rules of {hooks}"));
        }
        if let Some(why) = &self.acl.trouble {
            notes.push(match &self.acl.given {
                None => format!("nftables' rules are left to the kernel: {why}"),
                Some(_) => format!(
                    "rules of the access list that name interfaces are as they were before those \
                     changed: {why}"
                ),
            });
        }
        for (name, _) in self.acl.names.iter().filter(|(_, index)| index.is_none()) {
            notes.push(format!(
                "rules of the access list that name {name} take no packet: there is no such \
                 interface"
            ));
        }
        notes
    }
}

/// A line for each rule, and one for what none takes: packets and bytes that it had counted, and
/// it.
fn write(list: &List, had: &[Count]) -> String {
    let mut text = format!("{VERSION}\n");
    let rules = list.rules.iter().map(Rule::to_string);
    let default = default_rule(list.default_allows).to_owned();
    for (rule, count) in rules.chain([default]).zip(had) {
        // A string has room for all.
        let _ = writeln!(text, "{} {} {rule}", count.packets, count.bytes);
    }
    text
}

/// What was written, as if an enemy had done so.
fn read(note: &[u8]) -> Result<(List, Vec<Count>), Error> {
    let text = std::str::from_utf8(note).unwrap_or_default();
    let lines = text
        .strip_prefix(VERSION)
        .and_then(|rest| rest.strip_prefix('\n'));
    let lines = lines.ok_or(Error::Handed {
        why: "its rules' counts are of another version",
    })?;
    read_lines(lines).ok_or(Error::Handed {
        why: "what its rules have counted cannot be",
    })
}

fn read_lines(lines: &str) -> Option<(List, Vec<Count>)> {
    let lines = lines.lines().map(|line| {
        let mut words = line.splitn(3, ' ');
        let packets = words.next()?.parse().ok()?;
        let bytes = words.next()?.parse().ok()?;
        Some((words.next()?, Count { packets, bytes }))
    });
    let (mut rules, had): (Vec<&str>, Vec<Count>) = lines.collect::<Option<_>>()?;
    let default = rules.pop()?.strip_prefix("default ")?;
    let rules = rules.into_iter().map(|rule| rule.parse().ok());
    let list = List {
        rules: rules.collect::<Option<_>>()?,
        default_allows: List::default_of(default).ok()?,
    };
    list.check_size().ok()?;
    Some((list, had))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_as_they_were_written_and_nothing_else_is() {
        let rules = [
            "allow in eth#0 proto tcp from 10.0.0.0/8 to any port 80-90",
            "deny ipv6 out eth1 proto 99",
            "allow",
        ];
        let list = List {
            rules: rules.map(|rule| rule.parse().unwrap()).into(),
            default_allows: true,
        };
        let had: Vec<Count> = (0..4u64)
            .map(|number| Count {
                packets: number,
                bytes: u64::MAX - number,
            })
            .collect();
        let written = write(&list, &had);
        assert_eq!(read(written.as_bytes()).unwrap(), (list, had));
        let default = format!("{VERSION}\n7 8 default deny\n");
        assert_eq!(read(default.as_bytes()).unwrap().1.len(), 1);
        let too_many = "0 0 allow\n".repeat(model::acl::RULES_MAX + 1) + "0 0 default deny\n";
        for wrong in [
            "",
            "1 2 allow\n",
            "1 2\n3 4 default deny\n",
            "1 -2 allow\n3 4 default deny\n",
            "1 2 perhaps\n3 4 default deny\n",
            "1 2 allow\n3 4 default perhaps\n",
            "18446744073709551616 2 default deny\n",
            &too_many,
        ] {
            let note = format!("{VERSION}\n{wrong}");
            assert!(read(note.as_bytes()).is_err(), "{wrong:.60}");
        }
        for wrong in [
            &b"rules 2\n7 8 default deny\n"[..],
            b"rules 1",
            b"",
            b"\xff",
        ] {
            assert!(read(wrong).is_err(), "{wrong:?}");
        }
    }
}
