//! Access lists as people write them, a rule a line, and as nftables' ruleset of the same meaning.
//! docs/router.md is the manual.

use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::str::{FromStr, SplitWhitespace};

use ipnet::IpNet;

use super::{List, ListError, Rule, Side, WITH_PORTS};

/// Names of protocols that are known; others are numbers (IANA, "Assigned Internet Protocol
/// Numbers").
const PROTOCOLS: [(&str, u8); 12] = [
    ("icmp", 1),
    ("igmp", 2),
    ("tcp", 6),
    ("udp", 17),
    ("dccp", 33),
    ("gre", 47),
    ("esp", 50),
    ("ah", 51),
    ("icmpv6", 58),
    ("ospf", 89),
    ("sctp", 132),
    ("udplite", 136),
];

impl List {
    /// Reads a list from a file.
    ///
    /// # Errors
    /// The file cannot be read, or as [`parse`](Self::parse): a sentence that names it.
    pub fn read(file: &Path) -> Result<List, String> {
        let refused = |why: String| format!("{}: {why}", file.display());
        let text = std::fs::read_to_string(file).map_err(|error| refused(error.to_string()))?;
        List::parse(&text).map_err(|error| refused(error.to_string()))
    }

    /// Reads a list.
    ///
    /// # Errors
    /// The first line that is wrong, with what is wrong in it; no `default`, or two; too many
    /// rules.
    pub fn parse(text: &str) -> Result<List, ListError> {
        let mut rules = Vec::new();
        let mut default = None;
        for (index, line) in text.lines().enumerate() {
            let wrong = |why: String| ListError::Line {
                line: index + 1,
                why,
            };
            let words = line.split('#').next().unwrap_or_default();
            let mut words = words.split_whitespace();
            match words.next() {
                None => {}
                Some("default") => {
                    let allows =
                        List::default_of(words.next().unwrap_or_default()).map_err(wrong)?;
                    if let Some(word) = words.next() {
                        return Err(wrong(format!("'{word}' is one word too many")));
                    }
                    if default.replace(allows).is_some() {
                        return Err(wrong("there is a second default".into()));
                    }
                }
                Some(word) => {
                    let allows = action(word).ok_or_else(|| {
                        wrong(format!("'{word}' is none of allow, deny and default"))
                    })?;
                    rules.push(rule(allows, words).map_err(wrong)?);
                }
            }
        }
        let default_allows = default.ok_or_else(|| {
            ListError::Whole("no line says 'default allow' or 'default deny'".into())
        })?;
        let list = List {
            rules,
            default_allows,
        };
        list.check_size()?;
        Ok(list)
    }

    /// What becomes of packets that no rule takes, by `allow` or `deny`: whether they may pass.
    ///
    /// # Errors
    /// A sentence that has the word.
    pub fn default_of(word: &str) -> Result<bool, String> {
        action(word).ok_or_else(|| format!("default '{word}' is neither allow nor deny"))
    }

    /// A ruleset for `nft -f` that does the same in the kernel, and that the router recognises.
    pub fn to_nftables(&self) -> String {
        let policy = if self.default_allows {
            "accept"
        } else {
            "drop"
        };
        let mut text = format!(
            "table inet butterfly {{\n\tchain forward {{\n\t\ttype filter hook forward priority \
             filter; policy {policy};\n"
        );
        for rule in &self.rules {
            text += &format!("\t\t{}\n", Nftables(rule));
        }
        text + "\t}\n}\n"
    }
}

impl FromStr for Rule {
    type Err = String;

    /// The rule of one line, without a comment. The error is a sentence.
    fn from_str(line: &str) -> Result<Rule, String> {
        let mut words = line.split_whitespace();
        let word = words.next().unwrap_or_default();
        let allows = action(word).ok_or_else(|| format!("'{word}' is neither allow nor deny"))?;
        rule(allows, words)
    }
}

fn action(word: &str) -> Option<bool> {
    match word {
        "allow" => Some(true),
        "deny" => Some(false),
        _ => None,
    }
}

/// The words behind the action, in any order; a port is of the address before it.
fn rule(allows: bool, mut words: SplitWhitespace) -> Result<Rule, String> {
    let mut rule = Rule {
        allows,
        ..Rule::default()
    };
    let mut side = None;
    let mut seen = Vec::new();
    while let Some(word) = words.next() {
        let name = match (word, side) {
            ("port", Some(true)) => "port of to",
            ("port", Some(false)) => "port of from",
            ("ipv4" | "ipv6", _) => "family",
            (word, _) => word,
        };
        if seen.contains(&name) {
            return Err(format!("'{word}' is there twice"));
        }
        seen.push(name);
        let mut value = || {
            words
                .next()
                .ok_or_else(|| format!("'{word}' is the last word, and nothing follows"))
        };
        match word {
            "ipv4" => rule.family = Some(4),
            "ipv6" => rule.family = Some(6),
            "in" => rule.input = Some(interface(value()?)?),
            "out" => rule.output = Some(interface(value()?)?),
            "proto" => rule.protocol = Some(protocol(value()?)?),
            "from" | "to" => {
                let prefix = prefix(value()?)?;
                side = Some(word == "to");
                side_of(&mut rule, word == "to").prefix = prefix;
            }
            "port" => {
                let is_to = side.ok_or("a port is behind 'from' or 'to': 'to any port 80'")?;
                side_of(&mut rule, is_to).ports = Some(ports(value()?)?);
            }
            other => {
                return Err(format!(
                    "'{other}' is none of ipv4, ipv6, in, out, proto, from, to and port"
                ));
            }
        }
    }
    rule.check()?;
    Ok(rule)
}

