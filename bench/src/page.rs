//! docs/performance.md, made of the data that the benchmarks have written to docs/performance: how
//! fast, beside whom, on what. Nothing in it is written by hand but its sentences, so it says what
//! the last whole runs said.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use testkit::image::repository;

use crate::report::Ratios;
use crate::table::OURS_OVER_IT;

/// A table of the page.
struct Table {
    title: &'static str,
    /// How it was measured, in a sentence.
    method: &'static str,
    /// The file of its data in docs/performance, without the ending: the whole table has the same
    /// name.
    data: &'static str,
    /// The name of the first is ours; what it is called in the data and in the table.
    columns: &'static [(&'static str, &'static str)],
    /// What it is called in the data and in the table.
    rows: &'static [(&'static str, &'static str)],
    /// In which rows more is better: frames a second, not nanoseconds.
    more_is_better: fn(&str) -> bool,
    /// Plots of all rows.
    plots: &'static [&'static str],
}

const TABLES: &[Table] = &[
    Table {
        title: "Between guests of a host",
        method: "Two guests by vhost-user, one core for each switch, all switches in turn within a \
                 second, in one run; rules are stateful.",
        data: "switch-near",
        columns: &[
            ("butterfly-rules", "Butterfly, 100 rules"),
            ("testpmd-io", "testpmd, a bare loop"),
            ("testpmd-large", "the same, buffers of 64 KiB"),
            ("ovs-normal", "OVS-DPDK, no rules"),
            ("ovs-ct", "OVS-DPDK, 100 rules"),
        ],
        rows: &[
            ("64", "64 bytes, one flow"),
            ("64x1000flows", "64 bytes, 1,000 flows"),
            ("64x1000000flows", "64 bytes, 1,000,000 flows"),
            ("1518", "1518 bytes"),
            ("tso64k", "64 KiB, segmented by whom they reach"),
            ("connections", "TCP connections, six frames each"),
        ],
        more_is_better: |_| true,
        plots: &["switch-near", "switch-far"],
    },
    Table {
        title: "Round trips between guests",
        method: "The same run: one frame of 64 bytes in flight, from guest to guest and back, and \
                 what an idle switch takes of its core.",
        data: "switch-near",
        columns: &[
            ("butterfly-rules", "Butterfly, 100 rules"),
            ("testpmd-io", "testpmd, a bare loop"),
            ("ovs-normal", "OVS-DPDK, no rules"),
            ("ovs-ct", "OVS-DPDK, 100 rules"),
        ],
        rows: &[
            ("rtt_alone_p50", "median round trip"),
            ("rtt_alone_p99", "99 of 100 round trips"),
            ("first_frame_p50", "first frame after 20 ms of quiet"),
            ("idle_cpu", "idle"),
        ],
        more_is_better: |_| false,
        plots: &[],
    },
    Table {
        title: "To and from other hosts",
        method: "VXLAN over a veth, 100 stateful rules, one core for each host; \
                 the far end drops or sends in the kernel.",
        data: "overlay-near",
        columns: &[
            ("butterfly", "Butterfly, AF_XDP"),
            ("ovs-afxdp", "OVS-DPDK, AF_XDP"),
            ("ovs-afpacket", "OVS-DPDK, packet socket"),
            ("kernel", "Linux: vxlan, bridge, nftables"),
        ],
        rows: &[
            ("to_wire_64", "to the wire, 64 bytes"),
            ("to_wire_1518", "to the wire, 1518 bytes"),
            ("to_wire_tso64k", "to the wire, 64 KiB"),
            ("from_wire_64", "from the wire, 64 bytes"),
            ("from_wire_1518", "from the wire, 1518 bytes"),
        ],
        more_is_better: |_| true,
        plots: &[],
    },
    Table {
        title: "Between containers of a host",
        method: "Two namespaces with the kernel's own TCP and UDP, all entrants in turn in each \
                 round; the kernel's bridge tracks no connections here, its answers pass by their \
                 port.",
        data: "containers",
        columns: &[
            ("ours", "Butterfly, veth, 100 rules"),
            ("ours_tap", "Butterfly, TAP, 100 rules"),
            ("ovs_tap", "OVS-DPDK, TAP, 100 rules"),
            ("bridge", "Linux bridge, no rules"),
            ("bridge_nft", "Linux bridge, 100 rules"),
            ("veth", "a veth pair"),
        ],
        rows: CONTAINERS,
        more_is_better: is_rate,
        plots: &[],
    },
    Table {
        title: "Between containers of two hosts",
        method: "The same run: VXLAN over a veth that passes packets of 64 KiB whole.",
        data: "containers",
        columns: &[
            ("overlay", "Butterfly, 100 rules"),
            ("overlay_by_worker", "the same, all by the worker"),
            ("overlay_vxlan_nft", "Linux: vxlan, bridge, 100 rules"),
        ],
        rows: CONTAINERS,
        more_is_better: is_rate,
        plots: &[],
    },
    Table {
        title: "Between containers of two hosts, over a wire",
        method: "The same run: the veth carries packets of its MTU alone, as a wire does; who \
                 sends cuts, who receives merges.",
        data: "containers",
        columns: &[
            ("wire", "Butterfly, 100 rules"),
            ("wire_by_worker", "the same, all by the worker"),
            ("wire_vxlan_nft", "Linux: vxlan, bridge, 100 rules"),
        ],
        rows: CONTAINERS,
        more_is_better: is_rate,
        plots: &[],
    },
    Table {
        title: "When the switch is killed, upgraded or restarted",
        method: "How long a stream of small frames sees none, beyond the usual time between two; \
                 all rules are stateful, and connections are asked for afterwards. OVS-DPDK has no \
                 upgrade but a restart, and forgets its connections.",
        data: "restart",
        columns: &[("butterfly", "Butterfly"), ("ovs", "OVS-DPDK")],
        rows: &[
            ("quiet_split_p99", "nothing happens, one guest, 99 of 100"),
            ("kill_split_p50", "`kill -9`, one guest, median"),
            ("kill_split_p99", "the same, 99 of 100"),
            ("kill_split_lost_connections", "the same, connections lost"),
            (
                "kill_packed64_p99",
                "`kill -9`, 64 guests with packed rings, 99 of 100",
            ),
            ("kill_tap_p99", "`kill -9`, containers, 99 of 100"),
            ("kill_overlay_p99", "`kill -9`, one of two hosts, 99 of 100"),
            ("upgrade_split_p50", "upgrade, one guest, median"),
            ("upgrade_split_p99", "the same, 99 of 100"),
            (
                "upgrade_packed64_p99",
                "upgrade, 64 guests with packed rings, 99 of 100",
            ),
            ("upgrade_tap_p99", "upgrade, containers, 99 of 100"),
            (
                "upgrade_overlay_p99",
                "upgrade, one of two hosts, 99 of 100",
            ),
            ("restart_split_p50", "restart, one guest, median"),
            ("restart_split_p99", "the same, 99 of 100"),
            (
                "restart_split_lost_connections",
                "the same, connections lost",
            ),
        ],
        more_is_better: |_| false,
        plots: &[],
    },
    Table {
        title: "The router",
        method: "Frames as an interface's driver receives them, 10,000 routes and 8,192 \
                 destinations, out by a veth whose other end drops them; one core.",
        data: "router",
        columns: &[
            ("router", "Butterfly"),
            ("kernel", "Linux forwarding"),
            ("fib_lookup", "XDP with `bpf_fib_lookup`"),
        ],
        rows: &[
            ("live v4 64 bytes", "IPv4, 64 bytes"),
            ("live v4 1518 bytes", "IPv4, 1518 bytes"),
            ("live v6 64 bytes", "IPv6, 64 bytes"),
            ("live v6 1518 bytes", "IPv6, 1518 bytes"),
            (
                "v4 1M routes 1 dst",
                "lookup alone, a million routes of IPv4, one destination",
            ),
            ("v4 1M routes 1M dst", "the same, a million destinations"),
        ],
        more_is_better: |_| false,
        plots: &[],
    },
    Table {
        title: "The load balancer, a packet",
        method: "BPF_PROG_TEST_RUN, net of an empty program; beside the usual design, an LRU entry \
                 for each flow.",
        data: "balancer",
        columns: &[
            ("balancer", "Butterfly"),
            ("classic", "an entry for each flow"),
        ],
        rows: &[
            ("hit_1", "one flow"),
            ("hit_1m", "1,048,576 flows"),
            ("new", "every packet a new flow"),
            ("not_ours", "a packet for nobody here"),
        ],
        more_is_better: |_| false,
        plots: &[],
    },
    Table {
        title: "The load balancer, live",
        method: "Frames over a veth to the balancer and on to servers, one core.",
        data: "balancer",
        columns: &[
            ("balancer", "Butterfly"),
            ("classic", "an entry for each flow"),
            ("nftables", "nftables"),
        ],
        rows: &[("frames over veth", "frames")],
        more_is_better: |_| true,
        plots: &[],
    },
];

