//! Which access list the router goes by: the one it was given, or the kernel's where nftables says
//! no more than that. Follows the interfaces that it names.

use netlink::firewall::Hook;

use crate::acl::image::compile;
use crate::acl::loaded::{Count, Loaded};
use crate::acl::{List, Rule, chain};
use crate::error::Error;
use crate::router::Router;

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
    /// Why a list of nftables' is not used that could be.
    trouble: Option<String>,
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

    pub fn rest(&mut self) {
        self.loaded.rest();
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
        self.settle()
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
                Err(Error::Acl(error)) => self.acl.trouble = Some(error.to_string()),
                Err(error) => return Err(error),
            }
        }
        (self.acl.judges, self.acl.hooks) = ([false; 2], Vec::new());
        if self.acl.list.take().is_some() {
            // What is on its way is judged by what it has begun with.
            self.settle()?;
            self.acl.names = Vec::new();
            self.acl.loaded.unload();
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
        Ok(())
    }

    /// Interfaces came, went or have other names.
    pub(crate) fn follow_acl_names(&mut self) -> Result<(), Error> {
        match self.acl.list.clone() {
            Some(list) => self.load_acl(list),
            None => Ok(()),
        }
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
            notes.push(format!("nftables' rules are left to the kernel: {why}"));
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
