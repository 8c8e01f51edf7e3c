//! A chain of nftables as an access list, where it says just that: rules that compare addresses,
//! ports, protocol, family and names of interfaces, count, and accept or drop. Whatever else there
//! is (connection tracking, sets, marks, limits, logs, jumps, other chains that see the same
//! packets) leaves the packets to the kernel, which knows what it means.

use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use netlink::firewall::Hook;
use netlink::nft_rule::Expression;

use super::{List, Rule};

/// What nftables' chains say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read {
    /// All of it.
    pub list: List,
    /// IPv4 and IPv6: it is all that the firewall says of forwarded packets.
    pub judges: [bool; 2],
    /// Names of the hooks that it is made from.
    pub hooks: Vec<String>,
}

/// Reads the hooks that see forwarded packets: for each family the only one, if it is such a chain.
pub fn read(hooks: &[Hook]) -> Option<Read> {
    let only = |sees: fn(&Hook) -> bool| {
        let mut those = hooks.iter().filter(|hook| sees(hook));
        let first = those.next()?;
        those.next().is_none().then_some(first)
    };
    let four = only(|hook| hook.v4).and_then(|hook| Some((hook, chain(hook)?)));
    let six = only(|hook| hook.v6).and_then(|hook| Some((hook, chain(hook)?)));
    let judges = [four.is_some(), six.is_some()];
    let (list, hooks) = match (four, six) {
        (Some((hook, list)), Some((other, _))) if hook == other => (list, vec![hook]),
        (Some((hook, list)), Some((other, rest))) => (one_behind(list, rest), vec![hook, other]),
        (Some((hook, list)), None) | (None, Some((hook, list))) => (list, vec![hook]),
        (None, None) => return None,
    };
    Some(Read {
        list,
        judges,
        hooks: hooks.into_iter().map(|hook| hook.name.clone()).collect(),
    })
}

/// A list of IPv4 and one of IPv6 as one.
fn one_behind(mut four: List, six: List) -> List {
    let rest = Rule {
        allows: four.default_allows,
        family: Some(4),
        ..Rule::default()
    };
    four.rules.push(rest);
    four.rules.extend(six.rules);
    four.default_allows = six.default_allows;
    four
}

fn chain(hook: &Hook) -> Option<List> {
    let family = match (hook.v4, hook.v6) {
        (true, false) => Some(4),
        (false, true) => Some(6),
        _ => None,
    };
    let rules = hook.read.as_ref()?.iter();
    let list = List {
        rules: rules
            .map(|rule| read_rule(rule, family, !hook.drops))
            .collect::<Option<_>>()?,
        default_allows: !hook.drops,
    };
    Some(list)
}

/// enum nft_meta_keys.
const IIFNAME: u32 = 6;
const OIFNAME: u32 = 7;
const NFPROTO: u32 = 15;
const L4PROTO: u32 = 16;
/// enum nft_payload_bases.
const NETWORK: u32 = 1;
const TRANSPORT: u32 = 2;
/// enum nft_cmp_ops.
const EQUAL: u32 = 0;
const LESS: u32 = 2;
const AT_MOST: u32 = 3;
const MORE: u32 = 4;
const AT_LEAST: u32 = 5;
/// enum nft_verdicts: back to where the chain was called, which for a base chain is its policy.
const RETURN: i32 = -5;

/// What a register was loaded with.
#[derive(Clone, Debug)]
enum Loaded {
    Meta(u32),
    /// Base, offset, and which bits are kept of each byte.
    Payload(u32, usize, Vec<u8>),
}

/// Bytes of a header that have to be such, by offset.
struct Bytes<const N: usize> {
    value: [u8; N],
    mask: [u8; N],
}

impl<const N: usize> Bytes<N> {
    fn new() -> Self {
        Bytes {
            value: [0; N],
            mask: [0; N],
        }
    }

