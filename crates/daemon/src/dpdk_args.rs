//! `--dpdk-args`: options for DPDK's environment layer, taken for what they mean to a daemon
//! without DPDK; a build that has it hands them on ([`for_dpdk`]).
//!
//! A core is where the worker runs; a device over an interface of the kernel names an uplink; a
//! ring leads nowhere, and a bond to its members. What is about memory, files and drivers of DPDK
//! has no effect, and says so in a line of the log. The names are those of DPDK's guide for Linux
//! ("EAL parameters").

use std::path::Path;

use rustix::thread::CpuSet;

/// What the options come down to.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct DpdkArgs {
    /// The worker's core.
    pub core: Option<usize>,
    /// PCI devices, which DPDK numbers first.
    pci: Vec<Device>,
    /// Virtual devices, numbered behind them.
    vdevs: Vec<Device>,
    /// What was accepted and does not work as it does with DPDK, a sentence each.
    pub remarks: Vec<String>,
}

/// What DPDK would have made a port of.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Device {
    /// `eth_pcap0`, or a PCI address.
    name: String,
    leads: Leads,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Leads {
    /// To the wire, by this interface.
    To(String),
    /// To wherever the PCI device leads whose address is the name.
    Pci,
    /// To itself: a port for tests.
    Nowhere,
    /// To where these devices lead.
    Members { mode: u8, names: Vec<String> },
}

/// Which interfaces are to join this host to others.
#[derive(Debug, PartialEq, Eq)]
pub enum Join {
    /// The one that has the address of `-i`: nothing else is said.
    Address,
    Interfaces(Vec<String>),
    /// None at all.
    NoInterface,
}

/// How many words an option takes.
#[derive(Clone, Copy, PartialEq)]
enum Takes {
    Nothing,
    Value,
    /// Behind `=` alone, where there is one.
    Maybe,
}

