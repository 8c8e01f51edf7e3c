//! Answers, in the form of each version of the specification.

use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::{Value, json};

use crate::error::Error;

/// The versions of the specification that we speak.
pub const VERSIONS: [&str; 7] = [
    "0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0",
];
/// The newest.
pub const NEWEST: &str = "1.1.0";

/// What one plugin gives: addresses, routes, name servers.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Addresses {
    pub ips: Vec<Ip>,
    pub routes: Vec<Route>,
    pub dns: Value,
}

/// An address with its network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ip {
    pub net: IpNet,
    pub gateway: Option<IpAddr>,
}

/// A route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    pub to: IpNet,
    pub via: Option<IpAddr>,
}

/// The interface of a container that was made.
#[derive(Debug, Clone, PartialEq)]
pub struct Made {
    pub host: String,
    pub name: String,
    pub mac: String,
    pub mtu: u32,
    pub netns: String,
    pub addresses: Addresses,
}

/// The answer to VERSION: in the version that was asked in, if it is one of ours.
pub fn versions(input: &str) -> Value {
    let asked: Value = serde_json::from_str(input).unwrap_or_default();
    let asked = asked["cniVersion"].as_str().unwrap_or_default();
    let version = VERSIONS.into_iter().find(|version| *version == asked);
    json!({ "cniVersion": version.unwrap_or(NEWEST), "supportedVersions": VERSIONS })
}

impl Addresses {
    /// What another plugin has answered, in any version.
    pub fn parse(answer: &Value) -> Result<Addresses, Error> {
        let wrong = |what: &Value| Error::decode(format!("another plugin's answer: {what}"));
        let mut all = Addresses {
            dns: answer["dns"].clone(),
            ..Addresses::default()
        };
        let mut route = |one: &Value| {
            let to = net(&one["dst"]).ok_or_else(|| wrong(one))?;
            let via = optional(&one["gw"]).ok_or_else(|| wrong(one))?;
            all.routes.push(Route {
                to: to.trunc(),
                via,
            });
            Ok::<_, Error>(())
        };
        let (list, field) = match answer["ips"].as_array() {
            Some(list) => (list.clone(), "address"),
            // Before 0.3.0: one of each family.
            None => {
                let both = [&answer["ip4"], &answer["ip6"]].into_iter();
                (both.filter(|one| one.is_object()).cloned().collect(), "ip")
            }
        };
        for one in answer["routes"].as_array().into_iter().flatten() {
            route(one)?;
        }
        for one in &list {
            for nested in one["routes"].as_array().into_iter().flatten() {
                route(nested)?;
            }
        }
        for one in &list {
            all.ips.push(Ip {
                net: net(&one[field]).ok_or_else(|| wrong(one))?,
                gateway: optional(&one["gateway"]).ok_or_else(|| wrong(one))?,
            });
        }
        Ok(all)
    }
}

/// A network, or an address with its prefix length.
fn net(value: &Value) -> Option<IpNet> {
    value.as_str()?.parse().ok()
}

/// An address; the outer `None`: it is none.
fn optional(value: &Value) -> Option<Option<IpAddr>> {
    match value.as_str() {
        None | Some("") => Some(None),
        Some(text) => text.parse().ok().map(Some),
    }
}

/// The answer to ADD: what was made, behind what plugins before this one have made.
pub fn added(version: &str, made: &Made, previous: Option<&Value>) -> Value {
    let addresses = &made.addresses;
    if matches!(version, "0.1.0" | "0.2.0") {
        return old(version, addresses);
    }
    let mut answer = previous.cloned().unwrap_or_else(|| json!({}));
    answer["cniVersion"] = version.into();
    let before = answer["interfaces"].as_array().map_or(0, Vec::len);
    let mut inside = json!({ "name": made.name, "mac": made.mac, "sandbox": made.netns });
    if version == "1.1.0" {
        inside["mtu"] = made.mtu.into();
    }
    push(&mut answer, "interfaces", json!({ "name": made.host }));
    push(&mut answer, "interfaces", inside);
    for ip in &addresses.ips {
        let mut one = json!({ "address": ip.net.to_string(), "interface": before + 1 });
        if let Some(gateway) = ip.gateway {
            one["gateway"] = gateway.to_string().into();
        }
        if version.starts_with("0.") {
            one["version"] = if ip.net.addr().is_ipv4() { "4" } else { "6" }.into();
        }
        push(&mut answer, "ips", one);
    }
    for one in &addresses.routes {
        push(&mut answer, "routes", route(one));
    }
    if addresses.dns.is_object() && !answer["dns"].is_object() {
        answer["dns"] = addresses.dns.clone();
    }
    for absent in ["ips", "routes", "dns"] {
        if answer[absent].is_null() {
            let empty = if absent == "dns" {
                json!({})
            } else {
                json!([])
            };
            answer[absent] = empty;
        }
    }
    answer
}