    /// Asks for bytes that nothing was asked of before.
    fn ask(&mut self, at: usize, value: &[u8], mask: &[u8]) -> Option<()> {
        let end = at + value.len();
        let (values, masks) = (self.value.get_mut(at..end)?, self.mask.get_mut(at..end)?);
        let fits = value
            .iter()
            .zip(mask)
            .all(|(value, mask)| value & !mask == 0);
        if masks.iter().any(|mask| *mask != 0) || mask.len() != value.len() || !fits {
            return None;
        }
        values.copy_from_slice(value);
        masks.copy_from_slice(mask);
        Some(())
    }

    /// What is asked of bytes as a number and its first bits; `None`: not of the first bits alone.
    fn take<const M: usize>(&mut self, at: usize) -> Option<([u8; M], u8)> {
        let value = self.value[at..at + M].try_into().ok()?;
        let mask: [u8; M] = std::mem::replace(
            <&mut [u8; M]>::try_from(&mut self.mask[at..at + M]).ok()?,
            [0; M],
        );
        let ones: u32 = mask.iter().map(|byte| byte.count_ones()).sum();
        let leading = mask.iter().position(|byte| *byte != 0xff);
        let leading = leading.map_or(8 * M as u32, |at| 8 * at as u32 + mask[at].leading_ones());
        (ones == leading).then_some((value, ones as u8))
    }

    /// Nothing else is asked for.
    fn is_done(&self) -> bool {
        self.mask.iter().all(|mask| *mask == 0)
    }
}

/// One rule in the terms of an access list; `None`: it says more.
fn read_rule(expressions: &[Expression], family: Option<u8>, accepts: bool) -> Option<Rule> {
    let mut rule = Rule {
        family,
        ..Rule::default()
    };
    let mut registers: Vec<(u32, Loaded)> = Vec::new();
    let (mut network, mut transport) = (Bytes::<40>::new(), Bytes::<4>::new());
    let (last, steps) = expressions.split_last()?;
    for step in steps {
        match step {
            Expression::Counter => {}
            Expression::Meta { key, register } => {
                load(&mut registers, *register, Loaded::Meta(*key));
            }
            Expression::Payload {
                base,
                offset,
                len,
                register,
            } => {
                let whole = vec![0xff; usize::try_from(*len).ok().filter(|len| *len <= 40)?];
                let what = Loaded::Payload(*base, *offset as usize, whole);
                load(&mut registers, *register, what);
            }
            Expression::Bitwise {
                from,
                to,
                mask,
                xor,
            } => {
                let Loaded::Payload(base, offset, whole) = loaded(&registers, *from)? else {
                    return None;
                };
                if xor.iter().any(|byte| *byte != 0) || mask.len() != whole.len() {
                    return None;
                }
                let what = Loaded::Payload(base, offset, mask.clone());
                load(&mut registers, *to, what);
            }
            Expression::Compare {
                register,
                operator,
                value,
            } => match loaded(&registers, *register)? {
                Loaded::Meta(key) if *operator == EQUAL => meta(&mut rule, key, value)?,
                Loaded::Payload(NETWORK, at, mask) if *operator == EQUAL => {
                    network.ask(at, value, mask.get(..value.len())?)?;
                }
                Loaded::Payload(TRANSPORT, at, mask) if *operator == EQUAL => {
                    transport.ask(at, value, mask.get(..value.len())?)?;
                }
                Loaded::Payload(TRANSPORT, at, mask) if mask == [0xff; 2] => {
                    range(&mut rule, at, *operator, value)?;
                }
                _ => return None,
            },
            Expression::Verdict(_) | Expression::Other(_) => return None,
        }
    }
    rule.allows = match last {
        Expression::Verdict(0) => false,
        Expression::Verdict(1) => true,
        Expression::Verdict(RETURN) => accepts,
        _ => return None,
    };
    addresses(&mut rule, &mut network)?;
    for (at, is_to) in [(0, false), (2, true)] {
        let (port, bits) = transport.take::<2>(at)?;
        let port = u16::from_be_bytes(port);
        let ports = ports_of(&mut rule, is_to);
        match (bits, &ports) {
            (0, _) => {}
            (16, None) => *ports = Some((port, port)),
            _ => return None,
        }
    }
    let done = network.is_done() && transport.is_done();
    (done && rule.check().is_ok()).then_some(rule)
}

