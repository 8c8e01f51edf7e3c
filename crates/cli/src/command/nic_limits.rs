//! What a NIC may send and be sent in a second, as people write and read it:
//! `100mbit,burst=1mb,packets=50k,connections=200,floods=100`.

use api::v1;

/// The keys, and where each limit is.
const KEYS: [&str; 4] = ["rate", "packets", "connections", "floods"];

/// The limits that a text says; `none`: none.
pub fn parse(text: &str) -> Result<v1::Limits, String> {
    let mut limits = [None::<v1::Limit>; 4];
    let mut bursts = [None::<u64>; 4];
    if text.eq_ignore_ascii_case("none") {
        return Ok(v1::Limits::default());
    }
    for (index, part) in text.split(',').enumerate() {
        let (key, value) = match part.split_once('=') {
            Some((key, value)) => (key.trim(), value.trim()),
            // The rate alone may come without its key, first.
            None if index == 0 => ("rate", part.trim()),
            None => return Err(format!("{part:?} is not KEY=VALUE")),
        };
        let (of, is_burst) = match key.strip_suffix("-burst") {
            Some(of) => (of, true),
            None if key == "burst" => ("rate", true),
            None => (key, false),
        };
        let Some(which) = KEYS.iter().position(|known| *known == of) else {
            return Err(format!(
                "{key:?} is none of rate, packets, connections, floods, and their bursts: burst, \
                 packets-burst, connections-burst, floods-burst"
            ));
        };
        let twice = match is_burst {
            true => {
                let burst = if which == 0 {
                    bytes(value)
                } else {
                    count(value)
                };
                bursts[which].replace(burst?).is_some()
            }
            false => {
                let rate = if which == 0 {
                    bits(value)
                } else {
                    count(value)
                }?;
                limits[which]
                    .replace(v1::Limit { rate, burst: 0 })
                    .is_some()
            }
        };
        if twice {
            return Err(format!("{key:?} is said twice"));
        }
    }
    for ((limit, burst), key) in limits.iter_mut().zip(bursts).zip(KEYS) {
        match (limit, burst) {
            (Some(limit), Some(burst)) => limit.burst = burst,
            (None, Some(_)) => return Err(format!("a burst without {key:?}")),
            (_, None) => {}
        }
    }
    let [bits, packets, connections, floods] = limits;
    Ok(v1::Limits {
        bits,
        packets,
        connections,
        floods,
    })
}

/// As [`parse`] takes it.
pub fn text(limits: &v1::Limits) -> String {
    let mut parts = Vec::new();
    if let Some(limit) = &limits.bits {
        parts.push(rate_text(limit.rate));
        parts.push(format!("burst={}", bytes_text(limit.burst)));
    }
    for (key, limit) in [
        ("packets", &limits.packets),
        ("connections", &limits.connections),
        ("floods", &limits.floods),
    ] {
        if let Some(limit) = limit {
            parts.push(format!("{key}={}", limit.rate));
            parts.push(format!("{key}-burst={}", limit.burst));
        }
    }
    match parts.is_empty() {
        true => "none".into(),
        false => parts.join(","),
    }
}

/// Bits a second: a number alone, or with tc's units in thousands. tc's `bps` means bytes and reads
/// as bits: nobody has to know.
fn bits(text: &str) -> Result<u64, String> {
    let lower = text.to_ascii_lowercase();
    if lower.ends_with("bps") {
        return Err(format!(
            "{text:?}: is it bits (mbit) or, as in tc, bytes a second? Write bit, kbit, mbit, gbit \
             or tbit"
        ));
    }
    let units = [
        ("tbit", 1_000_000_000_000),
        ("gbit", 1_000_000_000),
        ("mbit", 1_000_000),
        ("kbit", 1000),
        ("bit", 1),
        ("", 1),
    ];
    number(&lower, &units).ok_or_else(|| {
        format!("{text:?} is not a rate such as 100mbit or 2.5gbit (in bits a second)")
    })
}

/// Bytes, in tc's units of 1,024.
fn bytes(text: &str) -> Result<u64, String> {
    let units = [
        ("kib", 1 << 10),
        ("mib", 1 << 20),
        ("gib", 1 << 30),
        ("kb", 1 << 10),
        ("mb", 1 << 20),
        ("gb", 1 << 30),
        ("k", 1 << 10),
        ("m", 1 << 20),
        ("g", 1 << 30),
        ("b", 1),
        ("", 1),
    ];
    number(&text.to_ascii_lowercase(), &units)
        .ok_or_else(|| format!("{text:?} is not a size such as 64k or 1mb (in bytes)"))
}

