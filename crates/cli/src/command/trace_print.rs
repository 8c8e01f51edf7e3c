//! A trace as people read it: a line a step, an arrow for where it ends, and what would help.

use api::v1;

use super::trace::Traced;
use crate::words::{direction_name, rule_words};

/// All hosts' answers, in the order in which the frame reaches them.
pub fn print(traces: &[Traced]) -> String {
    let mut out = String::new();
    for traced in traces {
        if let Some(host) = traced.host {
            out.push_str(&format!("\nat host {host}:\n"));
        }
        one(&mut out, &traced.trace);
    }
    out
}

/// One host's answer.
pub fn one(out: &mut String, trace: &v1::Trace) {
    for step in &trace.steps {
        line(out, "", step);
    }
    for target in &trace.targets {
        to(out, target);
    }
    if trace.more_targets > 0 {
        out.push_str(&format!("and {} more targets\n", trace.more_targets));
    }
    if !trace.answer.is_empty() {
        out.push_str(&format!(
            "the switch answers the sender with a frame of {} bytes\n",
            trace.answer.len()
        ));
    }
    match trace.passes {
        true => out.push_str("verdict: passes\n"),
        false if trace.reason.is_empty() => out.push_str("verdict: does not pass\n"),
        false => out.push_str(&format!("verdict: dropped, {}\n", trace.reason)),
    }
    if trace.targets.is_empty() {
        help(out, "", &trace.remedies);
    }
}

fn line(out: &mut String, indent: &str, step: &v1::TraceStep) {
    let mark = if step.refused { "x" } else { " " };
    let name = step.step.replace('_', " ");
    out.push_str(&format!("{indent}{mark} {name:<14} {}\n", step.text));
}

fn to(out: &mut String, target: &v1::TraceTarget) {
    let name = match (target.nic.as_str(), target.endpoint.as_str()) {
        ("", "") if target.all_hosts => "all other hosts of the network".into(),
        ("", "") => "a NIC".into(),
        ("", host) => format!("host {host}"),
        (nic, _) => format!("NIC {nic}"),
    };
    out.push_str(&format!("to {name}:\n"));
    let before = target
        .steps
        .iter()
        .take_while(|step| !step.refused && step.step != "encapsulate");
    let before = before.filter(|step| step.step != "deliver").count();
    for step in &target.steps[..before] {
        line(out, "  ", step);
    }
    if let Some(flow) = target.flow.as_ref() {
        out.push_str(&format!(
            "    {:<14} {} > {}, {} bytes there, {} back\n",
            "", flow.source, flow.destination, flow.original_bytes, flow.reply_bytes
        ));
    }
    for asked in &target.groups {
        group(out, asked);
    }
    for step in &target.steps[before..] {
        line(out, "  ", step);
    }
    help(out, "  ", &target.remedies);
}

fn group(out: &mut String, asked: &v1::TraceGroup) {
    let name = format!(
        "{} rules",
        match asked.direction() {
            v1::Direction::Egress => "egress",
            v1::Direction::Ingress | v1::Direction::Unspecified => "ingress",
        }
    );
    let nic = match asked.nic.as_str() {
        "" => String::new(),
        nic => format!(" of NIC {nic}"),
    };
    let said = match (asked.group.as_str(), &asked.rule) {
        ("", _) if asked.missing => format!("a group{nic} that does not exist allows nothing"),
        ("", _) => format!("no group{nic} allows it"),
        (group, _) if asked.missing => {
            format!("group {group}{nic} does not exist: it allows nothing")
        }
        (group, Some(rule)) => format!("group {group}{nic} allows it by: {}", words(rule)),
        (group, None) => {
            let direction = direction_name(asked.direction());
            format!(
                "none of the {} {direction} rules of group {group}{nic} allows it",
                asked.rules
            )
        }
    };
    out.push_str(&format!("    {name:<14} {said}\n"));
    for miss in &asked.misses {
        let rule = miss.rule.as_ref().map(words).unwrap_or_default();
        let differs = miss.differs.join(" and ");
        out.push_str(&format!("    {:<14}   not {rule}: another {differs}\n", ""));
    }
    if asked.not_compared > 0 {
        let count = asked.not_compared;
        out.push_str(&format!(
            "    {:<14}   {count} of them were not compared\n",
            ""
        ));
    }
}

fn words(rule: &v1::Rule) -> String {
    rule_words(rule).join(" ")
}

fn help(out: &mut String, indent: &str, remedies: &[String]) {
    for remedy in remedies {
        out.push_str(&format!("{indent}  {:<14} {remedy}\n", "would help:"));
    }
}
