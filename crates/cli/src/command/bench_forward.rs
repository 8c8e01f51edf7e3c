//! `butterfly bench forward`: packets a second by their size, forwarded by the kernel and by
//! `butterfly forward`, one after the other in one run. On one's own interfaces, or over cables
//! that are made for it.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use clap::Args;
use ipnet::Ipv4Net;
use netlink::change::Changes;
use netlink::devices::Devices;
use serde_json::{Value, json};
use wire::Mac;

use super::bench;
use super::doctor;
use super::xdp_mode::Mode;
use crate::doctor::{Finding, speed};
use crate::error::Error;
use crate::forwarding::{Forwarder, Load, Traffic, cables};
use crate::output::Table;
use crate::session::Session;

const EXAMPLES: &str = "\
Datagrams (UDP over IPv4) are sent by one interface as fast as its driver takes them, and counted
at another: what a host between the two forwards. First its kernel does, then `butterfly forward`,
at each size. Sizes are those on the wire, with the checksum of the frame (FCS) that the hardware
adds. /s is the median of windows of a second; GBIT/s counts the bytes of the frames, without
preamble and gap; OFFERED is what was sent. Root is needed.

Without interfaces two cables (veth pairs) are made in network namespaces of this process, and go
with it. What sends, forwards and counts is one core then, and the rates are those of all three:
compare, rather than quote. With interfaces of yours it sends by --source and counts at --sink.
They are cabled to the host that forwards: this one, by the interfaces of --through, or another,
of which --mac says where it takes packets, and which is measured as it is. That host needs a
route for --to by its second interface, to a neighbour that answers or is permanent. All else that
comes to the sink is the kernel's as ever.

Examples:
  butterfly bench forward
  butterfly bench forward --mode tc --sizes 64,1518
  butterfly bench forward --source eth2 --sink eth3 --mac 00:08:a2:09:5b:4b
  ip addr add 198.18.0.1/24 dev eth0 && ip addr add 198.18.1.1/24 dev eth1 &&
    ip neigh replace 198.18.1.2 lladdr $(cat /sys/class/net/eth3/address) dev eth1 &&
    ip route add 198.19.0.0/16 via 198.18.1.2 && sysctl net.ipv4.ip_forward=1 &&
    butterfly bench forward --source eth2 --through eth0,eth1 --sink eth3";

/// Bytes on the wire that Ethernet has between its least and its most.
const SIZES: std::ops::RangeInclusive<i64> = 64..=1518;

/// `bench forward`.
#[derive(Args, Debug, Clone)]
#[command(after_help = EXAMPLES)]
pub struct ForwardArgs {
    /// Send by this interface [default: cables that are made]
    #[arg(long, value_name = "INTERFACE", requires = "sink")]
    source: Option<String>,
    /// Count what comes to this interface
    #[arg(long, value_name = "INTERFACE", requires = "source")]
    sink: Option<String>,
    /// The interfaces of this host that forward: that where packets come in, and that where they
    /// leave
    #[arg(
        long,
        value_name = "IN,OUT",
        value_delimiter = ',',
        num_args = 1,
        requires = "source"
    )]
    through: Vec<String>,
    /// Another host forwards, and takes packets at this address; it is measured as it is
    #[arg(
        long,
        value_name = "MAC",
        conflicts_with = "through",
        requires = "source"
    )]
    mac: Option<Mac>,
    /// The address that packets come from
    #[arg(long, value_name = "ADDRESS", default_value = "198.18.0.2")]
    from: Ipv4Addr,
    /// The network that packets go to
    #[arg(long, value_name = "NET", default_value = "198.19.0.0/16")]
    to: Ipv4Net,
    /// Destinations in that network, each in turn: a power of two
    #[arg(long, value_name = "N", default_value_t = 1024,
        value_parser = clap::value_parser!(u32).range(1..=65_536))]
    destinations: u32,
    /// Bytes of the frames on the wire
    #[arg(long, value_name = "BYTES,…", value_delimiter = ',',
        default_value = "64,128,256,512,1024,1280,1518",
        value_parser = clap::value_parser!(u32).range(SIZES))]
    sizes: Vec<u32>,
    /// Windows of a second for each size, of the kernel and of the router
    #[arg(long, value_name = "N", default_value_t = 3,
        value_parser = clap::value_parser!(u32).range(1..=60))]
    seconds: u32,
    /// How the router's program runs, as in `butterfly forward` [default: native over cables that
    /// are made, else as `butterfly forward` chooses]
    #[arg(long, value_name = "MODE", ignore_case = true)]
    mode: Option<Mode>,
}