/// What an option does here.
#[derive(Clone, Copy, PartialEq)]
enum Does {
    CoreMask,
    CoreList,
    Vdev,
    Pci,
    /// It has no effect, and why.
    Nothing(&'static str),
}

const MEMORY: &str = "no hugepages are needed";
const FILES: &str = "nothing is shared with other DPDK processes";
const ALWAYS: &str = "it is always so here";
const KERNEL: &str = "the kernel keeps the NICs";
const CORES: &str = "-u CORE says where the worker runs";
const LOG: &str = "-l LEVEL and --no-syslog say what is logged where";
const HARDWARE: &str = "there is no DPDK that it could be for";

/// Every option that is known.
const OPTIONS: &[(&[&str], Takes, Does)] = &[
    (&["-c"], Takes::Value, Does::CoreMask),
    (&["-l"], Takes::Value, Does::CoreList),
    (&["--vdev"], Takes::Value, Does::Vdev),
    (
        &["-a", "-w", "--allow", "--pci-whitelist"],
        Takes::Value,
        Does::Pci,
    ),
    (
        &["-b", "--block", "--pci-blacklist"],
        Takes::Value,
        Does::Nothing(KERNEL),
    ),
    (
        &["--lcores", "--main-lcore", "--master-lcore", "-s", "-S"],
        Takes::Value,
        Does::Nothing(CORES),
    ),
    (
        &[
            "-n",
            "-r",
            "-m",
            "--socket-mem",
            "--numa-mem",
            "--socket-limit",
            "--huge-dir",
        ],
        Takes::Value,
        Does::Nothing(MEMORY),
    ),
    (
        &["--huge-unlink", "--huge-worker-stack"],
        Takes::Maybe,
        Does::Nothing(MEMORY),
    ),
    (
        &[
            "--legacy-mem",
            "--single-file-segments",
            "--match-allocations",
        ],
        Takes::Nothing,
        Does::Nothing(MEMORY),
    ),
    (
        &["--file-prefix", "--proc-type", "--base-virtaddr"],
        Takes::Value,
        Does::Nothing(FILES),
    ),
    (&["--no-shconf"], Takes::Nothing, Does::Nothing(FILES)),
    (
        &["--no-huge", "--in-memory", "--no-pci"],
        Takes::Nothing,
        Does::Nothing(ALWAYS),
    ),
    (
        &["--log-level", "--log-color", "--log-timestamp"],
        Takes::Value,
        Does::Nothing(LOG),
    ),
    (&["--syslog"], Takes::Maybe, Does::Nothing(LOG)),
    (
        &[
            "-d",
            "--iova-mode",
            "--vfio-intr",
            "--vfio-vf-token",
            "--mbuf-pool-ops-name",
            "--force-max-simd-bitwidth",
        ],
        Takes::Value,
        Does::Nothing(HARDWARE),
    ),
    (
        &[
            "--create-uio-dev",
            "--vmware-tsc-map",
            "--no-hpet",
            "--xen-dom0",
            "--telemetry",
            "--no-telemetry",
        ],
        Takes::Nothing,
        Does::Nothing(HARDWARE),
    ),
];

/// What `--dpdk-help` prints.
pub fn help() -> String {
    let mut text = String::from(match dpdk::AVAILABLE {
        true => {
            "This daemon has DPDK: the options of --dpdk-args are DPDK's own, but for those about \
             cores, of which the worker's is the first. Without DPDK they would do this:\n\n"
        }
        false => {
            "Options of --dpdk-args, as this daemon takes them. There is no DPDK in it: NICs stay \
             with the kernel.\n\n"
        }
    });
    for (names, takes, does) in OPTIONS {
        let value = match takes {
            Takes::Nothing => "",
            Takes::Value => " VALUE",
            Takes::Maybe => "[=VALUE]",
        };
        let does = match does {
            Does::CoreMask => {
                "the worker's core: the lowest of this hexadecimal mask, unless -u says another"
            }
            Does::CoreList => "the worker's core: the first of this list, unless -u says another",
            Does::Vdev => {
                "a device:\n      eth_pcapN,iface=IF and net_pcapN, *_af_packetN, *_af_xdpN    the \
                 interface IF as an uplink\n      \
                 net_bondingN,mode=M,slave=DEVICE,... and eth_bondN            the interfaces of \
                 its devices as uplinks\n      \
                 eth_ringN and net_ringN, *_nullN                              no uplink at all"
            }
            Does::Pci => "the interface that the kernel has for this PCI device as an uplink",
            Does::Nothing(why) => &format!("no effect: {why}"),
        };
        text += &format!("  {}{value}\n      {does}\n", names.join(", "));
    }
    text += "\nDevices are counted from 0, PCI devices first; --dpdk-port N takes the one with \
             that number, and the first that is no member of a bond is taken without it.\n";
    text
}

/// The words of the text for a build that has DPDK, and the worker's core if they name one: DPDK's
/// own threads get none, so that nothing is pinned but workers. Unless the text says so itself, no
/// files are shared with other processes of DPDK's.
pub fn for_dpdk(text: &str) -> Result<(Vec<String>, Option<usize>), String> {
    let (mut given, mut core) = (Vec::new(), None);
    // One, for the thread that starts DPDK and ends then.
    let mut all = vec![format!("--lcores=0@{}", a_core())];
    for option in options_of(text) {
        let (name, takes, does, value) = option?;
        given.push(name);
        match does {
            Does::CoreMask => core = Some(lowest_bit(value)?),
            Does::CoreList => core = Some(first_core(value)?),
            Does::Nothing(CORES) => {}
            _ if value.is_empty() => all.push(name.to_owned()),
            _ if name.starts_with("--") => all.push(format!("{name}={value}")),
            _ => all.extend([name.to_owned(), value.to_owned()]),
        }
        debug_assert!(takes != Takes::Nothing || value.is_empty());
    }
    let says = |names: &[&str]| given.iter().any(|name| names.contains(name));
    // Memory of the old kind does not go with the better one of both.
    let alone = match says(&["--no-huge", "--legacy-mem"]) {
        true => "--no-shconf",
        false => "--in-memory",
    };
    if !says(&[alone, "--in-memory", "--file-prefix", "--proc-type"]) {
        all.push(alone.to_owned());
    }
    if !says(&["--telemetry", "--no-telemetry"]) {
        all.push("--no-telemetry".to_owned());
    }
    Ok((all, core))
}

/// A core that this process may run on.
fn a_core() -> usize {
    let set = rustix::thread::sched_getaffinity(None).ok();
    let first = set.and_then(|set| (0..CpuSet::MAX_CPU).find(|core| set.is_set(*core)));
    first.unwrap_or_default()
}

/// Each option of the text with what it is and its value.
fn options_of(text: &str) -> impl Iterator<Item = Result<(&str, Takes, Does, &str), String>> {
    let mut words = text.split_whitespace();
    std::iter::from_fn(move || {
        let word = words.next()?;
        let (name, attached) = split(word);
        let known = OPTIONS.iter().find(|(names, ..)| names.contains(&name));
        let Some((_, takes, does)) = known else {
            return Some(Err(format!(
                "--dpdk-args: '{word}' is no option of DPDK that is known here; \
                 --dpdk-help lists those that are"
            )));
        };
        let value = match takes {
            Takes::Value => match attached.or_else(|| words.next()) {
                Some(value) => value,
                None => return Some(Err(format!("--dpdk-args: {name} needs a value"))),
            },
            Takes::Nothing if attached.is_some() => {
                return Some(Err(format!(
                    "--dpdk-args: {name} takes no value, as in '{word}'"
                )));
            }
            Takes::Maybe | Takes::Nothing => attached.unwrap_or_default(),
        };
        Some(Ok((name, *takes, *does, value)))
    })
}

/// Parses the text as DPDK would split it: at blanks, values attached (`-c1`, `--vdev=x`) or apart.
pub fn parse(text: &str) -> Result<DpdkArgs, String> {
    let mut args = DpdkArgs::default();
    for option in options_of(text) {
        let (name, _, does, value) = option?;
        match does {
            Does::CoreMask => args.core = Some(lowest_bit(value)?),
            Does::CoreList => args.core = Some(first_core(value)?),
            Does::Vdev => vdev(value, &mut args)?,
            Does::Pci => args.pci.push(pci(value)),
            Does::Nothing(why) => {
                let value = if value.is_empty() {
                    ""
                } else {
                    &format!(" {value}")
                };
                args.remarks
                    .push(format!("--dpdk-args {name}{value} has no effect: {why}"));
            }
        }
    }
    Ok(args)
}

/// `-c1` and `--vdev=x` carry their values.
fn split(word: &str) -> (&str, Option<&str>) {
    if word.starts_with("--") {
        return match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word, None),
        };
    }
    match word.char_indices().nth(2) {
        Some((at, _)) if word.starts_with('-') => {
            (&word[..at], Some(word[at..].trim_start_matches('=')))
        }
        _ => (word, None),
    }
}

