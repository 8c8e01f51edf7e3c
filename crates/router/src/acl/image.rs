//! An access list compiled to what `bpf/router/acl.h` looks up: for each field the row of rules
//! that take a value, and how a packet's value leads to it (`bpf/router.h` says what is where). No
//! kernel: words in memory.

use std::collections::{BTreeMap, HashMap};

use ipnet::IpNet;

use super::{List, ListError, Rule, Side};
use crate::layout::{
    ACL_DENIES, ACL_GROUPS, ACL_INTERFACES, ACL_NO_PORT, ACL_PROBES, ACL_PROTOCOLS, ACL_ROW_WORDS,
    AclHeader, ELEMENT_LINES, LINE_WORDS, acl_field, acl_place,
};
use crate::trie::{Shape, Trie, Words};

/// Elements at the most: 64 MiB, which only lists reach whose rules overlap each other in their
/// thousands.
const MOST_ELEMENTS: usize = 64;

/// A compiled list.
#[derive(Debug)]
pub struct Image {
    /// Whole elements.
    pub words: Vec<u32>,
    /// Counters that each CPU needs: one for each rule in their order, and one for "no rule".
    pub slots: usize,
}

/// Compiles a list. `ifindex` knows interfaces by name; those that are not there take no packet.
///
/// # Errors
/// It does not fit.
pub fn compile(list: &List, ifindex: impl Fn(&str) -> Option<u32>) -> Result<Image, ListError> {
    list.check_size()?;
    let slots = list.rules.len() + 1;
    let mut builder = Builder::new(list);
    let mut header = AclHeader {
        no_rule: list.rules.len() as u32 | if list.default_allows { 0 } else { ACL_DENIES },
        slots: slots as u32,
        // With it each packet has a row at least.
        fields: 1 << acl_field::PROTOCOL,
        ..AclHeader::default()
    };
    let mut ask = |field: u32, asks: &dyn Fn(&Rule) -> bool| {
        let any = list.rules.iter().any(asks);
        header.fields |= u32::from(any) << field;
        any
    };
    let by_family = |side: fn(&Rule) -> &Side| {
        move |rule: &Rule| side(rule).prefix.is_some() || rule.family.is_some()
    };
    let sides: [fn(&Rule) -> &Side; 2] = [|rule| &rule.source, |rule| &rule.destination];
    let [from, to] = [
        ask(acl_field::SOURCE, &by_family(sides[0])),
        ask(acl_field::DESTINATION, &by_family(sides[1])),
    ];
    let [from_ports, to_ports] = [
        ask(acl_field::SOURCE_PORT, &|rule| rule.source.ports.is_some()),
        ask(acl_field::DESTINATION_PORT, &|rule| {
            rule.destination.ports.is_some()
        }),
    ];
    let [input, output] = [
        ask(acl_field::IN, &|rule| rule.input.is_some()),
        ask(acl_field::OUT, &|rule| rule.output.is_some()),
    ];
    header.rules = builder.write_rules();
    header.protocols = builder.write_protocols()?;
    if from_ports {
        header.source_ports = builder.write_ports(|rule| &rule.source)?;
    }
    if to_ports {
        header.destination_ports = builder.write_ports(|rule| &rule.destination)?;
    }
    if input || output {
        builder.write_interfaces(&mut header, ifindex)?;
    }
    let mut tries = Vec::new();
    for (asked, side, lines) in [
        (from, sides[0], &mut header.source),
        (to, sides[1], &mut header.destination),
    ] {
        for (family, line) in [4, 6].into_iter().zip(lines.iter_mut()) {
            if asked {
                tries.push((line, builder.address_rows(family, side)?));
            }
        }
    }
    for (line, rows) in tries {
        *line = builder.write_trie(&rows)?;
    }
    builder.words[..LINE_WORDS].copy_from_slice(bytemuck::cast_slice(&[header]));
    builder.pad_to_element()?;
    Ok(Image {
        words: builder.words,
        slots,
    })
}

/// Which rules, by their places.
type Bits = [u64; ACL_ROW_WORDS];

/// An address's highest bits and how many they are, and the line of its row.
type PrefixRow = (u128, u8, u32);

struct Builder<'a> {
    list: &'a List,
    /// The rule at each place.
    places: Vec<usize>,
    words: Vec<u32>,
    /// Rows that are there, by their words.
    rows: HashMap<Vec<u32>, u32>,
}

impl<'a> Builder<'a> {
    fn new(list: &'a List) -> Self {
        Builder {
            list,
            places: places(&list.rules),
            words: vec![0; LINE_WORDS],
            rows: HashMap::new(),
        }
    }