/// What forwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Kernel,
    Butterfly,
    /// Another host, whatever it does.
    Other,
}

/// What one has forwarded of frames of one size, a second, in each window.
#[derive(Clone, Debug, Default, PartialEq)]
struct Rates {
    arrived: Vec<f64>,
    offered: Vec<f64>,
}

/// A size.
#[derive(Clone, Debug)]
struct Row {
    size: u32,
    rates: Vec<(Who, Rates)>,
    /// Of what arrived while the router had the interfaces, what it says it has forwarded.
    by_router: Option<f64>,
}

/// All that was found.
struct Measured {
    rows: Vec<Row>,
    /// Where the router ran.
    places: Vec<String>,
    notes: Vec<String>,
    findings: Vec<Finding>,
}

impl Rates {
    fn frames(&self) -> f64 {
        bench::median(&self.arrived)
    }

    fn gbit(&self, size: u32) -> f64 {
        self.frames() * f64::from(size) * 8.0 / 1e9
    }
}

impl Row {
    fn of(&self, who: Who) -> Option<&Rates> {
        let mut all = self.rates.iter();
        all.find(|(one, _)| *one == who).map(|(_, rates)| rates)
    }

    /// The router's rate by the kernel's.
    fn ratio(&self) -> Option<f64> {
        let (kernel, ours) = (self.of(Who::Kernel)?, self.of(Who::Butterfly)?);
        Some(ours.frames() / kernel.frames())
    }
}

impl ForwardArgs {
    /// Measures, and prints the table.
    pub async fn run(self, session: &mut Session) -> Result<(), Error> {
        self.check()?;
        let args = self.clone();
        // A thread of its own: it may move to another network namespace, where it stays.
        let (done, measured) = tokio::sync::oneshot::channel();
        std::thread::spawn(move || drop(done.send(args.measure())));
        let measured = measured.await;
        let measured = measured
            .map_err(|_| Error::Refused("the measurement's thread has ended".into()))?
            .map_err(Error::Refused)?;
        match session.out.json {
            true => session.out.value(&measured.value()),
            false => session.out.text(&measured.text()),
        }
    }

    fn check(&self) -> Result<(), Error> {
        let usage = |why: String| Err(Error::Usage(why));
        let named = self.source.is_some();
        if !self.through.is_empty() && self.through.len() != 2 {
            return usage(format!(
                "--through {}: two interfaces are needed, IN,OUT",
                self.through.join(",")
            ));
        }
        if named && self.through.is_empty() && self.mac.is_none() {
            return usage(
                "who forwards? --through IN,OUT: this host; --mac MAC: another one".to_owned(),
            );
        }
        if self.mac.is_some() && self.mode.is_some() {
            return usage("--mode is of this host's router, and --mac measures another".to_owned());
        }
        if !self.destinations.is_power_of_two() {
            return usage(format!(
                "--destinations {}: it is no power of two",
                self.destinations
            ));
        }
        if self.to.hosts().count() < self.destinations as usize {
            return usage(format!(
                "--to {}: it has no {} addresses",
                self.to, self.destinations
            ));
        }
        Ok(())
    }