/// A hexadecimal mask of cores.
fn lowest_bit(mask: &str) -> Result<usize, String> {
    let digits = mask.trim_start_matches("0x");
    match u128::from_str_radix(digits, 16) {
        Ok(bits) if bits != 0 => Ok(bits.trailing_zeros() as usize),
        _ => Err(format!(
            "--dpdk-args -c: '{mask}' is no hexadecimal mask of cores; use -u CORE"
        )),
    }
}

/// A list of cores: `0`, `1-3`, `2,4`.
fn first_core(list: &str) -> Result<usize, String> {
    let first = list.split([',', '-']).next().unwrap_or_default();
    first
        .parse()
        .map_err(|_| format!("--dpdk-args -l: '{list}' is no list of cores; use -u CORE"))
}

/// A PCI address, with options of its driver behind it.
fn pci(value: &str) -> Device {
    let address = value.split(',').next().unwrap_or_default();
    Device {
        name: domain(address),
        leads: Leads::Pci,
    }
}

/// `01:00.0` is `0000:01:00.0`.
fn domain(address: &str) -> String {
    match address.matches(':').count() {
        1 => format!("0000:{address}"),
        _ => address.to_owned(),
    }
}

fn is_pci(name: &str) -> bool {
    let hexadecimal =
        |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let mut parts = name.rsplit([':', '.']);
    parts.by_ref().take(3).all(hexadecimal) && name.contains(':') && name.contains('.')
}

