//! Texts and numbers of a request into typed values. Each takes the `owner` the value belongs to,
//! for the message: `NIC 'vnic_1': IP '42.0.0.300' is not an IPv4 or IPv6 address`.

use crate::error::Error;
use crate::model::GroupId;
use ipnet::IpNet;
use std::net::IpAddr;
use wire::{Mac, Vni};

/// An IPv4 or IPv6 address in any text form; it is given back in the canonical one (RFC 5952). No
/// packet has an IPv4-mapped IPv6 address (`::ffff:10.0.0.1`, RFC 4291 section 2.5.5.2): who writes
/// one means the IPv4 address, and would get a rule or a member that never matches.
pub fn parse_address(
    owner: &impl ToString,
    field: &'static str,
    text: &str,
) -> Result<IpAddr, Error> {
    unmapped(owner, field, text, address(owner, field, text)?)
}

fn address(owner: &impl ToString, field: &'static str, text: &str) -> Result<IpAddr, Error> {
    text.parse()
        .map_err(|_| Error::value(owner, field, text, "is not an IPv4 or IPv6 address"))
}

/// A NIC's addresses. Those that are no host's are the model's to refuse: see
/// [`Nic::lenient`](crate::model::Nic).
pub fn parse_addresses(owner: &impl ToString, texts: &[String]) -> Result<Vec<IpAddr>, Error> {
    texts
        .iter()
        .map(|text| address(owner, "IP", text))
        .collect()
}

/// Ids of groups.
pub fn parse_groups(ids: &[String]) -> Result<Vec<GroupId>, Error> {
    ids.iter().map(|id| GroupId::new(id)).collect()
}

pub(super) fn unmapped(
    owner: &impl ToString,
    field: &'static str,
    text: &str,
    ip: IpAddr,
) -> Result<IpAddr, Error> {
    match ip {
        IpAddr::V6(v6) if let Some(v4) = v6.to_ipv4_mapped() => {
            let why = format!("is an IPv4 address in the form of IPv6, write {v4}");
            Err(Error::value(owner, field, text, &why))
        }
        _ => Ok(ip),
    }
}

/// `ADDRESS/LENGTH`, or an address alone, which stands for itself. Host bits stay, as for the
/// original.
pub fn parse_cidr(owner: &impl ToString, text: &str) -> Result<IpNet, Error> {
    let bad = || {
        Error::value(
            owner,
            "CIDR",
            text,
            "is not ADDRESS/LENGTH with an IPv4 or IPv6 address",
        )
    };
    match text.split_once('/') {
        None => {
            let address = text.parse().map_err(|_| bad())?;
            Ok(IpNet::from(unmapped(owner, "CIDR", text, address)?))
        }
        Some((address, length)) => {
            if length.is_empty() || !length.bytes().all(|b| b.is_ascii_digit()) {
                return Err(bad());
            }
            let address = unmapped(owner, "CIDR", text, address.parse().map_err(|_| bad())?)?;
            let length = length.parse().unwrap_or(u32::MAX);
            masked(address, length).ok_or_else(|| {
                Error::value(
                    owner,
                    "CIDR",
                    text,
                    "has a prefix length above 32 (IPv4) or 128 (IPv6)",
                )
            })
        }
    }
}

/// An address and a prefix length that come apart, as in v0's `Cidr`. Host bits stay.
pub fn parse_masked(owner: &impl ToString, address: &str, length: u32) -> Result<IpNet, Error> {
    let ip = parse_address(owner, "CIDR address", address)?;
    masked(ip, length).ok_or_else(|| {
        let text = format!("{address}/{length}");
        Error::value(
            owner,
            "CIDR",
            &text,
            "has a prefix length above 32 (IPv4) or 128 (IPv6)",
        )
    })
}

fn masked(address: IpAddr, length: u32) -> Option<IpNet> {
    IpNet::new(address, u8::try_from(length).ok()?).ok()
}

/// Six hexadecimal pairs separated by colons, 17 characters.
pub fn parse_mac(owner: &impl ToString, text: &str) -> Result<Mac, Error> {
    text.parse().map_err(|_| {
        Error::value(
            owner,
            "MAC",
            text,
            "is not six hexadecimal pairs separated by colons",
        )
    })
}

/// A VNI of 24 bits.
pub fn parse_vni(owner: &impl ToString, id: u32) -> Result<Vni, Error> {
    Vni::new(id).map_err(|_| {
        Error::value(
            owner,
            "VNI",
            &id.to_string(),
            "is above the largest, 16777215",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_become_canonical() {
        let owner = "group 'web'";
        for (text, canonical) in [
            ("10.1.2.3/8", "10.1.2.3/8"),
            ("10.1.2.3", "10.1.2.3/32"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("2001:DB8:0:0::1/32", "2001:db8::1/32"),
            ("::1", "::1/128"),
        ] {
            assert_eq!(parse_cidr(&owner, text).unwrap().to_string(), canonical);
        }
        assert_eq!(
            parse_masked(&owner, "10.1.2.3", 24).unwrap().to_string(),
            "10.1.2.3/24"
        );
        assert_eq!(
            parse_address(&owner, "member", "FE80:0::1")
                .unwrap()
                .to_string(),
            "fe80::1"
        );
    }

    #[test]
    fn refusals_name_the_thing_and_the_value() {
        assert_eq!(
            parse_address(&"NIC 'vnic_1'", "IP", "42.0.0.300")
                .unwrap_err()
                .to_string(),
            "NIC 'vnic_1': IP '42.0.0.300' is not an IPv4 or IPv6 address"
        );
        for bad in [
            "10.0.0.0/33",
            "::/129",
            "10.0.0.0/",
            "10.0.0.0/+8",
            "10.0.0/8",
            "/8",
            "",
            "10.0.0.0/99999999999",
        ] {
            assert!(parse_cidr(&"rule", bad).is_err(), "{bad:?}");
        }
        for mapped in ["::ffff:10.0.0.1", "::FFFF:a00:1"] {
            assert_eq!(
                parse_address(&"NIC 'a'", "member", mapped)
                    .unwrap_err()
                    .to_string(),
                format!(
                    "NIC 'a': member '{mapped}' is an IPv4 address in the form of IPv6, write \
                     10.0.0.1"
                )
            );
            assert!(
                parse_cidr(&"rule", mapped).is_err() && parse_masked(&"rule", mapped, 128).is_err()
            );
        }
        assert!(
            parse_cidr(&"rule", "::ffff:0:0/96").is_err() && parse_cidr(&"rule", "::/0").is_ok()
        );
        assert!(
            parse_masked(&"rule", "10.0.0.0", 33).is_err()
                && parse_masked(&"rule", "::", 256).is_err()
        );
        assert!(parse_vni(&"NIC 'a'", 1 << 24).is_err() && parse_mac(&"NIC 'a'", "52:54").is_err());
    }
}