/// The form before 0.3.0: at most one address of each family.
fn old(version: &str, addresses: &Addresses) -> Value {
    let mut answer = json!({ "cniVersion": version });
    for (key, is_v4) in [("ip4", true), ("ip6", false)] {
        let mut ips = addresses.ips.iter();
        let Some(ip) = ips.find(|ip| ip.net.addr().is_ipv4() == is_v4) else {
            continue;
        };
        let routes = addresses.routes.iter();
        let routes = routes.filter(|route| route.to.addr().is_ipv4() == is_v4);
        answer[key] = json!({
            "ip": ip.net.to_string(),
            "routes": routes.map(route).collect::<Vec<_>>(),
        });
        if let Some(gateway) = ip.gateway {
            answer[key]["gateway"] = gateway.to_string().into();
        }
    }
    if addresses.dns.is_object() {
        answer["dns"] = addresses.dns.clone();
    }
    answer
}

fn route(route: &Route) -> Value {
    let mut value = json!({ "dst": route.to.to_string() });
    if let Some(via) = route.via {
        value["gw"] = via.to_string().into();
    }
    value
}

fn push(answer: &mut Value, list: &str, one: Value) {
    match answer[list].as_array_mut() {
        Some(all) => all.push(one),
        None => answer[list] = json!([one]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made() -> Made {
        Made {
            host: "bf-1".into(),
            name: "eth0".into(),
            mac: "02:00:00:00:00:01".into(),
            mtu: 1500,
            netns: "/run/netns/c1".into(),
            addresses: Addresses {
                ips: vec![Ip {
                    net: "10.0.0.2/24".parse().unwrap(),
                    gateway: Some("10.0.0.1".parse().unwrap()),
                }],
                routes: vec![Route {
                    to: "0.0.0.0/0".parse().unwrap(),
                    via: None,
                }],
                dns: Value::Null,
            },
        }
    }

    #[test]
    fn each_version_has_its_form() {
        let newest = added("1.1.0", &made(), None);
        assert_eq!(newest["interfaces"][1]["mtu"], 1500);
        assert_eq!(newest["ips"][0]["interface"], 1);
        assert!(newest["ips"][0]["version"].is_null());
        let older = added("0.4.0", &made(), None);
        assert_eq!(older["ips"][0]["version"], "4");
        assert!(older["interfaces"][1]["mtu"].is_null());
        let oldest = added("0.2.0", &made(), None);
        assert_eq!(oldest["ip4"]["ip"], "10.0.0.2/24");
        assert_eq!(oldest["ip4"]["routes"][0]["dst"], "0.0.0.0/0");
    }

    #[test]
    fn what_was_there_before_stays() {
        let previous = json!({
            "cniVersion": "1.0.0",
            "interfaces": [{"name": "lo"}],
            "ips": [{"address": "127.0.0.1/8", "interface": 0}],
        });
        let both = added("1.0.0", &made(), Some(&previous));
        assert_eq!(both["interfaces"].as_array().unwrap().len(), 3);
        assert_eq!(both["ips"][0]["interface"], 0);
        assert_eq!(both["ips"][1]["interface"], 2);
    }

    #[test]
    fn answers_of_all_versions_are_read() {
        for version in VERSIONS {
            let read = Addresses::parse(&added(version, &made(), None)).unwrap();
            assert_eq!(read.ips, made().addresses.ips, "{version}");
            assert_eq!(read.routes, made().addresses.routes, "{version}");
        }
        assert!(Addresses::parse(&json!({"ips": [{"address": "nowhere"}]})).is_err());
    }

    #[test]
    fn versions_are_told_in_the_asker_s() {
        assert_eq!(versions("")["cniVersion"], "1.1.0");
        assert_eq!(versions(r#"{"cniVersion":"0.4.0"}"#)["cniVersion"], "0.4.0");
    }
}