fn vdev(text: &str, args: &mut DpdkArgs) -> Result<(), String> {
    let (name, options) = text.split_once(',').unwrap_or((text, ""));
    let refused = |why: &str| Err(format!("--dpdk-args --vdev={text}: {why}"));
    let options: Vec<(&str, &str)> = options
        .split(',')
        .filter(|option| !option.is_empty())
        .map(|option| option.split_once('=').unwrap_or((option, "")))
        .collect();
    let of = |key: &str| {
        options
            .iter()
            .find(|(name, _)| *name == key)
            .map(|(_, value)| *value)
    };
    let driver = name.trim_end_matches(|digit: char| digit.is_ascii_digit());
    let kind = driver.strip_prefix("net_").or(driver.strip_prefix("eth_"));
    let leads = match kind {
        Some("pcap" | "af_packet" | "af_xdp") => {
            let (receive, send) = (
                of("iface").or(of("rx_iface")),
                of("iface").or(of("tx_iface")),
            );
            match (receive, send) {
                (Some(interface), Some(other)) if interface == other && !interface.is_empty() => {
                    Leads::To(interface.to_owned())
                }
                _ => {
                    return refused(
                        "it is to name one interface of the kernel, as \
                         --vdev=eth_af_packet0,iface=eth0",
                    );
                }
            }
        }
        Some("ring" | "null") => Leads::Nowhere,
        Some("bond" | "bonding") => {
            let mode = of("mode").unwrap_or("0");
            let Some(mode) = mode.parse().ok().filter(|mode| *mode <= 6) else {
                return refused(&format!("'{mode}' is no mode of a bond, 0 to 6"));
            };
            let names: Vec<String> = options
                .iter()
                .filter(|(key, _)| ["slave", "member"].contains(key))
                .map(|(_, name)| {
                    if is_pci(name) {
                        domain(name)
                    } else {
                        (*name).to_owned()
                    }
                })
                .collect();
            if names.is_empty() {
                return refused(
                    "it is to name its members, as --vdev=net_bonding0,mode=1,slave=eth_pcap0",
                );
            }
            Leads::Members { mode, names }
        }
        Some("tap") => {
            args.remarks.push(format!(
                "--dpdk-args --vdev={text} has no effect: where no interface has the address of \
                 -i, a TAP device is made"
            ));
            return Ok(());
        }
        None if [
            "crypto_",
            "compress_",
            "event_",
            "dma_",
            "raw_",
            "baseband_",
        ]
        .iter()
        .any(|class| driver.starts_with(class)) =>
        {
            args.remarks.push(format!(
                "--dpdk-args --vdev={text} has no effect: {HARDWARE}"
            ));
            return Ok(());
        }
        _ => {
            return refused(
                "only a device over an interface of the kernel, as eth_af_packet0,iface=eth0, a \
                 ring and a bond mean something here",
            );
        }
    };
    if args.vdevs.iter().any(|known| known.name == name) {
        return refused("there are two devices of this name");
    }
    args.vdevs.push(Device {
        name: name.to_owned(),
        leads,
    });
    Ok(())
}

