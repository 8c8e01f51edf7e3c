//! Which tables a packet to be forwarded is looked up in: the policy rules as far as they ask for
//! nothing but that it is there. No state.

use netlink::{Family, Rule, RuleAction};

/// The tables, in the rules' order; and the first rule that says more than a list of tables can.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Table numbers.
    pub tables: Vec<u32>,
    /// Why the kernel has to look up for us, as a sentence; empty if it has not.
    pub ask: Option<String>,
    /// There are rules beside the three that every host has: the kernel judges sources more
    /// strictly then.
    pub custom: bool,
}

impl Plan {
    /// From the rules of a family, for packets that come in by the interfaces named.
    pub fn new(rules: &[Rule], family: Family, interfaces: &[&str]) -> Plan {
        let mut plan = Plan::default();
        for rule in rules.iter().filter(|rule| rule.family == family) {
            plan.custom |= !is_default(rule);
            if cannot_match(rule, interfaces) {
                continue;
            }
            match (rule.action, asks_for(rule)) {
                (RuleAction::Table(table), None) => {
                    if !plan.tables.contains(&table) {
                        plan.tables.push(table);
                    }
                }
                // VRFs: what comes by an interface that belongs to one has no entry.
                (RuleAction::Nop | RuleAction::Vrf, None) => {}
                (_, why) => {
                    let why = why.unwrap_or("does more than look up a table");
                    let sentence = || format!("rule {} {why}", rule.priority);
                    plan.ask.get_or_insert_with(sentence);
                }
            }
        }
        plan
    }
}

/// 0: local, 32766: main, 32767: default.
fn is_default(rule: &Rule) -> bool {
    let standard = matches!(
        (rule.priority, rule.action),
        (0, RuleAction::Table(255))
            | (32766, RuleAction::Table(254))
            | (32767, RuleAction::Table(253))
    );
    standard && asks_for(rule).is_none() && rule.iif.is_none() && rule.oif.is_none()
}

/// A rule for other interfaces, or for what this host sends itself.
fn cannot_match(rule: &Rule, interfaces: &[&str]) -> bool {
    let elsewhere = rule
        .iif
        .as_deref()
        .is_some_and(|name| !interfaces.contains(&name));
    !rule.invert && (elsewhere || rule.oif.is_some())
}

/// What it asks of a packet.
fn asks_for(rule: &Rule) -> Option<&'static str> {
    if rule.invert {
        return Some("is inverted");
    }
    if rule.src.is_some() {
        return Some("asks for the source");
    }
    if rule.dst.is_some() {
        return Some("asks for the destination");
    }
    if rule.mark.is_some() {
        return Some("asks for a mark");
    }
    if rule.tos != 0 {
        return Some("asks for the type of service");
    }
    if rule.iif.is_some() || rule.oif.is_some() {
        return Some("asks for the interface");
    }
    if rule.suppress_prefix_len.is_some() {
        return Some("leaves out short prefixes");
    }
    rule.more.then_some("asks for ports or other things")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(priority: u32, table: u32) -> Rule {
        Rule {
            family: Family::V4,
            priority,
            action: RuleAction::Table(table),
            src: None,
            dst: None,
            tos: 0,
            iif: None,
            oif: None,
            mark: None,
            invert: false,
            suppress_prefix_len: None,
            more: false,
        }
    }

    #[test]
    fn rules_without_conditions_are_a_list_of_tables() {
        let mut rules = vec![rule(0, 255), rule(32766, 254), rule(32767, 253)];
        let plan = Plan::new(&rules, Family::V4, &["eth1"]);
        assert_eq!(
            (plan.tables.as_slice(), plan.ask.as_deref(), plan.custom),
            (&[255, 254, 253][..], None, false)
        );

        rules.insert(1, rule(100, 7));
        rules.insert(
            2,
            Rule {
                iif: Some("eth9".into()),
                ..rule(200, 8)
            },
        );
        rules.insert(
            3,
            Rule {
                oif: Some("eth1".into()),
                ..rule(201, 8)
            },
        );
        let plan = Plan::new(&rules, Family::V4, &["eth1"]);
        assert_eq!(
            (plan.tables.as_slice(), plan.ask.as_deref(), plan.custom),
            (&[255, 7, 254, 253][..], None, true)
        );

        rules.insert(
            4,
            Rule {
                iif: Some("eth1".into()),
                ..rule(300, 9)
            },
        );
        rules.insert(
            5,
            Rule {
                src: "10.0.0.0/8".parse().ok(),
                ..rule(301, 9)
            },
        );
        let plan = Plan::new(&rules, Family::V4, &["eth1"]);
        assert_eq!(plan.ask.as_deref(), Some("rule 300 asks for the interface"));
        assert_eq!(
            plan.tables,
            [255, 7, 254, 253],
            "what a table can say is kept all the same"
        );
        assert!(Plan::new(&rules, Family::V6, &["eth1"]).tables.is_empty());
    }
}
