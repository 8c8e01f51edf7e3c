//! What the kernel counted in this network namespace: the answers to packets that are handed to it
//! are its own.

use std::collections::HashMap;

use api::v1;

/// Our name, and the kernel's: in /proc/net/snmp and in snmp6. Empty: it does not count it.
pub const NAMES: [(&str, &str, &str); 22] = [
    ("received", "IpInReceives", "Ip6InReceives"),
    ("forwarded", "IpForwDatagrams", "Ip6OutForwDatagrams"),
    ("header_errors", "IpInHdrErrors", "Ip6InHdrErrors"),
    ("address_errors", "IpInAddrErrors", "Ip6InAddrErrors"),
    ("discarded_in", "IpInDiscards", "Ip6InDiscards"),
    ("discarded_out", "IpOutDiscards", "Ip6OutDiscards"),
    ("no_route_out", "IpOutNoRoutes", "Ip6OutNoRoutes"),
    ("too_big", "IpFragFails", "Ip6InTooBigErrors"),
    ("icmp_received", "IcmpInMsgs", "Icmp6InMsgs"),
    ("icmp_sent", "IcmpOutMsgs", "Icmp6OutMsgs"),
    ("icmp_errors", "IcmpInErrors", "Icmp6InErrors"),
    ("icmp_bad_checksum", "IcmpInCsumErrors", "Icmp6InCsumErrors"),
    ("echo_received", "IcmpInEchos", "Icmp6InEchos"),
    ("echo_answered", "IcmpOutEchoReps", "Icmp6OutEchoReplies"),
    (
        "unreachable_sent",
        "IcmpOutDestUnreachs",
        "Icmp6OutDestUnreachs",
    ),
    (
        "time_exceeded_sent",
        "IcmpOutTimeExcds",
        "Icmp6OutTimeExcds",
    ),
    ("too_big_sent", "", "Icmp6OutPktTooBigs"),
    ("redirects_sent", "IcmpOutRedirects", "Icmp6OutRedirects"),
    ("neighbour_asked", "", "Icmp6InNeighborSolicits"),
    ("neighbour_told", "", "Icmp6InNeighborAdvertisements"),
    ("neighbour_asks_sent", "", "Icmp6OutNeighborSolicits"),
    (
        "neighbour_answers_sent",
        "",
        "Icmp6OutNeighborAdvertisements",
    ),
];

/// All of them now; none where /proc cannot be read.
pub fn read() -> Vec<v1::KernelCounter> {
    let file =
        |name| std::fs::read_to_string(format!("/proc/thread-self/net/{name}")).unwrap_or_default();
    let mut values = snmp(&file("snmp"));
    values.extend(snmp6(&file("snmp6")));
    let counter = |(name, four, six): (&str, &str, &str)| v1::KernelCounter {
        name: name.into(),
        ipv4: values.get(four).copied(),
        ipv6: values.get(six).copied(),
    };
    let all = NAMES.into_iter().map(counter);
    all.filter(|counter| counter.ipv4.is_some() || counter.ipv6.is_some())
        .collect()
}

/// Pairs of lines: "Ip: Forwarding DefaultTTL …" and "Ip: 1 64 …".
fn snmp(text: &str) -> HashMap<String, u64> {
    let mut values = HashMap::new();
    let lines: Vec<&str> = text.lines().collect();
    for pair in lines.chunks_exact(2) {
        let (mut names, mut numbers) = (pair[0].split_whitespace(), pair[1].split_whitespace());
        let group = names.next().unwrap_or_default().trim_end_matches(':');
        numbers.next();
        for (name, number) in names.zip(numbers) {
            values.extend(
                number
                    .parse()
                    .ok()
                    .map(|number| (format!("{group}{name}"), number)),
            );
        }
    }
    values
}

/// A line each: "Ip6InReceives    12".
fn snmp6(text: &str) -> HashMap<String, u64> {
    let line = |line: &str| {
        let (name, number) = line.split_once(char::is_whitespace)?;
        Some((name.to_owned(), number.trim().parse().ok()?))
    };
    text.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_files_are_read() {
        let four = snmp("Ip: Forwarding InReceives\nIp: 1 7\nIcmp: InMsgs InErrors\nIcmp: 3 -1\n");
        assert_eq!(
            (four.get("IpInReceives"), four.get("IcmpInMsgs")),
            (Some(&7), Some(&3))
        );
        assert_eq!(four.get("IcmpInErrors"), None, "no number");
        let six = snmp6("Ip6InReceives                   \t9\nnonsense\n");
        assert_eq!((six.len(), six.get("Ip6InReceives")), (1, Some(&9)));
    }

    /// The kernel that runs the test has them all.
    #[test]
    fn the_kernel_has_the_names() {
        let known = read();
        for (name, four, six) in NAMES {
            let found = known.iter().find(|counter| counter.name == name);
            let found = found.map(|counter| (counter.ipv4.is_some(), counter.ipv6.is_some()));
            assert_eq!(found, Some((!four.is_empty(), !six.is_empty())), "{name}");
        }
    }

    #[test]
    fn the_page_lists_them() {
        let page = include_str!("../../../../docs/router.md");
        for (name, ..) in NAMES {
            assert!(
                page.contains(&format!("`{name}`")),
                "docs/router.md does not list {name}"
            );
        }
    }
}