impl DpdkArgs {
    /// Which interfaces the port with this number leads to; `None`: the first port that is no
    /// member of a bond. What is left out, and what a bond cannot do here, is added to the remarks.
    /// `interface_of` is the interface of a PCI address.
    pub fn join(
        &mut self,
        number: Option<u32>,
        interface_of: impl Fn(&str) -> Option<String>,
    ) -> Result<Join, String> {
        let mut pci = self.pci.clone();
        pci.sort_by(|one, other| one.name.cmp(&other.name));
        pci.dedup();
        let ports: Vec<Device> = pci.into_iter().chain(self.vdevs.iter().cloned()).collect();
        let member = |name: &str| {
            ports.iter().any(|port| match &port.leads {
                Leads::Members { names, .. } => names.iter().any(|member| member == name),
                _ => false,
            })
        };
        let chosen = match number {
            Some(number) => ports.get(number as usize),
            None => ports.iter().find(|port| !member(&port.name)),
        };
        let Some(chosen) = chosen else {
            if let Some(number) = number {
                self.remarks.push(format!(
                    "--dpdk-port {number} has no effect: --dpdk-args names {} devices, counted \
                     from 0, and the kernel keeps the NICs; see --uplink",
                    ports.len()
                ));
            }
            return Ok(Join::Address);
        };
        let used = |name: &str| {
            name == chosen.name
                || matches!(&chosen.leads,
                    Leads::Members { names, .. } if names.iter().any(|member| member == name))
        };
        for (number, port) in ports
            .iter()
            .enumerate()
            .filter(|(_, port)| !used(&port.name))
        {
            self.remarks.push(format!(
                "--dpdk-args {} is not used: one device is, {}; --dpdk-port {number} takes this \
                 one instead",
                port.name, chosen.name
            ));
        }
        let leads_to = |device: &Device| match &device.leads {
            Leads::To(interface) => Ok(Some(interface.clone())),
            Leads::Pci => Ok(interface_of(&device.name)),
            Leads::Nowhere => Ok(None),
            Leads::Members { .. } => Err(format!(
                "--dpdk-args: the bond {} is a member of another",
                device.name
            )),
        };
        let no_interface = |name: &str| {
            format!(
                "--dpdk-args {name} has no effect: the kernel has no interface for this PCI \
                 device; leave it with its kernel driver, or name another interface with --uplink"
            )
        };
        match &chosen.leads {
            Leads::To(interface) => Ok(Join::Interfaces(vec![interface.clone()])),
            Leads::Nowhere => Ok(Join::NoInterface),
            Leads::Pci => match interface_of(&chosen.name) {
                Some(interface) => Ok(Join::Interfaces(vec![interface])),
                None => {
                    self.remarks.push(no_interface(&chosen.name));
                    Ok(Join::Address)
                }
            },
            Leads::Members { mode, names } => {
                let mut interfaces = Vec::new();
                for name in names {
                    let interface = match ports.iter().find(|port| port.name == *name) {
                        Some(device) => leads_to(device)?,
                        None if is_pci(name) => interface_of(name),
                        None => {
                            return Err(format!(
                                "--dpdk-args: {}, a member of {}, is named by no --vdev before or \
                                 behind it",
                                name, chosen.name
                            ));
                        }
                    };
                    match interface {
                        Some(interface) if interfaces.contains(&interface) => {}
                        Some(interface) => interfaces.push(interface),
                        None if is_pci(name) => self.remarks.push(no_interface(name)),
                        None => {}
                    }
                }
                self.remarks.push(bond(&chosen.name, *mode));
                match interfaces.is_empty() {
                    true => Ok(Join::Address),
                    false => Ok(Join::Interfaces(interfaces)),
                }
            }
        }
    }
}

/// What becomes of a bond's mode.
fn bond(name: &str, mode: u8) -> String {
    let (spoken, instead) = match mode {
        3 => (
            "a packet leaves by one of them, not by all (mode 3, broadcast)",
            "there is nothing like it here",
        ),
        4 => (
            "no LACP is spoken (mode 4), so a switch that asks for it leaves them out",
            "make a bond of the kernel of them and name that with --uplink",
        ),
        _ => (
            "the kernel's routes say by which of them a packet leaves",
            "several next hops of a route share the flows, and a route whose link is down is not \
             taken",
        ),
    };
    format!("--dpdk-args {name}: its members are joined each for itself, and {spoken}: {instead}")
}

