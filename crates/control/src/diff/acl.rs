//! What changes about the router's access list.

use crate::model::AccessList;
use ::model::acl::{Rule, default_rule};
use std::collections::HashMap;
use std::fmt::{self, Formatter};
use std::sync::Arc;

/// What changes about the router's access list. `None`: there is none. The two differ.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AclChange {
    /// Before.
    pub from: Option<Arc<AccessList>>,
    /// After.
    pub to: Option<Arc<AccessList>>,
}

impl AclChange {
    pub(crate) fn between(
        from: &Option<Arc<AccessList>>,
        to: &Option<Arc<AccessList>>,
    ) -> Option<AclChange> {
        (from != to).then(|| AclChange {
            from: from.clone(),
            to: to.clone(),
        })
    }

    /// A line each: rules that come, in order, with `+`; rules that go with `-`; another default,
    /// another order of those that stay.
    pub fn lines(&self) -> Vec<String> {
        let rules = |list: &Option<Arc<AccessList>>| {
            list.as_ref()
                .map_or_else(Vec::new, |list| list.rules.clone())
        };
        let (from, to) = (rules(&self.from), rules(&self.to));
        let (gone, stay_before) = apart(&from, &to);
        let (come, stay) = apart(&to, &from);
        let come = come.iter().map(|rule| format!("+ {rule}"));
        let gone = gone.iter().map(|rule| format!("- {rule}"));
        let mut lines: Vec<String> = come.chain(gone).collect();
        // Where rules stand among others decides: those that come may stand between.
        if stay != stay_before || !to.starts_with(&stay) {
            lines.push("~ order of rules".into());
        }
        let default = |list: &Option<Arc<AccessList>>| {
            list.as_ref()
                .map_or("no list", |list| default_rule(list.default_allows))
        };
        if default(&self.from) != default(&self.to) {
            lines.push(format!(
                "~ {} -> {}",
                default(&self.from),
                default(&self.to)
            ));
        }
        lines
    }
}

/// Those of the rules that `other` has not, as often as they are there more, and the others.
fn apart<'a>(rules: &'a [Rule], other: &[Rule]) -> (Vec<&'a Rule>, Vec<Rule>) {
    let mut there: HashMap<&Rule, usize> = HashMap::new();
    for rule in other {
        *there.entry(rule).or_default() += 1;
    }
    let (mut alone, mut both) = (Vec::new(), Vec::new());
    for rule in rules {
        match there.get_mut(rule).filter(|left| **left > 0) {
            Some(left) => {
                *left -= 1;
                both.push(rule.clone());
            }
            None => alone.push(rule),
        }
    }
    (alone, both)
}

impl fmt::Display for AclChange {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mark = match (&self.from, &self.to) {
            (None, _) => '+',
            (_, None) => '-',
            _ => '~',
        };
        writeln!(f, "{mark} router access list:")?;
        let lines = self.lines();
        lines.iter().try_for_each(|line| writeln!(f, "    {line}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(rules: &[&str], default_allows: bool) -> Option<Arc<AccessList>> {
        let rules = rules.iter().map(|rule| rule.parse().expect("a rule"));
        Some(Arc::new(AccessList {
            rules: rules.collect(),
            default_allows,
        }))
    }

    fn lines(from: &Option<Arc<AccessList>>, to: &Option<Arc<AccessList>>) -> Vec<String> {
        AclChange::between(from, to).map_or_else(Vec::new, |change| change.lines())
    }

    #[test]
    fn what_changes_about_a_list_is_told_by_rules() {
        let (tcp, udp, sctp) = ("allow proto tcp", "allow proto udp", "deny proto sctp");
        let before = list(&[tcp, udp], false);
        assert_eq!(
            lines(&None, &before),
            [
                "+ allow proto tcp",
                "+ allow proto udp",
                "~ no list -> default deny"
            ]
        );
        assert_eq!(lines(&before, &before), [""; 0]);
        assert_eq!(
            lines(&before, &list(&[tcp, udp, sctp], false)),
            ["+ deny proto sctp"]
        );
        // One that stands before another decides before it.
        assert_eq!(
            lines(&before, &list(&[sctp, tcp, udp], false)),
            ["+ deny proto sctp", "~ order of rules"]
        );
        assert_eq!(
            lines(&before, &list(&[udp, tcp], false)),
            ["~ order of rules"]
        );
        assert_eq!(
            lines(&before, &list(&[tcp, tcp], true)),
            [
                "+ allow proto tcp",
                "- allow proto udp",
                "~ default deny -> default allow"
            ]
        );
        assert_eq!(
            lines(&before, &None),
            [
                "- allow proto tcp",
                "- allow proto udp",
                "~ default deny -> no list"
            ]
        );
    }
}