const CONTAINERS: &[(&str, &str)] = &[
    ("stream", "a TCP stream"),
    ("udp64", "datagrams in frames of 64 bytes"),
    ("rtt_p50", "TCP round trip, median"),
    ("rtt_p99", "TCP round trip, 99 of 100"),
    ("connections", "TCP connections, one after the other"),
];

/// Of a row whose name says it.
fn is_rate(row: &str) -> bool {
    !row.starts_with("rtt")
}

const HEAD: &str = "# Performance

How fast, beside whom, on what. This page is made from the data of the benchmarks' last whole
runs, by `make performance-page`: not by hand. Cells are medians with half their spread; in
brackets how many times as good Butterfly is: 2 is twice the rate or half the time. Machines were
shared with others, so ratios, which are medians of windows that follow each other, say more than
numbers. How each is measured is in [bench/README.md](../bench/README.md), what was tried on the
way in the [journal](journal/README.md); every cell is in [performance](performance).
";

/// Writes the page.
pub fn run() -> Result<Ratios, String> {
    let path = repository().join("docs/performance.md");
    std::fs::write(&path, page()?).map_err(|e| format!("cannot write {}: {e}", path.display()))?;
    Ok(Ratios::default())
}

fn page() -> Result<String, String> {
    let folder = repository().join("docs/performance");
    let mut page = HEAD.to_owned();
    for table in TABLES {
        // Before its first whole run a benchmark has no table.
        if folder.join(format!("{}.tsv", table.data)).exists() {
            write(table, &Data::read(&folder, table.data)?, &mut page)?;
        }
    }
    Ok(page)
}

