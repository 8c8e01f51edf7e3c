//! What the operator says: who we are, who the neighbours are. Values that exist are valid, and
//! hold nothing that BIRD could take for something else.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use crate::error::Error;

/// A file of settings: a section `[local]`, and a section `[neighbour ADDRESS]` for each neighbour.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Our autonomous system, 1 to 4,294,967,294.
    pub asn: u32,
    /// Our identifier (RFC 4271, section 4.2), an IPv4 address of ours.
    pub router_id: Ipv4Addr,
    /// Of all routes.
    pub communities: Vec<Community>,
    /// The metric (MULTI_EXIT_DISC, RFC 4271, section 5.1.4) of an address all of whose servers
    /// are healthy.
    pub med: u32,
    /// What it is more by for each server that is not.
    pub med_per_server: u32,
    /// After so long without a word of ours the neighbours forget our routes: 3 seconds to 18
    /// hours. They may ask for less.
    pub hold: Duration,
    /// After the routes are withdrawn, and before the sessions are closed, the neighbours have so
    /// long to choose others.
    pub grace: Duration,
    /// The TCP port that we listen on.
    pub port: u16,
    /// BIRD itself: a name in PATH, or a path.
    pub bird: String,
    /// Whom we tell, at least one.
    pub neighbours: Vec<Neighbour>,
}

/// A router that is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Neighbour {
    /// Its address.
    pub address: IpAddr,
    /// Its autonomous system.
    pub asn: u32,
    /// Its TCP port.
    pub port: u16,
    /// Of TCP's MD5 signature (RFC 2385).
    pub password: Option<Password>,
    /// Our address in the session; `None`: the one that the kernel's route to it has.
    pub source: Option<IpAddr>,
    /// It is so many hops away at the most; `None`: it is on a network of ours.
    pub multihop: Option<u8>,
    /// Whether it is watched by BFD (RFC 5880), every 300 ms.
    pub bfd: bool,
    /// Routes of which families it is told; the one of its address, unless said otherwise.
    pub families: Vec<Family>,
}

/// IPv4 or IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// IPv4 unicast.
    V4,
    /// IPv6 unicast.
    V6,
}

impl Family {
    /// That of an address.
    pub fn of(ip: IpAddr) -> Family {
        match ip {
            IpAddr::V4(_) => Family::V4,
            IpAddr::V6(_) => Family::V6,
        }
    }
}

/// A mark on a route: RFC 1997 or RFC 8092.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Community {
    /// `65001:100`.
    Plain(u16, u16),
    /// `4200000001:1:2`.
    Large(u32, u32, u32),
}

/// A key that is shown to nobody.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(String);

impl Password {
    /// The key itself.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(...)")
    }
}

/// TCP_MD5SIG_MAXKEYLEN of linux/tcp.h.
const LONGEST_PASSWORD: usize = 80;
const BGP_PORT: u16 = 179;

impl Settings {
    /// Reads a file. One with passwords must not be readable by everybody.
    ///
    /// # Errors
    /// It cannot be read, everybody can read its passwords, or it says what cannot be: a
    /// sentence with section, key and value.
    pub fn load(file: &Path) -> Result<Settings, Error> {
        let unreadable = |source| Error::File {
            file: file.to_owned(),
            source,
        };
        let wrong = |why| Error::Settings {
            file: file.to_owned(),
            why,
        };
        let text = std::fs::read_to_string(file).map_err(unreadable)?;
        let settings = parse(&text).map_err(wrong)?;
        let mode = std::fs::metadata(file).map_err(unreadable)?.permissions();
        let secret = settings.neighbours.iter().any(|one| one.password.is_some());
        if secret && mode.mode() & 0o007 != 0 {
            return Err(wrong(format!(
                "it has passwords, and its mode is {:o}: everybody may read it (chmod o=)",
                mode.mode() & 0o777
            )));
        }
        Ok(settings)
    }
}

impl FromStr for Settings {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse(text)
    }
}