fn side_of(rule: &mut Rule, is_to: bool) -> &mut Side {
    if is_to {
        &mut rule.destination
    } else {
        &mut rule.source
    }
}

impl Rule {
    /// Finds what does not go together. The error is a sentence.
    ///
    /// # Errors
    /// Addresses of two families, or ports of a protocol that has none.
    pub fn check(&self) -> Result<(), String> {
        check(self)
    }
}

fn check(rule: &Rule) -> Result<(), String> {
    let of = |prefix: IpNet| if prefix.addr().is_ipv4() { 4 } else { 6 };
    let (source, destination) = (rule.source.prefix.map(of), rule.destination.prefix.map(of));
    if let (Some(from), Some(to)) = (rule.source.prefix, rule.destination.prefix)
        && source != destination
    {
        return Err(format!("{from} and {to} are of two families"));
    }
    for prefix in [rule.source.prefix, rule.destination.prefix] {
        if let (Some(prefix), Some(family)) = (prefix, rule.family)
            && of(prefix) != family
        {
            return Err(format!("{prefix} is not of ipv{family}"));
        }
    }
    let has_ports = rule.protocol.is_some_and(|one| WITH_PORTS.contains(&one));
    if (rule.source.ports.is_some() || rule.destination.ports.is_some()) && !has_ports {
        return Err("ports need 'proto tcp', udp, sctp, dccp or udplite".into());
    }
    Ok(())
}

fn interface(word: &str) -> Result<String, String> {
    // IFNAMSIZ, with the zero behind it.
    if word.len() > 15 || word.contains('/') {
        return Err(format!("'{word}' is no name of an interface"));
    }
    Ok(word.to_owned())
}

fn protocol(word: &str) -> Result<u8, String> {
    let named = PROTOCOLS.iter().find(|(name, _)| *name == word);
    named
        .map(|(_, number)| *number)
        .or_else(|| word.parse().ok())
        .ok_or_else(|| format!("'{word}' is no protocol: a name, or a number from 0 to 255"))
}

fn prefix(word: &str) -> Result<Option<IpNet>, String> {
    if word == "any" {
        return Ok(None);
    }
    let prefix: IpNet = match word.parse::<IpAddr>() {
        Ok(address) => address.into(),
        Err(_) => word
            .parse()
            .map_err(|_| format!("'{word}' is neither any nor an address nor a prefix"))?,
    };
    if prefix.trunc() != prefix {
        let network = prefix.trunc();
        return Err(format!(
            "'{word}' has bits behind its prefix length: {network} is the prefix"
        ));
    }
    Ok(Some(prefix))
}

fn ports(word: &str) -> Result<(u16, u16), String> {
    let (first, last) = word.split_once('-').unwrap_or((word, word));
    let ports = first.parse().ok().zip(last.parse().ok());
    let ports: (u16, u16) =
        ports.ok_or_else(|| format!("'{word}' is neither a port nor a range of ports"))?;
    if ports.0 > ports.1 {
        return Err(format!("'{word}' ends before it begins"));
    }
    Ok(ports)
}

/// As it would be written in a file.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.allows { "allow" } else { "deny" })?;
        if let Some(family) = self.family {
            write!(f, " ipv{family}")?;
        }
        if let Some(name) = &self.input {
            write!(f, " in {name}")?;
        }
        if let Some(name) = &self.output {
            write!(f, " out {name}")?;
        }
        if let Some(number) = self.protocol {
            write!(f, " proto {}", protocol_name(number))?;
        }
        for (word, side) in [("from", &self.source), ("to", &self.destination)] {
            match side.prefix {
                Some(prefix) if prefix.prefix_len() == prefix.max_prefix_len() => {
                    write!(f, " {word} {}", prefix.addr())?;
                }
                Some(prefix) => write!(f, " {word} {prefix}")?,
                None if side.ports.is_some() => write!(f, " {word} any")?,
                None => {}
            }
            match side.ports {
                Some((first, last)) if first == last => write!(f, " port {first}")?,
                Some((first, last)) => write!(f, " port {first}-{last}")?,
                None => {}
            }
        }
        Ok(())
    }
}