/// The interface that the kernel has for a PCI device, below `/sys/bus/pci/devices`.
pub fn pci_interface(devices: &Path, address: &str) -> Option<String> {
    // The address is a name in that folder, and no way out of it.
    if !is_pci(address) || address.contains('/') {
        return None;
    }
    let names = std::fs::read_dir(devices.join(address).join("net")).ok()?;
    let mut names: Vec<String> = names
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    names.sort();
    names.into_iter().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(text: &str, port: Option<u32>) -> (Join, Vec<String>) {
        let mut args = parse(text).unwrap();
        args.remarks.clear();
        let pci = |address: &str| (address == "0000:01:00.0").then(|| "ens1".to_owned());
        (args.join(port, pci).unwrap(), args.remarks)
    }

    fn by(names: &[&str]) -> Join {
        Join::Interfaces(names.iter().map(|name| (*name).to_owned()).collect())
    }

    #[test]
    fn the_readme_s_options() {
        let args = parse("-c1 -n1 --socket-mem 64 --vdev=eth_pcap0,iface=eth0").unwrap();
        assert_eq!(args.core, Some(0));
        assert_eq!(
            args.remarks,
            [
                "--dpdk-args -n 1 has no effect: no hugepages are needed",
                "--dpdk-args --socket-mem 64 has no effect: no hugepages are needed",
            ]
        );
    }

    #[test]
    fn the_default_and_the_tests_options_have_a_line_each() {
        for (text, remarks) in [
            ("-c1 -n1 --socket-mem 64 --no-shconf --huge-unlink", 4),
            (
                "-c1 -n1 --no-huge -m 1024 --file-prefix=host --no-pci --vdev=eth_ring0",
                5,
            ),
            (
                "--huge-unlink=always --proc-type auto -d /x.so --iova-mode=va",
                4,
            ),
            (
                "--lcores 0@(0-5) --log-level eal:8 --syslog -b 0000:02:00.0",
                4,
            ),
            ("--vdev=crypto_null0 --vdev=net_tap0,iface=foo", 2),
        ] {
            let args = parse(text).unwrap();
            assert_eq!(args.remarks.len(), remarks, "{text}: {:?}", args.remarks);
        }
    }

    #[test]
    fn cores_in_every_spelling() {
        for (text, core) in [
            ("-c 0xC", 2),
            ("-c0x80", 7),
            ("-c f0", 4),
            ("-l 3", 3),
            ("-l 2-5", 2),
            ("-l5,6", 5),
            ("-c 1 -l 9", 9),
        ] {
            assert_eq!(parse(text).unwrap().core, Some(core), "{text}");
        }
        assert_eq!(parse(""), Ok(DpdkArgs::default()));
    }

    /// Each line: the options, `--dpdk-port`, and what is joined.
    #[test]
    fn devices_lead_to_interfaces() {
        let two = "--vdev=eth_pcap0,iface=eth0 --vdev=net_af_packet1,iface=eth1,qpairs=1";
        let bond = "--vdev=net_pcap0,iface=eth0 --vdev net_pcap1,iface=eth1 \
                    --vdev net_bonding0,mode=1,slave=net_pcap0,slave=net_pcap1,primary=net_pcap0";
        for (text, port, expected, remarks) in [
            ("-c1 -n1", None, Join::Address, 0),
            ("-c1 -n1", Some(3), Join::Address, 1),
            ("--vdev=eth_pcap0,iface=eth0", None, by(&["eth0"]), 0),
            ("--vdev eth_pcap0,iface=eth0", Some(0), by(&["eth0"]), 0),
            ("--vdev=eth_pcap0,iface=eth0", Some(3), Join::Address, 1),
            (
                "--vdev=net_pcap7,rx_iface=e,tx_iface=e",
                None,
                by(&["e"]),
                0,
            ),
            (
                "--vdev=net_af_xdp0,iface=e,queue_count=2",
                None,
                by(&["e"]),
                0,
            ),
            (two, None, by(&["eth0"]), 1),
            (two, Some(1), by(&["eth1"]), 1),
            ("--vdev=eth_ring0", None, Join::NoInterface, 0),
            (
                "--vdev=eth_ring0 --vdev=net_null1",
                Some(1),
                Join::NoInterface,
                1,
            ),
            (
                "--vdev=eth_ring0 --vdev=eth_pcap0,iface=eth0",
                Some(1),
                by(&["eth0"]),
                1,
            ),
            (bond, None, by(&["eth0", "eth1"]), 1),
            (bond, Some(2), by(&["eth0", "eth1"]), 1),
            (bond, Some(1), by(&["eth1"]), 2),
            (
                "--vdev=eth_bond0,mode=4,member=01:00.0,member=0000:01:00.0",
                None,
                by(&["ens1"]),
                1,
            ),
            (
                "--vdev=net_bonding0,mode=0,slave=0000:09:00.0",
                None,
                Join::Address,
                2,
            ),
            ("-w 0000:01:00.0,option=1", None, by(&["ens1"]), 0),
            ("-a 01:00.0 --vdev=eth_ring0", None, by(&["ens1"]), 1),
            ("-a 01:00.0 --vdev=eth_ring0", Some(1), Join::NoInterface, 1),
            ("--allow=0000:09:00.0", None, Join::Address, 1),
        ] {
            let (join, said) = joined(text, port);
            assert_eq!(join, expected, "{text} {port:?}");
            assert_eq!(said.len(), remarks, "{text} {port:?}: {said:?}");
        }
    }

    #[test]
    fn what_a_bond_cannot_do_is_said() {
        for (mode, said) in [
            (1, "kernel's routes"),
            (3, "not by all"),
            (4, "no LACP is spoken"),
            (6, "kernel's routes"),
        ] {
            let text = format!("--vdev=net_bonding0,mode={mode},slave=0000:01:00.0");
            let (_, remarks) = joined(&text, None);
            assert!(remarks[0].contains(said), "{remarks:?}");
        }
        let unknown = parse("--vdev=net_bonding0,mode=0,slave=net_pcap9")
            .unwrap()
            .join(None, |_| None);
        assert!(unknown.unwrap_err().contains("net_pcap9"));
    }

    #[test]
    fn refusals_say_what_to_use() {
        for (text, instead) in [
            ("-c", "needs a value"),
            ("-c 0", "use -u CORE"),
            ("-c xyz", "use -u CORE"),
            ("-l a", "use -u CORE"),
            ("--no-huge=1", "takes no value"),
            ("--vdev=net_memif0", "eth_af_packet0,iface=eth0"),
            ("--vdev=eth_pcpa0,iface=eth0", "eth_af_packet0,iface=eth0"),
            ("--vdev=eth_pcap0", "--vdev=eth_af_packet0,iface=eth0"),
            ("--vdev=eth_pcap0,rx_iface=a,tx_iface=b", "one interface"),
            (
                "--vdev=eth_pcap0,rx_pcap=/f",
                "--vdev=eth_af_packet0,iface=eth0",
            ),
            ("--vdev=net_bonding0,mode=7,slave=a", "no mode of a bond"),
            ("--vdev=net_bonding0,mode=1", "slave=eth_pcap0"),
            ("--vdev=eth_ring0 --vdev=eth_ring0", "two devices"),
            ("--frobnicate", "--dpdk-help"),
            ("-é", "--dpdk-help"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(instead), "{text}: {error}");
        }
    }

    #[test]
    fn the_help_names_every_option() {
        let help = help();
        for name in OPTIONS.iter().flat_map(|(names, ..)| *names) {
            assert!(help.contains(name), "{name} in:\n{help}");
        }
    }

    #[test]
    fn a_pci_device_s_interface() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("0000:01:00.0/net/ens1")).unwrap();
        let of = |address: &str| pci_interface(dir.path(), address);
        assert_eq!(of("0000:01:00.0"), Some("ens1".to_owned()));
        assert_eq!(of("0000:01:00.1"), None);
        assert_eq!(of("../0000:01:00.0"), None);
    }
}