fn parse(text: &str) -> Result<Settings, String> {
    let file = ini::Ini::load_from_str_noescape(text).map_err(|e| e.to_string())?;
    let mut settings = Settings {
        asn: 0,
        router_id: Ipv4Addr::UNSPECIFIED,
        communities: Vec::new(),
        med: 100,
        med_per_server: 1,
        hold: Duration::from_secs(9),
        grace: Duration::from_secs(1),
        port: BGP_PORT,
        bird: "bird".to_owned(),
        neighbours: Vec::new(),
    };
    let mut local = false;
    for (section, properties) in &file {
        match section.map(|name| name.split_once(' ').unwrap_or((name, ""))) {
            None if properties.is_empty() => {}
            None => return Err("a key stands before the first section".to_owned()),
            Some(("local", "")) => {
                local = true;
                for (key, value) in properties {
                    let value = without_comment(value);
                    set_local(&mut settings, key, value)
                        .map_err(|why| format!("[local] {key} = '{value}': {why}"))?;
                }
            }
            Some(("neighbour", address)) => {
                let neighbour = neighbour(address.trim(), properties)
                    .map_err(|why| format!("[neighbour {address}] {why}"))?;
                let address = neighbour.address;
                if settings.neighbours.iter().any(|one| one.address == address) {
                    return Err(format!("neighbour {address} is there twice"));
                }
                settings.neighbours.push(neighbour);
            }
            Some(_) => {
                return Err(format!(
                    "there is no section [{}], only [local] and [neighbour ADDRESS]",
                    section.unwrap_or_default()
                ));
            }
        }
    }
    if !local || settings.asn == 0 {
        return Err("[local] as is missing: the number of our autonomous system".to_owned());
    }
    if settings.router_id.is_unspecified() {
        return Err("[local] router-id is missing: an IPv4 address of ours".to_owned());
    }
    if settings.neighbours.is_empty() {
        return Err("there is no section [neighbour ADDRESS]".to_owned());
    }
    Ok(settings)
}

fn set_local(settings: &mut Settings, key: &str, value: &str) -> Result<(), String> {
    match key {
        "as" => settings.asn = asn(value)?,
        "router-id" => {
            settings.router_id = number(value)?;
            if settings.router_id.is_unspecified() || settings.router_id.is_multicast() {
                return Err("it is no host's address".to_owned());
            }
        }
        "communities" => {
            let all = value.split(',').map(|word| community(word.trim()));
            settings.communities = all.collect::<Result<_, _>>()?;
        }
        "med" => settings.med = number(value)?,
        "med-per-server" => settings.med_per_server = number(value)?,
        "hold" => settings.hold = seconds(value, 3, 65_535)?,
        "grace" => settings.grace = seconds(value, 0, 60)?,
        "port" => settings.port = port(value)?,
        "bird" => {
            if value.is_empty() || value.starts_with('-') {
                return Err("it is a program's name".to_owned());
            }
            value.clone_into(&mut settings.bird);
        }
        _ => return Err("there is no such key".to_owned()),
    }
    Ok(())
}

fn neighbour(address: &str, properties: &ini::Properties) -> Result<Neighbour, String> {
    let address: IpAddr = address.parse().map_err(|e| format!("{e}"))?;
    let mut neighbour = Neighbour {
        address,
        asn: 0,
        port: BGP_PORT,
        password: None,
        source: None,
        multihop: None,
        bfd: false,
        families: vec![Family::of(address)],
    };
    for (key, value) in properties {
        let value = without_comment(value);
        set_neighbour(&mut neighbour, key, value).map_err(|why| match key {
            // Nobody is to read it in a log.
            "password" => format!("password: {why}"),
            _ => format!("{key} = '{value}': {why}"),
        })?;
    }
    match neighbour.asn {
        0 => Err("as is missing: the number of its autonomous system".to_owned()),
        _ => Ok(neighbour),
    }
}