    /// Who forwards, in turn.
    fn who(&self) -> &'static [Who] {
        match self.mac {
            Some(_) => &[Who::Other],
            None => &[Who::Kernel, Who::Butterfly],
        }
    }

    /// On a thread of its own.
    fn measure(&self) -> Result<Measured, String> {
        let (mut load, forwarder) = self.prepare()?;
        let mut measured = Measured {
            rows: Vec::new(),
            places: Vec::new(),
            notes: Vec::new(),
            findings: Vec::new(),
        };
        for size in &self.sizes {
            load.set_size(*size)?;
            let mut row = Row {
                size: *size,
                rates: Vec::new(),
                by_router: None,
            };
            for who in self.who() {
                let ours = forwarder.as_ref().filter(|_| *who == Who::Butterfly);
                if let Some(forwarder) = ours {
                    measured.places = forwarder.take_over()?.places;
                }
                let before = load.arrived()?;
                row.rates.push((*who, self.windows(&mut load, *who)?));
                if let Some(forwarder) = ours {
                    let state = forwarder.state()?;
                    let arrived = load.arrived()? - before;
                    row.by_router = Some(state.forwarded as f64 / arrived.max(1) as f64);
                    for note in state.notes {
                        if !measured.notes.contains(&note) {
                            measured.notes.push(note);
                        }
                    }
                    forwarder.give_back()?;
                }
            }
            measured.rows.push(row);
        }
        measured.findings = speed::examine(None);
        Ok(measured)
    }

    fn windows(&self, load: &mut Load, who: Who) -> Result<Rates, String> {
        if !load.arrives()? {
            let what = match who {
                Who::Kernel => "the kernel forwards nothing",
                Who::Butterfly => "the router forwards nothing",
                Who::Other => "nothing is forwarded",
            };
            return Err(format!(
                "{what} from {} to {}: is there a route to {} by a neighbour at the sink, does the \
                 host forward (net.ipv4.ip_forward), does it take what comes from {} (rp_filter), \
                 and are the cables there?",
                self.source.as_deref().unwrap_or(cables::OUTSIDE[0]),
                self.sink.as_deref().unwrap_or(cables::OUTSIDE[1]),
                self.to,
                self.from,
            ));
        }
        let mut rates = Rates::default();
        for _ in 0..self.seconds {
            let window = load.window(Duration::from_secs(1))?;
            rates.arrived.push(window.arrived);
            rates.offered.push(window.offered);
        }
        Ok(rates)
    }

    /// Everything on its place: the programs that send and count, and the router, which forwards
    /// nothing yet.
    fn prepare(&self) -> Result<(Load, Option<Forwarder>), String> {
        let mode = self.mode.map(Mode::xdp);
        let (source, sink, gateway, forwarder) = match (&self.source, &self.sink) {
            (Some(source), Some(sink)) => {
                let mut changes = Changes::new().map_err(|e| e.to_string())?;
                let source = cables::find(&mut changes, source)?;
                let sink = cables::find(&mut changes, sink)?;
                let (gateway, forwarder) = match (self.mac, self.through.as_slice()) {
                    (None, [inner, outer]) => {
                        let gateway = cables::find(&mut changes, inner)?.mac;
                        let names = [inner.clone(), outer.clone()];
                        let forwarder = Forwarder::start(names, mode, || Ok(()))?;
                        (gateway, Some(forwarder))
                    }
                    (mac, _) => (mac.unwrap_or(Mac::BROADCAST), None),
                };
                (source, sink, gateway, forwarder)
            }
            _ => {
                let own = cables::enter_own()?;
                let (to, names) = (self.to, cables::INSIDE.map(String::from));
                let (said, gateway) = std::sync::mpsc::channel();
                let prepare = move || {
                    let mac = cables::make(&own, to)?;
                    said.send(mac).map_err(|e| e.to_string())
                };
                // What is sent comes as frames of a NIC's driver, not as buffers of the kernel's.
                let mode = mode.or(Some(xdp::Mode::Native));
                let forwarder = Forwarder::start(names, mode, prepare)?;
                let gateway = gateway.recv().map_err(|e| e.to_string())?;
                let [source, sink] = cables::set_up_outside()?;
                (source, sink, gateway, Some(forwarder))
            }
        };
        let hosts = self.to.hosts().take(self.destinations as usize);
        let traffic = Traffic {
            gateway,
            from: self.from,
            to: hosts.map(IpAddr::from).collect(),
        };
        let load = Load::new((source.index, source.mac), sink.index, traffic);
        let load = load.map_err(|e| format!("from {} to {}: {e}", source.name, sink.name))?;
        match sends(source.index)? {
            false => Err(format!(
                "{} sends no frames of XDP: a driver has to know how, and a veth's far end needs a \
                 program or GRO",
                source.name
            )),
            true => Ok((load, forwarder)),
        }
    }
}

