//! `--dpdk-args`: options for DPDK's environment layer, taken for what they mean to a daemon without DPDK.
//!
//! A core is where the worker runs; a virtual device over an interface names the uplink; memory options ask
//! for what is not needed. Anything else is refused with a sentence that says what to use instead.

/// What the options come down to.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct DpdkArgs {
    /// The worker's core.
    pub core: Option<usize>,
    /// The interface that is to join this host to others.
    pub uplink: Option<String>,
    /// What was accepted without effect, a sentence each.
    pub remarks: Vec<String>,
}

/// Parses the text as DPDK would split it: at blanks, values attached (`-c1`, `--vdev=x`) or apart.
pub fn parse(text: &str) -> Result<DpdkArgs, String> {
    let mut args = DpdkArgs::default();
    let mut words = text.split_whitespace();
    while let Some(word) = words.next() {
        let (name, attached) = split(word);
        let mut value = || {
            attached
                .or_else(|| words.next())
                .ok_or_else(|| format!("--dpdk-args: {name} needs a value"))
        };
        match name {
            "-c" => args.core = Some(lowest_bit(value()?)?),
            "-l" => args.core = Some(first_core(value()?)?),
            "--vdev" => vdev(value()?, &mut args)?,
            "-n" | "-r" | "-m" | "--socket-mem" | "--socket-limit" | "--huge-dir" | "--file-prefix"
            | "--proc-type" => {
                let value = value()?;
                args.remarks.push(format!(
                    "--dpdk-args {name} {value} has no effect: no hugepages are needed"
                ));
            }
            "--no-huge" | "--in-memory" | "--no-pci" => {
                args.remarks
                    .push(format!("--dpdk-args {name} has no effect: it is always so here"));
            }
            "-a" | "-w" | "--allow" | "--pci-whitelist" | "-b" | "--block" | "--pci-blacklist" => {
                return Err(format!(
                    "--dpdk-args {name}: NICs are not taken from the kernel here; leave the NIC with its kernel driver \
                     and name its interface with --vdev=eth_af_packet0,iface=NAME"
                ));
            }
            "--lcores" | "--main-lcore" | "--master-lcore" => {
                return Err(format!(
                    "--dpdk-args {name}: use -u CORE to say where the worker runs"
                ));
            }
            "--log-level" | "--syslog" => {
                return Err(format!(
                    "--dpdk-args {name}: use -l LEVEL and --no-syslog to say what is logged where"
                ));
            }
            _ => {
                return Err(format!(
                    "--dpdk-args: '{word}' means nothing here; known are -c, -l (or use -u CORE), -n, --socket-mem, \
                     --huge-dir and --vdev=eth_af_packet0,iface=NAME"
                ));
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
        Some((at, _)) if word.starts_with('-') => (&word[..at], Some(word[at..].trim_start_matches('='))),
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

fn vdev(device: &str, args: &mut DpdkArgs) -> Result<(), String> {
    let (driver, options) = device.split_once(',').unwrap_or((device, ""));
    let over_interface = ["eth_pcap", "net_pcap", "eth_af_packet", "net_af_packet"]
        .iter()
        .any(|name| driver.starts_with(name));
    let interface = options
        .split(',')
        .find_map(|option| option.strip_prefix("iface="));
    match interface {
        Some(interface) if over_interface && !interface.is_empty() => {
            args.uplink = Some(interface.to_owned());
            Ok(())
        }
        _ => Err(format!(
            "--dpdk-args --vdev={device}: only a device over an interface of the kernel means something here, \
             as --vdev=eth_af_packet0,iface=eth0"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_readme_s_options() {
        let args = parse("-c1 -n1 --socket-mem 64 --vdev=eth_pcap0,iface=eth0").unwrap();
        assert_eq!((args.core, args.uplink.as_deref()), (Some(0), Some("eth0")));
        assert_eq!(
            args.remarks,
            [
                "--dpdk-args -n 1 has no effect: no hugepages are needed",
                "--dpdk-args --socket-mem 64 has no effect: no hugepages are needed",
            ]
        );
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

    #[test]
    fn refusals_say_what_to_use() {
        for (text, instead) in [
            ("-c", "needs a value"),
            ("-c 0", "use -u CORE"),
            ("-c xyz", "use -u CORE"),
            ("-l a", "use -u CORE"),
            ("-a 0000:01:00.0", "--vdev=eth_af_packet0,iface=NAME"),
            ("--vdev=net_tap0", "--vdev=eth_af_packet0,iface=eth0"),
            ("--vdev=eth_pcap0", "--vdev=eth_af_packet0,iface=eth0"),
            ("--lcores 1@2", "-u CORE"),
            ("--log-level 8", "-l LEVEL"),
            ("--vfio-intr msi", "means nothing here"),
            ("-é", "means nothing here"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(instead), "{text}: {error}");
        }
    }
}