fn write(table: &Table, data: &Data, page: &mut String) -> Result<(), String> {
    let Table {
        title,
        method,
        data: file,
        ..
    } = table;
    let on = match &data.machine {
        Some(machine) => format!("On {machine}. "),
        None => String::new(),
    };
    *page +=
        &format!("\n## {title}\n\n{method} {on}All rows: [{file}.md](performance/{file}.md).\n\n|");
    for (_, column) in table.columns {
        *page += &format!(" | {column}");
    }
    *page += &format!(" |\n|{}\n", "---|".repeat(table.columns.len() + 1));
    let ours = table.columns[0].0;
    for (row, what) in table.rows {
        let own = data
            .cell(row, ours)
            .ok_or_else(|| format!("docs/performance/{file}.tsv has no row '{row}' of {ours}"))?;
        *page += &format!("| {what}, {} ", own.unit);
        for (index, (peer, _)) in table.columns.iter().enumerate() {
            *page += &match data.cell(row, peer) {
                Some(cell) if index == 0 => {
                    format!("| **{}**{} ", short(cell.median), cell.spread())
                }
                // Nothing is a part of nothing.
                Some(cell) if own.median == 0.0 => {
                    format!("| {}{} ", short(cell.median), cell.spread())
                }
                Some(cell) => {
                    let ours_over_it = data.ratio(row, peer).unwrap_or(own.median / cell.median);
                    let times = if (table.more_is_better)(row) {
                        ours_over_it
                    } else {
                        1.0 / ours_over_it
                    };
                    format!(
                        "| {}{} ({}) ",
                        short(cell.median),
                        cell.spread(),
                        short(times)
                    )
                }
                None => "| – ".to_owned(),
            };
        }
        *page += "|\n";
    }
    for plot in table.plots {
        let _ = write!(page, "\n![{plot}](performance/{plot}.svg)\n");
    }
    Ok(())
}

/// Three digits that count.
fn short(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value if value >= 1.0 => format!("{value:.2}"),
        value => format!("{value:.3}"),
    }
}

/// A file of data: by row and peer.
struct Data {
    /// The first line, if it says on what and when it was measured.
    machine: Option<String>,
    cells: BTreeMap<(String, String), Cell>,
    /// Where it was measured window by window: ours over the peer's.
    ratios: BTreeMap<(String, String), f64>,
}

struct Cell {
    unit: String,
    median: f64,
    least: f64,
    most: f64,
    /// It is a number of a whole run, such as its 99th percentile, and has no spread.
    once: bool,
}

