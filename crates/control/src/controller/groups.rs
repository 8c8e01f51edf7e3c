//! Operations on groups. Each gives back what it changed: an empty [`Diff`] when all was so
//! already.

use super::Controller;
use crate::diff::Diff;
use crate::error::Error;
use crate::model::{Group, GroupId, Removal, Rule};
use crate::stage::{Change, GroupEdit};
use std::net::IpAddr;

impl Controller {
    /// Makes a group be as given, whole. Rules that it had before keep their counters.
    pub fn put_group(&mut self, group: Group) -> Result<Diff, Error> {
        self.commit(vec![Change::PutGroup(group)], false)
    }

    /// Changes a group's settings and leaves its rules and members; makes the group if there is
    /// none.
    pub fn update_group(
        &mut self,
        id: &GroupId,
        removal: Option<Removal>,
        allow_midstream: Option<bool>,
        silent_midstream: Option<bool>,
    ) -> Result<Diff, Error> {
        self.change_group(id, |group| {
            group.removal = removal.unwrap_or(group.removal);
            group.allow_midstream = allow_midstream.unwrap_or(group.allow_midstream);
            group.silent_midstream = silent_midstream.unwrap_or(group.silent_midstream);
        })
    }

    /// Removes a group; NICs and rules that name it keep the name. One that is not there is removed
    /// already.
    pub fn delete_group(&mut self, id: &GroupId) -> Result<Diff, Error> {
        let forget = self.forget(|unmade, gone| {
            let group = unmade.groups.get_key_value(id);
            gone.groups
                .extend(group.map(|(id, group)| (id.clone(), group.clone())));
        });
        self.commit(vec![Change::RemoveGroup(id.clone()), forget], false)
    }

    /// Adds a rule; makes the group if there is none. A rule that is there is added already.
    pub fn add_rule(&mut self, id: &GroupId, rule: Rule) -> Result<Diff, Error> {
        self.edit_group(id, GroupEdit::AddRule(rule))
    }

    /// Removes a rule. One that is not there, or whose group is not, is removed already: what was
    /// asked for is so. No group is made.
    pub fn delete_rule(&mut self, id: &GroupId, rule: &Rule) -> Result<Diff, Error> {
        self.edit_group(id, GroupEdit::RemoveRule(rule.clone()))
    }

    /// Adds a member by hand; makes the group if there is none. A member that is there is added
    /// already.
    pub fn add_member(&mut self, id: &GroupId, member: IpAddr) -> Result<Diff, Error> {
        self.edit_group(id, GroupEdit::AddMember(member))
    }

    /// Removes a member that was added by hand; the addresses of the group's NICs stay members. One
    /// that is not there, or whose group is not, is removed already. No group is made.
    pub fn delete_member(&mut self, id: &GroupId, member: IpAddr) -> Result<Diff, Error> {
        self.edit_group(id, GroupEdit::RemoveMember(member))
    }

    fn edit_group(&mut self, id: &GroupId, edit: GroupEdit) -> Result<Diff, Error> {
        self.commit(vec![Change::EditGroup(id.clone(), edit)], false)
    }

    fn change_group(
        &mut self,
        id: &GroupId,
        change: impl FnOnce(&mut Group),
    ) -> Result<Diff, Error> {
        let mut group = match self.state.group(id) {
            Some(group) => (**group).clone(),
            None => Group::new(id.clone()),
        };
        change(&mut group);
        self.put_group(group)
    }
}