/// Whether an interface sends frames of XDP's, of the calling thread's namespace; true where the
/// kernel cannot say.
fn sends(index: u32) -> Result<bool, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| e.to_string())?;
    let asked = async {
        let mut devices = Devices::new().await?;
        devices.takes_redirects(index).await
    };
    let said = runtime.block_on(asked).map_err(|e| e.to_string())?;
    Ok(said.unwrap_or(true))
}

impl Measured {
    fn text(&self) -> String {
        let number = |value: f64| format!("{value:.0}");
        let mut text = String::new();
        if !self.places.is_empty() {
            text += &format!("The router ran on {}.\n\n", self.places.join(", "));
        }
        let other = self.rows.iter().any(|row| row.of(Who::Other).is_some());
        if other {
            let mut table = Table::new(&[">SIZE", ">FORWARDED/s", ">GBIT/s", ">OFFERED/s"]);
            for row in &self.rows {
                let Some(rates) = row.of(Who::Other) else {
                    continue;
                };
                table.row([
                    row.size.to_string(),
                    number(rates.frames()),
                    format!("{:.2}", rates.gbit(row.size)),
                    number(bench::median(&rates.offered)),
                ]);
            }
            text += &table.render();
        } else {
            let mut table = Table::new(&[
                ">SIZE",
                ">KERNEL/s",
                ">GBIT/s",
                ">BUTTERFLY/s",
                ">GBIT/s",
                ">RATIO",
                ">OFFERED/s",
            ]);
            for row in &self.rows {
                let (Some(kernel), Some(ours)) = (row.of(Who::Kernel), row.of(Who::Butterfly))
                else {
                    continue;
                };
                table.row([
                    row.size.to_string(),
                    number(kernel.frames()),
                    format!("{:.2}", kernel.gbit(row.size)),
                    number(ours.frames()),
                    format!("{:.2}", ours.gbit(row.size)),
                    format!("{:.2}", row.ratio().unwrap_or_default()),
                    number(bench::median(&ours.offered)),
                ]);
            }
            text += &table.render();
        }
        // Else they are of packets that nobody sends here.
        let least = self.rows.iter().filter_map(|row| row.by_router);
        if let Some(least) = least.min_by(f64::total_cmp).filter(|least| *least < 0.99) {
            text += &format!(
                "\nOf some sizes the router forwarded {:.0} % only of what came, and the kernel \
                 the rest:\n",
                100.0 * least
            );
            for note in &self.notes {
                text += &format!("- {note}\n");
            }
        }
        text + &bench::limits(&self.findings)
    }

    fn value(&self) -> Value {
        let rates = |row: &Row, who: Who| {
            row.of(who).map(|rates| {
                json!({
                    "frames_per_second": rates.frames(),
                    "gbit_per_second": rates.gbit(row.size),
                    "windows": rates.arrived,
                    "offered": rates.offered,
                })
            })
        };
        let row = |row: &Row| {
            json!({
                "size": row.size,
                "kernel": rates(row, Who::Kernel),
                "butterfly": rates(row, Who::Butterfly),
                "other": rates(row, Who::Other),
                "ratio": row.ratio(),
                "by_router": row.by_router,
            })
        };
        json!({
            "rows": self.rows.iter().map(row).collect::<Vec<_>>(),
            "places": self.places,
            "notes": self.notes,
            "findings": self.findings.iter().map(doctor::value).collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(arrived: &[f64]) -> Rates {
        Rates {
            arrived: arrived.to_vec(),
            offered: vec![5e6],
        }
    }

    #[test]
    fn a_row_says_medians_bits_and_how_they_compare() {
        let measured = Measured {
            rows: vec![Row {
                size: 1000,
                rates: vec![
                    (Who::Kernel, rates(&[9e5, 5e5, 1e5])),
                    (Who::Butterfly, rates(&[1e6, 2e6, 3e6])),
                ],
                by_router: Some(0.5),
            }],
            places: vec!["in: native XDP".into()],
            notes: vec!["packets of IPv4 are left to the kernel".into()],
            findings: Vec::new(),
        };
        let text = measured.text();
        for part in [
            "500000    4.00      2000000   16.00   4.00    5000000",
            "on in: native XDP.",
            "forwarded 50 % only",
            "packets of IPv4 are left",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let row = &measured.value()["rows"][0];
        assert_eq!((&row["ratio"], &row["other"]), (&json!(4.0), &Value::Null));
    }
}