impl Cell {
    /// Half the way from the least to the most, in percent of the median.
    fn spread(&self) -> String {
        if self.once {
            return String::new();
        }
        format!(
            " ±{:.0} %",
            (self.most - self.least) / self.median / 2.0 * 100.0
        )
    }
}

impl Data {
    fn read(folder: &Path, name: &str) -> Result<Data, String> {
        let path = folder.join(format!("{name}.tsv"));
        let text = std::fs::read_to_string(&path)
            .map_err(|e| format!("cannot read {}: {e}", path.display()))?;
        let wrong = |line: &str| format!("{}: this is no row: {line:?}", path.display());
        let mut data = Data {
            machine: text
                .lines()
                .next()
                .and_then(|line| line.strip_prefix("# "))
                .map(str::to_owned),
            cells: BTreeMap::new(),
            ratios: BTreeMap::new(),
        };
        // The first line that is no comment has the names of the columns.
        for line in text.lines().filter(|line| !line.starts_with('#')).skip(1) {
            let columns: Vec<&str> = line.split('\t').collect();
            let [row, peer, unit, numbers @ ..] = &columns[..] else {
                return Err(wrong(line));
            };
            let numbers: Vec<f64> = numbers
                .iter()
                .filter_map(|number| number.parse().ok())
                .collect();
            let [median, least, most, ref samples @ ..] = numbers[..] else {
                return Err(wrong(line));
            };
            let key = ((*row).to_owned(), (*peer).to_owned());
            if *unit == OURS_OVER_IT {
                data.ratios.insert(key, median);
                continue;
            }
            let unit = (*unit).to_owned();
            data.cells.insert(
                key,
                Cell {
                    unit,
                    median,
                    least,
                    most,
                    once: samples.first() == Some(&1.0),
                },
            );
        }
        Ok(data)
    }

    fn cell(&self, row: &str, peer: &str) -> Option<&Cell> {
        self.cells.get(&(row.to_owned(), peer.to_owned()))
    }

    fn ratio(&self, row: &str, peer: &str) -> Option<f64> {
        self.ratios.get(&(row.to_owned(), peer.to_owned())).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_what_the_data_says() {
        let path = repository().join("docs/performance.md");
        let there = std::fs::read_to_string(&path).unwrap();
        assert!(
            there == page().unwrap(),
            "docs/performance.md is not what docs/performance/*.tsv make: run `make \
             performance-page`"
        );
    }

    #[test]
    fn a_cell_is_in_terms_of_ours_whichever_is_better() {
        let cell = |median: f64| Cell {
            unit: "ns".to_owned(),
            median,
            least: median * 0.9,
            most: median * 1.1,
            once: false,
        };
        let mut data = Data {
            machine: None,
            cells: [("us", 20.0), ("them", 50.0)]
                .map(|(who, median)| (("row".to_owned(), who.to_owned()), cell(median)))
                .into(),
            ratios: BTreeMap::new(),
        };
        let table = |more_is_better: fn(&str) -> bool| Table {
            title: "T",
            method: "M.",
            data: "file",
            columns: &[("us", "Us"), ("them", "Them"), ("nobody", "Nobody")],
            rows: &[("row", "a row")],
            more_is_better,
            plots: &[],
        };
        let mut page = String::new();
        write(&table(|_| false), &data, &mut page).unwrap();
        assert!(
            page.ends_with("| a row, ns | **20.0** ±10 % | 50.0 ±10 % (2.50) | – |\n"),
            "{page}"
        );
        page.clear();
        write(&table(|_| true), &data, &mut page).unwrap();
        assert!(
            page.ends_with("| **20.0** ±10 % | 50.0 ±10 % (0.400) | – |\n"),
            "{page}"
        );
        // The ratio that was measured is not that of the medians.
        data.ratios
            .insert(("row".to_owned(), "them".to_owned()), 0.5);
        page.clear();
        write(&table(|_| false), &data, &mut page).unwrap();
        assert!(page.ends_with("| 50.0 ±10 % (2.00) | – |\n"), "{page}");
        // Of what has no spread none is shown, and nothing is compared with 0.
        for (who, median) in [("us", 0.0), ("them", 50.0)] {
            let once = Cell {
                once: true,
                ..cell(median)
            };
            data.cells.insert(("row".to_owned(), who.to_owned()), once);
        }
        page.clear();
        write(&table(|_| false), &data, &mut page).unwrap();
        assert!(
            page.ends_with("| a row, ns | **0** | 50.0 | – |\n"),
            "{page}"
        );
    }
}