fn set_neighbour(neighbour: &mut Neighbour, key: &str, value: &str) -> Result<(), String> {
    match key {
        "as" => neighbour.asn = asn(value)?,
        "port" => neighbour.port = port(value)?,
        "password" => {
            let plain = value
                .bytes()
                .all(|byte| byte.is_ascii_graphic() && byte != b'"');
            if value.is_empty() || value.len() > LONGEST_PASSWORD || !plain {
                return Err(format!(
                    "it has 1 to {LONGEST_PASSWORD} characters of ASCII, no blank and no '\"'"
                ));
            }
            neighbour.password = Some(Password(value.to_owned()));
        }
        "source" => {
            let source: IpAddr = number(value)?;
            if Family::of(source) != Family::of(neighbour.address) {
                return Err(format!("it is not of the family of {}", neighbour.address));
            }
            neighbour.source = Some(source);
        }
        "multihop" => {
            neighbour.multihop = Some(number(value)?);
            if neighbour.multihop == Some(0) {
                return Err("it is 1 to 255 hops".to_owned());
            }
        }
        "bfd" => neighbour.bfd = yes(value)?,
        "families" => {
            let family = |word: &str| match word.trim() {
                "ipv4" => Ok(Family::V4),
                "ipv6" => Ok(Family::V6),
                word => Err(format!("{word} is neither ipv4 nor ipv6")),
            };
            neighbour.families = value.split(',').map(family).collect::<Result<_, _>>()?;
            neighbour.families.sort_unstable();
            neighbour.families.dedup();
        }
        _ => return Err("there is no such key".to_owned()),
    }
    Ok(())
}

/// A value ends where a blank and then `;` or `#` follow: a comment behind it, as in the daemon's
/// own file.
fn without_comment(value: &str) -> &str {
    let ends = value
        .match_indices([';', '#'])
        .find(|(at, _)| value[..*at].ends_with([' ', '\t']));
    ends.map_or(value, |(at, _)| &value[..at]).trim()
}

fn number<T: FromStr<Err: fmt::Display>>(value: &str) -> Result<T, String> {
    value.parse().map_err(|e| format!("{e}"))
}

fn port(value: &str) -> Result<u16, String> {
    match number(value)? {
        0 => Err("it is 1 to 65535".to_owned()),
        port => Ok(port),
    }
}

/// 0 (RFC 7607), 23456 (RFC 6793) and the last ones of both sizes (RFC 7300) are nobody's.
fn asn(value: &str) -> Result<u32, String> {
    match number(value)? {
        0 | 23_456 | 65_535 | u32::MAX => Err("it is reserved".to_owned()),
        asn => Ok(asn),
    }
}

fn seconds(value: &str, least: u64, most: u64) -> Result<Duration, String> {
    let seconds: u64 = number(value)?;
    match (least..=most).contains(&seconds) {
        true => Ok(Duration::from_secs(seconds)),
        false => Err(format!("it is {least} to {most} seconds")),
    }
}

fn yes(value: &str) -> Result<bool, String> {
    match value {
        "true" | "yes" | "on" | "1" => Ok(true),
        "false" | "no" | "off" | "0" => Ok(false),
        _ => Err("it is true or false".to_owned()),
    }
}