    /// All places with their rules.
    fn placed(&self) -> impl Iterator<Item = (usize, &'a Rule)> + '_ {
        let rules = &self.list.rules;
        self.places.iter().map(|rule| &rules[*rule]).enumerate()
    }

    /// The rules that say yes.
    fn those(&self, take: impl Fn(&Rule) -> bool) -> Box<Bits> {
        let mut bits = empty();
        for (place, _) in self.placed().filter(|(_, rule)| take(rule)) {
            set(&mut bits, place);
        }
        bits
    }

    /// The line that the next table or row begins at.
    fn next_line(&self) -> u32 {
        (self.words.len() / LINE_WORDS) as u32
    }

    fn write_table(&mut self, words: &[u32]) -> u32 {
        let line = self.next_line();
        self.words.extend_from_slice(words);
        self.words
            .resize(self.words.len().next_multiple_of(LINE_WORDS), 0);
        line
    }

    fn write_rules(&mut self) -> u32 {
        let mut words = Vec::with_capacity(2 * self.places.len());
        for &rule in &self.places {
            let denies = if self.list.rules[rule].allows {
                0
            } else {
                ACL_DENIES
            };
            words.extend([rule as u32, rule as u32 | denies]);
        }
        self.write_table(&words)
    }

    /// The line of a row, written if there is none like it.
    fn row(&mut self, bits: &Bits) -> Result<u32, ListError> {
        let mut row = vec![0; LINE_WORDS];
        let mut before = [0; 4 * (LINE_WORDS - 2 * ACL_GROUPS)];
        for (at, word) in bits.iter().enumerate().filter(|(_, word)| **word != 0) {
            row[at / 64 * 2 + at % 64 / 32] |= 1 << (at % 32);
            row.extend([*word as u32, (*word >> 32) as u32]);
        }
        for group in 1..ACL_GROUPS {
            let earlier = bits[..group * 64].iter();
            before[group] = earlier.filter(|word| **word != 0).count() as u8;
        }
        row[2 * ACL_GROUPS..LINE_WORDS].copy_from_slice(bytemuck::cast_slice(&before));
        if let Some(line) = self.rows.get(&row) {
            return Ok(*line);
        }
        let lines = row.len().div_ceil(LINE_WORDS);
        let here = self.next_line() as usize;
        if here / ELEMENT_LINES != (here + lines - 1) / ELEMENT_LINES {
            self.pad_to_element()?;
        }
        let line = self.write_table(&row);
        self.rows.insert(row, line);
        Ok(line)
    }

    fn write_protocols(&mut self) -> Result<u32, ListError> {
        let mut table = Vec::with_capacity(ACL_PROTOCOLS);
        for number in 0..=255 {
            let takes = |rule: &Rule| rule.protocol.is_none_or(|own| own == number);
            table.push(self.row(&self.those(takes))?);
        }
        let unknown = self.those(|rule| rule.protocol.is_none() || !rule.allows);
        table.push(self.row(&unknown)?);
        Ok(self.write_table(&table))
    }

    fn write_ports(&mut self, side: fn(&Rule) -> &Side) -> Result<u32, ListError> {
        let without = self.those(|rule| side(rule).ports.is_none());
        // Where rules begin and end.
        let mut edges: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (place, rule) in self.placed() {
            if let Some((first, last)) = side(rule).ports {
                edges.entry(first.into()).or_default().push(place);
                edges.entry(usize::from(last) + 1).or_default().push(place);
            }
        }
        let mut bits = without.clone();
        let mut line = self.row(&bits)?;
        let mut table = Vec::with_capacity(ACL_NO_PORT + 2);
        for port in 0..ACL_NO_PORT {
            if let Some(places) = edges.get(&port) {
                places.iter().for_each(|place| flip(&mut bits, *place));
                line = self.row(&bits)?;
            }
            table.push(line);
        }
        table.push(self.row(&without)?);
        let unknown = self.those(|rule| side(rule).ports.is_none() || !rule.allows);
        table.push(self.row(&unknown)?);
        Ok(self.write_table(&table))
    }

    fn write_interfaces(
        &mut self,
        header: &mut AclHeader,
        ifindex: impl Fn(&str) -> Option<u32>,
    ) -> Result<(), ListError> {
        let names = self.list.rules.iter();
        let mut names: Vec<&str> = names
            .flat_map(|rule| [&rule.input, &rule.output])
            .flatten()
            .map(String::as_str)
            .collect();
        names.sort_unstable();
        names.dedup();
        let known: Vec<(&str, u32)> = names
            .into_iter()
            .filter_map(|name| Some((name, ifindex(name)?)))
            .collect();
        let indices: Vec<u32> = known.iter().map(|(_, index)| *index).collect();
        let places = interface_places(&indices).ok_or_else(|| {
            let count = indices.len();
            let why = format!("it names {count} interfaces, more than there is room for");
            ListError::Whole(why)
        })?;
        let mut table = [[0; 4]; ACL_INTERFACES];
        for ((name, index), place) in known.into_iter().zip(places) {
            let takes = |own: &Option<String>| own.as_deref().is_none_or(|own| own == name);
            let input = self.row(&self.those(|rule| takes(&rule.input)))?;
            let output = self.row(&self.those(|rule| takes(&rule.output)))?;
            table[place] = [index, input, output, 0];
        }
        header.other_in = self.row(&self.those(|rule| rule.input.is_none()))?;
        header.other_out = self.row(&self.those(|rule| rule.output.is_none()))?;
        let unknown = self.those(|rule| rule.output.is_none() || !rule.allows);
        header.unknown_out = self.row(&unknown)?;
        header.interfaces = self.write_table(table.as_flattened());
        Ok(())
    }

    /// A row for each prefix of a family that rules name, and for all other addresses: the rules of
    /// the prefix and of those that it lies in.
    fn address_rows(
        &mut self,
        family: u8,
        side: fn(&Rule) -> &Side,
    ) -> Result<Vec<PrefixRow>, ListError> {
        let mut all = empty();
        let mut by_prefix: BTreeMap<(u128, u8), Vec<usize>> = BTreeMap::new();
        for (place, rule) in self.placed() {
            match side(rule).prefix {
                // By the other end's prefix the family is known too.
                None if rule.only_family().is_none_or(|only| only == family) => {
                    set(&mut all, place);
                }
                Some(prefix) if prefix.addr().is_ipv4() == (family == 4) => {
                    by_prefix.entry(bits_of(prefix)).or_default().push(place);
                }
                _ => {}
            }
        }
        let mut rows = Vec::with_capacity(by_prefix.len() + 1);
        // What the prefixes are within, from the shortest on, each with its rules.
        let mut within = vec![((0, 0), all)];
        if !by_prefix.contains_key(&(0, 0)) {
            rows.push((0, 0, self.row(&within[0].1)?));
        }
        for ((bits, len), places) in by_prefix {
            while !is_within(bits, within[within.len() - 1].0) {
                within.pop();
            }
            let mut own = within[within.len() - 1].1.clone();
            places.iter().for_each(|place| set(&mut own, *place));
            rows.push((bits, len, self.row(&own)?));
            within.push(((bits, len), own));
        }
        Ok(rows)
    }

    /// A trie in elements of its own, of as many as it needs.
    fn write_trie(&mut self, rows: &[PrefixRow]) -> Result<u32, ListError> {
        self.pad_to_element()?;
        let line = self.next_line();
        let mut elements = 1;
        loop {
            let lines = elements * ELEMENT_LINES;
            let words = (0..lines * LINE_WORDS).map(|_| 0.into()).collect();
            // Both families have one shape here: as many levels as a prefix needs.
            let mut trie = Trie::new(Words::Memory(words), Shape::V6, lines);
            for (bits, len, row) in rows {
                trie.insert(*bits, *len, *row);
            }
            if trie.flush().is_ok() {
                self.words.extend(trie.into_words());
                self.check_room()?;
                return Ok(line);
            }
            elements *= 2;
            if elements > MOST_ELEMENTS {
                return Err(too_large());
            }
        }
    }

    fn pad_to_element(&mut self) -> Result<(), ListError> {
        let element = ELEMENT_LINES * LINE_WORDS;
        self.words
            .resize(self.words.len().next_multiple_of(element), 0);
        self.check_room()
    }

    fn check_room(&self) -> Result<(), ListError> {
        if self.words.len() > MOST_ELEMENTS * ELEMENT_LINES * LINE_WORDS {
            return Err(too_large());
        }
        Ok(())
    }
}

/// A place for each interface, at the most so far behind its own that the program finds it. In the
/// order of their own places nobody is farther behind than has to be, if the order begins where
/// nobody reaches over: where that is, is tried.
fn interface_places(indices: &[u32]) -> Option<Vec<usize>> {
    (0..ACL_INTERFACES).find_map(|begin| {
        let from_begin = |own: usize| (own + ACL_INTERFACES - begin) % ACL_INTERFACES;
        let mut order: Vec<usize> = (0..indices.len()).collect();
        order.sort_by_key(|at| from_begin(acl_place(indices[*at])));
        let mut taken = [false; ACL_INTERFACES];
        let mut places = vec![0; indices.len()];
        for at in order {
            let own = acl_place(indices[at]);
            let mut near = (own..own + ACL_PROBES).map(|place| place % ACL_INTERFACES);
            places[at] = near.find(|place| !taken[*place])?;
            taken[places[at]] = true;
        }
        Some(places)
    })
}

fn too_large() -> ListError {
    let why = "it takes more than 64 MiB: too many of its rules lie within each other";
    ListError::Whole(why.into())
}

/// The rules in an order in which those that differ in one value alone lie together: what takes a
/// packet is then in few words, whatever field tells it. In each word they are in the order of the
/// list, so that the first of a word is its lowest bit.
fn places(rules: &[Rule]) -> Vec<usize> {
    let key = |rule: &Rule| {
        let bits = |side: &Side| side.prefix.map(bits_of);
        let (from, to) = (bits(&rule.source), bits(&rule.destination));
        let how = match (from, to) {
            (Some(_), Some(_)) => 0,
            (Some(_), None) => 1,
            (None, Some(_)) => 2,
            (None, None) => 3,
        };
        let ports = (rule.destination.ports, rule.source.ports);
        (
            (how, rule.only_family()),
            from,
            to,
            (rule.protocol, ports),
            (rule.input.clone(), rule.output.clone()),
        )
    };
    let mut places: Vec<usize> = (0..rules.len()).collect();
    places.sort_by_cached_key(|rule| key(&rules[*rule]));
    places.chunks_mut(64).for_each(<[usize]>::sort_unstable);
    places
}

/// A prefix as the highest bits of a number, IPv4's as well.
fn bits_of(prefix: IpNet) -> (u128, u8) {
    match prefix {
        IpNet::V4(prefix) => (
            u128::from(u32::from(prefix.network())) << 96,
            prefix.prefix_len(),
        ),
        IpNet::V6(prefix) => (u128::from(prefix.network()), prefix.prefix_len()),
    }
}

fn is_within(bits: u128, (outer, len): (u128, u8)) -> bool {
    len == 0 || (bits ^ outer) >> (128 - len) == 0
}

fn empty() -> Box<Bits> {
    Box::new([0; ACL_ROW_WORDS])
}

fn set(bits: &mut Bits, place: usize) {
    bits[place / 64] |= 1 << (place % 64);
}

fn flip(bits: &mut Bits, place: usize) {
    bits[place / 64] ^= 1 << (place % 64);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_that_take_no_packet_take_no_place_of_others() {
        let list = List::parse("default deny\nallow\ndeny in gone\nallow ipv6\n").expect("a list");
        let image = compile(&list, |_| None).expect("it fits");
        let header: AclHeader =
            bytemuck::pod_read_unaligned(bytemuck::cast_slice(&image.words[..LINE_WORDS]));
        assert_eq!((image.slots, header.no_rule), (4, 3 | ACL_DENIES));
        let row = |line: u32| {
            let at = line as usize * LINE_WORDS;
            image.words[at + LINE_WORDS]
        };
        // All but the second, whose interface is not there.
        let places = places(&list.rules);
        let second = places
            .iter()
            .position(|rule| *rule == 1)
            .expect("it has a place");
        assert_eq!(row(header.other_in), 0b111 ^ (1 << second));
    }

    /// Whatever their indices are: an interface that goes and comes back has another one.
    #[test]
    fn a_hundred_interfaces_have_places_that_the_program_finds() {
        use rand::rngs::StdRng;
        use rand::{Rng, SeedableRng};
        let mut rng = StdRng::seed_from_u64(7);
        for _ in 0..200 {
            let mut indices: Vec<u32> = (0..100).map(|_| rng.random_range(1..100_000)).collect();
            indices.sort_unstable();
            indices.dedup();
            let places = interface_places(&indices).expect("room");
            let mut taken = [0; ACL_INTERFACES];
            places.iter().for_each(|place| taken[*place] += 1);
            assert!(taken.iter().all(|count| *count <= 1), "{indices:?}");
            for (index, place) in indices.iter().zip(&places) {
                let own = acl_place(*index);
                let behind = (place + ACL_INTERFACES - own) % ACL_INTERFACES;
                assert!(behind < ACL_PROBES, "{index} at {place}");
                // The program ends its search at a place that nobody has.
                let mut between = (own..own + behind).map(|place| place % ACL_INTERFACES);
                assert!(between.all(|place| taken[place] == 1), "{index} at {place}");
            }
        }
        let too_many: Vec<u32> = (1..=ACL_INTERFACES as u32 + 1).collect();
        assert_eq!(interface_places(&too_many), None);
    }

    #[test]
    fn as_many_rules_as_there_may_be_fit() {
        let mut text = String::from("default deny\n");
        for n in 0..16_384u32 {
            let [_, a, b, c] = n.wrapping_mul(0x9e37_79b1).to_be_bytes();
            let (from, to) = (
                format!("fd00::{b:x}:{c:x}"),
                format!("2001:db8:{a:x}::{n:x}"),
            );
            text += &format!("allow proto tcp from {from} to {to} port {n}\n");
        }
        let list = List::parse(&text).expect("a list");
        let image = compile(&list, |_| None).expect("it fits");
        assert!(image.words.len() < 40 << 18, "{} words", image.words.len());
    }
}
