//! What BIRD says of its sessions (`show protocols`): a line for each protocol, of which ours are
//! called by their neighbours' places in the settings. Pure.

use std::net::IpAddr;

use crate::settings::Settings;

/// A session with a neighbour, as BIRD has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// The neighbour's address.
    pub neighbour: IpAddr,
    /// How far it has come.
    pub state: State,
    /// The last error, in BIRD's words: `Socket: Connection refused`; empty where there is none.
    pub error: String,
}

/// How far a session has come (RFC 4271, section 8.2.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// BIRD has given it up, and does not try again by itself: it could not listen, or set the
    /// signature. Or there is no BIRD.
    Down,
    /// It waits, after an error.
    Idle,
    /// It connects.
    Connect,
    /// It waits to be connected to, or to connect again.
    Active,
    /// Each says who it is.
    OpenSent,
    /// They agree.
    OpenConfirm,
    /// Routes are told.
    Established,
}

impl State {
    /// As BIRD has it.
    pub fn name(self) -> &'static str {
        match self {
            State::Down => "Down",
            State::Idle => "Idle",
            State::Connect => "Connect",
            State::Active => "Active",
            State::OpenSent => "OpenSent",
            State::OpenConfirm => "OpenConfirm",
            State::Established => "Established",
        }
    }

    /// bgpPeerState of RFC 4273: 1 idle to 6 established; 0 of one that is given up.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// What BIRD calls so; what it calls otherwise (`Close`) is none of the others.
    fn of(name: &str) -> State {
        let all = [
            State::Connect,
            State::Active,
            State::OpenSent,
            State::OpenConfirm,
            State::Established,
        ];
        let found = all.into_iter().find(|state| state.name() == name);
        found.unwrap_or(State::Idle)
    }
}

/// The name of a neighbour's session in BIRD's configuration, by its place in the settings.
pub(crate) fn name(index: usize) -> String {
    format!("neighbour_{index}")
}

/// Those of all neighbours, in their order, by what BIRD answers to `show protocols`.
pub(crate) fn parse(settings: &Settings, answer: &str) -> Vec<Session> {
    let one = |(index, address): (usize, IpAddr)| {
        let name = name(index);
        let mut lines = answer.lines().map(str::split_whitespace);
        let words = lines.find_map(|mut words| (words.next()? == name).then_some(words));
        let (state, error) = match words {
            Some(words) => of_line(words),
            None => (State::Down, "BIRD does not know it".to_owned()),
        };
        Session {
            neighbour: address,
            state,
            error,
        }
    };
    let addresses = settings.neighbours.iter().map(|one| one.address);
    addresses.enumerate().map(one).collect()
}

/// Of what stands behind the name: kind, table, state of the protocol, since when, and what the
/// protocol says of itself, which for one that is down is the error alone.
fn of_line<'a>(mut words: impl Iterator<Item = &'a str>) -> (State, String) {
    let is_down = words.nth(2) == Some("down");
    let mut rest = words.skip(1);
    let state = match is_down {
        true => State::Down,
        false => rest.next().map_or(State::Idle, State::of),
    };
    (state, rest.collect::<Vec<_>>().join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As BIRD 2.0.12 has said it; the third neighbour it does not know.
    #[test]
    fn each_neighbour_has_its_session() {
        let answer = "\
Name       Proto      Table      State  Since         Info
device1    Device     ---        up     17:34:05.719  
addresses_ipv4 Static     master4    up     17:34:05.719  
neighbour_0 BGP        ---        down   17:34:05.720  Error: No listening socket
neighbour_1 BGP        ---        up     17:33:53.184  Established   
neighbour_10 BGP        ---        start  2026-11-30    Active        Socket: Connection refused
";
        let section = |n: u32| format!("[neighbour 10.1.2.{n}]\nas = 65002\n");
        let neighbours: String = [1, 2, 3].map(section).concat();
        let settings = format!("[local]\nas = 65001\nrouter-id = 10.1.2.9\n{neighbours}");
        let settings: Settings = settings.parse().expect("it is right");
        let found = parse(&settings, answer);
        let found = found.iter().map(|one| (one.state, one.error.as_str()));
        let expected = [
            (State::Down, "Error: No listening socket"),
            (State::Established, ""),
            (State::Down, "BIRD does not know it"),
        ];
        assert!(found.eq(expected));
        let line = "BGP --- start 2026-11-30 Active Socket: Connection refused";
        let found = of_line(line.split_whitespace());
        let refused = "Socket: Connection refused".to_owned();
        assert_eq!(found, (State::Active, refused));
        let line = "BGP --- stop 17:33:53.184 Close Received: Administrative shutdown";
        assert_eq!(of_line(line.split_whitespace()).0, State::Idle);
    }

    #[test]
    fn states_have_the_numbers_of_the_mib() {
        assert_eq!(State::Down.number(), 0);
        assert_eq!(State::Idle.number(), 1);
        assert_eq!(State::Established.number(), 6);
    }
}