fn community(word: &str) -> Result<Community, String> {
    let parts: Vec<&str> = word.split(':').collect();
    match parts[..] {
        [a, b] => Ok(Community::Plain(number(a)?, number(b)?)),
        [a, b, c] => Ok(Community::Large(number(a)?, number(b)?, number(c)?)),
        _ => Err(format!("{word} is no community: 65001:100 or 65001:1:2")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: &str = "[local]\nas = 65001\nrouter-id = 10.1.2.3\n";

    #[test]
    fn all_that_can_be_said() {
        let text = "[local]\nas = 4200000001\nrouter-id = 10.1.2.3\n\
                    communities = 65001:100, 4200000001:1:2\n\
                    med = 50 ; less is better\nmed-per-server = 10\n\
                    hold = 30\ngrace = 5\nport = 1790\nbird = /opt/bird\n\
                    [neighbour 10.1.2.1]\nas = 65002\nport = 1179\npassword = se#cret\n\
                    source = 10.1.2.3\nmultihop = 3\nbfd = yes\nfamilies = ipv6, ipv4\n\
                    [neighbour 2001:db8::1]\nas = 65001\n";
        let settings: Settings = text.parse().expect("it is right");
        assert_eq!(settings.asn, 4_200_000_001);
        assert_eq!(
            settings.communities,
            [
                Community::Plain(65001, 100),
                Community::Large(4_200_000_001, 1, 2)
            ]
        );
        assert_eq!((settings.med, settings.med_per_server), (50, 10));
        assert_eq!(settings.hold, Duration::from_secs(30));
        assert_eq!((settings.port, settings.bird.as_str()), (1790, "/opt/bird"));
        let first = &settings.neighbours[0];
        assert_eq!(
            first.password.as_ref().map(Password::reveal),
            Some("se#cret")
        );
        assert_eq!(first.families, [Family::V4, Family::V6]);
        assert_eq!(
            (first.multihop, first.bfd, first.port),
            (Some(3), true, 1179)
        );
        let second = &settings.neighbours[1];
        assert_eq!(second.families, [Family::V6]);
        assert!(!format!("{settings:?}").contains("se#cret"));
    }

    #[test]
    fn what_cannot_be_is_named() {
        let with = |more: &str| format!("{LEAST}{more}");
        let rows = [
            (String::new(), "[local] as is missing"),
            (LEAST.to_owned(), "no section [neighbour ADDRESS]"),
            ("as = 1\n".to_owned(), "before the first section"),
            (
                "[local]\nas = 0\n".to_owned(),
                "[local] as = '0': it is reserved",
            ),
            (with("med = much\n"), "[local] med = 'much'"),
            (with("hold = 2\n"), "3 to 65535 seconds"),
            (with("communities = 1:2:3:4\n"), "1:2:3:4 is no community"),
            (with("communities = 70000:1\n"), "communities = '70000:1'"),
            (with("bird = -x\n"), "a program's name"),
            (
                with("colour = blue\n"),
                "[local] colour = 'blue': there is no such key",
            ),
            (with("[peers]\n"), "no section [peers]"),
            (with("[neighbour x]\nas = 1\n"), "[neighbour x]"),
            (
                with("[neighbour 10.1.2.1]\n"),
                "[neighbour 10.1.2.1] as is missing",
            ),
            (
                with("[neighbour 10.1.2.1]\nas = 1\nsource = ::1\n"),
                "not of the family",
            ),
            (
                with("[neighbour 10.1.2.1]\nas = 1\nmultihop = 0\n"),
                "1 to 255 hops",
            ),
            (
                with("[neighbour 10.1.2.1]\nas = 1\nbfd = maybe\n"),
                "true or false",
            ),
            (
                with("[neighbour 10.1.2.1]\nas = 1\nfamilies = ipx\n"),
                "ipx is neither",
            ),
            (
                with("[neighbour 10.1.2.1]\nas = 1\n[neighbour 10.1.2.1]\nas = 1\n"),
                "neighbour 10.1.2.1 is there twice",
            ),
        ];
        for (text, says) in rows {
            let error = text.parse::<Settings>().expect_err(says);
            assert!(error.contains(says), "{error}: not {says}");
        }
        // What BIRD could take for the end of a word; and no password in a message.
        for bad in ["pass\"word", "pass word", &"x".repeat(81)] {
            let text = with(&format!("[neighbour 10.1.2.1]\nas = 1\npassword = {bad}\n"));
            let error = text.parse::<Settings>().expect_err(bad);
            assert!(
                error.contains("1 to 80 characters") && !error.contains(bad),
                "{error}"
            );
        }
    }

    #[test]
    fn passwords_that_everybody_may_read_are_refused() {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("bgp.ini");
        let text = format!("{LEAST}[neighbour 10.1.2.1]\nas = 1\npassword = secret\n");
        std::fs::write(&file, text).expect("it can be written");
        let mode = |mode| std::fs::set_permissions(&file, PermissionsExt::from_mode(mode));
        mode(0o644).expect("it is ours");
        let error = Settings::load(&file).expect_err("everybody may read it");
        assert!(error.to_string().contains("its mode is 644"), "{error}");
        mode(0o640).expect("it is ours");
        Settings::load(&file).expect("it is right");
    }
}
