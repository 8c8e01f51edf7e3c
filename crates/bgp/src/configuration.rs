//! BIRD's configuration, whole, from the settings and the routes of this moment. Pure.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::IpAddr;

use crate::session;
use crate::settings::{Community, Family, Neighbour, Settings};

/// What is announced: host routes by address, each with its metric.
pub type Routes = BTreeMap<IpAddr, u32>;

/// The text of a configuration file of BIRD 2.
pub fn configuration(settings: &Settings, routes: &Routes) -> String {
    let mut text = format!(
        "# Written by butterflyd; changes are lost.\n\
         router id {};\n\
         log stderr {{ info, remote, warning, error, auth, fatal, bug }};\n\
         protocol device {{ scan time 10; }}\n",
        settings.router_id
    );
    if settings.neighbours.iter().any(|one| one.bfd) {
        text += "protocol bfd { }\n";
    }
    for (name, family) in [("ipv4", Family::V4), ("ipv6", Family::V6)] {
        let _ = writeln!(text, "protocol static addresses_{name} {{\n  {name};");
        for (address, med) in routes.iter().filter(|(ip, _)| Family::of(**ip) == family) {
            let length = if family == Family::V4 { 32 } else { 128 };
            let _ = writeln!(
                text,
                "  route {address}/{length} blackhole {{ bgp_med = {med}; }};"
            );
        }
        text += "}\n";
    }
    text += "filter announced {\n";
    for community in &settings.communities {
        let _ = match community {
            Community::Plain(a, b) => writeln!(text, "  bgp_community.add(({a}, {b}));"),
            Community::Large(a, b, c) => {
                writeln!(text, "  bgp_large_community.add(({a}, {b}, {c}));")
            }
        };
    }
    text += "  accept;\n}\n";
    for (index, one) in settings.neighbours.iter().enumerate() {
        neighbour(&mut text, settings, index, one);
    }
    text
}

fn neighbour(text: &mut String, settings: &Settings, index: usize, one: &Neighbour) {
    let source = one.source.map(|ip| format!(" {ip}")).unwrap_or_default();
    let _ = writeln!(
        text,
        "protocol bgp {} {{\n  local{source} port {} as {};\n  \
         neighbor {} port {} as {};\n  hold time {};\n  connect delay time 1;\n  \
         connect retry time 5;\n  error wait time 1, 30;\n  graceful restart off;",
        session::name(index),
        settings.port,
        settings.asn,
        one.address,
        one.port,
        one.asn,
        settings.hold.as_secs()
    );
    if let Some(password) = &one.password {
        let _ = writeln!(text, "  password \"{}\";", password.reveal());
    }
    if let Some(hops) = one.multihop {
        let _ = writeln!(text, "  multihop {hops};");
    }
    if one.bfd {
        text.push_str("  bfd { min rx interval 300 ms; min tx interval 300 ms; multiplier 3; };\n");
    }
    for family in &one.families {
        let name = if *family == Family::V4 {
            "ipv4"
        } else {
            "ipv6"
        };
        let _ = writeln!(
            text,
            "  {name} {{ import none; export filter announced; next hop self; }};"
        );
    }
    text.push_str("}\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// BIRD itself reads what is written, where it is installed.
    #[test]
    fn bird_takes_it() {
        let settings: Settings = "[local]\nas = 65001\nrouter-id = 10.1.2.3\n\
             communities = 65001:100, 4200000001:1:2\n\
             [neighbour 10.1.2.1]\nas = 65002\npassword = se#'cret\nbfd = yes\nsource = 10.1.2.3\n\
             [neighbour 2001:db8::1]\nas = 65001\nmultihop = 3\nfamilies = ipv4, ipv6\n"
            .parse()
            .expect("it is right");
        let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
        let routes = Routes::from([(ip("192.0.2.1"), 100), (ip("2001:db8::80"), 103)]);
        let text = configuration(&settings, &routes);
        for line in [
            "route 192.0.2.1/32 blackhole { bgp_med = 100; };",
            "route 2001:db8::80/128 blackhole { bgp_med = 103; };",
            "bgp_community.add((65001, 100));",
            "bgp_large_community.add((4200000001, 1, 2));",
            "neighbor 10.1.2.1 port 179 as 65002;",
            "password \"se#'cret\";",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("bird.conf");
        std::fs::write(&file, &text).expect("it can be written");
        let mut bird = std::process::Command::new("bird");
        match bird.arg("-p").arg("-c").arg(&file).output() {
            Ok(output) => assert!(output.status.success(), "{output:?}\n{text}"),
            Err(_) => eprintln!("skipped: there is no BIRD here (tools/setup.sh installs it)"),
        }
    }

    #[test]
    fn nothing_is_announced_without_routes() {
        let settings: Settings =
            "[local]\nas = 1\nrouter-id = 10.1.2.3\n[neighbour 10.1.2.1]\nas = 2\n"
                .parse()
                .expect("it is right");
        let text = configuration(&settings, &Routes::new());
        assert!(!text.contains("route 1") && !text.contains("bfd"), "{text}");
    }
}
