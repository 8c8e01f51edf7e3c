//! What is fixed when the program is loaded: sizes, times, the seed.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::time::Duration;

use crate::error::Error;
use crate::layout::{self, BUCKET_SLOTS, TICK_MASK, TICK_SHIFT};

/// What is fixed when a balancer is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Flows that can be remembered: 1,024 to 67,108,864. Each costs 80 bytes of kernel memory (two
    /// 8-byte words, for the table to be half empty, and their parties' names, 32 bytes each).
    pub max_flows: u32,
    /// Services: 1 to 65,534. Each costs 128 KiB of kernel memory (two Maglev tables).
    pub max_services: u16,
    /// Servers of all services together: 1 to 65,534; a server of two services counts twice.
    pub max_servers: u16,
    /// How long an established flow is kept for sure though it is silent: 5 seconds to 17 hours.
    /// Also how long a client of a sticky service, or the port of a datagram's sender, keeps its
    /// server without a packet.
    pub idle: Duration,
    /// Remember every flow, not only those that have to be: flows can then be listed and counted to
    /// the last one, for one more cache line a packet. Otherwise TCP's and SCTP's flows are
    /// remembered where a service's servers have changed, and nowhere else.
    pub remember_all: bool,
    /// How long after a change of servers a flow from before may be silent and still be known: up
    /// to 16 hours. The default is longer than TCP keeps silent with keep-alive on (2 hours, RFC
    /// 9293, section 3.8.4).
    pub settle: Duration,
    /// Of all hashes. Balancers that shall choose alike share it; who knows it can make flows that
    /// meet in one bucket of the memory, and everybody knows the default
    /// ([`with_seed_of`](Options::with_seed_of)).
    pub seed: u64,
    /// Who says that a packet's hops are used up or that it is too big. Without one the service's
    /// address does.
    pub source_v4: Option<Ipv4Addr>,
    /// The IPv6 address that says so to senders of IPv6.
    pub source_v6: Option<Ipv6Addr>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            max_flows: 262_144,
            max_services: 256,
            max_servers: 4_096,
            idle: Duration::from_secs(300),
            remember_all: false,
            settle: Duration::from_secs(9000),
            seed: 0x6275_7474_6572_666c,
            source_v4: None,
            source_v6: None,
        }
    }
}

impl Options {
    /// With a fleet's secret seed, where a file with one is named: 16 hexadecimal digits, not all
    /// 0, with blanks around them or none, in a file that not everybody can read.
    ///
    /// # Errors
    /// A sentence that names the file.
    pub fn with_seed_of(self, file: Option<&Path>) -> Result<Options, String> {
        let seed = file.map_or(Ok(self.seed), read_seed)?;
        Ok(Options { seed, ..self })
    }
}

/// Digits of a seed in a file: 64 bits.
const SEED_DIGITS: usize = 16;

fn read_seed(path: &Path) -> Result<u64, String> {
    let text = sys::private_text::read(path, SEED_DIGITS as u64 + 3)?;
    let digits = text.trim();
    let all_hex = digits.chars().all(|c| c.is_ascii_hexdigit());
    let seed = u64::from_str_radix(digits, 16).unwrap_or(0);
    if digits.len() != SEED_DIGITS || !all_hex || seed == 0 {
        return Err(format!(
            "the seed in {} is not {SEED_DIGITS} hexadecimal digits, not all 0: openssl rand \
             -hex 8",
            path.display()
        ));
    }
    Ok(seed)
}

/// Addresses and services have eight times the room that they need in their tables.
const SPARSE: u32 = 8;

pub(crate) fn settings(options: &Options) -> Result<layout::ProgramSettings, Error> {
    let within = |option, value: u64, least: u64, most: u64| {
        let good = (least..=most).contains(&value);
        good.then_some(value).ok_or(Error::Option {
            option,
            value,
            least,
            most,
        })
    };
    let flows = within("max_flows", options.max_flows.into(), 1 << 10, 1 << 26)?;
    let services = within("max_services", options.max_services.into(), 1, 65_534)?;
    let servers = within("max_servers", options.max_servers.into(), 1, 65_534)?;
    let idle = within("idle (seconds)", options.idle.as_secs(), 5, 17 * 3600)?;
    within("settle (seconds)", options.settle.as_secs(), 0, 16 * 3600)?;
    let places = (services as u32 * SPARSE).next_power_of_two();
    Ok(layout::ProgramSettings {
        seed: options.seed,
        buckets: (2 * flows).div_ceil(BUCKET_SLOTS as u64) as u32,
        vips: places,
        ports: places,
        // Number 0 is nobody's.
        max_services: services as u32 + 1,
        max_servers: servers as u32 + 1,
        idle: ((idle * 1_000_000_000).div_ceil(1 << TICK_SHIFT) as u32).min(TICK_MASK),
        source4: options.source_v4.map_or([0; 4], |ip| ip.octets()),
        source6: options.source_v6.map_or([0; 16], |ip| ip.octets()),
        remember_all: options.remember_all.into(),
    })
}

pub(crate) fn configure(
    object: &mut libbpf_rs::OpenObject,
    settings: &layout::ProgramSettings,
) -> libbpf_rs::Result<()> {
    for mut map in object.maps_mut() {
        match map.name().to_str().unwrap_or_default() {
            "vips" => map.set_max_entries(2 * settings.vips)?,
            "ports" => map.set_max_entries(2 * settings.ports)?,
            "maglevs" => map.set_max_entries(2 * settings.max_services)?,
            "servers" => map.set_max_entries(2 * settings.max_servers)?,
            "server_counters" => map.set_max_entries(settings.max_servers)?,
            "flows" => map.set_max_entries(settings.buckets)?,
            "flow_names" => map.set_max_entries(settings.buckets * BUCKET_SLOTS as u32)?,
            name if name.ends_with(".rodata.settings") => {
                map.set_initial_value(bytemuck::bytes_of(settings))?
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_seed_is_read_and_what_is_none_is_refused_by_name() {
        let file = std::env::temp_dir().join(format!("butterfly-seed-{}", std::process::id()));
        let read = |text: &str, mode: u32| {
            std::fs::write(&file, text).unwrap();
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
            let read = read_seed(&file);
            std::fs::remove_file(&file).unwrap();
            read
        };
        assert_eq!(read("0123456789abcDEF\n", 0o640), Ok(0x0123_4567_89ab_cdef));
        assert_eq!(
            read(" f123456789abcdef\r\n", 0o600),
            Ok(0xf123_4567_89ab_cdef)
        );
        for (text, mode, why) in [
            (
                "0123456789abcdef",
                0o644,
                "can be read by everybody (mode 644)",
            ),
            ("", 0o600, "is not 16 hexadecimal digits"),
            ("123456789abcdef", 0o600, "is not 16 hexadecimal digits"),
            ("0123456789abcdef01", 0o600, "is not 16 hexadecimal digits"),
            ("+123456789abcdef", 0o600, "is not 16 hexadecimal digits"),
            ("0x23456789abcdef", 0o600, "is not 16 hexadecimal digits"),
            ("0000000000000000", 0o600, "not all 0"),
        ] {
            let error = read(text, mode).unwrap_err();
            let named = error.contains(&file.display().to_string());
            assert!(named && error.contains(why), "{text}: {error}");
        }
        let error = read_seed(Path::new("/nonexistent/seed")).unwrap_err();
        assert!(
            error.starts_with("/nonexistent/seed cannot be read"),
            "{error}"
        );
    }
}