/// Packets, connections or frames.
fn count(text: &str) -> Result<u64, String> {
    let units = [("k", 1000), ("m", 1_000_000), ("", 1)];
    number(&text.to_ascii_lowercase(), &units)
        .ok_or_else(|| format!("{text:?} is not a number such as 500 or 20k"))
}

/// A positive number with a unit; the first unit that it ends with counts. Parts of a unit may be
/// given, up to three digits.
fn number(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let (digits, unit) = units
        .iter()
        .find_map(|(name, unit)| Some((text.strip_suffix(name)?, *unit)))?;
    let (whole, part) = digits.split_once('.').unwrap_or((digits, "0"));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !is_number(whole) || !is_number(part) || part.len() > 3 {
        return None;
    }
    let thousandths: u64 = format!("{part:0<3}").parse().ok()?;
    let whole: u64 = whole.parse().ok()?;
    let value = whole
        .checked_mul(unit)?
        .checked_add(thousandths * unit / 1000)?;
    (value > 0).then_some(value)
}

fn rate_text(rate: u64) -> String {
    let units = [
        ("tbit", 1_000_000_000_000),
        ("gbit", 1_000_000_000),
        ("mbit", 1_000_000),
        ("kbit", 1000),
    ];
    in_units(rate, &units, "bit")
}

fn bytes_text(bytes: u64) -> String {
    let units = [("gb", 1 << 30), ("mb", 1 << 20), ("kb", 1 << 10)];
    in_units(bytes, &units, "b")
}

/// In the largest unit that it is a multiple of.
fn in_units(value: u64, units: &[(&str, u64)], smallest: &str) -> String {
    let fits = units.iter().find(|(_, unit)| value.is_multiple_of(*unit));
    match fits.filter(|_| value > 0) {
        Some((name, unit)) => format!("{}{name}", value / unit),
        None => format!("{value}{smallest}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_is_what_is_taken() {
        for (given, printed) in [
            ("none", "none"),
            ("100mbit,burst=1mb", "100mbit,burst=1mb"),
            ("rate=2.5gbit,burst=64k", "2500mbit,burst=64kb"),
            ("1000000", "1mbit,burst=0b"),
            ("1GBIT,burst=1000", "1gbit,burst=1000b"),
            ("1500bit,burst=1GiB", "1500bit,burst=1gb"),
            (
                "packets=20k,packets-burst=1.5k,connections=5",
                "packets=20000,packets-burst=1500,connections=5,connections-burst=0",
            ),
            (
                "floods=1m , floods-burst=7",
                "floods=1000000,floods-burst=7",
            ),
        ] {
            let limits = parse(given).unwrap();
            assert_eq!(text(&limits), printed, "{given}");
        }
        let all = "10mbit,burst=1mb,packets=3,packets-burst=4,floods=5,floods-burst=6";
        assert_eq!(text(&parse(all).unwrap()), all);
    }

    #[test]
    fn what_is_not_clear_is_refused_by_name() {
        for (given, part) in [
            ("", "not a rate"),
            ("fast", "\"fast\" is not a rate"),
            ("100mbps", "bits (mbit) or"),
            ("100Mbps", "bits (mbit) or"),
            ("-1mbit", "not a rate"),
            ("0", "not a rate"),
            ("1.2345mbit", "not a rate"),
            (".5mbit", "not a rate"),
            ("99999999999tbit", "not a rate"),
            ("10mbit,20mbit", "\"20mbit\" is not KEY=VALUE"),
            ("10mbit,rate=20mbit", "\"rate\" is said twice"),
            ("10mbit,burst=1mbit", "not a size"),
            ("burst=1mb", "a burst without \"rate\""),
            ("packets-burst=5", "a burst without \"packets\""),
            ("10mbit,packets=many", "\"many\" is not a number"),
            ("10mbit,speed=3", "\"speed\" is none of"),
        ] {
            let error = parse(given).unwrap_err();
            assert!(error.contains(part), "{given}: {error}");
        }
    }
}