fn load(registers: &mut Vec<(u32, Loaded)>, register: u32, what: Loaded) {
    registers.retain(|(other, _)| *other != register);
    registers.push((register, what));
}

fn loaded(registers: &[(u32, Loaded)], register: u32) -> Option<Loaded> {
    let found = registers.iter().find(|(other, _)| *other == register);
    found.map(|(_, what)| what.clone())
}

fn meta(rule: &mut Rule, key: u32, value: &[u8]) -> Option<()> {
    match (key, value) {
        (NFPROTO, [number]) => {
            let family = match number {
                2 => 4,
                10 => 6,
                _ => return None,
            };
            if rule.family.replace(family).is_some_and(|had| had != family) {
                return None;
            }
        }
        (L4PROTO, [number]) if rule.protocol.is_none() => rule.protocol = Some(*number),
        (IIFNAME | OIFNAME, name) => {
            let place = if key == IIFNAME {
                &mut rule.input
            } else {
                &mut rule.output
            };
            // Without the zero behind it a name is the beginning of names.
            let end = name.iter().position(|byte| *byte == 0)?;
            if name[end..].iter().any(|byte| *byte != 0) || end == 0 || name.len() != 16 {
                return None;
            }
            let name = str::from_utf8(&name[..end]).ok()?;
            // No interface is called so, and no rule can be written so.
            if name.contains(char::is_whitespace) {
                return None;
            }
            if place.replace(name.to_owned()).is_some() {
                return None;
            }
        }
        _ => return None,
    }
    Some(())
}

fn ports_of(rule: &mut Rule, is_to: bool) -> &mut Option<(u16, u16)> {
    if is_to {
        &mut rule.destination.ports
    } else {
        &mut rule.source.ports
    }
}

/// One end of a range of ports.
fn range(rule: &mut Rule, at: usize, operator: u32, value: &[u8]) -> Option<()> {
    let value = u16::from_be_bytes(value.try_into().ok()?);
    let is_to = match at {
        0 => false,
        2 => true,
        _ => return None,
    };
    let ports = ports_of(rule, is_to);
    let (first, last) = ports.unwrap_or((0, u16::MAX));
    let (first, last) = match operator {
        AT_LEAST => (first.max(value), last),
        MORE => (first.max(value.checked_add(1)?), last),
        AT_MOST => (first, last.min(value)),
        LESS => (first, last.min(value.checked_sub(1)?)),
        _ => return None,
    };
    *ports = Some((first, last));
    (first <= last).then_some(())
}

/// What is asked of the IP header, of the family that is known by now.
fn addresses(rule: &mut Rule, network: &mut Bytes<40>) -> Option<()> {
    if network.is_done() {
        return Some(());
    }
    if rule.family? == 4 {
        let (protocol, bits) = network.take::<1>(9)?;
        match bits {
            0 => {}
            8 if rule.protocol.is_none_or(|had| had == protocol[0]) => {
                rule.protocol = Some(protocol[0]);
            }
            _ => return None,
        }
        let prefix = |(bytes, bits): ([u8; 4], u8)| {
            (bits > 0).then(|| IpNet::new(Ipv4Addr::from(bytes).into(), bits).ok())
        };
        rule.source.prefix = prefix(network.take(12)?).flatten();
        rule.destination.prefix = prefix(network.take(16)?).flatten();
    } else {
        let prefix = |(bytes, bits): ([u8; 16], u8)| {
            (bits > 0).then(|| IpNet::new(Ipv6Addr::from(bytes).into(), bits).ok())
        };
        rule.source.prefix = prefix(network.take(8)?).flatten();
        rule.destination.prefix = prefix(network.take(24)?).flatten();
    }
    Some(())
}