fn protocol_name(number: u8) -> String {
    let known = PROTOCOLS.iter().find(|(_, known)| *known == number);
    known.map_or_else(|| number.to_string(), |(name, _)| (*name).to_owned())
}

/// A rule in the words of nftables.
struct Nftables<'a>(&'a Rule);

impl fmt::Display for Nftables<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rule = self.0;
        if let (Some(family), None) = (rule.family, rule.source.prefix.or(rule.destination.prefix))
        {
            write!(f, "meta nfproto ipv{family} ")?;
        }
        if let Some(name) = &rule.input {
            write!(f, "iifname \"{name}\" ")?;
        }
        if let Some(name) = &rule.output {
            write!(f, "oifname \"{name}\" ")?;
        }
        for (word, side) in [("saddr", &rule.source), ("daddr", &rule.destination)] {
            if let Some(prefix) = side.prefix {
                let ip = if prefix.addr().is_ipv4() { "ip" } else { "ip6" };
                write!(f, "{ip} {word} {prefix} ")?;
            }
        }
        if let Some(number) = rule.protocol {
            write!(f, "meta l4proto {number} ")?;
        }
        for (word, side) in [("sport", &rule.source), ("dport", &rule.destination)] {
            match side.ports {
                Some((first, last)) if first == last => write!(f, "th {word} {first} ")?,
                Some((first, last)) => write!(f, "th {word} {first}-{last} ")?,
                None => {}
            }
        }
        f.write_str(if rule.allows {
            "counter accept"
        } else {
            "counter drop"
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "\
# Who may pass.
default deny
allow in eth1 proto tcp from 10.0.0.0/8 port 1024-65535 to 192.0.2.1 port 443 # the server
deny ipv6
allow out eth2.5 proto 103
allow from 2001:db8::/33
";

    #[test]
    fn what_is_written_is_read_and_written_again() {
        let list = List::parse(FILE).expect("a list");
        assert!(!list.default_allows);
        let lines: Vec<String> = list.rules.iter().map(Rule::to_string).collect();
        assert_eq!(
            lines,
            [
                "allow in eth1 proto tcp from 10.0.0.0/8 port 1024-65535 to 192.0.2.1 port 443",
                "deny ipv6",
                "allow out eth2.5 proto 103",
                "allow from 2001:db8::/33",
            ]
        );
        let again = format!("default deny\n{}", lines.join("\n"));
        assert_eq!(List::parse(&again), Ok(list));
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line_and_value() {
        for (line, said) in [
            (
                "permit from any",
                "'permit' is none of allow, deny and default",
            ),
            (
                "allow from 10.0.0.1/8",
                "'10.0.0.1/8' has bits behind its prefix length: 10.0.0.0/8 is the prefix",
            ),
            (
                "allow from 10.0.0.0/33",
                "'10.0.0.0/33' is neither any nor an address nor a prefix",
            ),
            (
                "allow proto tpc",
                "'tpc' is no protocol: a name, or a number from 0 to 255",
            ),
            (
                "allow proto icmp to any port 1",
                "ports need 'proto tcp', udp, sctp, dccp or udplite",
            ),
            (
                "allow proto tcp to any port 70000",
                "'70000' is neither a port nor a range of ports",
            ),
            (
                "allow proto tcp to any port 9-8",
                "'9-8' ends before it begins",
            ),
            (
                "allow proto tcp port 9",
                "a port is behind 'from' or 'to': 'to any port 80'",
            ),
            (
                "allow from 10.0.0.0/8 to 2001:db8::/32",
                "10.0.0.0/8 and 2001:db8::/32 are of two families",
            ),
            ("allow ipv4 to ::1", "::1/128 is not of ipv4"),
            ("allow in", "'in' is the last word, and nothing follows"),
            ("allow in a in b", "'in' is there twice"),
            ("allow ipv4 ipv6", "'ipv6' is there twice"),
            (
                "allow in interface-too-long",
                "'interface-too-long' is no name of an interface",
            ),
            (
                "allow between",
                "'between' is none of ipv4, ipv6, in, out, proto, from, to and port",
            ),
            ("default maybe", "default 'maybe' is neither allow nor deny"),
            ("default deny", "there is a second default"),
        ] {
            let error = List::parse(&format!("default allow\n\n{line}\n")).expect_err(line);
            assert_eq!(error.to_string(), format!("line 3: {said}"));
        }
        let none = List::parse("allow\n").expect_err("no default");
        assert_eq!(
            none.to_string(),
            "no line says 'default allow' or 'default deny'"
        );
        let many = List::parse(&format!("default deny\n{}", "allow\n".repeat(16_385)));
        assert_eq!(
            many.expect_err("too many").to_string(),
            "16385 rules are more than the 16384 that there is room for"
        );
    }
}
